from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.expr.nodes import (
    Const,
    Expr,
    add,
    binary,
    cast,
    const,
    index,
    mul,
    select,
    unary,
)
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.kernels.printer import format_kernel
from tunefarm.compiler.kernels.serialize import kernel_from_json, kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType


def _every_expression() -> FusedKernel:
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (4, 7)))
    picks = builder.input(TensorType(DType.I32, (4,)), constant=True)

    def body(i: Expr, j: Expr) -> Expr:
        guard = binary("lt", cast(DType.I64, picks[i]), j)
        return select(guard, unary("exp", data[i, j]), const(-math.inf, DType.F32))

    top = builder.stage("top", [("i", 4)], body, reduce=[("j", 7)], combiner="max")
    builder.stage("out", [("i", 4)], lambda i: mul(top[i], const(0.1, DType.F32)))
    return builder.kernel("demo", "top")


def _literal(value: float) -> FusedKernel:
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (3,)))
    builder.stage("add", [("i0", 3)], lambda i: add(data[i], const(value, DType.F32)))
    return builder.kernel("add", "add")


def test_round_trip_through_strict_json() -> None:
    kernel = _every_expression()
    text = json.dumps(kernel_to_json(kernel), allow_nan=False)
    assert kernel_from_json(json.loads(text)) == kernel


def test_a_kernel_that_leaves_the_rest_says_so_and_others_nothing() -> None:
    kernel = replace(_every_expression(), leaves_rest=True)
    data = kernel_to_json(kernel)
    assert data["leaves_rest"] is True  # keys of workloads depend on it
    assert kernel_from_json(data) == kernel
    assert "leaves_rest" not in kernel_to_json(_every_expression())


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.1, -0.0, 1e-45, 3.4028235e38])
def test_float_literals_are_exact(value: float) -> None:
    text = json.dumps(kernel_to_json(_literal(value)), allow_nan=False)
    back = kernel_from_json(json.loads(text))
    assert back == _literal(value)
    assert workload_key(back) == workload_key(_literal(value))


def test_nan_literal_survives() -> None:
    back = kernel_from_json(json.loads(json.dumps(kernel_to_json(_literal(math.nan)))))
    body = back.output.body
    literals = [node for node in (body.left, body.right) if isinstance(node, Const)]  # type: ignore[attr-defined]
    assert len(literals) == 1 and math.isnan(literals[0].value)


def test_shared_nodes_are_written_once() -> None:
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (8,)))

    def doubled(i: Expr) -> Expr:
        value = data[i]
        for _ in range(60):  # a tree of 2^60 nodes if sharing were lost
            value = add(value, value)
        return value

    builder.stage("sum", [("i", 8)], doubled)
    kernel = builder.kernel("sum", "sum")
    value = kernel_to_json(kernel)
    assert len(value["expressions"]) == 62
    assert kernel_to_json(kernel_from_json(value)) == value
    assert len(format_kernel(kernel)) < 10_000


def test_equal_expressions_share_a_row_whatever_objects_they_are() -> None:
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (8,)))
    builder.stage("twice", [("i", 8)], lambda i: add(data[i], data[index("i")]))
    kernel = builder.kernel("twice", "twice")
    kinds = [row[0] for row in kernel_to_json(kernel)["expressions"]]
    assert kinds == ["index", "load", "binary"]


@pytest.mark.parametrize(
    "damage",
    [
        None,
        [],
        {"format": 99},
        {"format": 1},
        {"format": 1, "expressions": [["load", "f32", "in0", [5]]]},
        {"format": 1, "expressions": [["cosine", 1]]},
        {"format": 1, "expressions": [["const", "f31", 1]]},
    ],
)
def test_damaged_json_is_one_readable_error(damage: object) -> None:
    with pytest.raises(TunefarmError, match="kernel JSON"):
        kernel_from_json(damage)
