"""A row is all that a scalar function needs: every part of the compiler agrees about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.compiler.loops.tiny_kernels import run_loops
from tests.compiler.schedule.guarded_run import run_guarded
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.expr.functions import BINARY, UNARY, Domain, Function
from tunefarm.compiler.expr.nodes import Expr, Unary, binary, unary
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.kernels.printer import format_expression
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.schedule.spaces import default_schedule, naive_schedule
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import FLOATS, DType
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.measure.worker.reference import make_inputs

EXTENT = 37  # vectors and a tail

CUBE = Function(
    FLOATS,
    lambda x: x * x * x,
    lambda m, x: m.emit("fmul", m.emit("fmul", x, x), x),
    domains=(Domain((2.0, 3.0)),),
)
HYPOTENUSE = Function(
    FLOATS, np.hypot, lambda m, x, y: m.libm("hypot", x, y), infix=("<>", 5), positive=True
)
IS_LARGE = Function(
    FLOATS, lambda x: x > 0.5, lambda m, x: m.compare("ogt", x, m.constant(0.5)), DType.BOOL
)


def kernel_of(operands: int, body: Callable[..., Expr], dtype: DType = DType.F32) -> FusedKernel:
    builder = KernelBuilder()
    inputs = [builder.input(TensorType(dtype, (EXTENT,))) for _ in range(operands)]
    builder.stage("out", [("i", EXTENT)], lambda i: body(*(tensor[i] for tensor in inputs)))
    return builder.kernel("out", "out")


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three more rows."""
    assert isinstance(UNARY, dict)
    assert isinstance(BINARY, dict)
    monkeypatch.setitem(UNARY, "cube", CUBE)
    monkeypatch.setitem(UNARY, "islarge", IS_LARGE)
    monkeypatch.setitem(BINARY, "hypot", HYPOTENUSE)


BODIES: Mapping[str, tuple[int, Callable[..., Expr], Callable[..., Array]]] = {
    "cube": (1, lambda x: unary("cube", x), lambda x: x**3),
    "islarge": (1, lambda x: unary("islarge", x), lambda x: x > 0.5),
    "hypot": (2, lambda x, y: binary("hypot", x, y), np.hypot),
}


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("name", BODIES)
def test_an_added_row_types_evaluates_interprets_and_runs(name: str, dtype: DType) -> None:
    operands, body, expected = BODIES[name]
    kernel = kernel_of(operands, body, dtype)
    verify_kernel(kernel)
    inputs = make_inputs(kernel, 0)
    exact: Any = expected(*(array.astype(np.float64) for array in inputs.values()))
    target = host_target()
    outputs = [evaluate_kernel(kernel, inputs)]
    for schedule in (naive_schedule(), default_schedule(kernel, target)):
        outputs.append(run_loops(kernel, schedule, inputs))
        outputs.append(run_guarded(kernel, schedule, inputs, target).output)
    for output in outputs:
        assert output.dtype == (np.bool_ if name == "islarge" else dtype.numpy)
        np.testing.assert_allclose(np.asarray(output, np.float64), exact, rtol=1e-6)


@pytest.mark.usefixtures("added")
def test_an_added_row_is_printed_refuses_other_types_and_chooses_inputs() -> None:
    cube = kernel_of(1, lambda x: unary("cube", x))
    (values,) = make_inputs(cube, 0).values()
    assert values.min() >= 2
    hypotenuse = kernel_of(2, lambda x, y: binary("hypot", x, binary("add", x, y)))
    assert format_expression(hypotenuse.output.body) == "in0[i] <> (in0[i] + in1[i])"
    root = kernel_of(2, lambda x, y: unary("log", binary("hypot", x, y)))
    assert all(values.min() < 0 for values in make_inputs(root, 0).values())
    with pytest.raises(VerifyError, match="cube of i32"):
        verify_kernel(kernel_of(1, lambda x: unary("cube", x), DType.I32))
    with pytest.raises(VerifyError, match="islarge of f32 as f32"):
        verify_kernel(kernel_of(1, lambda x: Unary(DType.F32, "islarge", x)))


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_every_row_gives_its_type_for_all_types_that_it_takes(name: str) -> None:
    row = UNARY.get(name) or BINARY[name]
    for dtype in row.operands:
        operands = [np.array([1, 0, 1], dtype.numpy)] * (1 if name in UNARY else 2)
        with np.errstate(all="ignore"):
            result = row.evaluate(*operands)
        assert DType.from_numpy(result.dtype) is (row.result or dtype)
        assert row.problem(dtype, row.result or dtype) == ""
