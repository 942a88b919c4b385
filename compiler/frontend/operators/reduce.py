"""Reductions over axes, positions of extremes, running sums and products."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from tunefarm.compiler.frontend.converter import converter, dynamic_operand
from tunefarm.compiler.frontend.data_sizes import all_there
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import as_whole
from tunefarm.compiler.frontend.padded_values import PaddedForm, padded_form
from tunefarm.compiler.frontend.settle import chosen, listed_shapes
from tunefarm.compiler.frontend.size_tables import Between
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import is_unpadded, size_of, true_shape
from tunefarm.compiler.types.sizes import Dimension, bounds_of, product_of

# --- Means and normalisations over dynamic sizes: sums by the true number ------------------------


def _is_padded(value: Value, axes: Sequence[int]) -> bool:
    return any(not is_unpadded(value.dims[axis]) for axis in axes)


def _data(operands: Sequence[Value | None]) -> Value:
    data = operands[0]
    assert data is not None  # the arity of all these operators
    return data


def _mean(data: Value, axes: Sequence[int], keepdims: bool, graph: GraphBuilder) -> Value:
    """The mean of f32 or f64: no sum of 16-bit floats is kept in their type."""
    total = graph.emit("reduce_sum", data, axes=tuple(axes), keepdims=keepdims)
    count = product_of(size_of(data.dims[axis]) for axis in axes)
    return graph.emit("div", total, graph.size(count, data.dtype))


def _padded_rows(
    operands: Sequence[Value | None], attributes: Attributes, graph: GraphBuilder
) -> tuple[Value, Sequence[int]] | None:
    """The data in f32 or f64 and the axes that are reduced: those named, or all from one on.

    None where these have no padding.
    """
    data = _data(operands)
    named = "axes" in attributes
    axes = attributes.integers("axes") if named else range(attributes.integer("axis"), data.rank)
    return (graph.cast(data, data.dtype.wide), axes) if _is_padded(data, axes) else None


@padded_form("reduce_mean")
def _reduce_mean(
    graph: GraphBuilder, operands: Sequence[Value | None], attributes: Attributes
) -> Value | None:
    rows = _padded_rows(operands, attributes, graph)
    if rows is None:
        return None
    mean = _mean(*rows, attributes.flag("keepdims"), graph)
    return graph.cast(mean, _data(operands).dtype)


def _deviation(data: Value, axes: Sequence[int], graph: GraphBuilder) -> tuple[Value, Value]:
    """What data deviates from its mean, and the mean of the squares of that."""
    deviation = graph.emit("sub", data, _mean(data, axes, True, graph))
    return deviation, _mean(graph.emit("mul", deviation, deviation), axes, True, graph)


def _inverse_root(square: Value, epsilon: float, graph: GraphBuilder) -> Value:
    moved = graph.emit("add", square, graph.scalar(epsilon, square.dtype))
    return graph.emit("reciprocal", graph.emit("sqrt", moved))


@padded_form("layer_norm")
def _layer_norm(
    graph: GraphBuilder, operands: Sequence[Value | None], attributes: Attributes
) -> Value | None:
    rows = _padded_rows(operands, attributes, graph)
    if rows is None:
        return None
    deviation, variance = _deviation(*rows, graph)
    inverse = _inverse_root(variance, attributes.floating("epsilon"), graph)
    return _scaled(graph.emit("mul", deviation, inverse), operands, graph)


@padded_form("rms_norm")
def _rms_norm(
    graph: GraphBuilder, operands: Sequence[Value | None], attributes: Attributes
) -> Value | None:
    rows = _padded_rows(operands, attributes, graph)
    if rows is None:
        return None
    data, axes = rows
    square = _mean(graph.emit("mul", data, data), axes, True, graph)
    inverse = _inverse_root(square, attributes.floating("epsilon"), graph)
    return _scaled(graph.emit("mul", data, inverse), operands, graph)


def _scaled(normal: Value, operands: Sequence[Value | None], graph: GraphBuilder) -> Value:
    """The normalised data with its scale and its bias, if there are any, in the data's type."""
    for operator, operand in zip(("mul", "add"), operands[1:], strict=False):
        if operand is not None:
            normal = graph.emit(operator, normal, graph.cast(operand, normal.dtype))
    return graph.cast(normal, _data(operands).dtype)


@padded_form("mean_variance_norm")
def _mean_variance_norm(
    graph: GraphBuilder, operands: Sequence[Value | None], attributes: Attributes
) -> Value | None:
    rows = _padded_rows(operands, attributes, graph)
    if rows is None:
        return None
    deviation, variance = _deviation(*rows, graph)
    epsilon = graph.scalar(attributes.floating("epsilon"), variance.dtype)
    spread = graph.emit("add", graph.emit("sqrt", variance), epsilon)
    return graph.cast(graph.emit("div", deviation, spread), _data(operands).dtype)


def _extreme(operator: str, content: str) -> PaddedForm:
    def form(
        graph: GraphBuilder, operands: Sequence[Value | None], attributes: Attributes
    ) -> Value | None:
        """The last of equal elements is no padding, even where all are the minimum; and no
        padding between an axis' elements counts."""
        data, axis = _data(operands), attributes.integer("axis")
        dims, is_last = data.dims[axis], attributes.flag("select_last_index")
        if is_unpadded(dims) or (len(dims) == 1 and not is_last):
            return None
        filled = as_whole(graph.padded.filled(data, axis, content), axis, graph)
        keep = attributes.flag("keepdims")
        found = graph.emit(operator, filled, axis=axis, keepdims=keep, select_last_index=is_last)
        sizes, extents = zip(*dims, strict=True)
        place = renumbered(found, extents, sizes, graph)
        return graph.emit("min", place, graph.size(size_of(dims) - 1)) if is_last else place

    return form


padded_form("arg_max")(_extreme("arg_max", "lowest"))
padded_form("arg_min")(_extreme("arg_min", "highest"))


# --- Numbers of elements in dynamic shapes: places of maxima -------------------------------------


def renumbered(
    numbers: Value, before: Sequence[Dimension], after: Sequence[Dimension], graph: GraphBuilder
) -> Value:
    """Row-major numbers of elements of one shape as those of the same elements in another."""
    if list(before[1:]) == list(after[1:]):
        return numbers
    rest = Numbers(numbers, graph)
    step, terms = rest.like(1), list[Value]()
    for sizes in zip(reversed(before[1:]), reversed(after[1:]), strict=True):
        old, new = (Numbers(graph.size(size, numbers.dtype), graph) for size in sizes)
        place = rest % old
        rest = (rest - place) / old
        terms.append((place * step).value)
        step = step * new
    return graph.fold("add", [*terms, (rest * step).value])


@padded_form("max_places")
def _max_places(
    graph: GraphBuilder, operands: Sequence[Value | None], attributes: Attributes
) -> Value | None:
    """Places among all elements of the padded data, as those among the elements that are there."""
    data, largest = operands[:2]
    assert data is not None
    assert largest is not None
    dims = largest.dims
    for axis in range(2, data.rank):
        if not is_unpadded(data.dims[axis]):
            data = graph.padded.filled(data, axis, "lowest")
    found = graph.append(
        "max_places", (all_there(data, graph), all_there(largest, graph)), dict(attributes)
    )
    order = list(range(data.rank))
    if attributes.flag("columns_first"):
        order = [0, 1, *reversed(order[2:])]
    extents, sizes = data.shape, true_shape(data.dims)
    before, after = [extents[axis] for axis in order], [sizes[axis] for axis in order]
    return graph.with_dims(renumbered(found, before, after, graph), dims)


def _axes(node: OnnxNode, rank: int) -> tuple[int, ...]:
    """The axes to reduce; what is wrong with them comes before all that may be with the data."""
    axes = node.given_integers("axes", 1, "the list of axes")
    if axes:
        return node.axes(axes, rank)
    return () if node.integer("noop_with_empty_axes", 0) else tuple(range(rank))


def _reduced(
    node: OnnxNode, operator: str, value: Value, axes: tuple[int, ...], graph: GraphBuilder
) -> Value:
    if not axes:
        return value
    result = graph.emit(operator, value, axes=axes, keepdims=bool(node.integer("keepdims", 1)))
    if operator == "reduce_sum" and result.type.size == 1 and graph.is_cast_from(DType.BOOL, value):
        most = Between(0, value.type.size)  # as many as are true, for lists of sizes
        graph.record_sizes(result, np.full(result.shape, most, object))
    return result


def _register(
    onnx_operator: str,
    versions: tuple[int, ...],
    operator: str,
    before: str = "",
    after: str = "",
) -> None:
    """A reduction of the operand, its absolute value or its square; then a function of it."""

    @converter(onnx_operator, *versions)
    def convert(node: OnnxNode, graph: GraphBuilder) -> Value:
        value = node.input(0)
        axes = _axes(node, value.rank)
        if before:
            value = graph.emit(before, *(value, value) if before == "mul" else (value,))
        value = _reduced(node, operator, value, axes, graph)
        if not after or value.dtype.is_float:
            return graph.emit(after, value) if after else value
        return graph.cast(graph.emit(after, graph.cast(value, DType.F64)), value.dtype)


_register("ReduceSum", (1, 11, 13), "reduce_sum")
_register("ReduceMean", (1, 11, 13, 18), "reduce_mean")
_register("ReduceProd", (1, 11, 13, 18), "reduce_prod")
_register("ReduceL1", (1, 11, 13, 18), "reduce_sum", before="abs")
_register("ReduceL2", (1, 11, 13, 18), "reduce_sum", before="mul", after="sqrt")
_register("ReduceSumSquare", (1, 11, 13, 18), "reduce_sum", before="mul")
_register("ReduceLogSum", (1, 11, 13, 18, 28), "reduce_sum", after="log")


def _register_extreme(onnx_operator: str, operator: str) -> None:
    @converter(onnx_operator, 1, 11, 12, 13, 18, 20)
    def convert(node: OnnxNode, graph: GraphBuilder) -> Value:
        value = node.input(0)
        axes = _axes(node, value.rank)
        if value.dtype is not DType.BOOL:
            return _reduced(node, operator, value, axes, graph)
        bits = _reduced(node, operator, graph.cast(value, DType.U8), axes, graph)
        return graph.cast(bits, DType.BOOL)


_register_extreme("ReduceMax", "reduce_max")
_register_extreme("ReduceMin", "reduce_min")


@converter("ReduceLogSumExp", 1, 11, 13, 18, 28)
def reduce_log_sum_exp(node: OnnxNode, graph: GraphBuilder) -> Value:
    """log(sum(exp(x - m))) + m, where m is the maximum (0 where that is infinite)."""
    value = node.input(0)
    axes = _axes(node, value.rank)
    if not axes:
        return value
    if not value.dtype.is_float:
        floats = _log_sum_exp(node, graph.cast(value, DType.F64), axes, graph)
        return graph.cast(floats, value.dtype)
    return _log_sum_exp(node, value, axes, graph)


def _log_sum_exp(node: OnnxNode, value: Value, axes: tuple[int, ...], graph: GraphBuilder) -> Value:
    largest = graph.emit("reduce_max", value, axes=axes, keepdims=True)
    infinite = graph.emit("isinf", largest)
    offset = graph.emit("where", infinite, graph.scalar(0, value.dtype), largest)
    shifted = graph.emit("exp", graph.emit("sub", value, offset))
    keepdims = bool(node.integer("keepdims", 1))
    total = graph.emit("log", graph.emit("reduce_sum", shifted, axes=axes, keepdims=keepdims))
    return graph.emit("add", total, graph.reshape(offset, total.shape))


def _register_arg(onnx_operator: str, operator: str) -> None:
    @converter(onnx_operator, 1, 11, 12, 13)
    def convert(node: OnnxNode, graph: GraphBuilder) -> Value:
        value = node.input(0)
        return graph.emit(
            operator,
            value,
            axis=node.axis(node.integer("axis", 0), value.rank),
            keepdims=bool(node.integer("keepdims", 1)),
            select_last_index=bool(node.integer("select_last_index", 0)),
        )


_register_arg("ArgMax", "arg_max")
_register_arg("ArgMin", "arg_min")


def _register_running(onnx_operator: str, operator: str, *versions: int) -> None:
    @converter(onnx_operator, *versions)
    def convert(node: OnnxNode, graph: GraphBuilder) -> Value:
        value = node.input(0)
        return graph.emit(
            operator,
            value,
            axis=node.axis(node.constant_integer(1, "the axis"), value.rank),
            exclusive=bool(node.integer("exclusive", 0)),
            reverse=bool(node.integer("reverse", 0)),
        )


_register_running("CumSum", "cumsum", 11, 14)
_register_running("CumProd", "cumprod", 26)


# Axes that are computed: each list of axes that the declared shape allows, and one selected.


_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
).split()


@dynamic_operand(*_REDUCTIONS, at=(1,), padded=True)
def reduce_(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Lists of as many axes as there are entries."""
    data, axes = node.input(0), node.input(1)
    keep = bool(node.integer("keepdims", 1))
    low, high = bounds_of(product_of(axes.true_shape))
    if low < min(high, data.rank) and not keep:
        raise node.not_settled(1, "the list of axes")

    def shape(listed: tuple[int, ...]) -> tuple[Dimension, ...]:
        keeps_all = not listed and node.integer("noop_with_empty_axes", 0)
        reduced = () if keeps_all else listed or tuple(range(data.rank))
        extents = [1 if axis in reduced else size for axis, size in enumerate(data.true_shape)]
        return tuple(size for axis, size in enumerate(extents) if keep or axis not in reduced)

    counts = range(low, min(high, data.rank) + 1)
    choices = {
        listed: shape(listed)
        for count in counts
        for listed in combinations(range(data.rank), count)
    }
    return chosen(node, graph, listed_shapes(node, choices), data.rank)


@dynamic_operand("CumSum", "CumProd", at=(1,), padded=True)
def running(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """All axes are computed, and one taken."""
    data = node.input(0)
    return chosen(node, graph, {(axis,): data.true_shape for axis in range(data.rank)}, data.rank)


@dynamic_operand("Squeeze", at=(1,), padded=True)
def squeeze(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Axes that have one element at any size."""
    data = node.input(0)
    units = [axis for axis, size in enumerate(data.true_shape) if size == 1]
    choices = {
        axes: tuple(size for axis, size in enumerate(data.true_shape) if axis not in axes)
        for axes in combinations(units, _count(node, 1))
    }
    return chosen(node, graph, listed_shapes(node, choices), data.rank, views=True)


@dynamic_operand("Unsqueeze", at=(1,), padded=True)
def unsqueeze(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Axes of one element more, wherever they are added."""
    data, count = node.input(0), _count(node, 1)
    rank = data.rank + count

    def shape(added: tuple[int, ...]) -> tuple[Dimension, ...]:
        rest = iter(data.true_shape)
        return tuple(1 if axis in added else next(rest) for axis in range(rank))

    choices = {axes: shape(axes) for axes in combinations(range(rank), count)}
    return chosen(node, graph, listed_shapes(node, choices), rank, views=True)


def _count(node: OnnxNode, position: int) -> int:
    """How many entries an operand has, on which the rank of the result depends."""
    axes = node.input(position)
    if axes.padded is not None:
        raise node.not_settled(position, "the list of axes")
    return axes.type.size
