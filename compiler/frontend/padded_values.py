"""PaddedValues: how the importer keeps undefined padding out of results.

A value of dynamic shape lies in a buffer for the bounds of its sizes; elements behind the true
sizes are padding, and may hold anything. An operator's type rule says what it needs of the padding
of each operand (`Needs`): nothing, zeros, or another content. Where a value has not got that, a
`fill` node is emitted, once for each content and axis; where no fill can help (a mean divides by
the true size), the operator is emitted in another form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_not
from typing import TYPE_CHECKING, TypeAlias

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.run_time_sizes import RunTimeSizes
from tunefarm.compiler.frontend.value import Value
from tunefarm.compiler.operators.registry import (
    complete_attributes,
    infer_type,
    is_pointwise,
)
from tunefarm.compiler.operators.registry import operator as definition
from tunefarm.compiler.operators.types import LyingApartError, Needs, Types
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.padded_shape import (
    ONE,
    Axis,
    PaddedShape,
    extent_of,
    is_unpadded,
    reshaped,
    size_of,
    unpadded_shape,
    whole,
)
from tunefarm.compiler.types.sizes import Dimension, static_shape
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

if TYPE_CHECKING:
    from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value


# --- Operators that padding asks to be spelled otherwise: a mean is a sum by the true number -----
#
# A form takes the place of an operator where an operand is padded; None leaves the operator to its
# type rule (`tunefarm.compiler.operators.types`).


PaddedForm: TypeAlias = "Callable[[GraphBuilder, Sequence[Value | None], Attributes], Value | None]"

_FORMS: dict[str, PaddedForm] = {}


def padded_form(*operators: str) -> Callable[[PaddedForm], PaddedForm]:
    """Register a function as the form of these operators; `ValueError` if one has another."""

    def register(form: PaddedForm) -> PaddedForm:
        for name in operators:
            if name in _FORMS:
                raise ValueError(f"operator {name} has two forms for padded operands")
            _FORMS[name] = form
        return form

    return register


def form_of(operator: str) -> PaddedForm | None:
    """The form of an operator on padded operands, None where it stays as it is."""
    return _FORMS.get(operator)


@dataclass(frozen=True, slots=True)
class Move:
    """How a value came of another one by operators that only move elements; see `moved`."""

    source: Value
    axes: tuple[int | None, ...]
    again: Callable[[Value], Value]


_MOVES = ("transpose", "reshape", "identity")
_OF_ZEROS = {**dict.fromkeys(("cast", "relu", "neg", "abs"), (0,)), "where": (1, 2)}
"""Operators that make 0 of zeros in these operands."""


def kept_axes(source: Value, value: Value) -> tuple[int | None, ...]:
    """For each axis of a reshaped value that of its source that has the same elements, if any."""
    behind = {
        math.prod(source.shape[axis:]): axis
        for axis in reversed(range(source.rank))
        if source.shape[axis] > 1
    }
    found = (behind.get(math.prod(value.shape[axis:])) for axis in range(value.rank))
    return tuple(
        before if before is not None and source.dims[before] == value.dims[axis] else None
        for axis, before in enumerate(found)
    )


def _kept_axes(
    operator: str, attributes: Attributes, source: Value, value: Value
) -> tuple[int | None, ...]:
    if operator == "transpose":
        return attributes.integers("perm")
    return kept_axes(source, value)


def _axis(value: Value, behind: int) -> Axis:
    """The axis that is the last but so many, which broadcasting adds where there is none."""
    return value.dims[-behind] if behind <= value.rank else ONE


def _is_as_long(value: Value, other: Value, behind: int) -> bool:
    return size_of(_axis(value, behind)) == size_of(_axis(other, behind))


class PaddedValues:
    """Emits nodes on padded operands, and remembers what the padding of values holds."""

    def __init__(self, graph: GraphBuilder) -> None:
        self._graph = graph
        self._known: dict[tuple[str, int], tuple[Axis, str]] = {}  # (value, axis) -> its padding
        self._filled: dict[tuple[str, int, Axis, str], Value] = {}
        self._moves: dict[str, Move] = {}
        self._expanded: dict[str, Value] = {}  # what values repeat along axes of theirs
        self._anything: dict[str, list[Axis | None]] = {}  # None where nobody knows

    def filled(self, value: Value, axis: int, content: str, folds: bool = False) -> Value:
        """The value with its padding along an axis replaced: zero, one, lowest or highest.

        What `folds` the axis fills what it reads itself.
        """
        dims = value.dims[axis]
        if is_unpadded(dims) or self._known.get((value.name, axis)) == (dims, content):
            return value
        key = (value.name, axis, dims, content)
        if key not in self._filled:
            fill = self._fill if folds else self._filled_before
            self._filled[key] = made = fill(value, axis, content)
            self.fills(made, axis, content)
        return self._filled[key]

    def _filled_before(self, value: Value, axis: int, content: str) -> Value:
        """The value filled, where it was only moved as what it was before: that made it, and may
        fill it on its way."""
        move = self._moves.get(value.name)
        source = None if move is None else move.axes[axis]
        if move is None or source is None or move.source.dims[source] != value.dims[axis]:
            return self._fill(value, axis, content)
        return move.again(self.filled(move.source, source, content))

    def moved(
        self,
        value: Value,
        source: Value,
        axes: Sequence[int | None],
        again: Callable[[Value], Value],
    ) -> Value:
        """The value, which is a source moved: `axes` are those of the source that stay in one piece
        as axes of the value, and `again` moves another source in this way."""
        self._moves[value.name] = Move(source, tuple(axes), again)
        for axis, before in enumerate(axes):
            found = None if before is None else self._known.get((source.name, before))
            if found is not None:
                self._known[value.name, axis] = found
        return value

    def expands(self, value: Value, source: Value) -> None:
        """Say that a value repeats another one along some of its axes."""
        self._expanded[value.name] = source

    def repeated_by(self, value: Value) -> Value | None:
        """What a value repeats along some of its axes; None where that is not known."""
        return self._expanded.get(value.name)

    def holds_anything(self, value: Value, dims: PaddedShape) -> None:
        """Remember that what is behind these sizes is padding, unless it is said what that holds.

        Who gives the value other axes later may know more of it: that is nobody's padding.
        """
        if value.array is not None or value.sizes is not None:
            return
        before = self._anything.setdefault(value.name, list(dims))
        for number, (old, new) in enumerate(zip(before, dims, strict=True)):
            if old is not None and not is_unpadded(new):
                before[number] = new if is_unpadded(old) or old == new else None

    def is_all_there(self, value: Value, axis: int) -> None:
        """Say that all of an axis is there at all sizes, although its operator alone has fewer."""
        if value.name in self._anything:
            self._anything[value.name][axis] = None

    def axes(self) -> Iterator[Axis]:
        """Every axis behind whose size there is padding."""
        for dims in self._anything.values():
            yield from (axis for axis in dims if axis)

    def unread(
        self, run_time: RunTimeSizes, types: Mapping[str, TensorType]
    ) -> dict[str, PaddedShape]:
        """The axes of values behind whose sizes nobody reads anything, as far as these are known
        before the run; asks for the sizes."""
        found = {}
        for name, dims in self._anything.items():
            shape = types[name].shape if name in types else ()
            axes = tuple(
                axis
                if axis and (name, number) not in self._known and run_time.ask_for(axis)
                else whole(extent)
                for number, (axis, extent) in enumerate(zip(dims, shape, strict=False))
            )
            if not all(map(is_unpadded, axes)):
                found[name] = axes
        return found

    def zeros(
        self, run_time: RunTimeSizes, types: Mapping[str, TensorType]
    ) -> dict[str, PaddedShape]:
        """The axes of values in whose padding there is 0, as far as sizes are known by then."""
        found: dict[str, PaddedShape] = {}
        for (name, number), (axis, content) in self._known.items():
            if content == "zero" and name in types and run_time.is_known(axis):
                dims = list(found.get(name) or unpadded_shape(types[name].shape))
                dims[number] = axis
                found[name] = tuple(dims)
        return found

    def fills(self, value: Value, axis: int, content: str) -> None:
        """Say what the padding of an axis holds."""
        self._known[value.name, axis] = value.dims[axis], content

    def _fill(self, value: Value, axis: int, content: str) -> Value:
        result, inner = value, value.shape[axis]
        for position, (true, extent) in enumerate(value.dims[axis]):
            inner //= extent
            if true == extent:
                continue
            vector, number = self._graph.vector_with(true)
            result = self._graph.append(
                "fill",
                (result, vector),
                {
                    "axis": axis,
                    "number": number,
                    "value": content,
                    "extent": extent if position else 0,
                    "inner": inner,
                },
            )
        result = self._graph.with_dims(result, value.padded)
        for other in range(value.rank):
            before = self._known.get((value.name, other))
            if before is not None:
                self._known[result.name, other] = before
        self.fills(result, axis, content)
        return result

    def begins(self, value: Value, dims: PaddedShape) -> Value:
        """A constant of which only so much is there: no constant any more, which is there whole."""
        if all(map(is_unpadded, dims)):
            return value
        return self._graph.with_dims(self._graph.append("identity", (value,), {}), dims)

    def cut(self, value: Value, axis: int, extent: int) -> Value:
        """The first `extent` elements of an axis, of which no other are there."""
        ((true, _),) = value.dims[axis]
        shape = (*value.shape[:axis], extent, *value.shape[axis + 1 :])
        zeros, ones = (0,) * value.rank, (1,) * value.rank
        part = self._graph.append(
            "slice", (value,), {"starts": zeros, "steps": ones, "shape": shape}
        )
        cut = ((min(true, extent) if isinstance(true, int) else true, extent),)
        return self._graph.with_dims(part, (*value.dims[:axis], cut, *value.dims[axis + 1 :]))

    def view(self, value: Value, shape: Sequence[Dimension]) -> Value | None:
        """The value under another true shape; None where its elements would have to be moved."""
        numbers = static_shape(shape)
        if value.padded is None and numbers is not None:
            return self._graph.reshape(value, numbers)
        found = reshaped(value.dims, shape)
        if found is None:
            return None
        dims, divisible = found
        for size, number in divisible:
            self._graph.run_time.require_equal(size % number, 0, f"node {self._graph.source!r}")
        data = self._graph.readable(value)
        wanted = tuple(map(extent_of, dims))
        if wanted == data.shape:
            return self._graph.with_dims(data, dims)
        viewed = self._graph.with_dims(
            self._graph.append("reshape", (data,), {"shape": wanted}), dims
        )
        kept = kept_axes(data, viewed)
        return self.moved(viewed, data, kept, lambda other: self._viewed_again(other, shape))

    def _viewed_again(self, value: Value, shape: Sequence[Dimension]) -> Value:
        viewed = self.view(value, shape)
        assert viewed is not None  # another value of the same axes was
        return viewed

    def emit(
        self, operator: str, inputs: Sequence[Value | None], attributes: dict[str, Attribute]
    ) -> Value:
        """Emit the operator with what its type rule asks for, or its form for padded operands."""
        operands = [None if value is None else self._graph.readable(value) for value in inputs]
        if all(value is None or value.padded is None for value in operands):
            return self._graph.append(operator, operands, attributes)
        node = Node(operator, ("",) * len(operands), "", attributes, self._graph.source)
        complete = complete_attributes(node)
        form = form_of(operator)
        if form is not None:
            result = form(self._graph, operands, complete)
            if result is not None:
                return result
        if not definition(operator).dynamic:
            reason = f"{operator} is not supported on dynamic sizes"
            raise self._graph.refusal(reason, operands)
        types = Types(None if value is None else value.type for value in operands)
        try:
            type = definition(operator).infer(complete, types)
        except LyingApartError:
            short = self._unexpanded(operator, operands)
            if short is not None:
                return self.emit(operator, short, attributes)
            dense = [None if value is None else self.dense(value) for value in operands]
            return self.emit(operator, dense, attributes)
        except ShapeError as error:
            raise self._refused(node, types, error, operands) from None
        folds = definition(operator).folds_axes
        prepared = [
            None if value is None else self._prepared(value, position, types.needs, folds)
            for position, value in enumerate(operands)
        ]
        value = self._graph.append(operator, prepared, attributes)
        for left, right in types.needs.equal:
            self._graph.run_time.require_equal(left, right, f"node {self._graph.source!r}")
        value = self._graph.with_dims(value, type.padded)
        for axis, content in types.needs.known.items():
            self.fills(value, axis, content)
        first = prepared[0]
        if operator in _MOVES and first is not None:
            axes = _kept_axes(operator, complete, first, value)
            graph = self._graph
            self.moved(value, first, axes, lambda data: graph.emit(operator, data, **attributes))
        self._keep_zeros(operator, prepared, value)
        return value

    def _refused(
        self, node: Node, types: Types, error: ShapeError, operands: Sequence[Value | None]
    ) -> ShapeError:
        """What to raise of an operator that refuses its operands: some at whatever sizes."""
        try:
            infer_type(node, types)
        except ShapeError as at_bounds:
            if error.message in at_bounds.message:
                return at_bounds
        return self._graph.refusal(f"{node.operator}: {error.message}", operands, error.hint)

    def _unexpanded(
        self, operator: str, operands: Sequence[Value | None]
    ) -> list[Value | None] | None:
        """The operands of a pointwise operator with what expanded ones repeat, where others have
        the axes that it is repeated along; None where that changes nothing.

        They are as long, but may lie otherwise: rows of a plane against as many elements in a row.
        """
        if not is_pointwise(operator):
            return None
        found = list(operands)
        for number, value in enumerate(operands):
            source = None if value is None else self.repeated_by(value)
            if value is None or source is None:
                continue
            others = [item for item in found if item is not None and item is not value]
            longer = [axis for axis in range(1, value.rank + 1) if _axis(source, axis) == ONE]
            stretched = [axis for axis in longer if _axis(value, axis) != ONE]
            if all(any(_is_as_long(value, item, axis) for item in others) for axis in stretched):
                found[number] = source
        return found if any(map(is_not, found, operands)) else None

    def was_inside(self, value: Value, axis: int) -> bool:
        """Whether an axis was moved to the end from where others lay behind it."""
        move = self._moves.get(value.name)
        source = None if move is None else move.axes[axis]
        if move is None or source is None:
            return False
        return source < move.source.rank - 1 or self.was_inside(move.source, source)

    def in_one_piece(self, value: Value, axis: int) -> Value:
        """The value without padding inside of an axis; one that was only moved is moved again."""
        move = self._moves.get(value.name)
        source = None if move is None else move.axes[axis]
        if move is None or source is None or move.source.dims[source] != value.dims[axis]:
            return self.dense(value)
        return move.again(self.in_one_piece(move.source, source))

    def dense(self, value: Value) -> Value:
        """The value without padding inside of its axes."""
        from tunefarm.compiler.frontend.operators.moves import compacted  # it is made of this

        return compacted(value, self._graph)

    def _keep_zeros(self, operator: str, operands: Sequence[Value | None], value: Value) -> None:
        """Padding stays 0 where the operator makes 0 of zeros."""
        data = [operands[position] for position in _OF_ZEROS.get(operator, ())]
        for axis, dims in enumerate(value.dims if data else ()):
            if not is_unpadded(dims) and all(self._is_zero(item, axis, value) for item in data):
                self.fills(value, axis, "zero")

    def _is_zero(self, operand: Value | None, axis: int, value: Value) -> bool:
        """Whether an operand is 0 in the padding of an axis of the result."""
        if operand is None:
            return False
        if operand.array is not None:
            return not operand.array.any()
        own = axis - value.rank + operand.rank
        found = self._known.get((operand.name, own))
        return own >= 0 and found == (value.dims[axis], "zero")

    def _prepared(self, value: Value, position: int, needs: Needs, folds: bool) -> Value:
        """An operand as its type rule wants it: axes cut off, padding filled."""
        for axis in range(value.rank):
            extent = needs.extents.get((position, axis))
            value = value if extent is None else self.cut(value, axis, extent)
        for axis in range(value.rank):
            content = needs.fills.get((position, axis))
            value = value if content is None else self.filled(value, axis, content, folds)
        return value
