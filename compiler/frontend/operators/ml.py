"""Converters of ai.onnx.ml but for trees: features, linear models, neighbours and kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.graph_loop import begin_state
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.structured_values import RecordsValue
from tunefarm.compiler.operators.loop import RESULT
from tunefarm.compiler.types.dims import whole
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.structure import Label
from tunefarm.compiler.types.tensor_type import Array

# --- What ai.onnx.ml's models share: the type that they compute in, scores and labels ------------


DOMAIN = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_SMALL = 1e-7  # a score that counts as zero
_PROBIT = 0.147  # of Winitzki's approximation of the inverse of erf


def as_float(data: Value, graph: GraphBuilder, *, wide: bool = False) -> Value:
    """Data in f32; f64 stays as it is if `wide`."""
    return data if wide and data.dtype is DType.F64 else graph.cast(data, DType.F32)


def rows_of(node: OnnxNode, data: Value, graph: GraphBuilder) -> Value:
    """[rows, features]; a vector is one row."""
    if data.rank == 1:
        return graph.reshape(data, (1, *data.shape))
    if data.rank != 2:
        raise node.bad_shape(f"{data.type} is no matrix of rows")
    return data


def transformed(scores: Value, transform: str, graph: GraphBuilder) -> Value:
    """Scores [rows, classes] as `post_transform` has them."""

    def number(value: float) -> Value:
        return graph.scalar(value, scores.dtype)

    if transform == "LOGISTIC":
        return graph.emit("sigmoid", scores)
    if transform == "SOFTMAX":
        return graph.emit("softmax", scores, axis=scores.rank - 1)
    if transform == "SOFTMAX_ZERO":
        largest = graph.emit("reduce_max", scores, axes=(scores.rank - 1,), keepdims=True)
        power = graph.emit("exp", graph.emit("sub", scores, largest))
        below = graph.emit("mul", scores, graph.emit("exp", graph.emit("neg", largest)))
        is_some = graph.emit("greater", graph.emit("abs", scores), number(_SMALL))
        terms = graph.emit("where", is_some, power, below)
        total = graph.emit("reduce_sum", terms, axes=(scores.rank - 1,), keepdims=True)
        is_none = graph.emit("equal", total, number(0.0))
        share = graph.emit("div", terms, total)
        return graph.emit("where", is_none, number(0.5), share)
    if transform == "PROBIT":
        return _probit(scores, graph)
    return scores


def _probit(scores: Value, graph: GraphBuilder) -> Value:
    """sqrt(2) erfinv(2 p - 1), by Winitzki's approximation."""

    def number(value: float) -> Value:
        return graph.scalar(value, scores.dtype)

    x = graph.emit("sub", graph.emit("mul", scores, number(2.0)), number(1.0))
    left, right = (graph.emit(op, number(1.0), x) for op in ("sub", "add"))
    log = graph.emit("log", graph.emit("mul", left, right))
    first = graph.emit("mul", log, number(0.5))
    first = graph.emit("add", first, number(2.0 / (np.pi * _PROBIT)))
    second = graph.emit("mul", log, number(1.0 / _PROBIT))
    root = graph.emit("sqrt", graph.emit("sub", graph.emit("mul", first, first), second))
    size = graph.emit("sqrt", graph.emit("sub", root, first))
    signed = graph.emit("mul", size, graph.emit("sign", x))
    return graph.emit("mul", signed, number(1.41421356))


def both_classes(
    node: OnnxNode, score: Value, transform: str, whole: bool, graph: GraphBuilder
) -> Value:
    """Scores of two classes, of which only the second one's [rows, 1] is known.

    It is the first one's complement to 1 if `whole` (it is a probability), else its negative. As
    in onnxruntime only LOGISTIC changes them, which is of the score and its negative.
    """
    if transform == "PROBIT":
        raise node.unsupported("post_transform=PROBIT of a single score")
    negative = graph.emit("neg", score)
    if transform == "LOGISTIC":
        return transformed(graph.concat([negative, score], 1), transform, graph)
    other = graph.emit("add", negative, graph.scalar(1.0, score.dtype)) if whole else negative
    return graph.concat([other, score], 1)


def labels_of(numbers: Value, labels: tuple[Label, ...], graph: GraphBuilder) -> Value:
    """The labels of classes that are known by number, i64 or strings [rows]."""
    if labels == tuple(range(len(labels))):
        return graph.cast(numbers, DType.I64)
    table = np.array(labels, object if isinstance(labels[0], str) else np.int64)
    return graph.emit("gather", graph.constant(table), numbers, axis=0)


def class_labels(node: OnnxNode, integers: str) -> tuple[Label, ...]:
    """The labels: strings, or integers."""
    return node.strings("classlabels_strings", ()) or node.integers(integers, ())


# --- Preparation of features in ai.onnx.ml: scaling, selection, encoding -------------------------


_FEW_KEYS = 64  # are compared one by one; more are searched


@converter("Scaler", 1, domain=DOMAIN)
def scaler(node: OnnxNode, graph: GraphBuilder) -> Value:
    """(data - offset) scale, by columns."""
    data = as_float(node.input(0), graph)
    for name, operator in (("offset", "sub"), ("scale", "mul")):
        given = np.array(node.floats(name, ()))
        if given.size not in (0, 1, data.shape[-1] if data.rank else 1):
            raise node.bad_shape(f"{name} has {given.size} entries for {data.type}")
        if given.size:
            data = graph.emit(operator, data, graph.constant(given, data.dtype))
    return data


@converter("Normalizer", 1, domain=DOMAIN)
def normalizer(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Rows over their norm; those whose norm is 0 stay."""
    data = as_float(node.input(0), graph)
    kind, axis = node.choice("norm", "MAX", ("MAX", "L1", "L2")), data.rank - 1
    if kind == "MAX":
        norm = graph.emit("reduce_max", data, axes=(axis,), keepdims=True)
    elif kind == "L1":
        magnitude = graph.emit("abs", data)
        norm = graph.emit("reduce_sum", magnitude, axes=(axis,), keepdims=True)
    else:
        squares = graph.emit("mul", data, data)
        norm = graph.emit("sqrt", graph.emit("reduce_sum", squares, axes=(axis,), keepdims=True))
    zero, one = graph.scalar(0.0, data.dtype), graph.scalar(1.0, data.dtype)
    divisor = graph.emit("where", graph.emit("equal", norm, zero), one, norm)
    return graph.emit("div", data, divisor)


@converter("Binarizer", 1, domain=DOMAIN)
def binarizer(node: OnnxNode, graph: GraphBuilder) -> Value:
    data = node.input(0)
    threshold = graph.scalar(node.floating("threshold", 0.0), DType.F64)
    wide = graph.cast(data, DType.F64) if not data.dtype.is_float else data
    above = graph.emit("greater", wide, graph.cast(threshold, wide.dtype))
    return graph.cast(above, data.dtype)


@converter("ArrayFeatureExtractor", 1, domain=DOMAIN)
def array_feature_extractor(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Columns by number; a vector is one row."""
    data = node.input(0)
    if data.rank == 1:
        data = graph.reshape(data, (1, *data.shape))
    places = graph.reshape(node.input(1), (node.input(1).type.size,))
    return graph.emit("gather", data, places, axis=data.rank - 1)


@converter("FeatureVectorizer", 1, domain=DOMAIN)
def feature_vectorizer(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Matrices side by side, each cut or filled with zeros to the width that is asked for."""
    given = [rows_of(node, value, graph) for value in node.present_inputs()]
    widths = node.integers("inputdimensions", tuple(value.shape[1] for value in given))
    if len(widths) != len(given):
        raise node.invalid(f"{len(widths)} widths for {len(given)} inputs")
    parts: list[Value] = []
    for value, width in zip(given, widths, strict=True):
        part = as_float(value, graph)
        if width > part.shape[1]:
            pads = (0, 0, 0, width - part.shape[1])
            part = graph.emit("pad", part, pads=pads, mode="constant")
        parts.append(graph.part(part, 1, 0, width))
    return graph.concat(parts, 1)


@converter("Imputer", 1, domain=DOMAIN)
def imputer(node: OnnxNode, graph: GraphBuilder) -> Value:
    """One value (NaN for floats) in each column replaced by that column's."""
    data = node.input(0)
    kind, suffix = ("float", "floats") if data.dtype.is_float else ("int64", "int64s")
    floats = data.dtype.is_float
    values = np.array((node.floats if floats else node.integers)(f"imputed_value_{suffix}", ()))
    old = node.attributes.get(f"replaced_value_{kind}", 0)
    if not isinstance(old, int | float) or values.size not in (1, data.shape[-1]):
        raise node.bad_shape(f"{values.size} values for {data.type}")
    if isinstance(old, float) and math.isnan(old):
        is_old = graph.emit("isnan", data)
    else:
        is_old = graph.emit("equal", data, graph.scalar(old, data.dtype))
    return graph.emit("where", is_old, graph.constant(values, data.dtype), data)


@converter("OneHotEncoder", 1, domain=DOMAIN)
def one_hot_encoder(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Whether an element is each of the categories; one that is none of them is all zeros."""
    data = node.input(0)
    if data.dtype is DType.STRING:
        categories = np.array(node.strings("cats_strings", ()), object)
    else:
        categories = np.array(node.integers("cats_int64s", ()), np.int64)
        data = graph.cast(data, DType.I64)
    if not categories.size:
        raise node.invalid("there are no categories")
    column = graph.reshape(data, (*data.shape, 1))
    return graph.cast(graph.emit("equal", column, graph.constant(categories)), DType.F32)


@converter("ZipMap", 1, domain=DOMAIN)
def zip_map(node: OnnxNode, graph: GraphBuilder) -> RecordsValue:
    """Rows of scores as dictionaries by class, which outputs of the model alone can be."""
    rows = rows_of(node, node.input(0), graph)
    labels: tuple[Label, ...] = node.strings("classlabels_strings", ())
    labels = labels or node.integers("classlabels_int64s", ())
    if len(labels) != rows.shape[1]:
        raise node.bad_shape(f"{len(labels)} labels for {rows.type}")
    return RecordsValue(rows, labels)


# --- LabelEncoder -------------------------------------------------------------------------------


@converter("LabelEncoder", 2, 4, domain=DOMAIN)
def label_encoder(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Elements that are keys become the keys' values, others the default."""
    keys, values = _listed(node, "keys"), _listed(node, "values")
    return _looked_up(node, graph, keys, values, _default(node, values.dtype))


@converter("LabelEncoder", 1, domain=DOMAIN)
def class_encoder(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Classes that are strings become their numbers, and numbers their classes."""
    classes = np.array(node.strings("classes_strings", ()), object)
    numbers = np.arange(classes.size)
    if node.input(0).dtype is DType.STRING:
        default = np.array(node.integer("default_int64", -1))
        return _looked_up(node, graph, classes, numbers, default)
    default = np.array(node.string("default_string", "_Unused"), object)
    return _looked_up(node, graph, numbers, classes, default)


@converter("CategoryMapper", 1, domain=DOMAIN)
def category_mapper(node: OnnxNode, graph: GraphBuilder) -> Value:
    """As `class_encoder`, of numbers that are listed."""
    classes = np.array(node.strings("cats_strings", ()), object)
    numbers = np.array(node.integers("cats_int64s", ()), np.int64)
    if node.input(0).dtype is DType.STRING:
        default = np.array(node.integer("default_int64", -1))
        return _looked_up(node, graph, classes, numbers, default)
    default = np.array(node.string("default_string", "_Unused"), object)
    return _looked_up(node, graph, numbers, classes, default)


def _looked_up(
    node: OnnxNode, graph: GraphBuilder, keys: Array, values: Array, default: Array
) -> Value:
    """Elements that are keys as the keys' values, others as the default."""
    if keys.size != values.size or not keys.size:
        raise node.invalid(f"{keys.size} keys and {values.size} values")
    data = node.input(0)
    if keys.dtype.kind == "O":  # numbers of words are compared
        keys = graph.words.numbers(keys)
        data = replace(data, type=replace(data.type, dtype=DType.I64))
    keys, first = np.unique(keys[::-1], return_index=True)
    values = values[::-1][first]  # of a key that is there twice the last one counts
    table = graph.constant(np.append(values, default).astype(values.dtype))
    nan = None
    if keys.dtype.kind == "f" and np.isnan(keys[-1]):
        nan, keys = len(keys) - 1, keys[:-1]
    place = _place(data, keys, len(values), graph)
    if nan is not None:
        number = graph.scalar(nan, DType.I64)
        place = graph.emit("where", graph.emit("isnan", data), number, place)
    return graph.emit("gather", table, place, axis=0)


def _listed(node: OnnxNode, what: str) -> Array:
    """Keys or values: a list of integers or floats, or a tensor."""
    tensor = node.attributes.get(f"{what}_tensor")
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(-1)
    if node.has(f"{what}_strings"):
        return np.array(node.strings(f"{what}_strings"), object)
    if node.has(f"{what}_floats"):
        return np.array(node.floats(f"{what}_floats"), np.float32)
    return np.array(node.integers(f"{what}_int64s", ()), np.int64)


def _default(node: OnnxNode, dtype: np.dtype[np.generic]) -> Array:
    tensor = node.attributes.get("default_tensor")
    if isinstance(tensor, np.ndarray) and tensor.size == 1:
        return tensor.reshape(())
    if dtype.kind == "O":
        return np.array(node.string("default_string", "_Unused"), object)
    if dtype.kind == "f":
        return np.asarray(node.floating("default_float", -0.0), dtype)
    return np.asarray(node.integer("default_int64", -1), dtype)


def _place(data: Value, keys: Array, missing: int, graph: GraphBuilder) -> Value:
    """The number of the sorted key that an element is, `missing` where it is none.

    Few keys are compared each; of many, halves are left out until one is left.
    """
    if not keys.size:
        return graph.emit("expand", graph.scalar(missing, DType.I64), shape=data.shape)
    table = graph.constant(keys, data.dtype)
    absent = graph.scalar(missing, DType.I64)
    if keys.size <= _FEW_KEYS:
        column = graph.reshape(data, (*data.shape, 1))
        numbers = graph.integers(range(keys.size))
        found = graph.emit("where", graph.emit("equal", column, table), numbers, absent)
        return graph.emit("reduce_min", found, axes=(data.rank,), keepdims=False)
    place = graph.emit("expand", graph.scalar(0, DType.I64), shape=data.shape)
    last = graph.scalar(keys.size - 1, DType.I64)
    for bit in reversed(range((keys.size - 1).bit_length())):
        wanted = graph.emit("add", place, graph.scalar(1 << bit, DType.I64))
        inside = graph.emit("min", wanted, last)
        below = graph.emit("less_equal", graph.emit("gather", table, inside, axis=0), data)
        is_there = graph.emit("less_equal", wanted, last)
        place = graph.emit("where", graph.emit("and", below, is_there), wanted, place)
    hit = graph.emit("equal", graph.emit("gather", table, place, axis=0), data)
    return graph.emit("where", hit, place, absent)


# --- Linear models and support vector machines of ai.onnx.ml -------------------------------------


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
    if added.size > 1:
        given = given[: added.size * width]  # no more is read in onnxruntime either
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
