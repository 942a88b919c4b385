"""Sizes of results: bounds that a user gives, and shapes that the file declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


def stale_shapes(infos: Iterable[ValueInfoProto], outputs: Mapping[str, Value]) -> str:
    """A text that names the outputs whose declared shapes are not those that are computed.

    "" if there is none. Declared sizes with names, and those of 0 and below, may be any.
    """
    found = []
    for info in infos:
        output, tensor = outputs.get(info.name), info.type.tensor_type
        if output is None or not tensor.HasField("shape"):
            continue
        declared, computed = tensor.shape.dim, output.true_shape
        differs = any(
            dimension.dim_value > 0 and dimension.dim_value != size
            for dimension, size in zip(declared, computed, strict=False)
        )
        if differs or len(declared) != len(computed):
            said = (str(max(d.dim_value, 0) or d.dim_param or "?") for d in declared)
            found.append(
                f"{info.name!r} as [{', '.join(said)}], not [{', '.join(map(str, computed))}]"
            )
    return f"{'; '.join(found)}: the computed shapes count" if found else ""


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
