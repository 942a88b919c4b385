"""Calls of functions that are not ours in the entry function, as LLVM IR.

The tensors of a function are described next to the entry, as data. The pointers to functions and
contexts come behind those of the constants; a function that fails has its step's number and its
code written into the report, at the end of the arena, and ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tunefarm.compiler.foreign_functions import ELEMENT_TYPES
from tunefarm.compiler.runtime.entry.ir_body import IrBody, SizeEmitter, copy_function
from tunefarm.compiler.runtime.spec.executable_spec import (
    REPORT_BYTES,
    ExecutableSpec,
    FunctionStep,
    Location,
    Place,
    RunStep,
    dense_places,
    extents_bytes,
)
from tunefarm.compiler.runtime.spec.size_table import layout_of_axes
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.open_axes import (
    OpenAxes,
    place_symbol,
    places_of,
    symbolic,
    whole_axes,
)
from tunefarm.compiler.types.padded_shape import size_of
from tunefarm.compiler.types.sizes import Dimension

TEXT_OFFSET = 8
"""Of the report's text; its first two 32-bit numbers are the failed step + 1, and the code.

During a call the second one is the step + 1: who finds it there knows which call did not end.
"""


@frozen
class FunctionSlots:
    """Where in the table of constants the functions begin, and where in the arena the report is.

    Before the report are the `extents` of calls on dynamic shapes.
    """

    functions: int
    report: int
    extents: int


def function_slots(spec: ExecutableSpec) -> FunctionSlots:
    """Those of an executable."""
    report = spec.arena_bytes - REPORT_BYTES
    return FunctionSlots(len(spec.constants), report, report - extents_bytes(spec.steps))


def facts_ir(number: int, step: FunctionStep) -> str:
    """What call `number` tells its function: element types, ranks, sizes and attributes.

    Each run gives the dynamic sizes.
    """
    numbers = [0 if type is None else ELEMENT_TYPES[type.dtype] for type in step.types]
    ranks = [0 if type is None else len(type.shape) for type in step.types]
    extents = [extent for type in step.types if type is not None for extent in type.shape]
    begins = [sum(ranks[:position]) for position in range(len(ranks))]
    sizes, name = max(1, len(extents)), f"@function_{number}"
    pointers = ", ".join(
        f"ptr getelementptr (i64, ptr {name}_extents, i64 {begin})" for begin in begins
    )
    text = step.arguments.encode() + b"\0"
    extents_ir = (
        f"{name}_extents = private constant [{sizes} x i64] [{_integers('i64', extents or [0])}]\n"
        f"{name}_sizes = private constant [{len(begins)} x ptr] [{pointers}]\n"
    )
    return (
        f"{name}_types = private constant [{len(numbers)} x i32] [{_integers('i32', numbers)}]\n"
        f"{name}_ranks = private constant [{len(ranks)} x i32] [{_integers('i32', ranks)}]\n"
        f"{_copies_ir(number, step) if step.axes else extents_ir}"
        f'{name}_arguments = private constant [{len(text)} x i8] c"{_bytes(text)}"\n'
    )


def call_ir(number: int, step: FunctionStep, slots: FunctionSlots, index: int) -> str:
    """Call `number` of a function, step `index`, once its pointers are in `%buffers`."""
    inputs = len(step.buffers) - step.outputs
    function, name = slots.functions + 2 * step.function, f"@function_{number}"
    sizes = _SIZES_TABLE if step.axes else f"{name}_sizes"
    v = f"%f{number}"
    return f"""\
  {v}.slot = getelementptr ptr, ptr %constants, i64 {function}
  {v}.pointer = load ptr, ptr {v}.slot
  {v}.context_slot = getelementptr ptr, ptr %constants, i64 {function + 1}
  {v}.context = load ptr, ptr {v}.context_slot
  {v}.text = getelementptr i8, ptr %report, i64 {TEXT_OFFSET}
  store i8 0, ptr {v}.text
  {v}.at = getelementptr i8, ptr %report, i64 4
  store i32 {index + 1}, ptr {v}.at
  {v}.code = call i32 {v}.pointer(i32 {inputs}, i32 {step.outputs}, ptr %buffers, \
ptr {name}_types, ptr {name}_ranks, ptr {sizes}, ptr {name}_arguments, \
ptr {v}.context, ptr {v}.text, i64 {REPORT_BYTES - TEXT_OFFSET})
  {v}.fails = icmp ne i32 {v}.code, 0
  br i1 {v}.fails, label %failed.{number}, label %after.{number}
failed.{number}:
  store i32 {index + 1}, ptr %report
  store i32 {v}.code, ptr {v}.at
  ret void
after.{number}:
  store i32 0, ptr {v}.at"""


def report_ir(slots: FunctionSlots) -> str:
    """Find the report and say in it that nothing has failed."""
    return f"""\
  %report = getelementptr i8, ptr %arena, i64 {slots.report}
  store i32 0, ptr %report"""


def _integers(type: str, numbers: Sequence[int]) -> str:
    return ", ".join(f"{type} {number}" for number in numbers)


def _bytes(text: bytes) -> str:
    return "".join(f"\\{byte:02x}" for byte in text)


_SIZES_TABLE = "%function_sizes"
"""Pointers to the extents of each tensor of the call being made."""


def sizes_table_ir(steps: Sequence[RunStep]) -> str:
    """What makes room for `_SIZES_TABLE`; nothing where no call needs it."""
    calls = [step for step in steps if isinstance(step, FunctionStep) and step.axes]
    if not calls:
        return ""
    most = max(len(step.types) for step in calls)
    return f"{_SIZES_TABLE} = alloca [{most} x ptr], align 16"


def _copies_ir(number: int, step: FunctionStep) -> str:
    """The functions (to, from, sizes) that copy tensors of call `number` to and from dense ones."""
    found = []
    for copy in _copies(number, step):
        layout = layout_of_axes(copy.bytes, symbolic(copy.axes))

        def operand(body: IrBody, dimension: Dimension, axes: OpenAxes = copy.axes) -> str:
            return _sizes_of(body, [axes], "%numbers").dimension(dimension)

        found.append(copy_function(copy.function, layout, not copy.is_result, operand))
    return "".join(found)


@frozen
class OpenCall:
    """Writes what is round call `number` on tensors with dynamic shapes into a body; `extents` is
    their offset in the arena.

    `pointer` appends what computes a location's address, and gives its name. Before the call the
    true extents are stored in the arena, in front of the report, and pointers to them in a table on
    the stack: both belong to the run alone. What has padding inside goes through dense copies in
    the workspace (`tunefarm.compiler.runtime.spec.executable_spec`).
    """

    body: IrBody
    pointer: Callable[[Location], str]
    number: int
    step: FunctionStep
    extents: int

    def begin(self) -> None:
        """Extents, and dense copies of inputs; all tensors' places are in `%buffers`."""
        body, step = self.body, self.step
        vector = self._vector()
        emitter = _sizes_of(body, [axes for axes in step.axes if axes is not None], vector)
        count = 0
        for position, (type, axes) in enumerate(zip(step.types, step.axes, strict=True)):
            first = self.pointer(Location(Place.ARENA, self.extents + 8 * count))
            slot = body.value(f"getelementptr ptr, ptr {_SIZES_TABLE}, i64 {position}")
            body.line(f"store ptr {first}, ptr {slot}")
            for axis in () if type is None else symbolic(axes or whole_axes(type)):
                place = self.pointer(Location(Place.ARENA, self.extents + 8 * count))
                body.line(f"store i64 {emitter.dimension(size_of(axis))}, ptr {place}")
                count += 1
        for copy in _copies(self.number, step):
            dense = self._dense(copy)
            if not copy.is_result:
                source = self.pointer(copy.place)
                body.line(f"call void @{copy.function}(ptr {dense}, ptr {source}, ptr {vector})")
            slot = body.value(f"getelementptr ptr, ptr %buffers, i64 {copy.position}")
            body.line(f"store ptr {dense}, ptr {slot}")

    def end(self) -> None:
        """Results go from their dense copies to their places."""
        results = [copy for copy in _copies(self.number, self.step) if copy.is_result]
        vector = self._vector() if results else ""
        for copy in results:
            target, dense = self.pointer(copy.place), self._dense(copy)
            self.body.line(f"call void @{copy.function}(ptr {target}, ptr {dense}, ptr {vector})")

    def _vector(self) -> str:
        assert self.step.sizes is not None
        return self.pointer(self.step.sizes)

    def _dense(self, copy: _Copy) -> str:
        assert self.step.workspace is not None
        return self.pointer(Location(Place.ARENA, self.step.workspace + copy.offset))


@frozen
class _Copy:
    """A tensor of a call that is copied from its place to a dense one; results are copied back."""

    function: str
    position: int
    place: Location
    axes: OpenAxes
    bytes: int  # of an element
    offset: int  # in the workspace
    is_result: bool


def _copies(number: int, step: FunctionStep) -> Iterator[_Copy]:
    places, _ = dense_places(step.types, step.axes)
    rows = zip(step.buffers, step.types, step.axes, places, strict=True)
    for position, (place, type, axes, offset) in enumerate(rows):
        if offset is not None and place is not None and type is not None and axes is not None:
            is_result = position >= len(step.buffers) - step.outputs
            name = f"function_{number}.copy{position}"
            yield _Copy(name, position, place, axes, type.dtype.bytes, offset, is_result)


def _sizes_of(body: IrBody, tensors: Sequence[OpenAxes], vector: str) -> SizeEmitter:
    """Computes dimensions of these tensors, whose elements of the vector are loaded."""
    emitter = SizeEmitter(body)
    for place in sorted(frozenset[int]().union(*map(places_of, tensors))):
        element = body.value(f"getelementptr i64, ptr {vector}, i64 {place}")
        emitter.known[place_symbol(place)] = body.value(f"load i64, ptr {element}")
    return emitter
