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
from tunefarm.compiler.frontend.numbers import Numbers
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.structured_values import RecordsValue
from tunefarm.compiler.operators.loop import RESULT
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import whole
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
    last = scores.rank - 1
    if transform == "LOGISTIC":
        return graph.emit("sigmoid", scores)
    if transform == "SOFTMAX":
        return graph.emit("softmax", scores, axis=last)
    numbers = Numbers(scores, graph)
    if transform == "SOFTMAX_ZERO":
        largest = numbers.max(last, keep=True)
        power, below = (numbers - largest).apply("exp"), numbers * (-largest).apply("exp")
        terms = (numbers.apply("abs") > _SMALL).choose(power, below)
        total = terms.sum(last, keep=True)
        return total.equals(0.0).choose(total.like(0.5), terms / total).value
    return _probit(numbers).value if transform == "PROBIT" else scores


def _probit(scores: Numbers) -> Numbers:
    """sqrt(2) erfinv(2 p - 1), by Winitzki's approximation."""
    x = scores * 2.0 - 1.0
    one = x.like(1.0)
    log = ((one - x) * (one + x)).apply("log")
    first = log * 0.5 + 2.0 / (np.pi * _PROBIT)
    second = log * (1.0 / _PROBIT)
    root = (first * first - second).apply("sqrt")
    return (root - first).apply("sqrt") * x.apply("sign") * 1.41421356


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
    rows = Numbers(data, graph)
    if kind == "MAX":
        norm = rows.max(axis, keep=True)
    elif kind == "L1":
        norm = rows.apply("abs").sum(axis, keep=True)
    else:
        norm = (rows * rows).sum(axis, keep=True).apply("sqrt")
    return (rows / norm.equals(0.0).choose(norm.like(1.0), norm)).value


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
    labels = class_labels(node, "classlabels_int64s")
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
    return _mapped(node, graph, classes, np.arange(classes.size))


@converter("CategoryMapper", 1, domain=DOMAIN)
def category_mapper(node: OnnxNode, graph: GraphBuilder) -> Value:
    """As `class_encoder`, of numbers that are listed."""
    classes = np.array(node.strings("cats_strings", ()), object)
    return _mapped(node, graph, classes, np.array(node.integers("cats_int64s", ()), np.int64))


def _mapped(node: OnnxNode, graph: GraphBuilder, classes: Array, numbers: Array) -> Value:
    """Classes as their numbers, or numbers as their classes."""
    if node.input(0).dtype is DType.STRING:
        return _looked_up(node, graph, classes, numbers, _default(node, np.dtype(np.int64)))
    return _looked_up(node, graph, numbers, classes, _default(node, classes.dtype))


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
        return graph.scalar(missing, DType.I64)
    table = graph.constant(keys, data.dtype)
    if keys.size <= _FEW_KEYS:
        column, absent = graph.reshape(data, (*data.shape, 1)), graph.scalar(missing, DType.I64)
        numbers = graph.integers(range(keys.size))
        found = graph.emit("where", graph.emit("equal", column, table), numbers, absent)
        return graph.emit("reduce_min", found, axes=(data.rank,), keepdims=False)
    place = Numbers(graph.scalar(0, DType.I64), graph)
    last = keys.size - 1

    def key_at(place: Numbers) -> Numbers:
        return Numbers(graph.emit("gather", table, place.value, axis=0), graph)

    for bit in reversed(range(last.bit_length())):
        wanted = place + (1 << bit)
        below = key_at(wanted.at_most(last)) <= Numbers(data, graph)
        place = (below & (wanted <= last)).choose(wanted, place)
    hit = key_at(place).equals(Numbers(data, graph))
    return hit.choose(place, missing).value


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
    product = Numbers(_affine(data, vectors, np.empty(0), graph), graph)
    if kind == "LINEAR":
        return product.value
    if kind == "RBF":
        rows = Numbers(data, graph)
        others = rows.like((vectors**2).sum(axis=1))
        distance = (rows * rows).sum(1, keep=True) + others - product * 2.0
        return (distance.at_least(0.0) * -gamma).apply("exp").value
    scaled = (product * gamma + constant).value
    if kind == "SIGMOID":
        return graph.emit("tanh", scaled)
    return graph.emit("pow", scaled, graph.scalar(degree, data.dtype))


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
    value = Numbers(scores, graph)
    value = -(value * value.like(scale) + value.like(shift))
    return coupled(graph.emit("sigmoid", value.value), classes, graph)


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
    following, going = _step(Numbers(before, graph), Numbers(table, graph), classes)
    ones = graph.cast(going.value, DType.I64)
    some = graph.emit("reduce_max", ones, axes=(0, 1), keepdims=False)
    again = graph.emit("greater", some, graph.scalar(0, DType.I64))
    bounds = {"loop": number, "states": 1, "most": most, "number": 0}
    last = graph.append(RESULT, (None, None, again, initial, following.value), dict(bounds))
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


def _step(before: Numbers, table: Numbers, classes: int) -> tuple[Numbers, Numbers]:
    """The probabilities after a step, where rows go on, and whether they do, [rows, 1]."""
    graph, chances = before.graph, before
    steep = (table * before.reshape(before.shape[0], 1, classes)).sum(2)  # Q p
    level = (before * steep).sum(1, keep=True)  # p' Q p
    going = (steep - level).apply("abs").max(1, keep=True) >= 0.005 / classes
    for number in range(classes):
        row = Numbers(graph.pick(table.value, 1, number), graph)
        own, slope = (
            Numbers(graph.part(numbers.value, 1, number, 1), graph) for numbers in (row, steep)
        )
        step = (level - slope) / own
        whole_step = step + 1.0
        level = (level + step * (step * own + slope * 2.0)) / whole_step / whole_step
        steep = (steep + step * row) / whole_step
        chances = (chances + step * step.like(np.eye(classes)[number])) / whole_step
    return going.choose(chances, before), going
