"""Tree ensembles of ai.onnx.ml, in the old form (a node a row) and the new one (nodes, leaves)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.forests import (
    FEW_ROWS,
    LEAF,
    MODES,
    ORDERS,
    Ensemble,
    Forest,
    Numbers,
    Votes,
)
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
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import size_of

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def _numbers(node: OnnxNode, name: str) -> npt.NDArray[np.float64]:
    """A list of floats, or the tensor that newer versions have for f64."""
    tensor = node.attributes.get(f"{name}_as_tensor")
    if isinstance(tensor, np.ndarray):
        return tensor.astype(np.float64).reshape(-1)
    return np.array(node.floats(name, ()), np.float64)


def _listed(node: OnnxNode, kind: str, dtype: DType) -> Ensemble:
    """The old form: nodes by the number of their tree and their own number in it."""
    trees, own = (_whole(node, f"nodes_{name}ids") for name in ("tree", "node"))
    count = len(trees)
    names = _Names(trees, own) if count == len(own) else None
    if not count or names is None or not names.are_unique:
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
    forest, numbers = Forest(count), _mode_numbers(node, modes)
    inner = np.flatnonzero(numbers >= 0)
    true, false = np.arange(count), np.arange(count)
    for ends, child in ((true, children[0]), (false, children[1])):
        ends[inner] = names.find(node, trees[inner], child[inner])
    sets = _join_equal(numbers, features, values, true, false, missing)
    inner = np.flatnonzero(numbers >= 0)
    asked, splits = (features[inner], values[inner]), (true[inner], false[inner])
    _split(forest, numbers[inner], inner, *asked, splits, missing[inner], sets, dtype)
    leaf_trees, leaves = (_whole(node, f"{kind}_{name}ids") for name in ("tree", "node"))
    leaf = names.find(node, leaf_trees, leaves)
    votes = Votes(leaf, _whole(node, f"{kind}_ids"), _numbers(node, f"{kind}_weights"))
    if not len(votes.leaf) == len(votes.target) == len(votes.weight):
        raise node.invalid(f"the lists of {kind} weights differ in length")
    return Ensemble(forest, np.sort(np.unique(trees, return_index=True)[1]), votes)


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

    def find(self, node: OnnxNode, trees: Numbers, own: Numbers) -> Numbers:
        """The positions of nodes, all of which must be in the lists."""
        if len(trees) != len(own):
            raise node.invalid("the lists of trees and of nodes differ in length")
        found = self.positions(trees, own)
        if (unknown := np.flatnonzero(found < 0)).size:
            raise node.invalid(f"tree {trees[unknown[0]]} has no node {own[unknown[0]]}")
        return found

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


def _join_equal(
    modes: npt.NDArray[np.int_],
    features: Numbers,
    values: npt.NDArray[np.float64],
    true: Numbers,
    false: Numbers,
    missing: npt.NDArray[np.bool_],
) -> dict[int, tuple[float, ...]]:
    """Make one node, the first, of those that ask for one value each and lead to one child.

    So exporters write sets of categories: equal to 2, or else to 5, or else to 7. All lists are by
    nodes, and are changed; nodes that are joined to others become leaves. The values of each set.
    """
    equal = np.flatnonzero(modes == MODES.index("EQ"))
    ways = np.bincount(np.concatenate([true, false]), minlength=len(modes))
    after = false[equal]
    is_next = (modes[after] == MODES.index("EQ")) & (features[after] == features[equal])
    is_next &= (true[after] == true[equal]) & (ways[after] == 1)
    following = dict(zip(equal[is_next].tolist(), after[is_next].tolist(), strict=True))
    sets: dict[int, tuple[float, ...]] = {}
    for head in following.keys() - set(following.values()):
        chain = [head]
        while chain[-1] in following:
            chain.append(following[chain[-1]])
        sets[head] = tuple(values[chain].tolist())
        false[head], missing[head] = false[chain[-1]], missing[chain].any()
        modes[chain[1:]] = -1
    return sets


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
    trees: Ensemble,
    data: Value,
    targets: int,
    graph: GraphBuilder,
    aggregate: str = "SUM",
) -> Value:
    """The votes of all trees, [rows, targets]."""
    forest, votes = trees.forest, trees.votes
    if votes.target.min(initial=0) < 0 or votes.target.max(initial=0) >= targets:
        raise node.invalid(f"a leaf votes for none of {targets} targets")
    by_target = forest.by_target(trees.roots, votes, targets)
    groups = 1 if by_target is None else targets
    roots = trees.roots if by_target is None else by_target.reshape(-1)
    try:
        leaves = forest.walk(forest.with_sets(data, graph), roots, graph, groups)
    except ShapeError as error:
        raise node.invalid(error.message) from None
    combine = "sum" if aggregate in ("SUM", "AVERAGE") else aggregate.lower()
    count = len(forest)
    few, *many = (
        votes.total(found, count, targets, combine, data.dtype, graph) for found in leaves
    )
    total = few
    if many:
        rows = graph.size(size_of(data.dims[0]))
        is_few = graph.emit("less", rows, graph.scalar(FEW_ROWS, DType.I64))
        total = graph.emit("choose", is_few, few, *many)
    if aggregate != "AVERAGE":
        return total
    return graph.emit("mul", total, graph.scalar(1 / len(trees.roots), total.dtype))


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
    trees, targets = _listed(node, "target", data.dtype), node.integer("n_targets", 1)
    aggregate = node.choice("aggregate_function", "SUM", _AGGREGATES)
    total = _with_base(node, _voted(node, trees, data, targets, graph, aggregate), graph)
    transform = node.choice("post_transform", "NONE", TRANSFORMS)
    return graph.cast(transformed(total, transform, graph), DType.F32)


@converter("TreeEnsembleClassifier", 1, 3, domain=DOMAIN)
def tree_ensemble_classifier(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """Where all leaves vote for one of two classes the other one's score follows from it.

    Votes that are all positive are probabilities, else scores of either sign.
    """
    data = as_float(rows_of(node, node.input(0), graph), graph, wide=True)
    labels = class_labels(node, "classlabels_int64s")
    found = _listed(node, "class", data.dtype)
    transform = node.choice("post_transform", "NONE", TRANSFORMS)
    one = len(set(found.votes.target.tolist())) == 1
    if len(labels) == 2 and one:
        target = found.votes.target
        only = replace(found, votes=replace(found.votes, target=np.zeros_like(target)))
        votes = _voted(node, only, data, 1, graph)
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
    scores = _with_base(node, _voted(node, found, data, len(labels), graph), graph)
    number = graph.emit("arg_max", scores, axis=1, keepdims=False)
    scores = graph.cast(transformed(scores, transform, graph), DType.F32)
    return [labels_of(number, labels, graph), scores]


@converter("TreeEnsemble", 5, domain=DOMAIN)
def tree_ensemble(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Nodes first, then leaves: `nodes_trueleafs` says which of both a child is."""
    given = rows_of(node, node.input(0), graph)
    data, targets = as_float(given, graph, wide=True), node.integer("n_targets", 1)
    aggregate = _choice(node, "aggregate_function", 1, _AGGREGATES)
    total = _voted(node, _split_form(node, data.dtype), data, targets, graph, aggregate)
    transform = _choice(node, "post_transform", 0, TRANSFORMS)
    return graph.cast(transformed(total, transform, graph), given.dtype)


def _choice(node: OnnxNode, name: str, default: int, choices: Sequence[str]) -> str:
    value = node.integer(name, default)
    if not 0 <= value < len(choices):
        raise node.invalid(f"{name} {value} is not of 0 to {len(choices) - 1}")
    return choices[value]


def _tensor(node: OnnxNode, name: str) -> npt.NDArray[np.float64]:
    value = node.attributes.get(name)
    if not isinstance(value, np.ndarray):
        return np.empty(0)
    return value.astype(np.float64).reshape(-1)


def _split_form(node: OnnxNode, dtype: DType) -> Ensemble:
    """The new form: the nodes and then the leaves."""
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
    votes = Votes(np.arange(count, count + len(weights)), targets, weights)
    return Ensemble(forest, roots, votes)


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
