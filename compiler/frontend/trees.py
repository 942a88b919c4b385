"""Ensembles of decision trees as tables of nodes, which rows walk down level by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.types.dims import is_unpadded
from tunefarm.compiler.types.dtypes import DType

Numbers = npt.NDArray[np.int64]

LEAF = "LEAF"
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
ORDERS = MODES[:4]
_MANY_TREES = 8
"""So many trees are a vector of their own, whether or not it is full."""


class Forest:
    """Nodes by number: a row goes to `first` if its feature is at most the threshold.

    Where it is NaN it goes there if `nan_first`. Leaves have themselves as children.
    """

    def __init__(self, count: int) -> None:
        """So many leaves, of which nodes are made by `compare` and `among`."""
        self.features: Numbers = np.zeros(0, np.int64)
        self.thresholds = np.zeros(0)
        self.first: Numbers = np.zeros(0, np.int64)
        self.second: Numbers = np.zeros(0, np.int64)
        self.nan_first = np.zeros(0, np.bool_)
        self._add_leaves(count)

    def __len__(self) -> int:
        return len(self.features)

    def _add_leaves(self, count: int) -> int:
        """Append leaves; the number of the first one."""
        here = len(self)
        own = np.arange(here, here + count)
        self.features = np.concatenate([self.features, np.zeros(count, np.int64)])
        self.thresholds = np.concatenate([self.thresholds, np.zeros(count)])
        self.first = np.concatenate([self.first, own])
        self.second = np.concatenate([self.second, own])
        self.nan_first = np.concatenate([self.nan_first, np.zeros(count, np.bool_)])
        return here

    def compare(
        self,
        nodes: Numbers,
        mode: str,
        features: Numbers,
        values: npt.NDArray[np.float64],
        children: tuple[Numbers, Numbers],
        missing: npt.NDArray[np.bool_],
        dtype: DType,
    ) -> None:
        """Make leaves nodes that compare with values by one of `ORDERS`.

        Of `children` the first are the true ones, where NaN goes if it is `missing`.
        """
        if mode in ("LT", "GTE"):
            values = _before(values, dtype)
        if mode in ("GT", "GTE"):
            children, missing = (children[1], children[0]), ~missing
        self.features[nodes], self.thresholds[nodes] = features, values
        self.first[nodes], self.second[nodes] = children
        self.nan_first[nodes] = missing

    def among(
        self,
        nodes: Numbers,
        features: Numbers,
        sets: Sequence[Sequence[float]],
        children: tuple[Numbers, Numbers],
        missing: npt.NDArray[np.bool_],
        dtype: DType,
    ) -> None:
        """Make leaves nodes that say whether a feature is one of some values.

        At most one of them, and above all before it: two nodes for each, the last one's but one.
        """
        members = [sorted(set(values)) for values in sets]
        spare = self._add_leaves(sum(2 * len(values) - 1 for values in members if values))
        for at, rest in enumerate(members):
            node, feature = int(nodes[at]), int(features[at])
            true, false = int(children[0][at]), int(children[1][at])
            if not rest:
                self._set(node, feature, 0.0, false, false, False)
            below = _before(np.array(rest), dtype).tolist()
            for number, value in enumerate(rest):
                exact, last = spare, number == len(rest) - 1
                after = false if last else spare + 1
                spare += 1 if last else 2
                nan_true = bool(missing[at])
                self._set(exact, feature, below[number], false, true, not nan_true)
                self._set(node, feature, value, exact, after, last or nan_true)
                node = after

    def _set(
        self,
        node: int,
        feature: int,
        threshold: float,
        first: int,
        second: int,
        nan_first: bool,
    ) -> None:
        self.features[node], self.thresholds[node] = feature, threshold
        self.first[node], self.second[node] = first, second
        self.nan_first[node] = nan_first

    @property
    def leaves(self) -> npt.NDArray[np.bool_]:
        """Which nodes are leaves."""
        own = np.arange(len(self))
        return np.asarray((self.first == own) & (self.second == own))

    def depth(self, roots: Numbers) -> int:
        """The most steps from a root to a leaf. Raises `ShapeError` where there is a circle."""
        children = np.stack([self.first, self.second])
        leaves = self.leaves
        level, steps = np.unique(roots), 0
        while (inner := level[~leaves[level]]).size:
            steps += 1
            if steps > len(self):
                raise ShapeError("the nodes of a tree go round in a circle")
            level = np.unique(children[:, inner])
        return steps

    def walk(self, data: Value, roots: Numbers, graph: GraphBuilder) -> Leaves:
        """The leaf of each tree for each row of data [rows, features]: i32 [trees, rows].

        Rows of any number come first where there are many trees: a vector of them for each row that
        is there costs less than one of rows of which few may be there.
        """
        features = self.features
        if features.min() < 0 or features.max() >= data.shape[1]:
            raise ShapeError(f"a tree reads feature {features.max()} of {data.type}")
        children = np.stack([self.first, self.second], axis=1).reshape(-1)
        tables = [
            graph.constant(features, DType.I32),
            graph.constant(self.thresholds, data.dtype),
            graph.constant(children, DType.I32),
        ]
        if self.nan_first[~self.leaves].any():
            tables.append(graph.constant(self.nan_first))
        depth = self.depth(roots)
        if depth and len(roots) >= _MANY_TREES and not is_unpadded(data.dims[0]):
            nodes = graph.constant(roots.reshape(1, -1), DType.I32)
            for _ in range(depth):
                nodes = graph.emit("tree_step_by_rows", nodes, data, *tables)
            return Leaves(nodes, 1)
        nodes = graph.constant(roots.reshape(-1, 1), DType.I32)
        if not depth:
            return Leaves(graph.emit("expand", nodes, shape=(len(roots), data.shape[0])), 0)
        for _ in range(depth):
            nodes = graph.emit("tree_step", nodes, data, *tables)
        return Leaves(nodes, 0)


def _before(values: npt.NDArray[np.float64], dtype: DType) -> npt.NDArray[np.float64]:
    """The largest numbers of the type below each."""
    below = np.nextafter(values.astype(dtype.numpy), np.asarray(-np.inf, dtype.numpy))
    return np.asarray(below, np.float64)


@dataclass(frozen=True, slots=True)
class Leaves:
    """The leaves of all rows in all trees, whose axis is `trees`; the other one is of rows."""

    nodes: Value
    trees: int


@dataclass(frozen=True, slots=True)
class Votes:
    """What leaves say: leaf `leaf[i]` adds `weight[i]` to target `target[i]`."""

    leaf: Numbers
    target: Numbers
    weight: npt.NDArray[np.float64]

    def total(
        self,
        found: Leaves,
        nodes: int,
        targets: int,
        combine: str,
        dtype: DType,
        graph: GraphBuilder,
    ) -> Value:
        """The votes of the leaves joined: [rows, targets].

        `combine` is sum, min or max, of nothing its neutral element.
        """
        neutral = {"sum": 0.0, "min": np.inf, "max": -np.inf}[combine]
        join = {"sum": np.add, "min": np.minimum, "max": np.maximum}[combine]
        graph.check_array((nodes, targets), DType.F64.bytes)
        table = np.full((nodes, targets), neutral)
        join.at(table, (self.leaf, self.target), self.weight)
        operator = f"reduce_{combine}"
        if targets == 1:
            weights = graph.constant(table[:, 0], dtype)
            voted = graph.emit("gather", weights, found.nodes, axis=0)
            total = graph.emit(operator, voted, axes=(found.trees,), keepdims=False)
            return graph.reshape(total, (total.shape[0], 1))
        voted = graph.emit("gather", graph.constant(table, dtype), found.nodes, axis=0)
        return graph.emit(operator, voted, axes=(found.trees,), keepdims=False)
