"""Ensembles of decision trees as tables of nodes, which rows walk down level by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from compiler.errors import ShapeError
from compiler.frontend.graph_builder import GraphBuilder, Value
from compiler.types.dtypes import DType

Numbers = npt.NDArray[np.int64]

LEAF = "LEAF"
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")


@dataclass(slots=True)
class Forest:
    """Nodes by number: a row goes to `first` if its feature is at most the threshold.

    Where it is NaN it goes there if `nan_first`. Leaves have themselves as children.
    """

    features: list[int] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    second: list[int] = field(default_factory=list)
    nan_first: list[bool] = field(default_factory=list)

    def add(self, feature: int, threshold: float, first: int, second: int, nan_first: bool) -> int:
        """Append a node; its number."""
        self.features.append(feature)
        self.thresholds.append(threshold)
        self.first.append(first)
        self.second.append(second)
        self.nan_first.append(nan_first)
        return len(self.features) - 1

    def add_leaf(self) -> int:
        """Append a leaf; its number."""
        here = len(self.features)
        return self.add(0, 0.0, here, here, False)

    def split(
        self,
        node: int,
        mode: str,
        feature: int,
        values: Sequence[float],
        children: tuple[int, int],
        missing: bool,
        dtype: DType,
    ) -> None:
        """Make a node compare as a mode of ONNX's says; of `children` the first is the true one.

        `values` is one number, or the members of a set. NaN is true if `missing`.
        """
        true, false = children
        value = values[0] if values else 0.0
        if mode in ("EQ", "NEQ", "MEMBER"):
            if mode == "NEQ":  # which NaN always is
                true, false, missing = false, true, False
            self._among(node, feature, values, (true, false), missing, dtype)
            return
        threshold = _before(value, dtype) if mode in ("LT", "GTE") else value
        if mode in ("LEQ", "LT"):
            self._set(node, feature, threshold, true, false, missing)
        else:
            self._set(node, feature, threshold, false, true, not missing)

    def _among(
        self,
        node: int,
        feature: int,
        values: Sequence[float],
        children: tuple[int, int],
        missing: bool,
        dtype: DType,
    ) -> None:
        """Whether the feature is one of some values: at most this one, and above all before it."""
        true, false = children
        rest = sorted(set(values))
        if not rest:
            self._set(node, feature, 0.0, false, false, False)
            return
        for number, value in enumerate(rest):
            after = false if number == len(rest) - 1 else self.add_leaf()
            exact = self.add(feature, _before(value, dtype), false, true, not missing)
            self._set(node, feature, value, exact, after, number == len(rest) - 1 or missing)
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
        own = np.arange(len(self.first))
        return np.asarray((np.array(self.first) == own) & (np.array(self.second) == own))

    def depth(self, roots: Numbers) -> int:
        """The most steps from a root to a leaf. Raises `ShapeError` where there is a circle."""
        children = np.stack([np.array(self.first), np.array(self.second)])
        leaves = self.leaves
        level, steps = np.unique(roots), 0
        while (inner := level[~leaves[level]]).size:
            steps += 1
            if steps > len(self.first):
                raise ShapeError("the nodes of a tree go round in a circle")
            level = np.unique(children[:, inner])
        return steps

    def walk(self, data: Value, roots: Numbers, graph: GraphBuilder) -> Value:
        """The leaf of each tree for each row of data [rows, features]: i32 [trees, rows]."""
        features = np.array(self.features)
        if features.min() < 0 or features.max() >= data.shape[1]:
            raise ShapeError(f"a tree reads feature {features.max()} of {data.type}")
        children = np.stack([np.array(self.first), np.array(self.second)], axis=1).reshape(-1)
        nan_first = np.array(self.nan_first)
        tables = [
            graph.constant(features, DType.I32),
            graph.constant(np.array(self.thresholds), data.dtype),
            graph.constant(children, DType.I32),
        ]
        if nan_first[~self.leaves].any():
            tables.append(graph.constant(nan_first))
        nodes = graph.constant(roots.reshape(-1, 1), DType.I32)
        depth = self.depth(roots)
        if not depth:
            return graph.emit("expand", nodes, shape=(len(roots), data.shape[0]))
        for _ in range(depth):
            nodes = graph.emit("tree_step", nodes, data, *tables)
        return nodes


def _before(value: float, dtype: DType) -> float:
    """The largest number of the type below one."""
    return float(np.nextafter(np.asarray(value, dtype.numpy), np.asarray(-np.inf, dtype.numpy)))


@dataclass(frozen=True, slots=True)
class Votes:
    """What leaves say: leaf `leaf[i]` adds `weight[i]` to target `target[i]`."""

    leaf: Numbers
    target: Numbers
    weight: npt.NDArray[np.float64]

    def total(
        self,
        found: Value,
        nodes: int,
        targets: int,
        combine: str,
        dtype: DType,
        graph: GraphBuilder,
    ) -> Value:
        """The votes of the leaves [trees, rows] joined: [rows, targets].

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
            voted = graph.emit("gather", weights, found, axis=0)
            total = graph.emit(operator, voted, axes=(0,), keepdims=False)
            return graph.reshape(total, (found.shape[1], 1))
        voted = graph.emit("gather", graph.constant(table, dtype), found, axis=0)
        return graph.emit(operator, voted, axes=(0,), keepdims=False)
