"""Long runs of adjacent elements are moved by one call, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.schedule.guarded_run import run_guarded
from tests.compiler.schedule.small_kernels import inputs_for
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.llvm.emit_kernel import emit_kernel
from tunefarm.compiler.llvm.updates import LEAST_BYTES
from tunefarm.compiler.operators.evaluate_node import node_kernel
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

LONG = LEAST_BYTES // DType.F32.bytes


def kernel_of(operator: str, *shapes: tuple[int, ...], **attributes: Attribute) -> FusedKernel:
    types = tuple(TensorType(DType.F32, shape) for shape in shapes)
    names = tuple(f"x{i}" for i in range(len(types)))
    return node_kernel(Node(operator, names, "y", attributes), types)


def calls(kernel: FusedKernel) -> int:
    """The calls in the default schedule's code, whose results are checked."""
    target = host_target()
    schedule = default_schedule(kernel, target)
    inputs = inputs_for(kernel)
    outcome = run_guarded(kernel, schedule, inputs, target)
    assert not outcome.problem
    np.testing.assert_array_equal(outcome.output, evaluate_kernel(kernel, inputs))
    text, _ = emit_kernel(lower(kernel, schedule), target, "f")
    return text.count("call void @llvm.memmove")


@pytest.mark.parametrize("offset", [0, 7])
def test_a_long_slice_is_one_call(offset: int) -> None:
    window = {"starts": (0, offset), "steps": (1, 1), "shape": (3, LONG)}
    assert calls(kernel_of("slice", (3, LONG + 9), **window)) == 1


def test_each_long_piece_of_a_concat_is_a_call() -> None:
    assert calls(kernel_of("concat", (2, LONG + 64), (2, 2 * LONG), axis=1)) == 2
    assert calls(kernel_of("concat", (5, 2 * LONG // 5), (1, 2 * LONG // 5), axis=0)) == 1


def test_what_lies_between_padding_is_a_call() -> None:
    assert calls(kernel_of("pad", (3, LONG), pads=(1, 0, 1, 0), mode="constant")) == 1


def test_short_rows_and_rows_that_are_computed_are_none() -> None:
    assert calls(kernel_of("slice", (3, 99), starts=(0, 1), steps=(1, 1), shape=(3, 90))) == 0
    assert calls(kernel_of("relu", (3, LONG))) == 0
    turned = {"starts": (0, LONG - 1), "steps": (1, -1), "shape": (3, LONG)}
    assert calls(kernel_of("slice", (3, LONG), **turned)) == 0
    assert calls(kernel_of("transpose", (64, LONG // 8), perm=(1, 0))) == 0
