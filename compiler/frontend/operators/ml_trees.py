"""Tree ensembles of ai.onnx.ml, in the old form (a node a row) and the new one (nodes, leaves)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compiler.errors import ShapeError
from compiler.frontend.converter import converter
from compiler.frontend.graph_builder import GraphBuilder, Value
from compiler.frontend.onnx_node import OnnxNode
from compiler.frontend.operators.ml_scores import (
    DOMAIN,
    TRANSFORMS,
    both_classes,
    class_labels,
    computed,
    labels_of,
    rows_of,
    transformed,
)
from compiler.frontend.trees import LEAF, MODES, Forest, Numbers, Votes
from compiler.types.dtypes import DType

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
        trees, own = node.integers("nodes_treeids"), node.integers("nodes_nodeids")
        names = list(zip(trees, own, strict=True))
        self._position = {name: position for position, name in enumerate(names)}
        if not names or len(self._position) != len(names):
            raise node.invalid("a tree has a node twice, or there is none")
        count = len(names)
        modes = node.attributes.get("nodes_modes")
        values = _numbers(node, "nodes_values")
        features = node.integers("nodes_featureids")
        children = [node.integers(f"nodes_{side}nodeids") for side in ("true", "false")]
        missing = node.integers("nodes_missing_value_tracks_true", ()) or (0,) * count
        if not isinstance(modes, tuple) or any(
            len(item) != count for item in (modes, values, features, *children, missing)
        ):
            raise node.invalid(f"the lists of nodes are not all of {count} entries")
        self.forest = Forest()
        for _ in range(count):
            self.forest.add_leaf()
        for position, mode in enumerate(modes):
            if mode == LEAF:
                continue
            short = str(mode).removeprefix("BRANCH_")
            if short not in MODES[:-1]:
                raise node.unsupported(f"a node of mode {mode!r}")
            true, false = (self._find(node, trees[position], c[position]) for c in children)
            self.forest.split(
                position,
                short,
                features[position],
                (float(values[position]),),
                (true, false),
                bool(missing[position]),
                dtype,
            )
        self.roots: Numbers = np.sort(np.unique(np.array(trees), return_index=True)[1])
        leaves = zip(
            node.integers(f"{votes}_treeids"), node.integers(f"{votes}_nodeids"), strict=True
        )
        self.votes = Votes(
            np.array([self._find(node, tree, leaf) for tree, leaf in leaves], np.int64),
            np.array(node.integers(f"{votes}_ids"), np.int64),
            _numbers(node, f"{votes}_weights"),
        )
        if not len(self.votes.leaf) == len(self.votes.target) == len(self.votes.weight):
            raise node.invalid(f"the lists of {votes} weights differ in length")

    def _find(self, node: OnnxNode, tree: int, own: int) -> int:
        found = self._position.get((tree, own))
        if found is None:
            raise node.invalid(f"tree {tree} has no node {own}")
        return found


def _walked(
    node: OnnxNode, forest: Forest, roots: Numbers, data: Value, graph: GraphBuilder
) -> Value:
    try:
        return forest.walk(data, roots, graph)
    except ShapeError as error:
        raise node.invalid(error.message) from None


def _voted(
    node: OnnxNode, found: _Listed, data: Value, targets: int, combine: str, graph: GraphBuilder
) -> Value:
    """The votes of all trees, [rows, targets]."""
    if found.votes.target.min(initial=0) < 0 or found.votes.target.max(initial=0) >= targets:
        raise node.invalid(f"a leaf votes for none of {targets} targets")
    leaves = _walked(node, found.forest, found.roots, data, graph)
    count = len(found.forest.features)
    return found.votes.total(leaves, count, targets, combine, data.dtype, graph)


def _with_base(node: OnnxNode, total: Value, graph: GraphBuilder) -> Value:
    base = _numbers(node, "base_values")
    if not base.size:
        return total
    if base.size not in (1, total.shape[1]):
        raise node.invalid(f"{base.size} base values for {total.shape[1]} targets")
    return graph.emit("add", total, graph.constant(base, total.dtype))


@converter("TreeEnsembleRegressor", 1, 3, domain=DOMAIN)
def tree_ensemble_regressor(node: OnnxNode, graph: GraphBuilder) -> Value:
    data = computed(rows_of(node, node.input(0), graph), graph, wide=True)
    found, targets = _Listed(node, "target", data.dtype), node.integer("n_targets", 1)
    aggregate = node.choice("aggregate_function", "SUM", _AGGREGATES)
    combine = "sum" if aggregate in ("SUM", "AVERAGE") else aggregate.lower()
    total = _voted(node, found, data, targets, combine, graph)
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
    data = computed(rows_of(node, node.input(0), graph), graph, wide=True)
    labels = class_labels(node, "classlabels_int64s")
    found = _Listed(node, "class", data.dtype)
    transform = node.choice("post_transform", "NONE", TRANSFORMS)
    one = len(set(found.votes.target.tolist())) == 1
    if len(labels) == 2 and one:
        only = Votes(found.votes.leaf, np.zeros_like(found.votes.target), found.votes.weight)
        found.votes = only
        score = _with_base(node, _voted(node, found, data, 1, "sum", graph), graph)
        whole = bool((found.votes.weight >= 0).all())
        limit = graph.scalar(0.5 if whole else 0.0, score.dtype)
        number = graph.cast(graph.emit("greater", score, limit), DType.I64)
        number = graph.reshape(number, (score.shape[0],))
        scores = both_classes(node, score, transform, whole, graph)
        return [labels_of(number, labels, graph), graph.cast(scores, DType.F32)]
    if len(labels) < 2:
        raise node.unsupported(f"{len(labels)} class labels")
    scores = _with_base(node, _voted(node, found, data, len(labels), "sum", graph), graph)
    number = graph.emit("arg_max", scores, axis=1, keepdims=False)
    scores = graph.cast(transformed(scores, transform, graph), DType.F32)
    return [labels_of(number, labels, graph), scores]


@converter("TreeEnsemble", 5, domain=DOMAIN)
def tree_ensemble(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Nodes first, then leaves: `nodes_trueleafs` says which of both a child is."""
    given = rows_of(node, node.input(0), graph)
    data, targets = computed(given, graph, wide=True), node.integer("n_targets", 1)
    forest, roots, votes = _split_form(node, data.dtype)
    if votes.target.min(initial=0) < 0 or votes.target.max(initial=0) >= targets:
        raise node.invalid(f"a leaf votes for none of {targets} targets")
    aggregate = _AGGREGATES[_choice(node, "aggregate_function", 1, len(_AGGREGATES))]
    combine = "sum" if aggregate in ("SUM", "AVERAGE") else aggregate.lower()
    leaves = _walked(node, forest, roots, data, graph)
    total = votes.total(leaves, len(forest.features), targets, combine, data.dtype, graph)
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
    features = node.integers("nodes_featureids")
    children = [node.integers(f"nodes_{side}nodeids") for side in ("true", "false")]
    is_leaf = [node.integers(f"nodes_{side}leafs") for side in ("true", "false")]
    missing = node.integers("nodes_missing_value_tracks_true", ()) or (0,) * count
    lengths = {len(values), *map(len, (features, *children, *is_leaf, missing))}
    if lengths != {count}:
        raise node.invalid(f"the lists of nodes are not all of {count} entries")
    sets, forest = _members(node, modes), Forest()
    for _ in range(count + len(weights)):
        forest.add_leaf()
    for position in range(count):
        own = [
            child[position] + (count if leaf[position] else 0)
            for child, leaf in zip(children, is_leaf, strict=True)
        ]
        if not all(0 <= child < count + len(weights) for child in own):
            raise node.invalid(f"node {position} has a child that there is not")
        if not 0 <= modes[position] < len(MODES):
            raise node.invalid(f"node {position} has the mode {modes[position]}")
        given = sets[position] if position in sets else (float(values[position]),)
        forest.split(
            position,
            MODES[modes[position]],
            features[position],
            given,
            (own[0], own[1]),
            bool(missing[position]),
            dtype,
        )
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
