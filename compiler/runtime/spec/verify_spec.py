"""The rules of an ExecutableSpec: what frames, profiles and the C library rely on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.runtime.spec.executable_spec import (
    ALIGNMENT,
    AgainStep,
    CallStep,
    Condition,
    CopyStep,
    ExecutableSpec,
    FunctionStep,
    Location,
    LoopStep,
    Place,
    dense_places,
    made_for,
    report_bytes,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.open_axes import bound_shape, places_of
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.compiler.types.verify_signature import signature_problem


def verify_spec(spec: ExecutableSpec) -> None:
    """Raise `VerifyError` at the first broken rule.

    Names of ports and kernels are distinct, every step runs a kernel that there is, its buffers lie
    where there is memory, its workspace fits the arena, copies fit both their buffers, and a
    signature is one of its ports.
    """
    problem = _problem(spec)
    if problem:
        raise VerifyError(f"executable {spec.name}: {problem}")


def _problem(spec: ExecutableSpec) -> str:
    """Why a spec is wrong, or nothing."""
    symbols = [part.symbol for part in spec.objects]
    for kind, names in (
        ("input", [name for name, _ in spec.inputs]),
        ("output", [name for name, _ in spec.outputs]),
        ("kernel", symbols),
    ):
        if len(set(names)) != len(names):
            return f"two {kind}s have the same name"
    if len(spec.kernels) != len(symbols):
        return f"{len(symbols)} kernels have {len(spec.kernels)} reports"
    if spec.threads < 1 or spec.arena_bytes < 0:
        return f"it takes {spec.threads} threads and {spec.arena_bytes} bytes of arena"
    for what, ports, tensors in (
        ("input", spec.structure.inputs, spec.inputs),
        ("output", spec.structure.outputs, spec.outputs),
    ):
        for port in ports:
            if not set(port.members or ()) <= {name for name, _ in tensors}:
                return f"the {what} {port.name!r} is made of tensors that are no {what}s"
    if spec.arena_bytes < report_bytes(spec.steps):
        return f"its arena of {spec.arena_bytes} bytes has no room for a report"
    sizes = _Sizes(spec)
    workspaces = {
        symbol: report.workspace_bytes for symbol, report in zip(symbols, spec.kernels, strict=True)
    }
    loops = _LoopRules(sizes.room)
    for step in spec.steps:
        if isinstance(step, FunctionStep):
            problem = sizes.function_problem(step, len(spec.functions))
        elif isinstance(step, CallStep):
            problem = sizes.call_problem(step, workspaces)
        elif isinstance(step, LoopStep | AgainStep):
            problem = loops.problem(step)
        else:
            problem = sizes.copy_problem(step)
        if problem:
            return f"{step}: {problem}"
    if loops.open:
        return f"{loops.open[-1]}: the loop has no end"
    problem = signature_problem(spec.signature, spec.inputs, spec.outputs)
    return problem or _guard_problem(spec)


def _guard_problem(spec: ExecutableSpec) -> str:
    """Why a guard is wrong, or nothing: it must be met by some shape that the input may have."""
    types = dict(spec.inputs)
    for guard in spec.guards:
        type = types.get(guard.input)
        if type is None or not 0 <= guard.axis < len(type.shape):
            return f"there is no axis {guard.axis} of {guard.input!r}, which {guard} is about"
        if not 0 <= guard.low <= guard.high:
            return f"no size is {guard}"
    return ""


class _Sizes:
    """The bytes of every buffer that steps may name."""

    def __init__(self, spec: ExecutableSpec) -> None:
        self._arena_bytes = spec.arena_bytes
        self._places = {
            Place.INPUT: _bytes_of(spec.inputs),
            Place.OUTPUT: _bytes_of(spec.outputs),
            Place.CONSTANT: [array.nbytes for array in spec.constants],
        }

    def call_problem(self, step: CallStep, workspaces: dict[str, int]) -> str:
        """Why a call is wrong, or nothing; `workspaces` has the kernels' bytes by symbol."""
        if step.symbol not in workspaces:
            return "there is no such kernel"
        for location in step.buffers:
            if self.room(location) is None:
                return f"there is no {location}"
        problem = self._guard_problem(step.guards)
        if problem:
            return problem
        size = workspaces[step.symbol]
        if (step.workspace is None) != (size == 0):
            return f"the kernel has {size} bytes of workspace"
        if step.workspace is not None:
            room = self.room(Location(Place.ARENA, step.workspace))
            if step.workspace % ALIGNMENT or room is None or room < size:
                return f"its workspace of {size} bytes is not within the arena"
        return ""

    def function_problem(self, step: FunctionStep, functions: int) -> str:
        """Why a function's call is wrong, or nothing; there are so many functions."""
        if not 0 <= step.function < functions:
            return "there is no such function"
        if len(step.types) != len(step.buffers) or not 0 < step.outputs <= len(step.buffers):
            return "its buffers are not those of its types"
        if None in step.buffers[len(step.buffers) - step.outputs :]:
            return "an output has no buffer"
        for location, type in zip(step.buffers, step.types, strict=True):
            if (location is None) != (type is None):
                return "its buffers are not those of its types"
            room = None if location is None else self.room(location)
            if type is not None and (room is None or room < type.bytes):
                return f"{location} has no {type.bytes} bytes"
        return self._open_sizes_problem(step) or self._guard_problem(step.guards)

    def _open_sizes_problem(self, step: FunctionStep) -> str:
        """Why what a function's call knows of dynamic shape is wrong, or nothing."""
        if not step.axes:
            return "" if step.sizes is None else "it has sizes of nothing"
        if len(step.axes) != len(step.types) or step.sizes is None:
            return "its axes are not those of its types"
        length = 0
        for type, axes in zip(step.types, step.axes, strict=True):
            if axes is None:
                continue
            if type is None or bound_shape(axes) != type.shape:
                return f"{type} has other axes: {axes}"
            if any(true > extent for axis in axes for true, extent in axis):
                return f"there is more of {type} than it has room for"
            length = max(length, *(place + 1 for place in (-1, *places_of(axes))))
        if (self.room(step.sizes) or 0) < 8 * length:
            return f"{step.sizes} has no {length} sizes"
        size = dense_places(step.types, step.axes)[1]
        if (step.workspace is None) != (size == 0):
            return f"it has {size} bytes of dense copies"
        if step.workspace is not None:
            room = self.room(Location(Place.ARENA, step.workspace))
            if step.workspace % ALIGNMENT or room is None or room < size:
                return f"its {size} bytes of dense copies are not within the arena"
        return ""

    def _guard_problem(self, guards: Sequence[Condition]) -> str:
        for guard in guards:
            if not self.room(guard.place):
                return f"there is no {guard.place} to ask"
        return ""

    def copy_problem(self, step: CopyStep) -> str:
        """Why a copy is wrong, or nothing."""
        for location in (step.source, step.destination):
            room = self.room(location)
            if room is None or not 0 <= step.bytes <= room:
                return f"{location} has no {step.bytes} bytes"
        return ""

    def room(self, location: Location) -> int | None:
        """The bytes from a location to its buffer's or the arena's end; None if it is in none."""
        if location.place is Place.ARENA:
            inside = 0 <= location.number <= self._arena_bytes and location.offset == 0
            return self._arena_bytes - location.number if inside else None
        sizes = self._places[location.place]
        if not 0 <= location.number < len(sizes):
            return None
        room = sizes[location.number] - location.offset
        return room if 0 <= room <= sizes[location.number] else None


def _bytes_of(ports: tuple[tuple[str, TensorType], ...]) -> list[int]:
    return [type.bytes for _, type in ports]


_INTEGER_BYTES = 8


class _LoopRules:
    """Goes through the steps in order; `open` are the loops that have not ended yet."""

    def __init__(self, room: Callable[[Location], int | None]) -> None:
        """`room` gives the bytes that there are behind a location, None if it is nowhere."""
        self._room = room
        self._numbers: set[int] = set()
        self.open: list[LoopStep] = []

    def problem(self, step: LoopStep | AgainStep) -> str:
        """Why a step is wrong, or nothing."""
        if isinstance(step, AgainStep):
            return self._end_problem(step)
        if step.loop in self._numbers:
            return "there are two such loops"
        self._numbers.add(step.loop)
        self.open.append(step)
        if step.most < 1:
            return f"it has at most {step.most} rounds"
        asked = [guard.place for guard in step.guards]
        return self._misses([step.limit, step.index], _INTEGER_BYTES) or (
            self._misses([step.first, *asked], 1)
            or next(
                filter(
                    None,
                    (self._copy_problem(c.source, c.destination, c.bytes) for c in step.initial),
                ),
                "",
            )
        )

    def _end_problem(self, step: AgainStep) -> str:
        if not self.open or self.open[-1].loop != step.loop:
            return "no such loop has begun"
        begin = self.open.pop()
        for row in step.rows:
            problem = self._copy_problem(row.source, row.destination, row.bytes)
            room = self._room(row.destination)
            if problem or room is None or room < begin.most * row.bytes:
                return problem or f"{row.destination} has no {begin.most} rows"
            if row.backward and begin.limit is None and step.again is not None:
                return f"the last row of {row.destination} is not known before the end"
        return self._misses([step.again, step.going], 1) or (
            self._misses([step.count], _INTEGER_BYTES)
            or next(
                filter(
                    None,
                    (self._copy_problem(c.source, c.destination, c.bytes) for c in step.following),
                ),
                "",
            )
        )

    def _copy_problem(self, source: Location, destination: Location, bytes: int) -> str:
        return self._misses([source, destination], bytes) if bytes >= 0 else "it copies nothing"

    def _misses(self, locations: list[Location | None], bytes: int) -> str:
        """Which location has not so many bytes, or nothing."""
        for location in locations:
            room = None if location is None else self._room(location)
            if location is not None and (room is None or room < bytes):
                return f"{location} has no {bytes} bytes"
        return ""


def verify_programs(programs: Sequence[ExecutableSpec]) -> None:
    """Raise `VerifyError` unless the programs are of one model, in order, and each can be reached.

    All have the same inputs and outputs, but for their extents and the ranks of outputs; fallbacks
    follow the others; no two are for the same CPU and sizes.
    """
    problem = _programs_problem(programs)
    if problem:
        raise VerifyError(f"executable {programs[0].name}: {problem}")


def _programs_problem(programs: Sequence[ExecutableSpec]) -> str:
    kinds = [program.fallback for program in programs]
    if kinds != sorted(kinds):
        return "its programs are not in order"
    first = programs[0]
    for program in programs[1:]:
        if _ports(program) != _ports(first):
            return "its programs have not the same inputs and outputs"
        if program.structure != first.structure:
            return "its programs have not the same lists and optionals"
    for number, program in enumerate(programs):
        for other in programs[:number]:
            if made_for(other) != made_for(program):
                continue
            if not (other.guards and program.guards) or other.guards == program.guards:
                return f"two programs are for {program.target.cpu} and the same sizes"
    return ""


def _ports(program: ExecutableSpec) -> tuple[list[tuple[str, DType, int]], list[tuple[str, DType]]]:
    signature = program.signature
    ranked = [(port.name, port.dtype, len(port.shape)) for port in signature.inputs]
    return ranked, [(port.name, port.dtype) for port in signature.outputs]
