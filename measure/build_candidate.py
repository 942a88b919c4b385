"""Build one candidate: JSON of kernel and schedule to object code, or the reason why not."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

from compiler.errors import MeasureError, TunefarmError
from compiler.target import Target
from measure.job import MeasureRequest, Status

if TYPE_CHECKING:
    from compiler.schedule.steps import PackLayout

COMPILE = "measure.build_candidate:compile_candidate"


@dataclass(frozen=True, slots=True)
class BuiltCandidate:
    """Machine code with the kernel ABI, and what its caller must provide.

    `constant_layouts` says how constant inputs are packed, by name; inputs that are not named are
    passed as they are.
    """

    symbol: str
    object_code: bytes = field(repr=False)
    workspace_bytes: int = 0
    constant_layouts: tuple[tuple[str, PackLayout], ...] = ()

    def to_bytes(self) -> bytes:
        return pickle.dumps(self, protocol=pickle.HIGHEST_PROTOCOL)

    @staticmethod
    def from_bytes(data: bytes) -> BuiltCandidate:
        """The inverse of `to_bytes`; only for what our own build step wrote."""
        candidate = pickle.loads(data)
        if not isinstance(candidate, BuiltCandidate):
            raise MeasureError(f"not a built candidate: {type(candidate).__name__}")
        return candidate


@dataclass(frozen=True, slots=True)
class BuildResult:
    """How a build ended. `candidate` (a `BuiltCandidate` as bytes) is set when the status is OK."""

    status: Status
    candidate: bytes = field(default=b"", repr=False)
    error: str = ""
    build_seconds: float = 0.0


Compile: TypeAlias = Callable[[MeasureRequest, Target], BuiltCandidate]


def compile_candidate(request: MeasureRequest, target: Target) -> BuiltCandidate:
    """Compile the request's kernel under its schedule; raises what the compiler raises."""
    from compiler.kernels.serialize import kernel_from_json
    from compiler.llvm import compile_kernel
    from compiler.schedule.steps import Schedule

    kernel = kernel_from_json(request.kernel)
    compiled = compile_kernel(kernel, Schedule.from_json(request.schedule), target)
    return BuiltCandidate(
        compiled.symbol,
        compiled.object_code,
        compiled.workspace_bytes,
        compiled.constant_layouts,
    )


def build_candidate(
    request: MeasureRequest, target: Target, compile: Compile = compile_candidate
) -> BuildResult:
    """Build a candidate; whatever goes wrong in it is a BUILD_ERROR with the text, never raised."""
    start = perf_counter()
    try:
        candidate = compile(request, target).to_bytes()
    except MemoryError as error:
        return BuildResult(Status.OUT_OF_MEMORY, b"", str(error), perf_counter() - start)
    except TunefarmError as error:
        text = f"{error}\n{error.program}" if error.program else str(error)
        return BuildResult(Status.BUILD_ERROR, b"", text, perf_counter() - start)
    except Exception:  # noqa: BLE001 - any failure in lowering is the candidate's
        text = traceback.format_exc()
        return BuildResult(Status.BUILD_ERROR, b"", text, perf_counter() - start)
    return BuildResult(Status.OK, candidate, "", perf_counter() - start)


def load_compile(path: str) -> Compile:
    """The compile function at `module:name`; raises MeasureError when there is none."""
    module, _, name = path.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise MeasureError(f"no compile function at {path}: {error}") from error
    if not callable(function):
        raise MeasureError(f"{path} is not a function")
    result: Compile = function
    return result
