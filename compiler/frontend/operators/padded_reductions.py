"""Means and normalisations over dynamic sizes: sums by the true number."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.operators.padded_moves import as_whole
from tunefarm.compiler.frontend.operators.sized_places import renumbered
from tunefarm.compiler.frontend.padded_forms import PaddedForm, padded_form
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.dims import is_unpadded, size_of
from tunefarm.compiler.types.sizes import product_of


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


@padded_form("reduce_mean")
def _reduce_mean(
    graph: GraphBuilder, operands: Sequence[Value | None], attributes: Attributes
) -> Value | None:
    data, axes = _data(operands), attributes.integers("axes")
    if not _is_padded(data, axes):
        return None
    wide = graph.cast(data, data.dtype.wide)
    return graph.cast(_mean(wide, axes, attributes.flag("keepdims"), graph), data.dtype)


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


def _padded_rows(
    operands: Sequence[Value | None], attributes: Attributes, graph: GraphBuilder
) -> tuple[Value, range] | None:
    """The data in f32 or f64 and the axes of its rows; None where rows have no padding."""
    data = _data(operands)
    axes = range(attributes.integer("axis"), data.rank)
    return (graph.cast(data, data.dtype.wide), axes) if _is_padded(data, axes) else None


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
    data, axes = _data(operands), attributes.integers("axes")
    if not _is_padded(data, axes):
        return None
    wide = graph.cast(data, data.dtype.wide)
    deviation, variance = _deviation(wide, axes, graph)
    epsilon = graph.scalar(attributes.floating("epsilon"), wide.dtype)
    spread = graph.emit("add", graph.emit("sqrt", variance), epsilon)
    return graph.cast(graph.emit("div", deviation, spread), data.dtype)


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
