"""Ensembles of decision trees as tables of nodes: what rows find in them, and what that votes.

Rows walk down level by level, as many as the deepest tree has; or all nodes are asked at once,
and what they leave says the leaf. The latter takes no look-ups and suits trees of few leaves,
however deep some of them lie: as LightGBM grows them, by leaves.

Nodes that ask for one of several whole numbers, a set of categories, ask a column of its own for
each set instead: a table has, for each category, whether it is in every set.

Where every tree votes for one target, as boosting for several classes grows them, trees are
ordered by target: a leaf has one weight then, and each target the sum of its own trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.operators.trees import slots_of
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import is_unpadded, size_of
from tunefarm.compiler.types.sizes import bounds_of

Numbers = npt.NDArray[np.int64]

LEAF = "LEAF"
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
ORDERS = MODES[:4]
_MANY_TREES = 8
"""So many trees are a vector of their own, whether or not it is full."""
FEW_ROWS = 2
"""Fewer rows are no vector of their own: two already take 0.6 to 0.9 of the time of one by one
(Zen 5)."""
_NODES_PER_STEP = 12
"""So many nodes are asked in the time of a step down, where rows are vectors: 0.4 against 4.4 ns
of a tree and row (measured on Zen 3 with 200 trees of 31 leaves and 1,000 rows); more of them on
Zen 5, with AVX2 0.08 against 2.0, with AVX-512 0.05 (trees of 64 leaves)."""
_NODES_PER_STEP_BY_ROWS = 6
"""The same where trees are vectors, and look the features up: 0.8 against 5.3 ns."""

_MOST_CATEGORIES = 1 << 12
"""Sets of larger numbers are compared one by one: tables have a row for each number."""

_NARROW_ROWS = 8
"""Rows for which masks of 64 bits are no more vectors; many rows take longer with half of the
nodes (1.5 times on Zen 5)."""
_WIDE_NODE = 1.25
"""The time of a node whose masks have 64 bits for such rows, in that of one of 32 bits."""


class Forest:
    """Nodes by number: a row goes to `first` if its feature is at most the threshold.

    Where it is NaN it goes there if `nan_first`. Leaves have themselves as children.
    `with_sets` gives the data the columns that nodes ask for sets of categories.
    """

    def __init__(self, count: int) -> None:
        """So many leaves, of which nodes are made by `compare` and `among`."""
        self._asking: dict[CategorySet, list[int]] = {}  # the nodes of each set
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

        Categories ask the column of their set. Of others it is at most one of them, and above all
        before it: two nodes for each, the last one's but one.
        """
        members = [sorted(set(values)) for values in sets]
        for at, values in enumerate(members):
            if values and all(map(_is_category, values)):
                wanted = CategorySet(int(features[at]), tuple(map(int, values)), bool(missing[at]))
                self._asking.setdefault(wanted, []).append(int(nodes[at]))
                true, false = int(children[0][at]), int(children[1][at])
                self._set(int(nodes[at]), 0, 0.5, false, true, False)
                members[at] = []
        others = [at for at, values in enumerate(members) if values or not sets[at]]
        spare = self._add_leaves(sum(2 * len(values) - 1 for values in members if values))
        for at in others:
            rest = members[at]
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

    def with_sets(self, data: Value, graph: GraphBuilder) -> Value:
        """The data [rows, features] with a column for each set: 1 where the feature is in it.

        Raises `ShapeError` for features that there are not.
        """
        read = [*self.features.tolist(), *(wanted.feature for wanted in self._asking)]
        if min(read) < 0 or max(read) >= data.shape[1]:
            raise ShapeError(f"a tree reads feature {max(read)} of {data.type}")
        every = sorted(self._asking, key=lambda wanted: wanted.feature)
        for number, wanted in enumerate(every):
            self.features[self._asking[wanted]] = data.shape[1] + number
        columns = [data]
        for feature, group in groupby(every, lambda wanted: wanted.feature):
            sets = list(group)
            count = 1 + max(wanted.values[-1] for wanted in sets)
            graph.check_array((count + 2, len(sets)), data.dtype.bytes)
            table = np.zeros((count + 2, len(sets)))  # behind them any other number, and NaN
            for number, wanted in enumerate(sets):
                table[list(wanted.values), number] = 1
                table[count + 1, number] = wanted.has_nan
            column = graph.emit("gather", data, graph.scalar(feature, DType.I64), axis=1)
            at = _category(column, count, graph)
            columns.append(graph.emit("gather", graph.constant(table, data.dtype), at, axis=0))
        return graph.concat(columns, 1) if every else data

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

    def walk(
        self, data: Value, roots: Numbers, graph: GraphBuilder, groups: int = 1
    ) -> list[Leaves]:
        """The leaf of each tree for each row of data [rows, features]: i32 [trees, rows].

        The trees of each of so many groups are as many, and so are what is found of them.
        Few rows of many trees come first: a vector of trees for each row costs less than one of
        rows of which few are there. Where only a run knows how many there are, both are given, for
        fewer than `FEW_ROWS` and for more.
        """
        low, high = bounds_of(size_of(data.dims[0]))
        many_trees = len(roots) >= _MANY_TREES
        by_rows = many_trees and (low < FEW_ROWS or low < high)
        if by_rows and high >= FEW_ROWS:
            asked = self._asked(roots, groups, False, high)
            many = [] if asked is None else [asked.find(data, False, graph, groups)]
            if many and low >= FEW_ROWS:
                return many
            return [self._found(data, roots, graph, groups, by_rows), *many]
        return [self._found(data, roots, graph, groups, by_rows)]

    def _affordable(self, roots: Numbers, by_rows: bool) -> int:
        """How many nodes are asked in the time that a walk takes."""
        step = _NODES_PER_STEP_BY_ROWS if by_rows else _NODES_PER_STEP
        return step * self.depth(roots) * len(roots)

    def _found(
        self, data: Value, roots: Numbers, graph: GraphBuilder, groups: int, by_rows: bool
    ) -> Leaves:
        """The leaves, by whichever way takes less time."""
        asked = self._asked(roots, groups, by_rows, bounds_of(size_of(data.dims[0]))[1])
        if asked is not None:
            return asked.find(data, by_rows, graph, groups)
        features, depth = self.features, self.depth(roots)
        children = np.stack([self.first, self.second], axis=1).reshape(-1)
        tables = [
            graph.constant(features, DType.I32),
            graph.constant(self.thresholds, data.dtype),
            graph.constant(children, DType.I32),
        ]
        if self.nan_first[~self.leaves].any():
            tables.append(graph.constant(self.nan_first))
        if depth and by_rows and not is_unpadded(data.dims[0]):
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

    def _asked(self, roots: Numbers, groups: int, by_rows: bool, rows: int) -> _Asked | None:
        """The trees as tables of nodes to ask; None if a walk takes less time."""
        affordable = self._affordable(roots, by_rows)
        if self._tests(roots) > affordable:
            return None
        found = self._parts(roots, groups, affordable, DType.I32)
        masks = DType.I32
        is_cut = found is None or sum(map(len, found[0])) > len(roots)
        if is_cut and (by_rows or rows <= _NARROW_ROWS):
            wide = self._parts(roots, groups, affordable, DType.I64)
            if wide is not None and (found is None or _WIDE_NODE * wide[1] < found[1]):
                found, masks = wide, DType.I64
        if found is None:
            return None
        parts, slots = found[0], slots_of(masks)
        longest = max(map(len, parts))
        none = self._add_leaves(1)
        nothing = _Piece([none], [1], [1], [none])
        pieces = [piece for part in parts for piece in part + [nothing] * (longest - len(part))]
        shape = len(pieces), max(len(piece.nodes) for piece in pieces)
        nodes = np.full(shape, none)
        first, second = np.full((2, *shape), -1).astype(np.uint64)
        leaves = np.full((len(pieces), slots), none)
        for tree, piece in enumerate(pieces):
            count = len(piece.nodes)
            nodes[tree, :count] = piece.nodes
            first[tree, :count] = np.array(piece.first, np.uint64)
            second[tree, :count] = np.array(piece.second, np.uint64)
            leaves[tree, 1 : 1 + len(piece.leaves)] = piece.leaves
        special = self.nan_first[nodes]
        return _Asked(
            self.features[nodes],
            self.thresholds[nodes],
            first.astype(masks.numpy),
            second.astype(masks.numpy),
            leaves.reshape(-1),
            special if special.any() else None,
        )

    def _parts(
        self, roots: Numbers, groups: int, affordable: int, masks: DType
    ) -> tuple[list[list[_Piece]], int] | None:
        """Each group's pieces, and the nodes of their tables; None if more than is affordable."""
        parts: list[list[_Piece]] = []
        most = total = longest = 0
        for own in roots.reshape(groups, -1).tolist():
            parts.append([])
            for root in own:
                found = self._pieces(root, masks.bits)
                if found is None:
                    return None
                parts[-1] += found
                most = max(most, *(len(piece.nodes) for piece in found))
                longest = max(longest, len(parts[-1]))
                total = most * longest * len(parts)
                if total > affordable:
                    return None
        return parts, total

    def _tests(self, roots: Numbers) -> int:
        """How many tests trees have, each once; those of all nodes if trees share any."""
        inner = np.flatnonzero(~self.leaves)
        trees = self._trees(roots)
        if trees is None:
            return len(inner)
        inner = inner[trees[inner] >= 0]
        tests = np.stack([trees[inner], self.features[inner], self.nan_first[inner]])
        return int(np.unique(np.vstack([tests, self.thresholds[inner]]), axis=1).shape[1])

    def _pieces(self, root: int, most: int) -> list[_Piece] | None:
        """A tree in pieces of at most so many leaves; None if a node has several ways to it.

        Nodes that test the same are asked once: all of a level, in trees as CatBoost grows them.
        """
        inner: list[tuple[int, int, int, int]] = []  # node, its leaves, and those of its second
        leaves: list[int] = []
        seen: set[int] = set()
        starts: dict[int, tuple[int, int]] = {}  # where the leaves of both sides begin
        work = [(root, 0)]
        while work:
            node, visit = work.pop()
            if visit == 0:
                if node in seen:
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
        count = -(-len(leaves) // most)
        ends = [number * len(leaves) // count for number in range(count + 1)]
        return [self._piece(inner, leaves[begin:end], begin, end) for begin, end in pairwise(ends)]

    def _piece(
        self, inner: Sequence[tuple[int, int, int, int]], leaves: list[int], begin: int, end: int
    ) -> _Piece:
        """The piece of those leaves, of number `begin` to `end` in the tree."""
        every = _bits(begin, end, begin, end)
        nodes: dict[tuple[int, float, bool], tuple[int, int, int]] = {}
        for node, low, middle, high in inner:
            if low < end and begin < high:
                test = (
                    int(self.features[node]),
                    float(self.thresholds[node]),
                    bool(self.nan_first[node]),
                )
                one, first, second = nodes.get(test, (node, every, every))
                first &= ~_bits(middle, high, begin, end)
                nodes[test] = one, first, second & ~_bits(low, middle, begin, end)
        if not nodes:  # a tree of one leaf
            return _Piece([leaves[0]], [every], [every], leaves)
        own, first_masks, second_masks = (
            list(column) for column in zip(*nodes.values(), strict=True)
        )
        return _Piece(own, first_masks, second_masks, leaves)


@frozen
class CategorySet:
    """Some values of a feature, in order, and whether NaN counts as one of them."""

    feature: int
    values: tuple[int, ...]
    has_nan: bool


def _is_category(value: float) -> bool:
    return 0 <= value < _MOST_CATEGORIES and value == int(value)


def _category(column: Value, count: int, graph: GraphBuilder) -> Value:
    """The whole numbers below `count` in a column, `count` for any other and one more for NaN."""
    top = graph.scalar(count, column.dtype)
    near = graph.emit("min", graph.emit("max", column, graph.scalar(0, column.dtype)), top)
    number = graph.cast(near, DType.I32)
    is_one = graph.emit("equal", graph.cast(number, column.dtype), column)
    number = graph.emit("where", is_one, number, graph.scalar(count, DType.I32))
    is_nan = graph.emit("isnan", column)
    return graph.emit("where", is_nan, graph.scalar(count + 1, DType.I32), number)


@frozen
class _Piece:
    """Some leaves of a tree, and for each node that rules any out what each answer leaves."""

    nodes: list[int]
    first: list[int]
    second: list[int]
    leaves: list[int]


def _bits(low: int, high: int, begin: int, end: int) -> int:
    """The bits of leaves `low` to `high` in a piece from `begin` to `end`."""
    low, high = max(low, begin) - begin, max(min(high, end), begin) - begin
    return (1 << high) - (1 << low) if high > low else 0


@frozen
class _Asked:
    """The tables of `tree_leaves`, [trees, nodes]."""

    features: Numbers
    thresholds: npt.NDArray[np.float64]
    first: npt.NDArray[Any]
    second: npt.NDArray[Any]
    leaves: Numbers
    nan_first: npt.NDArray[np.bool_] | None

    def find(self, data: Value, by_rows: bool, graph: GraphBuilder, groups: int) -> Leaves:
        """The leaf of each tree for each row of the data; `by_rows` vectors are of trees."""

        def table(values: npt.NDArray[Any], dtype: DType) -> Value:
            return graph.constant(np.ascontiguousarray(values.T) if by_rows else values, dtype)

        tables = [
            table(self.features, DType.I32),
            table(self.thresholds, data.dtype),
            table(self.first, DType.from_numpy(self.first.dtype)),
            table(self.second, DType.from_numpy(self.second.dtype)),
            graph.constant(self.leaves, DType.I32),
        ]
        if self.nan_first is not None:
            tables.append(table(self.nan_first, DType.BOOL))
        data = data if by_rows else graph.emit("transpose", data, perm=(1, 0))
        found = graph.emit("tree_leaves", data, *tables, by_rows=by_rows)
        return Leaves(found, int(by_rows), groups)


def _before(values: npt.NDArray[np.float64], dtype: DType) -> npt.NDArray[np.float64]:
    """The largest numbers of the type below each that are not denormal: runs count these as 0."""
    below = np.nextafter(values.astype(dtype.numpy), np.asarray(-np.inf, dtype.numpy))
    normal = -np.finfo(dtype.numpy).tiny
    return np.asarray(np.where((below > normal) & (below < 0), normal, below), np.float64)


@frozen
class Leaves:
    """The leaves of all rows in all trees, whose axis is `trees`; the other one is of rows.

    Trees are of so many groups, one behind the other: of one, or of one for each target.
    """

    nodes: Value
    trees: int
    groups: int


@frozen
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


@frozen
class Ensemble:
    """The roots of trees in a forest, and how their leaves vote."""

    forest: Forest
    roots: Numbers
    votes: Votes


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
