"""Reductions over axes, positions of extremes, running sums and products."""

from __future__ import annotations

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.types.dtypes import DType


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
    return graph.emit(operator, value, axes=axes, keepdims=bool(node.integer("keepdims", 1)))


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
