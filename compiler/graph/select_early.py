"""Pass: select rows before operators that compute each row alone.

    select(op(x, y)) -> op(select(x), y)

A classifier that reads one token of its last layer, or a decoder of whose logits one position is
asked for, so computes one row of the matrix products behind the last attention. A selection moves
only where all readers of a value select the same part of it, and only if that makes a matrix
product or an attention smaller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.registry import (
    Axes,
    Pattern,
    axes_along,
    complete_attributes,
    operator,
)
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.padded_shape import whole


@frozen
class _Selection:
    """`count` places of an axis: from `start` on in steps, or where `sizes` says (a shift)."""

    axis: int
    count: int
    start: int
    step: int
    end: int = 0
    sizes: str = ""

    @staticmethod
    def of(node: Node, graph: Graph) -> _Selection | None:
        """What a node selects of its data; None unless that is a part of one axis, and known
        before the graph runs."""
        attributes = complete_attributes(node)
        if node.operator == "shift" and len(node.inputs) == 2:
            if node.inputs[1] not in graph.inputs:
                return None
            number = attributes.integer
            places = number("start"), number("step"), number("end")
            return _Selection(number("axis"), number("extent"), *places, node.inputs[1])
        if node.operator != "slice":
            return None
        counts, starts, steps = map(attributes.integers, ("shape", "starts", "steps"))
        shape = graph.types[node.inputs[0]].shape
        narrowed = [axis for axis, extent in enumerate(shape) if counts[axis] != extent]
        if len(narrowed) != 1 or any(step != 1 for step in steps):
            return None
        axis = narrowed[0]
        return _Selection(axis, counts[axis], starts[axis], 1)

    def emit(self, rewriter: Rewriter, data: str, like: Node) -> str:
        """The selected part of a value."""
        if self.sizes:
            attributes = {"axis": self.axis, "extent": self.count, "start": self.start}
            attributes |= {"step": self.step, "end": self.end}
            return rewriter.emit("shift", (data, self.sizes), attributes, like=like)
        shape = list(rewriter.types[data].shape)
        starts, steps = [0] * len(shape), [1] * len(shape)
        shape[self.axis], starts[self.axis] = self.count, self.start
        moved = {"starts": tuple(starts), "steps": tuple(steps), "shape": tuple(shape)}
        return rewriter.emit("slice", (data,), moved, like=like)

    def first(self, rewriter: Rewriter, like: Node) -> str:
        """The first place, i64[1]."""
        if not self.sizes:
            return rewriter.constant(np.array([self.start]), f"{like.output}_first")
        part = {"starts": (self.start,), "steps": (1,), "shape": (1,)}
        return rewriter.emit("slice", (self.sizes,), part, like=like)


_Move: TypeAlias = "tuple[_Selection, Axes]"


def run(graph: Graph) -> Graph:
    """The graph whose selections stand as early as they can."""
    moves = _moves(graph)
    smaller = (operator(node.operator).pattern for node in graph.nodes if node.output in moves)
    return _Moving(graph, moves).run() if Pattern.CONTRACTION in smaller else graph


def _moves(graph: Graph) -> dict[str, _Move]:
    """The values of which only a part need be computed, each with what is read for it."""
    asked: dict[str, set[_Selection | None]] = {name: {None} for name in graph.outputs}
    moves: dict[str, _Move] = {}
    for node in reversed(graph.nodes):
        selection = _Selection.of(node, graph)
        if selection is not None:
            _ask(asked, node, [selection])
            continue
        of_result = asked.get(node.output, {None})
        wanted = next(iter(of_result)) if len(of_result) == 1 else None
        axes = None if wanted is None else _axes(node, graph, wanted)
        if wanted is None or axes is None:
            _ask(asked, node, [])
            continue
        moves[node.output] = wanted, axes
        _ask(asked, node, (_at(wanted, axis) for axis in axes))
    return moves


def _ask(
    asked: dict[str, set[_Selection | None]], node: Node, selections: Iterable[_Selection | None]
) -> None:
    """Note what a node reads of its operands: all of those for which there is no selection."""
    parts = list(selections)
    parts += [None] * (len(node.inputs) - len(parts))
    for name, part in zip(node.inputs, parts, strict=True):
        asked.setdefault(name, set()).add(part)


def _at(selection: _Selection, axis: int | None) -> _Selection | None:
    return None if axis is None else replace(selection, axis=axis)


def _axes(node: Node, graph: Graph, selection: _Selection) -> Axes | None:
    """The axes that a selection moves to, if it does."""
    if _has_diagonal(node) and selection.step != 1 and selection.count > 1:
        return None
    types = [graph.types[name] if name else None for name in node.inputs]
    try:
        return axes_along(node, types, selection.axis)
    except ShapeError:
        return None


def _has_diagonal(node: Node) -> bool:
    """Whether the last operand says what rows read by their number."""
    flag = operator(node.operator).diagonal
    return bool(flag and node.attributes.get(flag))


class _Moving:
    """A graph whose values become parts of themselves."""

    def __init__(self, graph: Graph, moves: dict[str, _Move]) -> None:
        self._graph, self._moves = graph, moves
        self._rewriter = Rewriter(graph)
        self._parts: dict[tuple[str, _Selection], str] = {}

    def run(self) -> Graph:
        """The new graph."""
        rewriter = self._rewriter
        for node in self._graph.nodes:
            move = self._moves.get(node.output)
            if move is not None:
                self._parts[node.output, move[0]] = self._narrowed(node, *move)
                continue
            data = node.inputs[0] if node.inputs else ""
            selected = self._moves.get(data)
            if selected is None:
                rewriter.keep(node)
            else:
                rewriter.forward(node.output, self._parts[data, selected[0]])
        return rewriter.finish()

    def _narrowed(self, node: Node, selection: _Selection, axes: Axes) -> str:
        """The part of a node's result."""
        inputs = tuple(
            name if axis is None else self._part(name, replace(selection, axis=axis), node)
            for name, axis in zip(node.inputs, axes, strict=True)
        )
        attributes = dict(node.attributes)
        if "shape" in attributes:
            shape = list(complete_attributes(node).integers("shape"))
            shape[selection.axis] = selection.count
            attributes["shape"] = tuple(shape)
        rewriter = self._rewriter
        if _has_diagonal(node):
            moved = inputs[-1], selection.first(rewriter, node)
            inputs = (*inputs[:-1], rewriter.emit("add", moved, like=node))
        result = rewriter.emit(node.operator, inputs, attributes, like=node)
        if (dims := self._graph.unread.get(node.output)) is not None:
            at = selection.axis
            rewriter.note_unread(result, (*dims[:at], whole(selection.count), *dims[at + 1 :]))
        return result

    def _part(self, name: str, selection: _Selection, like: Node) -> str:
        """A part of an operand, selected once for all its readers."""
        if (name, selection) not in self._parts:
            rewriter = self._rewriter
            part = selection.emit(rewriter, rewriter.value(name), like)
            self._parts[name, selection] = part
        return self._parts[name, selection]
