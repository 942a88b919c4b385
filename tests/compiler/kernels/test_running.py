"""Running reductions are found by their form, whichever way they run, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from tunefarm.compiler.expr.nodes import binary, const, select
from tunefarm.compiler.kernels.count_work import iterations
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.kernels.running import running_reduction
from tunefarm.compiler.operators.evaluate_node import node_kernel
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import TensorType


def _masked(relation: str, neutral: float, combiner: str, extent: int = 7) -> FusedKernel:
    """y[i] = combiner over r < extent of select(r relation i, x[r], neutral), of 7 elements."""
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (7,)))
    builder.stage(
        "y",
        [("i", 7)],
        lambda i, r: select(binary(relation, r, i), x[r], const(neutral, DType.F32)),
        reduce=[("r", extent)],
        combiner=combiner,
    )
    return builder.kernel("masked", "y")


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_operators_are_found(exclusive: bool, reverse: bool) -> None:
    attributes = {"axis": 1, "exclusive": exclusive, "reverse": reverse}
    node = Node("cumsum", ("x",), "y", attributes)
    kernel = node_kernel(node, (TensorType(DType.F32, (3, 5, 2)),))
    running = running_reduction(kernel.output)
    assert running is not None
    assert (running.axis, running.extent) == ("i1", 5)
    assert (running.exclusive, running.reverse) == (exclusive, reverse)
    assert iterations(kernel.output) == 30


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        (_masked("le", 0.0, "sum"), True),
        (_masked("ge", float("-inf"), "max"), True),
        (_masked("le", 1.0, "sum"), False),  # what lies behind is no neutral term
        (_masked("ne", 0.0, "sum"), False),  # all but its own
        (_masked("le", 0.0, "sum", extent=5), False),  # the last elements stay out
    ],
)
def test_a_triangle_of_neutral_terms_is_needed(kernel: FusedKernel, found: bool) -> None:
    assert (running_reduction(kernel.output) is not None) is found


def test_a_running_reduction_is_evaluated_along_its_axis() -> None:
    x = np.array([1, 5, 2, 4, 9, 3, 6], np.float32)
    summed = evaluate_kernel(_masked("lt", 0.0, "sum"), {"in0": x})
    assert np.array_equal(summed, [0, 1, 6, 8, 12, 21, 24])
    largest = evaluate_kernel(_masked("ge", float("-inf"), "max"), {"in0": x})
    assert np.array_equal(largest, [9, 9, 9, 9, 9, 6, 6])
