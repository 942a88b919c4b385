"""Evaluates single nodes whose inputs are all constants, so that shape computations disappear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
from onnx import NodeProto, TypeProto, helper

from tunefarm.compiler.errors import ImportModelError, UnsupportedOperatorError
from tunefarm.compiler.frontend.graph_builder import Value
from tunefarm.compiler.frontend.structured_values import Entity
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array

# Shape computations are small; larger constants are folded by the graph pass.
_MAX_ELEMENTS = 4096
_MAX_PRODUCT = 2**22

# Operators whose output is bounded by the (outer) product of their inputs: none of these can make
# a giant tensor out of a small one.
_FOLDABLE = frozenset(
    "Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot "
    "BitwiseOr BitwiseXor Cast CastLike Ceil Clip Compress Concat Cos Cosh CumProd CumSum Div "
    "Einsum Equal Erf Exp Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual "
    "Identity IsInf IsNaN Less LessOrEqual Log MatMul Max Mean Min Mod Mul Neg NonZero Not Or "
    "Pow Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
    "ReduceProd ReduceSum ReduceSumSquare Relu Reshape ReverseSequence Round ScatterElements "
    "ScatterND Sigmoid Sign Sin Sinh Softmax Softplus Split Sqrt Squeeze Sub Sum Tan Tanh "
    "TopK Transpose Trilu Unique Unsqueeze Where Xor".split()
)
_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def can_evaluate(domain: str, operator: str) -> bool:
    """Whether nodes of this operator are evaluated when their inputs are small constants."""
    return not domain and operator in _FOLDABLE


def is_small_constant(
    inputs: Sequence[Entity | None], operator: str
) -> TypeGuard[Sequence[Value | None]]:
    """Whether all inputs are constants, small enough to evaluate the node at import."""
    sizes: list[int] = []
    for value in inputs:
        if value is None:
            continue
        if not isinstance(value, Value) or value.array is None or value.padded is not None:
            return False
        if value.dtype is DType.STRING:
            return False
        sizes.append(max(value.type.size, 1))
    if not sizes or sum(sizes) > _MAX_ELEMENTS:
        return False
    return operator == "Concat" or math.prod(sizes) <= _MAX_PRODUCT


def evaluate_node(
    node: NodeProto, inputs: Sequence[Value | None], opset: int, label: str
) -> tuple[Array, ...]:
    """The node's outputs by ONNX's reference evaluator ("" outputs included, as empty arrays).

    Raises ImportModelError when the evaluation fails, UnsupportedOperatorError when a result is no
    tensor of a supported type.
    """
    from onnx.reference import ReferenceEvaluator  # reads all schemas, and few models need it

    copy = NodeProto()
    copy.CopyFrom(node)
    copy.domain = ""
    if node.op_type == "GatherElements":
        return (_gather_elements(node, inputs, label),)
    feeds: dict[str, Array] = {}
    for position, value in enumerate(inputs):
        if value is not None and value.array is not None:
            copy.input[position] = f"in{position}"
            feeds[f"in{position}"] = value.array
        else:
            copy.input[position] = ""
    for position, name in enumerate(node.output):
        copy.output[position] = f"out{position}" if name else ""
    types = [
        helper.make_tensor_value_info(
            name, DType.from_numpy(array.dtype).onnx_number, list(array.shape)
        )
        for name, array in feeds.items()
    ]
    wanted = [name for name in copy.output if name]
    graph = helper.make_graph(
        [copy], "constant", types, [helper.make_value_info(name, TypeProto()) for name in wanted]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        with np.errstate(all="ignore"):
            computed = ReferenceEvaluator(model).run(None, feeds)
    except _FAILURES as error:
        raise ImportModelError(f"{label} cannot be evaluated: {error}") from error
    results = dict(zip(wanted, computed, strict=True))
    absent = np.empty(0, np.float32)
    return tuple(_tensor(results[name], label) if name else absent for name in copy.output)


def _gather_elements(node: NodeProto, inputs: Sequence[Value | None], label: str) -> Array:
    """What ONNX says of the operator: the evaluator refuses indices that are shorter than the data,
    and takes axis 0 for axis 1 where there are many elements."""
    data, indices = (value.array for value in inputs if value is not None)
    assert data is not None
    assert indices is not None
    axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
    if data.ndim != indices.ndim:
        raise ImportModelError(f"{label} has data and indices of different ranks")
    try:
        others: list[Array] = list(np.indices(indices.shape, sparse=True))
        others[axis] = indices
        return np.asarray(data[tuple(others)])
    except _FAILURES as error:
        raise ImportModelError(f"{label} cannot be evaluated: {error}") from error


def _tensor(result: object, label: str) -> Array:
    array = np.asarray(result)
    try:
        DType.from_numpy(array.dtype)
    except ValueError as error:
        raise UnsupportedOperatorError(f"{label}: {error}") from error
    return array
