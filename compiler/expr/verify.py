"""The rules of expressions, node by node: names, types and arities."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Protocol

from tunefarm.compiler.expr.functions import BINARY, UNARY, Function
from tunefarm.compiler.expr.nodes import Binary, Cast, Const, Expr, Index, Load, Select, Unary
from tunefarm.compiler.types.dtypes import DType


class Typed(Protocol):
    """What is loaded from."""

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        ...


def node_problem(node: Expr, axes: Container[str], tensors: Mapping[str, Typed]) -> str:
    """What is wrong with a node over operands that are right; empty when nothing is.

    `axes` and `tensors` are the names that an index and a load may have.
    """
    match node:
        case Const():
            return _const_problem(node)
        case Index():
            if node.dtype is not DType.I64:
                return f"axis {node.name} has the type {node.dtype}"
            return "" if node.name in axes else f"{node.name} is not bound"
        case Load():
            return _load_problem(node, tensors)
        case Unary():
            return _call_problem(UNARY, node.op, node.operand.dtype, node.dtype)
        case Binary():
            left, right = node.left.dtype, node.right.dtype
            if left is not right:
                return f"{node.op} of {left} and {right}"
            return _call_problem(BINARY, node.op, left, node.dtype)
        case Select():
            if node.condition.dtype is not DType.BOOL:
                return f"select on {node.condition.dtype}"
            same = node.then.dtype is node.otherwise.dtype is node.dtype
            return "" if same else f"sides {node.then.dtype} and {node.otherwise.dtype} differ"
        case Cast():
            return ""
        case _:
            return f"unknown expression {type(node).__name__}"


def _const_problem(node: Const) -> str:
    expected = bool if node.dtype is DType.BOOL else float if node.dtype.is_float else int
    if type(node.value) is not expected:
        return f"literal of type {type(node.value).__name__} for {node.dtype}"
    if node.dtype.is_integer:
        least, most = node.dtype.limits
        if not least <= node.value <= most:
            return f"literal outside {node.dtype}"
    return ""


def _load_problem(node: Load, tensors: Mapping[str, Typed]) -> str:
    tensor = tensors.get(node.buffer)
    if tensor is None:
        return f"{node.buffer} is not defined"
    if tensor.dtype is not node.dtype:
        return f"{node.buffer} of {tensor.dtype} is loaded as {node.dtype}"
    if len(node.indices) != len(tensor.shape):
        return f"{node.buffer} has {len(tensor.shape)} axes, indexed with {len(node.indices)}"
    for index in node.indices:
        if index.dtype is not DType.I64:
            return f"{node.buffer} is indexed with a {index.dtype}"
    return ""


def _call_problem(functions: Mapping[str, Function], op: str, operand: DType, result: DType) -> str:
    function = functions.get(op)
    if function is None:
        return f"unknown function {op}"
    problem = function.problem(operand, result)
    return problem and f"{op} {problem}"
