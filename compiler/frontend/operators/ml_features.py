"""Preparation of features in ai.onnx.ml: scaling, selection, encoding."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.ml_scores import DOMAIN, as_float, rows_of
from tunefarm.compiler.frontend.structured_values import RecordsValue
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.structure import Label
from tunefarm.compiler.types.tensor_type import Array, TensorType

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
        data = replace(data, type=TensorType(DType.I64, data.shape))
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
