"""Bounds that a user gives to sizes of results: each run must keep to them."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ValueInfoProto

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import Dimension, bounds_of


def check_given(
    info: ValueInfoProto, output: object, given: Mapping[str, Dimension], graph: GraphBuilder
) -> None:
    """Have runs refuse an output whose sizes are not within the bounds that are `given` by name.

    Raises ShapeError for one that never is.
    """
    if not isinstance(output, Value) or info.type.WhichOneof("value") != "tensor_type":
        return
    names = [dimension.dim_param for dimension in info.type.tensor_type.shape.dim]
    if len(names) != output.rank:
        return
    for axis, (name, size) in enumerate(zip(names, output.true_shape, strict=True)):
        if name in given and size != given[name]:
            _keep_within(f"axis {axis} of output {info.name!r}", size, name, given[name], graph)


def _keep_within(
    place: str, size: Dimension, name: str, given: Dimension, graph: GraphBuilder
) -> None:
    low, high = bounds_of(given)
    least, most = bounds_of(size)
    if low <= least and most <= high:
        return
    said = f"{name}={low}" if low == high else f"{name}={low}..{high}"
    if most < low or high < least:
        there = str(least) if least == most else f"{least} to {most}"
        raise ShapeError(f"--shape {said}: {place} has {there} elements")
    value = graph.size(size)
    above = graph.emit("greater", value, graph.scalar(high, DType.I64))
    below = graph.emit("less", value, graph.scalar(low, DType.I64))
    reason = f"{place} is out of the bounds of {said}"
    graph.require(graph.emit("or", above, below), graph.origin(value), reason)
