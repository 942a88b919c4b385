"""What ai.onnx.ml's models share: the type that they compute in, scores and labels."""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.structure import Label

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
