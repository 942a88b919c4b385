"""Scatters are found by their form, whatever joins their updates, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tunefarm.compiler.expr.nodes import Expr, add, binary, const, select
from tunefarm.compiler.kernels.count_work import iterations
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.kernels.scatter import Scatter, scatter_of, searched_updates
from tunefarm.compiler.operators.gather import REDUCTIONS
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute, TensorType


def _elements(reduction: str) -> FusedKernel:
    indices = TensorType(DType.I64, (2, 4, 3))
    return kernel_of(
        [f32(2, 5, 3), indices, f32(2, 4, 3)],
        [("scatter_elements", ["x0", "x1", "x2"], {"reduction": reduction})],
    )


def _rows(reduction: str) -> FusedKernel:
    indices = TensorType(DType.I32, (4, 2))
    attributes: dict[str, Attribute] = {"reduction": reduction, "named": (2, 3)}
    return kernel_of(
        [f32(6, 5), indices, f32(4, 5)], [("scatter_rows", ["x0", "x1", "x2"], attributes)]
    )


def _searched(relation: str = "eq", neutral: float = 0.0, seen: bool = False) -> FusedKernel:
    """y[c] = x[c] + sum over u of select(p[u] relation c, v[u], neutral)."""
    builder = KernelBuilder()
    x, v = builder.input(f32(5)), builder.input(f32(4))
    p = builder.input(TensorType(DType.I64, (4,)))

    def term(c: Expr, u: Expr) -> Expr:
        position = add(p[u], c) if seen else p[u]
        return select(binary(relation, position, c), v[u], const(neutral, DType.F32))

    hits = builder.stage("hits", [("c", 5)], term, reduce=[("u", 4)], combiner="sum")
    builder.stage("y", [("c", 5)], lambda c: binary("add", x[c], hits[c]))
    return builder.kernel("searched", "hits")


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatters_are_found(reduction: str) -> None:
    for kernel, axis in ((_elements(reduction), "i1"), (_rows(reduction), "i0")):
        found = scatter_of(kernel)
        assert isinstance(found, Scatter)
        assert (found.axis, found.updates.extent) == (axis, 4)
        assert found.combiner == REDUCTIONS[reduction]


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        (_searched(), True),
        (_searched("le"), False),  # several places for each update
        (_searched(neutral=1.0), False),  # what goes elsewhere is no neutral term
        (_searched(seen=True), False),  # the place depends on who asks
    ],
)
def test_one_place_for_each_update_is_needed(kernel: FusedKernel, found: bool) -> None:
    assert (scatter_of(kernel) is not None) is found


def test_a_scatter_with_more_after_it_is_no_scatter() -> None:
    kernel = _searched()
    body = binary("mul", kernel.output.body, const(2.0, DType.F32))
    assert (
        scatter_of(replace(kernel, stages=(kernel.stages[0], replace(kernel.output, body=body))))
        is None
    )
    assert searched_updates(kernel.stages[0]) is not None


def test_a_search_is_evaluated_along_its_updates() -> None:
    values = {
        "in0": np.zeros(5, np.float32),
        "in1": np.array([1, 2, 4, 8], np.float32),
        "in2": np.array([3, 3, 0, 7]),
    }
    kernel = _searched()
    assert np.array_equal(evaluate_kernel(kernel, values), [4, 0, 0, 3, 0])
    assert iterations(kernel.stages[0]) == 9


def test_the_last_update_of_an_element_stays() -> None:
    x, v = np.zeros((6, 5), np.float32), np.arange(20, dtype=np.float32).reshape(4, 5)
    positions = np.array([[0, 1], [1, -1], [0, 1], [0, 9]], np.int32)
    expected = x.copy()
    expected[1], expected[5] = v[2], v[1]  # row 0, 9 is outside, and not row 3 of the next one
    actual = evaluate_kernel(_rows("none"), {"in0": x, "in1": positions, "in2": v})
    assert np.array_equal(actual, expected)
