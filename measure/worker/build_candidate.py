"""Build one candidate: JSON of kernel and schedule to object code, or the reason why not."""

from __future__ import annotations

import io
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

from tunefarm.compiler.errors import MeasureError, TunefarmError
from tunefarm.compiler.target import Target
from tunefarm.measure.measurement import MeasureRequest, Status
from tunefarm.measure.sandbox.messages import InFlight, Message, encode, read_message

if TYPE_CHECKING:
    from tunefarm.compiler.loops.constant_layout import ConstantLayout


@dataclass(frozen=True, slots=True)
class BuiltCandidate:
    """Machine code with the kernel ABI, and what its caller must provide.

    `constant_layouts` says how constant inputs are packed, by name; inputs that are not named are
    passed as they are. `rounds_data`: it rounds data to 8 bits, see
    `tunefarm.compiler.kernels.limb_dot`.
    """

    symbol: str
    object_code: bytes = field(repr=False)
    workspace_bytes: int = 0
    constant_layouts: tuple[tuple[str, ConstantLayout], ...] = ()
    rounds_data: bool = False


def pack_candidates(candidates: Sequence[BuiltCandidate]) -> bytes:
    """The candidates of a request as bytes: a frame of `tunefarm.measure.sandbox.messages` for
    each."""
    return b"".join(map(_pack, candidates))


def _pack(candidate: BuiltCandidate) -> bytes:
    fields = {
        "symbol": candidate.symbol,
        "workspace_bytes": candidate.workspace_bytes,
        "constant_layouts": [
            [name, layout.to_json()] for name, layout in candidate.constant_layouts
        ],
        "rounds_data": candidate.rounds_data,
    }
    return encode(Message(fields, candidate.object_code))


def unpack_candidates(data: bytes) -> tuple[BuiltCandidate, ...]:
    """The inverse of `pack_candidates`. Raises MeasureError for anything else."""
    stream = io.BytesIO(data)
    candidates = []
    while (message := read_message(stream)) is not None:
        candidates.append(_unpack(message))
    if not candidates:
        raise MeasureError("no built candidates")
    return tuple(candidates)


def _unpack(message: Message) -> BuiltCandidate:
    from tunefarm.compiler.loops.constant_layout import ConstantLayout

    fields = message.fields
    try:
        layouts = tuple(
            (str(name), ConstantLayout.from_json(layout))
            for name, layout in fields["constant_layouts"]
        )
        symbol, workspace = str(fields["symbol"]), int(fields["workspace_bytes"])
        rounds = bool(fields["rounds_data"])
    except (KeyError, TypeError, ValueError) as error:
        raise MeasureError(f"a built candidate cannot be read: {error}") from error
    return BuiltCandidate(symbol, message.blob, workspace, layouts, rounds)


@dataclass(frozen=True, slots=True)
class BuildResult:
    """How a build ended. `candidates`, by `pack_candidates`, are set when the status is OK.

    When one schedule of a comparison failed, `culprit` is its number.
    """

    status: Status
    candidates: bytes = field(default=b"", repr=False)
    error: str = ""
    build_seconds: float = 0.0
    culprit: int = 0


Compile: TypeAlias = Callable[[MeasureRequest, Target], BuiltCandidate]
COMPILE = "tunefarm.measure.worker.build_candidate:compile_candidate"
"""The path of the build step that a worker uses, unless it gets another one."""


def compile_candidate(request: MeasureRequest, target: Target) -> BuiltCandidate:
    """Compile the request's kernel under its schedule to what a build of its precision runs.

    Raises what the compiler raises, ScheduleError among others for a schedule whose sums are not in
    the order that the precision fixes.
    """
    from tunefarm.compiler.kernels.serialize import kernel_from_json
    from tunefarm.compiler.llvm import compile_kernel
    from tunefarm.compiler.schedule.schedule import Schedule
    from tunefarm.compiler.schedule.spaces import SpaceCache
    from tunefarm.compiler.types.numerics import Algorithm

    kernel, schedule = kernel_from_json(request.kernel), Schedule.from_json(request.schedule)
    spaces = SpaceCache(target, request.threads, request.numerics)
    spaces.check(kernel, schedule)
    fixed = spaces.numerics.fixes_order
    compiled = compile_kernel(kernel, schedule, spaces.code_target, fixed_rounding=fixed)
    return BuiltCandidate(
        compiled.symbol,
        compiled.object_code,
        compiled.workspace_bytes,
        compiled.constant_layouts,
        compiled.algorithm is Algorithm.ROUNDED_DATA,
    )


def build_candidate(
    request: MeasureRequest,
    target: Target,
    compile: Compile = compile_candidate,
    in_flight: InFlight | None = None,
) -> BuildResult:
    """Build the request's schedules; whatever goes wrong is a BUILD_ERROR with its text.

    `in_flight` is where the number of the schedule is noted that is built next.
    """
    start = perf_counter()

    def failed(status: Status, error: str) -> BuildResult:
        return BuildResult(status, b"", error, perf_counter() - start, len(built))

    built: list[BuiltCandidate] = []
    try:
        for number, schedule in enumerate(request.schedules):
            if in_flight is not None:
                in_flight.note(number)
            built.append(compile(replace(request, schedule=schedule, rivals=()), target))
    except MemoryError as error:
        return failed(Status.OUT_OF_MEMORY, str(error))
    except TunefarmError as error:
        return failed(
            Status.BUILD_ERROR, f"{error}\n{error.program}" if error.program else str(error)
        )
    except Exception:  # noqa: BLE001 - any failure in lowering is the candidate's
        return failed(Status.BUILD_ERROR, traceback.format_exc())
    return BuildResult(Status.OK, pack_candidates(built), "", perf_counter() - start)
