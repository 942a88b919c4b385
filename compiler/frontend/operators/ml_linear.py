"""Linear models and support vector machines of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.loop_body import begin_state
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.ml_scores import (
    DOMAIN,
    TRANSFORMS,
    as_float,
    both_classes,
    class_labels,
    labels_of,
    rows_of,
    transformed,
)
from tunefarm.compiler.operators.loop import RESULT
from tunefarm.compiler.types.dims import whole
from tunefarm.compiler.types.dtypes import DType

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def _floats(node: OnnxNode, name: str) -> npt.NDArray[np.float64]:
    return np.array(node.floats(name, ()), np.float64)


def _affine(
    data: Value, rows: npt.NDArray[np.float64], shift: npt.NDArray[np.float64], graph: GraphBuilder
) -> Value:
    """Data by rows of coefficients, plus a constant for each."""
    factors = graph.constant(np.ascontiguousarray(rows.T), data.dtype)
    product = graph.emit("matmul", data, factors)
    return graph.emit("add", product, graph.constant(shift, data.dtype)) if shift.size else product


def _coefficients(node: OnnxNode, data: Value, shift: str) -> tuple[npt.NDArray[np.float64], ...]:
    """The rows of coefficients, and the constants added to their products."""
    given, added = _floats(node, "coefficients"), _floats(node, shift)
    width = data.shape[1]
    if not given.size or given.size % width:
        raise node.bad_shape(f"{given.size} coefficients for {data.type}")
    rows = given.reshape(-1, width)
    if added.size not in (0, 1, len(rows)):
        raise node.invalid(f"{added.size} constants for {len(rows)} rows of coefficients")
    return rows, added


@converter("LinearRegressor", 1, domain=DOMAIN)
def linear_regressor(node: OnnxNode, graph: GraphBuilder) -> Value:
    data = as_float(rows_of(node, node.input(0), graph), graph)
    rows, shift = _coefficients(node, data, "intercepts")
    if len(rows) != node.integer("targets", 1):
        raise node.invalid(f"coefficients of {len(rows)} targets")
    scores = _affine(data, rows, shift, graph)
    return transformed(scores, node.choice("post_transform", "NONE", TRANSFORMS), graph)


@converter("LinearClassifier", 1, domain=DOMAIN)
def linear_classifier(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """One row of coefficients scores the second of two classes, the first one's is its negative."""
    data = as_float(rows_of(node, node.input(0), graph), graph)
    labels = class_labels(node, "classlabels_ints")
    rows, shift = _coefficients(node, data, "intercepts")
    transform = node.choice("post_transform", "NONE", TRANSFORMS)
    scores = _affine(data, rows, shift, graph)
    if len(rows) == 1 and len(labels) == 2:
        number = _is_above(scores, 0.0, graph)
        both = both_classes(node, scores, transform, True, graph)
        return [labels_of(number, labels, graph), both]
    if len(rows) != len(labels) or len(rows) < 2:
        raise node.unsupported(f"coefficients of {len(rows)} classes for {len(labels)} labels")
    number = graph.emit("arg_max", scores, axis=1, keepdims=False)
    return [labels_of(number, labels, graph), transformed(scores, transform, graph)]


def _is_above(score: Value, limit: float, graph: GraphBuilder) -> Value:
    """1 where a score [rows, 1] is above the limit, else 0: [rows]."""
    above = graph.emit("greater", score, graph.scalar(limit, score.dtype))
    return graph.reshape(graph.cast(above, DType.I64), (score.shape[0],))


# --- support vectors ----------------------------------------------------------------------------


def _kernel(
    node: OnnxNode, data: Value, vectors: npt.NDArray[np.float64], graph: GraphBuilder
) -> Value:
    """The kernel function of each row with each support vector: [rows, vectors]."""
    kind = node.choice("kernel_type", "LINEAR", _KERNELS)
    gamma, constant, degree = (*node.floats("kernel_params", ()), 0.0, 0.0, 0.0)[:3]

    def number(value: float) -> Value:
        return graph.scalar(value, data.dtype)

    product = _affine(data, vectors, np.empty(0), graph)
    if kind == "LINEAR":
        return product
    if kind == "RBF":
        squares = graph.emit("mul", data, data)
        own = graph.emit("reduce_sum", squares, axes=(1,), keepdims=True)
        others = graph.constant((vectors**2).sum(axis=1), data.dtype)
        distance = graph.emit("sub", graph.emit("add", own, others), _twice(product, graph))
        distance = graph.emit("max", distance, number(0.0))
        return graph.emit("exp", graph.emit("mul", distance, number(-gamma)))
    scaled = graph.emit("mul", product, number(gamma))
    scaled = graph.emit("add", scaled, number(constant))
    if kind == "SIGMOID":
        return graph.emit("tanh", scaled)
    return graph.emit("pow", scaled, number(degree))


def _twice(value: Value, graph: GraphBuilder) -> Value:
    return graph.emit("mul", value, graph.scalar(2.0, value.dtype))


def _vectors(node: OnnxNode, data: Value, count: int) -> npt.NDArray[np.float64]:
    given = _floats(node, "support_vectors")
    if given.size != count * data.shape[1]:
        raise node.bad_shape(f"{given.size} numbers of {count} support vectors for {data.type}")
    return given.reshape(count, data.shape[1])


@converter("SVMRegressor", 1, domain=DOMAIN)
def svm_regressor(node: OnnxNode, graph: GraphBuilder) -> Value:
    """One score of each row; its sign alone where there is one class."""
    data = as_float(rows_of(node, node.input(0), graph), graph)
    count, rho = node.integer("n_supports", 0), _floats(node, "rho")[:1]
    if count > 0:
        data = _kernel(node, data, _vectors(node, data, count), graph)
    rows, _ = _coefficients(node, data, "none")
    if len(rows) != 1:
        raise node.invalid(f"{len(rows)} rows of coefficients")
    score = _affine(data, rows, rho, graph)
    if node.integer("one_class", 0):
        above = graph.emit("greater", score, graph.scalar(0.0, score.dtype))
        ones = [graph.scalar(value, score.dtype) for value in (1.0, -1.0)]
        return graph.emit("where", above, *ones)
    return transformed(score, node.choice("post_transform", "NONE", TRANSFORMS), graph)


@converter("SVMClassifier", 1, domain=DOMAIN)
def svm_classifier(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """Without support vectors a linear classifier; else one score for each pair of classes.

    Each pair votes for one of both; the class with the most votes, the first of several, is it.
    """
    data = as_float(rows_of(node, node.input(0), graph), graph)
    labels = class_labels(node, "classlabels_ints")
    own, rho = node.integers("vectors_per_class", ()), _floats(node, "rho")
    transform = node.choice("post_transform", "NONE", TRANSFORMS)
    if len(labels) < 2:
        raise node.unsupported(f"{len(labels)} class labels")
    if not sum(own):
        rows, _ = _coefficients(node, data, "none")
        scores = _affine(data, rows, rho[:1], graph)
        number = graph.emit("arg_max", scores, axis=1, keepdims=False)
        return [labels_of(number, labels, graph), transformed(scores, transform, graph)]
    has_probabilities = bool(node.floats("prob_a", ()))
    pairs = _pairs(node, own, rho)
    kernel = _kernel(node, data, _vectors(node, data, sum(own)), graph)
    scores = _affine(kernel, pairs, rho, graph)
    number = _winner(scores, len(own), graph)
    if has_probabilities:
        return [labels_of(number, labels, graph), _probabilities(node, scores, len(own), graph)]
    if len(own) == 2:
        whole = bool((_floats(node, "coefficients") >= 0).all())
        scores = both_classes(node, scores, transform, whole, graph)
    else:
        scores = transformed(scores, transform, graph)
    return [labels_of(number, labels, graph), scores]


def _pairs(
    node: OnnxNode, own: Sequence[int], rho: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Coefficients of the kernel with each support vector, a row for each pair of classes."""
    total, classes = sum(own), len(own)
    given = _floats(node, "coefficients")
    count = classes * (classes - 1) // 2
    if given.size != total * (classes - 1) or rho.size != count:
        raise node.invalid(
            f"{given.size} coefficients and {rho.size} constants of {classes} classes"
        )
    table, starts = given.reshape(classes - 1, total), np.cumsum((0, *own))
    rows = np.zeros((count, total))
    row = 0
    for first in range(classes):
        for second in range(first + 1, classes):
            for of, by in ((first, second - 1), (second, first)):
                part = slice(starts[of], starts[of + 1])
                rows[row, part] = table[by, part]
            row += 1
    return rows


def _winner(scores: Value, classes: int, graph: GraphBuilder) -> Value:
    """The class with the most votes of the pairs, [rows]."""
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    above = graph.cast(graph.emit("greater", scores, graph.scalar(0.0, scores.dtype)), scores.dtype)
    votes, base = np.zeros((len(pairs), classes)), np.zeros(classes)
    for row, (first, second) in enumerate(pairs):  # a vote for the second unless above
        votes[row, first], votes[row, second] = 1, -1
        base[second] += 1
    counted = graph.emit("matmul", above, graph.constant(votes, scores.dtype))
    counted = graph.emit("add", counted, graph.constant(base, scores.dtype))
    return graph.emit("arg_max", counted, axis=1, keepdims=False)


def _probabilities(node: OnnxNode, scores: Value, classes: int, graph: GraphBuilder) -> Value:
    """Of classes, from Platt's sigmoids of the pairs' scores."""
    scale, shift = _floats(node, "prob_a"), _floats(node, "prob_b")
    if scale.shape != shift.shape or scale.size != scores.shape[1]:
        raise node.invalid(f"{scale.size} sigmoids of {scores.shape[1]} pairs of classes")
    value = graph.emit("mul", scores, graph.constant(scale, scores.dtype))
    value = graph.emit("add", value, graph.constant(shift, scores.dtype))
    return coupled(graph.emit("sigmoid", graph.emit("neg", value)), classes, graph)


_LEAST = 1e-7
_STEPS = 100


def coupled(pairs: Value, classes: int, graph: GraphBuilder) -> Value:
    """Probabilities [rows, classes] of `pairs`, [rows, pairs]: of the first of both classes."""
    table = _table(graph.emit("clip", pairs, min=_LEAST, max=1 - _LEAST), classes, graph)
    even = np.full((pairs.shape[0], classes), 1 / classes)
    initial = graph.constant(even, pairs.dtype)
    initial = graph.padded.begins(initial, (pairs.dims[0], whole(classes)))
    number, most = graph.fresh_number(), max(_STEPS, classes)
    before = begin_state(graph, initial, number, 0)
    following, going = _step(before, table, classes, graph)
    ones = graph.cast(going, DType.I64)
    some = graph.emit("reduce_max", ones, axes=(0, 1), keepdims=False)
    again = graph.emit("greater", some, graph.scalar(0, DType.I64))
    bounds = {"loop": number, "states": 1, "most": most, "number": 0}
    last = graph.append(RESULT, (None, None, again, initial, following), dict(bounds))
    return graph.with_dims(last, initial.dims)


def _table(first: Value, classes: int, graph: GraphBuilder) -> Value:
    """Q, [rows, classes, classes]."""
    one = graph.scalar(1.0, first.dtype)
    second = graph.emit("sub", one, first)
    names = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    across, own, other = (np.zeros((len(names), classes, classes)) for _ in range(3))
    for pair, (i, j) in enumerate(names):
        across[pair, i, j] = across[pair, j, i] = -1
        own[pair, j, j] = other[pair, i, i] = 1
    terms = []
    factors = ((first, second, across), (first, first, own), (second, second, other))
    for left, right, places in factors:
        product = graph.emit("mul", left, right)
        flat = graph.constant(places.reshape(len(names), -1), first.dtype)
        terms.append(graph.emit("matmul", product, flat))
    return graph.reshape(graph.fold("add", terms), (first.shape[0], classes, classes))


def _step(before: Value, table: Value, classes: int, graph: GraphBuilder) -> tuple[Value, Value]:
    """The probabilities after a step, where rows go on, and whether they do, [rows, 1]."""
    rows, dtype = before.shape[0], before.dtype
    one, two = graph.scalar(1.0, dtype), graph.scalar(2.0, dtype)
    chances = before
    wide = graph.reshape(chances, (rows, 1, classes))
    products = graph.emit("mul", table, wide)
    steep = graph.emit("reduce_sum", products, axes=(2,), keepdims=False)  # Q p
    parts = graph.emit("mul", chances, steep)
    level = graph.emit("reduce_sum", parts, axes=(1,), keepdims=True)  # p' Q p
    uneven = graph.emit("abs", graph.emit("sub", steep, level))
    error = graph.emit("reduce_max", uneven, axes=(1,), keepdims=True)
    going = graph.emit("greater_equal", error, graph.scalar(0.005 / classes, dtype))
    for number in range(classes):
        row = graph.pick(table, 1, number)
        own, slope = (graph.part(value, 1, number, 1) for value in (row, steep))
        step = graph.emit("div", graph.emit("sub", level, slope), own)
        whole_step = graph.emit("add", step, one)
        gain = graph.emit("add", graph.emit("mul", step, own), graph.emit("mul", slope, two))
        level = graph.emit("add", level, graph.emit("mul", step, gain))
        level = graph.emit("div", graph.emit("div", level, whole_step), whole_step)
        steep = _moved(steep, step, row, whole_step, graph)
        chosen = graph.constant(np.eye(classes)[number], dtype)
        chances = _moved(chances, step, chosen, whole_step, graph)
    return graph.emit("where", going, chances, before), going


def _moved(value: Value, step: Value, along: Value, by: Value, graph: GraphBuilder) -> Value:
    """(value + step * along) / by."""
    return graph.emit("div", graph.emit("add", value, graph.emit("mul", step, along)), by)
