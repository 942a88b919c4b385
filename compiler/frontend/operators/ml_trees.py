"""Tree ensembles of ai.onnx.ml, in the old form (a node a row) and the new one (nodes, leaves)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.ml import (
    DOMAIN,
    TRANSFORMS,
    as_float,
    both_classes,
    class_labels,
    labels_of,
    rows_of,
    transformed,
)
from tunefarm.compiler.operators.trees import LEAVES, SLOTS
from tunefarm.compiler.types.dims import is_unpadded
from tunefarm.compiler.types.dtypes import DType

# --- Ensembles of decision trees as tables of nodes ----------------------------------------------
#
# Rows walk down level by level, as many as the deepest tree has; or all nodes are asked at once,
# and what they leave says the leaf. The latter takes no look-ups and suits trees of few leaves,
# however deep some of them lie: as LightGBM grows them, by leaves.
#
# Where every tree votes for one target, as boosting for several classes grows them, trees are
# ordered by target: a leaf has one weight then, and each target the sum of its own trees.


Numbers = npt.NDArray[np.int64]

LEAF = "LEAF"
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
ORDERS = MODES[:4]
_MANY_TREES = 8
"""So many trees are a vector of their own, whether or not it is full."""
_FEW_ROWS = 8
"""Fewer rows are no vector of their own."""
_NODES_PER_STEP = 10
"""So many nodes are asked in the time of a step down, where rows are vectors: 0.4 against 4.4 ns
of a tree and row (measured on Zen 3 with 200 trees of 31 leaves and 1,000 rows)."""
_NODES_PER_STEP_BY_ROWS = 6
"""The same where trees are vectors, and look the features up: 0.8 against 5.3 ns."""


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

    def _trees(self, roots: Numbers) -> Numbers | None:
        """The number of each node's tree, -1 where it is in none; None if one is in several."""
        found, leaves = np.full(len(self), -1), self.leaves
        nodes, trees, seen = roots, np.arange(len(roots)), 0
        while nodes.size:
            seen, before = seen + nodes.size, found[nodes]
            found[nodes] = trees
            is_other = (before >= 0) & (before != trees) | (found[nodes] != trees)
            if seen > len(self) or is_other.any():
                return None
            inner = ~leaves[nodes]
            nodes, trees = nodes[inner], trees[inner]
            nodes = np.concatenate([self.first[nodes], self.second[nodes]])
            trees = np.concatenate([trees, trees])
        return found

    def by_target(self, roots: Numbers, votes: Votes, targets: int) -> Numbers | None:
        """The roots of each target's trees: [targets, trees], with leaves where it has fewer.

        None where a tree votes for several targets, or most of that would be such leaves.
        """
        trees = self._trees(roots) if targets > 1 else None
        if trees is None:
            return None
        owner = trees[votes.leaf]
        own, target = owner[owner >= 0], votes.target[owner >= 0]
        chosen = np.zeros(len(roots), np.int64)
        chosen[own] = target
        if (chosen[own] != target).any():
            return None
        counts = np.bincount(chosen, minlength=targets)
        most = int(counts.max())
        if targets * most > 2 * len(roots):
            return None
        table = np.full((targets, most), self._add_leaves(1))
        order = np.argsort(chosen, kind="stable")
        place = np.arange(len(roots)) - np.repeat(np.cumsum(counts) - counts, counts)
        table[chosen[order], place] = roots[order]
        return table

    def walk(self, data: Value, roots: Numbers, graph: GraphBuilder, groups: int = 1) -> Leaves:
        """The leaf of each tree for each row of data [rows, features]: i32 [trees, rows].

        The trees of each of so many groups are as many, and so are what is found of them.
        Rows of any number come first where there are many trees: a vector of them for each row that
        is there costs less than one of rows of which few may be there.
        """
        features = self.features
        if features.min() < 0 or features.max() >= data.shape[1]:
            raise ShapeError(f"a tree reads feature {features.max()} of {data.type}")
        depth, whole = self.depth(roots), is_unpadded(data.dims[0])
        many_trees = len(roots) >= _MANY_TREES
        by_rows = many_trees and (data.shape[0] < _FEW_ROWS or not whole)
        step = _NODES_PER_STEP_BY_ROWS if by_rows else _NODES_PER_STEP
        asked = self._asked(roots, groups, step * depth * len(roots))
        if asked is not None:
            return asked.find(data, by_rows, graph, groups)
        children = np.stack([self.first, self.second], axis=1).reshape(-1)
        tables = [
            graph.constant(features, DType.I32),
            graph.constant(self.thresholds, data.dtype),
            graph.constant(children, DType.I32),
        ]
        if self.nan_first[~self.leaves].any():
            tables.append(graph.constant(self.nan_first))
        if depth and many_trees and not whole:
            nodes = graph.constant(roots.reshape(1, -1), DType.I32)
            for _ in range(depth):
                nodes = graph.emit("tree_step", nodes, data, *tables, by_rows=True)
            return Leaves(nodes, 1, groups)
        nodes = graph.constant(roots.reshape(-1, 1), DType.I32)
        if not depth:
            found = graph.emit("expand", nodes, shape=(len(roots), data.shape[0]))
            return Leaves(found, 0, groups)
        for _ in range(depth):
            nodes = graph.emit("tree_step", nodes, data, *tables)
        return Leaves(nodes, 0, groups)

    def _asked(self, roots: Numbers, groups: int, affordable: int) -> _Asked | None:
        """The trees as tables of nodes to ask; None if that is more than is affordable."""
        if np.count_nonzero(~self.leaves) > affordable:
            return None
        parts: list[list[_Piece]] = []
        most = total = longest = 0
        for own in roots.reshape(groups, -1).tolist():
            parts.append([])
            for root in own:
                found = self._pieces(root, affordable - total)
                if found is None:
                    return None
                parts[-1] += found
                most = max(most, *(len(piece.nodes) for piece in found))
                longest = max(longest, len(parts[-1]))
                total = most * longest * len(parts)
                if total > affordable:
                    return None
        none = self._add_leaves(1)
        nothing = _Piece([none], [1], [1], [none])
        pieces = [piece for part in parts for piece in part + [nothing] * (longest - len(part))]
        shape = len(pieces), most
        nodes = np.full(shape, none)
        first, second = np.full(shape, -1), np.full(shape, -1)
        leaves = np.full((len(pieces), SLOTS), none)
        for tree, piece in enumerate(pieces):
            count = len(piece.nodes)
            nodes[tree, :count] = piece.nodes
            first[tree, :count], second[tree, :count] = piece.first, piece.second
            leaves[tree, 1 : 1 + len(piece.leaves)] = piece.leaves
        special = self.nan_first[nodes]
        return _Asked(
            self.features[nodes],
            self.thresholds[nodes],
            first.astype(np.uint32).astype(np.int32),
            second.astype(np.uint32).astype(np.int32),
            leaves.reshape(-1),
            special if special.any() else None,
        )

    def _pieces(self, root: int, most: int) -> list[_Piece] | None:
        """A tree in pieces of at most `LEAVES` leaves each.

        None if a node has several ways to it, or there are more than `most` nodes.
        """
        inner: list[tuple[int, int, int, int]] = []  # node, its leaves, and those of its second
        leaves: list[int] = []
        seen: set[int] = set()
        starts: dict[int, tuple[int, int]] = {}  # where the leaves of both sides begin
        work = [(root, 0)]
        while work:
            node, visit = work.pop()
            if visit == 0:
                if node in seen or len(seen) > 2 * most:
                    return None
                seen.add(node)
                first, second = int(self.first[node]), int(self.second[node])
                if first == second == node:
                    leaves.append(node)
                    continue
                starts[node] = (len(leaves), 0)
                work += [(node, 2), (second, 0), (node, 1), (first, 0)]
            elif visit == 1:
                starts[node] = (starts[node][0], len(leaves))
            else:
                inner.append((node, *starts[node], len(leaves)))
        count = -(-len(leaves) // LEAVES)
        ends = [number * len(leaves) // count for number in range(count + 1)]
        return [_piece(inner, leaves[begin:end], begin, end) for begin, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some leaves of a tree, and for each node that rules any out what each answer leaves."""

    nodes: list[int]
    first: list[int]
    second: list[int]
    leaves: list[int]


def _piece(
    inner: Sequence[tuple[int, int, int, int]], leaves: list[int], begin: int, end: int
) -> _Piece:
    """The piece of those leaves, of number `begin` to `end` in the tree."""
    every = _bits(begin, end, begin, end)
    piece = _Piece([], [], [], leaves)
    for node, low, middle, high in inner:
        if low < end and begin < high:
            piece.nodes.append(node)
            piece.first.append(every & ~_bits(middle, high, begin, end))
            piece.second.append(every & ~_bits(low, middle, begin, end))
    if not piece.nodes:  # a tree of one leaf
        return _Piece([leaves[0]], [every], [every], leaves)
    return piece


def _bits(low: int, high: int, begin: int, end: int) -> int:
    """The bits of leaves `low` to `high` in a piece from `begin` to `end`."""
    low, high = max(low, begin) - begin, max(min(high, end), begin) - begin
    return (1 << high) - (1 << low) if high > low else 0


@dataclass(frozen=True, slots=True)
class _Asked:
    """The tables of `tree_leaves`, [trees, nodes]."""

    features: Numbers
    thresholds: npt.NDArray[np.float64]
    first: npt.NDArray[np.int32]
    second: npt.NDArray[np.int32]
    leaves: Numbers
    nan_first: npt.NDArray[np.bool_] | None

    def find(self, data: Value, by_rows: bool, graph: GraphBuilder, groups: int) -> Leaves:
        """The leaf of each tree for each row of the data; `by_rows` vectors are of trees."""

        def table(values: npt.NDArray[Any], dtype: DType) -> Value:
            return graph.constant(np.ascontiguousarray(values.T) if by_rows else values, dtype)

        tables = [
            table(self.features, DType.I32),
            table(self.thresholds, data.dtype),
            table(self.first, DType.I32),
            table(self.second, DType.I32),
            graph.constant(self.leaves, DType.I32),
        ]
        if self.nan_first is not None:
            tables.append(table(self.nan_first, DType.BOOL))
        data = data if by_rows else graph.emit("transpose", data, perm=(1, 0))
        found = graph.emit("tree_leaves", data, *tables, by_rows=by_rows)
        return Leaves(found, int(by_rows), groups)


def _before(values: npt.NDArray[np.float64], dtype: DType) -> npt.NDArray[np.float64]:
    """The largest numbers of the type below each."""
    below = np.nextafter(values.astype(dtype.numpy), np.asarray(-np.inf, dtype.numpy))
    return np.asarray(below, np.float64)


@dataclass(frozen=True, slots=True)
class Leaves:
    """The leaves of all rows in all trees, whose axis is `trees`; the other one is of rows.

    Trees are of so many groups, one behind the other: of one, or of one for each target.
    """

    nodes: Value
    trees: int
    groups: int


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
        operator = f"reduce_{combine}"
        if found.groups == targets:
            weights = np.full(nodes, neutral)
            join.at(weights, self.leaf, self.weight)
            return _of_groups(operator, graph.constant(weights, dtype), found, graph)
        graph.check_array((nodes, targets), DType.F64.bytes)
        table = np.full((nodes, targets), neutral)
        join.at(table, (self.leaf, self.target), self.weight)
        voted = graph.emit("gather", graph.constant(table, dtype), found.nodes, axis=0)
        return graph.emit(operator, voted, axes=(found.trees,), keepdims=False)


def _of_groups(operator: str, weights: Value, found: Leaves, graph: GraphBuilder) -> Value:
    """The weights of each group's leaves joined: [rows, groups]."""
    nodes, axis, groups = found.nodes, found.trees, found.groups
    if groups > 1:
        before, each, behind = nodes.shape[:axis], nodes.shape[axis] // groups, nodes.shape[axis:]
        nodes = graph.reshape(nodes, (*before, groups, each, *behind[1:]))
        axis += 1
    voted = graph.emit("gather", weights, nodes, axis=0)
    total = graph.emit(operator, voted, axes=(axis,), keepdims=False)
    if groups == 1:
        return graph.reshape(total, (total.shape[0], 1))
    return total if found.trees else graph.emit("transpose", total, perm=(1, 0))


_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def _numbers(node: OnnxNode, name: str) -> npt.NDArray[np.float64]:
    """A list of floats, or the tensor that newer versions have for f64."""
    tensor = node.attributes.get(f"{name}_as_tensor")
    if isinstance(tensor, np.ndarray):
        return tensor.astype(np.float64).reshape(-1)
    return np.array(node.floats(name, ()), np.float64)


class _Listed:
    """The old form: nodes by the number of their tree and their own number in it."""

    def __init__(self, node: OnnxNode, votes: str, dtype: DType) -> None:
        trees, own = (_whole(node, f"nodes_{name}ids") for name in ("tree", "node"))
        count = len(trees)
        self._names = _Names(trees, own) if count == len(own) else None
        if not count or self._names is None or not self._names.are_unique:
            raise node.invalid("a tree has a node twice, or there is none")
        modes = node.attributes.get("nodes_modes")
        values = _numbers(node, "nodes_values")
        features = _whole(node, "nodes_featureids")
        children = [_whole(node, f"nodes_{side}nodeids") for side in ("true", "false")]
        missing = _missing(node, count)
        if not isinstance(modes, tuple) or any(
            len(item) != count for item in (modes, values, features, *children, missing)
        ):
            raise node.invalid(f"the lists of nodes are not all of {count} entries")
        self.forest = Forest(count)
        numbers = _mode_numbers(node, modes)
        inner = np.flatnonzero(numbers >= 0)
        ends = [self._find(node, trees[inner], child[inner]) for child in children]
        _split(
            self.forest,
            numbers[inner],
            inner,
            features[inner],
            values[inner],
            (ends[0], ends[1]),
            missing[inner],
            {},
            dtype,
        )
        self.roots: Numbers = np.sort(np.unique(trees, return_index=True)[1])
        leaf_trees, leaves = (_whole(node, f"{votes}_{name}ids") for name in ("tree", "node"))
        self.votes = Votes(
            self._find(node, leaf_trees, leaves),
            _whole(node, f"{votes}_ids"),
            _numbers(node, f"{votes}_weights"),
        )
        if not len(self.votes.leaf) == len(self.votes.target) == len(self.votes.weight):
            raise node.invalid(f"the lists of {votes} weights differ in length")

    def _find(self, node: OnnxNode, trees: Numbers, own: Numbers) -> Numbers:
        """The positions of nodes in the lists."""
        if len(trees) != len(own):
            raise node.invalid("the lists of trees and of nodes differ in length")
        assert self._names is not None
        found = self._names.positions(trees, own)
        if (unknown := np.flatnonzero(found < 0)).size:
            raise node.invalid(f"tree {trees[unknown[0]]} has no node {own[unknown[0]]}")
        return found


class _Names:
    """Pairs of numbers, and their positions in the lists that they were given in."""

    def __init__(self, trees: Numbers, own: Numbers) -> None:
        self._trees, tree = np.unique(trees, return_inverse=True)
        self._own, place = np.unique(own, return_inverse=True)
        keys = tree * len(self._own) + place
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    @property
    def are_unique(self) -> bool:
        """Whether no pair is there twice."""
        return bool((np.diff(self._keys) > 0).all())

    def positions(self, trees: Numbers, own: Numbers) -> Numbers:
        """Where each pair is, -1 for those that are nowhere."""
        tree, place = np.searchsorted(self._trees, trees), np.searchsorted(self._own, own)
        tree, place = (
            np.minimum(tree, len(self._trees) - 1),
            np.minimum(place, len(self._own) - 1),
        )
        keys = tree * len(self._own) + place
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        is_there = (self._trees[tree] == trees) & (self._own[place] == own)
        is_there &= self._keys[at] == keys
        return np.where(is_there, self._order[at], -1)


def _whole(node: OnnxNode, name: str) -> Numbers:
    return np.array(node.integers(name), np.int64)


def _missing(node: OnnxNode, count: int) -> npt.NDArray[np.bool_]:
    """Whether NaN is true for each node."""
    given = node.integers("nodes_missing_value_tracks_true", ())
    return np.array(given, np.bool_) if given else np.zeros(count, np.bool_)


def _mode_numbers(node: OnnxNode, modes: Sequence[object]) -> npt.NDArray[np.int_]:
    """The place in `MODES` of each node's mode, -1 for leaves."""
    numbers: dict[object, int] = {LEAF: -1}
    for mode in set(modes) - {LEAF}:
        short = str(mode).removeprefix("BRANCH_")
        if short not in MODES[:-1]:
            raise node.unsupported(f"a node of mode {mode!r}")
        numbers[mode] = MODES.index(short)
    return np.fromiter(map(numbers.__getitem__, modes), np.int_, len(modes))


def _split(
    forest: Forest,
    modes: npt.NDArray[np.int_],
    nodes: Numbers,
    features: Numbers,
    values: npt.NDArray[np.float64],
    children: tuple[Numbers, Numbers],
    missing: npt.NDArray[np.bool_],
    sets: Mapping[int, Sequence[float]],
    dtype: DType,
) -> None:
    """Make nodes of leaves, those of one mode together; all lists are by the numbers in `nodes`.

    `sets` has the values that a node asks for as a member.
    """
    for number in np.unique(modes).tolist():
        at, mode = np.flatnonzero(modes == number), MODES[number]
        own, ends = nodes[at], (children[0][at], children[1][at])
        if mode in ORDERS:
            forest.compare(own, mode, features[at], values[at], ends, missing[at], dtype)
            continue
        wanted = [sets.get(node, (value,)) for node, value in zip(own, values[at], strict=True)]
        if mode == "NEQ":  # which NaN always is
            none = np.zeros(len(at), np.bool_)
            forest.among(own, features[at], wanted, (ends[1], ends[0]), none, dtype)
        else:
            forest.among(own, features[at], wanted, ends, missing[at], dtype)


def _voted(
    node: OnnxNode,
    forest: Forest,
    roots: Numbers,
    votes: Votes,
    data: Value,
    targets: int,
    combine: str,
    graph: GraphBuilder,
) -> Value:
    """The votes of all trees, [rows, targets]."""
    if votes.target.min(initial=0) < 0 or votes.target.max(initial=0) >= targets:
        raise node.invalid(f"a leaf votes for none of {targets} targets")
    by_target = forest.by_target(roots, votes, targets)
    groups = 1 if by_target is None else targets
    roots = roots if by_target is None else by_target.reshape(-1)
    try:
        leaves = forest.walk(data, roots, graph, groups)
    except ShapeError as error:
        raise node.invalid(error.message) from None
    return votes.total(leaves, len(forest), targets, combine, data.dtype, graph)


def _with_base(
    node: OnnxNode,
    total: Value,
    graph: GraphBuilder,
    most: int | None = None,
) -> Value:
    """The total with the first `most` base values added."""
    base = _numbers(node, "base_values")[:most]
    if not base.size:
        return total
    if base.size not in (1, total.shape[1]):
        raise node.invalid(f"{base.size} base values for {total.shape[1]} targets")
    return graph.emit("add", total, graph.constant(base, total.dtype))


@converter("TreeEnsembleRegressor", 1, 3, domain=DOMAIN)
def tree_ensemble_regressor(node: OnnxNode, graph: GraphBuilder) -> Value:
    data = as_float(rows_of(node, node.input(0), graph), graph, wide=True)
    found, targets = _Listed(node, "target", data.dtype), node.integer("n_targets", 1)
    aggregate = node.choice("aggregate_function", "SUM", _AGGREGATES)
    combine = "sum" if aggregate in ("SUM", "AVERAGE") else aggregate.lower()
    total = _voted(node, found.forest, found.roots, found.votes, data, targets, combine, graph)
    if aggregate == "AVERAGE":
        share = graph.scalar(1 / len(found.roots), total.dtype)
        total = graph.emit("mul", total, share)
    total = _with_base(node, total, graph)
    transform = node.choice("post_transform", "NONE", TRANSFORMS)
    return graph.cast(transformed(total, transform, graph), DType.F32)


@converter("TreeEnsembleClassifier", 1, 3, domain=DOMAIN)
def tree_ensemble_classifier(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """Where all leaves vote for one of two classes the other one's score follows from it.

    Votes that are all positive are probabilities, else scores of either sign.
    """
    data = as_float(rows_of(node, node.input(0), graph), graph, wide=True)
    labels = class_labels(node, "classlabels_int64s")
    found = _Listed(node, "class", data.dtype)
    transform = node.choice("post_transform", "NONE", TRANSFORMS)
    one = len(set(found.votes.target.tolist())) == 1
    if len(labels) == 2 and one:
        target = found.votes.target
        only = Votes(found.votes.leaf, np.zeros_like(target), found.votes.weight)
        votes = _voted(node, found.forest, found.roots, only, data, 1, "sum", graph)
        first_alone = _numbers(node, "base_values").size == 2 and not target.any()
        score = _with_base(node, votes, graph, 1 if first_alone else None)
        whole = bool((found.votes.weight >= 0).all())
        limit = graph.scalar(0.5 if whole else 0.0, score.dtype)
        number = graph.cast(graph.emit("greater", score, limit), DType.I64)
        number = graph.reshape(number, (score.shape[0],))
        if first_alone:  # as in onnxruntime the other class has the score 0
            both = graph.concat([score, graph.emit("sub", score, score)], 1)
            scores = transformed(both, transform, graph)
            return [labels_of(number, labels, graph), graph.cast(scores, DType.F32)]
        scores = both_classes(node, score, transform, whole, graph)
        return [labels_of(number, labels, graph), graph.cast(scores, DType.F32)]
    if len(labels) < 2:
        raise node.unsupported(f"{len(labels)} class labels")
    count = len(labels)
    votes = _voted(node, found.forest, found.roots, found.votes, data, count, "sum", graph)
    scores = _with_base(node, votes, graph)
    number = graph.emit("arg_max", scores, axis=1, keepdims=False)
    scores = graph.cast(transformed(scores, transform, graph), DType.F32)
    return [labels_of(number, labels, graph), scores]


@converter("TreeEnsemble", 5, domain=DOMAIN)
def tree_ensemble(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Nodes first, then leaves: `nodes_trueleafs` says which of both a child is."""
    given = rows_of(node, node.input(0), graph)
    data, targets = as_float(given, graph, wide=True), node.integer("n_targets", 1)
    forest, roots, votes = _split_form(node, data.dtype)
    aggregate = _AGGREGATES[_choice(node, "aggregate_function", 1, len(_AGGREGATES))]
    combine = "sum" if aggregate in ("SUM", "AVERAGE") else aggregate.lower()
    total = _voted(node, forest, roots, votes, data, targets, combine, graph)
    if aggregate == "AVERAGE":
        total = graph.emit("mul", total, graph.scalar(1 / len(roots), total.dtype))
    order = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    transform = order[_choice(node, "post_transform", 0, len(order))]
    return graph.cast(transformed(total, transform, graph), given.dtype)


def _choice(node: OnnxNode, name: str, default: int, count: int) -> int:
    value = node.integer(name, default)
    if not 0 <= value < count:
        raise node.invalid(f"{name} {value} is not of 0 to {count - 1}")
    return value


def _tensor(node: OnnxNode, name: str) -> npt.NDArray[np.float64]:
    value = node.attributes.get(name)
    if not isinstance(value, np.ndarray):
        return np.empty(0)
    return value.astype(np.float64).reshape(-1)


def _split_form(node: OnnxNode, dtype: DType) -> tuple[Forest, Numbers, Votes]:
    """The nodes and then the leaves, the roots, and what leaves say."""
    modes, values = _tensor(node, "nodes_modes").astype(int), _tensor(node, "nodes_splits")
    weights, count = _tensor(node, "leaf_weights"), len(modes)
    features = _whole(node, "nodes_featureids")
    children = [_whole(node, f"nodes_{side}nodeids") for side in ("true", "false")]
    is_leaf = [_whole(node, f"nodes_{side}leafs") for side in ("true", "false")]
    missing = _missing(node, count)
    if {len(values), *map(len, (features, *children, *is_leaf, missing))} != {count}:
        raise node.invalid(f"the lists of nodes are not all of {count} entries")
    sets, forest = _members(node, modes), Forest(count + len(weights))
    ends = [c + np.where(leaf != 0, count, 0) for c, leaf in zip(children, is_leaf, strict=True)]
    for child in ends:
        lost = np.flatnonzero((child < 0) | (child >= count + len(weights)))
        if lost.size:
            raise node.invalid(f"node {lost[0]} has a child that there is not")
    strange = np.flatnonzero((modes < 0) | (modes >= len(MODES)))
    if strange.size:
        raise node.invalid(f"node {strange[0]} has the mode {modes[strange[0]]}")
    nodes = np.arange(count)
    _split(forest, modes, nodes, features, values, (ends[0], ends[1]), missing, sets, dtype)
    roots = np.array(node.integers("tree_roots"), np.int64)
    targets = np.array(node.integers("leaf_targetids"), np.int64)
    if len(targets) != len(weights) or not all(0 <= root < count for root in roots):
        raise node.invalid("roots are no nodes, or leaves have no targets")
    return forest, roots, Votes(np.arange(count, count + len(weights)), targets, weights)


def _members(node: OnnxNode, modes: npt.NDArray[np.int_]) -> dict[int, tuple[float, ...]]:
    """The sets of the nodes that ask for members, which NaN ends, in the order of the nodes."""
    values, sets = _tensor(node, "membership_values"), dict[int, tuple[float, ...]]()
    ends = np.flatnonzero(np.isnan(values))
    asking = np.flatnonzero(modes == MODES.index("MEMBER"))
    if len(ends) != len(asking):
        raise node.invalid(f"{len(ends)} sets of members for {len(asking)} nodes")
    start = 0
    for position, end in zip(asking.tolist(), ends.tolist(), strict=True):
        sets[position] = tuple(float(value) for value in values[start:end])
        start = end + 1
    return sets
