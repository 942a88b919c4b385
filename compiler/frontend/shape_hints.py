"""What a model declares of the shapes of what it computes, promises about run-time operands, and
the bounds and shapes of results that a user or the file gives.

A declared shape of an output, or a `value_info`, says how large a Reshape's or a Slice's result is
though what asks for it is computed. Operators that keep the shape of their operand pass it on, so
that a ReduceSum in front of a Log has what is declared of the Log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from onnx import GraphProto, NodeProto, ValueInfoProto

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.tensors import initializers
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import Dimension, bounds_of

Shape: TypeAlias = tuple[Dimension, ...]
Hints: TypeAlias = Mapping[str, Shape]

_FIRST = frozenset(
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh CumProd "
    "CumSum Dropout Elu Erf Exp Floor Gelu HardSigmoid HardSwish Hardmax Identity IsInf IsNaN "
    "LayerNormalization LeakyRelu Log LogSoftmax LpNormalization Mish Neg Not Reciprocal Relu "
    "Round Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh "
    "ThresholdedRelu Trilu".split()
)
"""Operators whose result has the shape of their first operand."""

_BROADCASTING = frozenset(
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less "
    "LessOrEqual Max Mean Min Mod Mul Or Pow Sub Sum Where Xor".split()
)


def declared_shapes(
    infos: Iterable[ValueInfoProto], symbols: Mapping[str, Dimension] | None = None
) -> dict[str, Shape]:
    """The shapes that are declared in full, where `symbols` are the sizes of named dimensions."""
    named = symbols or {}
    found: dict[str, Shape] = {}
    for info in infos:
        tensor = info.type.tensor_type
        if info.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
            continue
        sizes = [
            dimension.dim_value
            if dimension.WhichOneof("value") == "dim_value"
            else named.get(dimension.dim_param)
            for dimension in tensor.shape.dim
        ]
        known = tuple(size for size in sizes if size is not None and bounds_of(size)[0] >= 0)
        if len(known) == len(sizes):
            found[info.name] = known
    return found


def graph_hints(graph: GraphProto, symbols: Mapping[str, Dimension] | None = None) -> Hints:
    """What a graph declares, and what follows of its other values."""
    declared = declared_shapes((*graph.value_info, *graph.output), symbols)
    inputs = declared_shapes(graph.input, symbols)
    scalars = {name for name, shape in inputs.items() if not shape}
    scalars |= {name for name, tensor in initializers(graph).items() if not tensor.dims}
    return shape_hints(graph.node, declared, scalars)


def shape_hints(nodes: Iterable[NodeProto], declared: Hints, scalars: Iterable[str]) -> Hints:
    """What follows from the shapes `declared` of some of the nodes' values, in their order.

    `scalars` are values of rank 0, which leave the shape of the other operand as it is.
    """
    same: dict[str, str] = {}  # value -> the first one that has its shape
    known = set(scalars)
    for node in nodes:
        if len(node.output) < 1 or node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type == "Constant" and _is_scalar(node):
            known.add(node.output[0])
        operands = [name for name in node.input if name]
        if node.op_type in _FIRST:
            operands = operands[:1]
        elif node.op_type not in _BROADCASTING:
            continue
        shaped = {same.get(name, name) for name in operands if name not in known}
        if not shaped:
            known.add(node.output[0])
        elif len(shaped) == 1:
            same[node.output[0]] = shaped.pop()
    first = {same.get(name, name): shape for name, shape in declared.items()}
    derived = {name: first[origin] for name, origin in same.items() if origin in first}
    return {**first, **derived, **declared}


def _is_scalar(node: NodeProto) -> bool:
    for attribute in node.attribute:
        if attribute.name in ("value_float", "value_int"):
            return True
        if attribute.name == "value":
            return not attribute.t.dims
        if attribute.name == "sparse_value":
            return not attribute.sparse_tensor.dims
    return False


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
