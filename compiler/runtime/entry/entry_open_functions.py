"""Calls of functions on tensors with dynamic shapes, as LLVM IR in the entry function.

Before a call the true extents are stored in the arena, in front of the report, and pointers to them
in a table on the stack: both belong to the run alone. What has padding inside goes through dense
copies in the workspace (`tunefarm.compiler.runtime.spec.dense_copies`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tunefarm.compiler.runtime.entry.ir_body import IrBody
from tunefarm.compiler.runtime.entry.row_copies import copy_function
from tunefarm.compiler.runtime.entry.size_ir import SizeEmitter
from tunefarm.compiler.runtime.spec.dense_copies import dense_places
from tunefarm.compiler.runtime.spec.executable_spec import FunctionStep, Location, Place, RunStep
from tunefarm.compiler.runtime.spec.port_layout import layout_of_axes
from tunefarm.compiler.types.dims import size_of
from tunefarm.compiler.types.open_axes import (
    OpenAxes,
    place_symbol,
    places_of,
    symbolic,
    whole_axes,
)
from tunefarm.compiler.types.sizes import Dimension

SIZES_TABLE = "%function_sizes"
"""Pointers to the extents of each tensor of the call being made."""


def sizes_table_ir(steps: Sequence[RunStep]) -> str:
    """What makes room for `SIZES_TABLE`; nothing where no call needs it."""
    calls = [step for step in steps if isinstance(step, FunctionStep) and step.axes]
    if not calls:
        return ""
    most = max(len(step.types) for step in calls)
    return f"{SIZES_TABLE} = alloca [{most} x ptr], align 16"


def copies_ir(number: int, step: FunctionStep) -> str:
    """The functions (to, from, sizes) that copy tensors of call `number` to and from dense ones."""
    found = []
    for copy in _copies(number, step):
        layout = layout_of_axes(copy.bytes, symbolic(copy.axes))

        def operand(body: IrBody, dimension: Dimension, axes: OpenAxes = copy.axes) -> str:
            return _sizes_of(body, [axes], "%numbers").dimension(dimension)

        found.append(copy_function(copy.function, layout, not copy.is_result, operand))
    return "".join(found)


@dataclass(frozen=True, slots=True)
class OpenCall:
    """Writes what is round call `number` into a body; `extents` is their offset in the arena.

    `pointer` appends what computes a location's address, and gives its name.
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
            slot = body.value(f"getelementptr ptr, ptr {SIZES_TABLE}, i64 {position}")
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


@dataclass(frozen=True, slots=True)
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
