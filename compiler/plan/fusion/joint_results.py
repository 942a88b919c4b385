"""How the results of merged contractions lie in the one that is made for all of them.

- Channels of convolutions, one branch behind the other, each from a whole block on.
- Columns of products, one branch behind the other: in one piece for one row.
- Matrices of products as a stack: each branch is in one piece whatever its rows, but all need as
  many columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import numpy as np

from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JointResult(ABC):
    """Results of these shapes in one."""

    shapes: tuple[Shape, ...]

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Of the joint result."""

    @property
    def is_padded(self) -> bool:
        """Whether there is something between the branches, which nobody reads."""
        return False

    @abstractmethod
    def joined(self, arrays: Sequence[Array], axis: int) -> Array:
        """What contractions multiply or add, an array a branch, its outputs along `axis`."""

    @abstractmethod
    def constant(self, arrays: Sequence[Array], fill: float) -> Array | None:
        """Operands of a pointwise node behind each branch as that of one behind all; None if there
        is none. Between branches they are `fill`."""

    def between(self, arrays: Sequence[Array], fill: float) -> Array | None:
        """The number that such a constant has between branches, if it is one."""
        return None

    def data(self, rewriter: Rewriter, name: str, like: Node) -> str:
        """The data that the joint contraction reads."""
        return name

    @abstractmethod
    def emit_branch(
        self, rewriter: Rewriter, value: str, number: int, node: Node, lane: float
    ) -> None:
        """Emit what `node` gave, that of branch `number`, as some of the joint `value`.

        `lane` is what lies between branches.
        """


@dataclass(frozen=True, slots=True)
class ChannelsResult(JointResult):
    """Branches side by side along the axis 1, each of so many channels with `padded` ones behind
    it."""

    padded: tuple[int, ...] = ()

    @staticmethod
    def of(shapes: Sequence[Shape], block: int | None) -> ChannelsResult:
        """With channels padded to whole blocks, but for the last branch, which ends at the end."""
        channels = [shape[1] for shape in shapes]
        whole = block if block and len(shapes[0]) == 4 else 1
        *padded, _ = (-count % whole for count in channels)
        return ChannelsResult(tuple(shapes), (*padded, 0))

    @property
    def shape(self) -> Shape:
        """With the channels of all branches and what pads them."""
        batch, _, *rest = self.shapes[0]
        return batch, sum(shape[1] for shape in self.shapes) + sum(self.padded), *rest

    @property
    def is_padded(self) -> bool:
        """Whether a branch's channels are no whole blocks."""
        return any(self.padded)

    def joined(self, arrays: Sequence[Array], axis: int) -> Array:
        """The arrays with zeros behind those of branches that are padded."""
        return _side_by_side(arrays, axis, self.padded, 0.0)

    def constant(self, arrays: Sequence[Array], fill: float) -> Array | None:
        """Along the axis of channels, if the others are alike."""
        return _broadcast(arrays, self.shapes, 1, self.padded, fill)

    def between(self, arrays: Sequence[Array], fill: float) -> Array | None:
        """`fill`, or the number that is the same in all branches."""
        first = arrays[0].reshape(-1)[:1]
        if all(array.size == 1 and array.reshape(-1) == first for array in arrays):
            return first.reshape(())
        rank = len(self.shapes[0])
        of_channels = all(_channels(array, rank) == array.size for array in arrays)
        return np.array(fill, first.dtype) if of_channels else None

    def emit_branch(
        self, rewriter: Rewriter, value: str, number: int, node: Node, lane: float
    ) -> None:
        """Some of the channels."""
        counts = [shape[1] for shape in self.shapes]
        ends = accumulate(map(sum, zip(counts, self.padded, strict=True)), initial=0)
        attributes = {
            "start": list(ends)[number],
            "count": counts[number],
            "padding": self.padded[number],
            "lane": lane,
        }
        rewriter.emit("channels", (value,), attributes, like=node, output=node.output)


@dataclass(frozen=True, slots=True)
class ColumnsResult(JointResult):
    """Branches side by side along the last axis."""

    @property
    def shape(self) -> Shape:
        """With the columns of all branches."""
        return *self.shapes[0][:-1], sum(shape[-1] for shape in self.shapes)

    def joined(self, arrays: Sequence[Array], axis: int) -> Array:
        """The arrays side by side."""
        return np.concatenate(arrays, axis)

    def constant(self, arrays: Sequence[Array], fill: float) -> Array | None:
        """Along the last axis, if the others are alike."""
        return _broadcast(arrays, self.shapes, len(self.shapes[0]) - 1, (0,) * len(arrays), fill)

    def emit_branch(
        self, rewriter: Rewriter, value: str, number: int, node: Node, lane: float
    ) -> None:
        """Some of the columns."""
        shape = self.shapes[number]
        start = sum(other[-1] for other in self.shapes[:number])
        attributes = {
            "starts": (*(0 for _ in shape[1:]), start),
            "steps": (1,) * len(shape),
            "shape": shape,
        }
        rewriter.emit("slice", (value,), attributes, like=node, output=node.output)


@dataclass(frozen=True, slots=True)
class StackedResult(JointResult):
    """Matrices of all rows, whatever axes these have, one branch behind the other."""

    @property
    def shape(self) -> Shape:
        """A stack of matrices."""
        *rows, columns = self.shapes[0]
        return len(self.shapes), prod(rows), columns

    def joined(self, arrays: Sequence[Array], axis: int) -> Array:
        """The arrays as a stack."""
        return np.stack(arrays)

    def constant(self, arrays: Sequence[Array], fill: float) -> Array | None:
        """A number, or a row for each branch."""
        if any(prod(array.shape[:-1]) != 1 for array in arrays):
            return None
        rows = [array.reshape(-1) for array in arrays]
        if all(len(row) == 1 and row.tobytes() == rows[0].tobytes() for row in rows):
            return rows[0].reshape(())
        columns = self.shapes[0][-1]
        return np.stack([np.broadcast_to(row, (1, columns)) for row in rows])

    def data(self, rewriter: Rewriter, name: str, like: Node) -> str:
        """The data as one matrix, which all branches read."""
        shape = rewriter.types[name].shape
        if len(shape) == 2:
            return name
        matrix = {"shape": (prod(shape[:-1]), shape[-1])}
        return rewriter.emit("reshape", (name,), matrix, like=like)

    def emit_branch(
        self, rewriter: Rewriter, value: str, number: int, node: Node, lane: float
    ) -> None:
        """One of the matrices, its rows along the axes that the data has."""
        shape = self.shapes[number]
        attributes = {
            "starts": (number, 0, 0),
            "steps": (1, 1, 1),
            "shape": (1, prod(shape[:-1]), shape[-1]),
        }
        matrix = rewriter.emit("slice", (value,), attributes, like=node)
        rewriter.emit("reshape", (matrix,), {"shape": shape}, like=node, output=node.output)


def _side_by_side(arrays: Sequence[Array], axis: int, padded: Sequence[int], fill: float) -> Array:
    parts = []
    for array, count in zip(arrays, padded, strict=True):
        parts.append(array)
        if count:
            shape = (*array.shape[:axis], count, *array.shape[axis + 1 :])
            parts.append(np.full(shape, fill, array.dtype))
    return np.concatenate(parts, axis)


def _broadcast(
    arrays: Sequence[Array],
    shapes: Sequence[Shape],
    axis: int,
    padded: Sequence[int],
    fill: float,
) -> Array | None:
    """Operands of nodes of these shapes as that of one node, side by side along the axis."""
    rank = len(shapes[0])
    if len({array.dtype for array in arrays}) != 1 or any(array.ndim > rank for array in arrays):
        return None
    aligned = [array.reshape((1,) * (rank - array.ndim) + array.shape) for array in arrays]
    if len({(*array.shape[:axis], *array.shape[axis + 1 :]) for array in aligned}) != 1:
        return None
    first = aligned[0]
    same = all(array.shape == first.shape and np.array_equal(array, first) for array in aligned)
    if same and first.shape[axis] == 1:
        return arrays[0]
    wide = [
        np.broadcast_to(array, (*array.shape[:axis], shape[axis], *array.shape[axis + 1 :]))
        for array, shape in zip(aligned, shapes, strict=True)
    ]
    return _side_by_side(wide, axis, padded, fill)


def _channels(array: Array, rank: int) -> int:
    """The extent of the axis 1 once the array has as many axes as `rank`."""
    return array.shape[1 - rank] if array.ndim >= rank - 1 else 1
