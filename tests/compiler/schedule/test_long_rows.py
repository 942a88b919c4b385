"""Rows too long for the stack: every candidate lowers, is right, and computes them in vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.compiler.schedule.guarded_run import run_guarded
from tests.compiler.schedule.small_kernels import inputs_for
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.loops.ir import Allocate, For, If, Let, LoopKind, Stmt
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.operators.evaluate_node import node_kernel
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.sketches.row_arrangement import EXPENSIVE_BYTES, STACK_ELEMENTS
from tunefarm.compiler.schedule.spaces import default_schedule, schedule_space
from tunefarm.compiler.schedule.steps.loop_kinds import Prefetch
from tunefarm.compiler.schedule.steps.placement import StoreInOutput
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

LONG = STACK_ELEMENTS + 1
LONGEST = EXPENSIVE_BYTES // DType.F32.bytes + 1  # of rows of exponentials
CANDIDATES = 6  # of each space, spread over it
SCALAR_PART = 0.02  # of the steps: tails, and what is one number for a row

KERNELS: dict[str, tuple[str, tuple[tuple[int, ...], ...], dict[str, Attribute]]] = {
    "softmax of a vector": ("softmax", ((LONG,),), {"axis": 0}),
    "softmax of one row": ("softmax", ((1, LONG),), {"axis": 1}),
    "softmax of the longest row that fits": ("softmax", ((2, LONG - 1),), {"axis": 1}),
    "softmax of rows": ("softmax", ((3, LONG),), {"axis": 1}),
    "softmax of rows beyond the caches": ("softmax", ((2, LONGEST),), {"axis": 1}),
    "softmax of one row beyond the caches": ("softmax", ((LONGEST,),), {"axis": 0}),
    "softmax of attention rows": ("softmax", ((1, 2, 3, LONG),), {"axis": 3}),
    "softmax of an inner axis": ("softmax", ((2, LONG, 16),), {"axis": 1}),
    "softmax of the first axis": ("softmax", ((LONG, 16),), {"axis": 0}),
    "log softmax of rows": ("log_softmax", ((3, LONG),), {"axis": 1}),
    "layer norm of rows": ("layer_norm", ((3, LONG), (LONG,)), {"axis": 1}),
    "layer norm of images": ("layer_norm", ((2, 3, 8200), (3, 8200)), {"axis": 1}),
    "mean of rows": ("reduce_mean", ((3, LONG),), {"axes": (1,)}),
    "maximum of columns": ("reduce_max", ((LONG, 16),), {"axes": (0,)}),
}


def _kernel(name: str) -> FusedKernel:
    operator, shapes, attributes = KERNELS[name]
    types = tuple(TensorType(DType.F32, shape) for shape in shapes)
    names = tuple(f"x{i}" for i in range(len(types)))
    return node_kernel(Node(operator, names, "y", attributes), types)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_candidates_for_long_rows_lower(name: str, threads: int) -> None:
    kernel = _kernel(name)
    space = schedule_space(kernel, host_target(), threads)
    step = max(1, space.size // CANDIDATES)
    for number in range(0, space.size, step):
        verify_loops(lower(kernel, space.schedule(space.candidate(number))))


@pytest.mark.parametrize("name", KERNELS)
def test_long_rows_are_right(name: str) -> None:
    kernel, target = _kernel(name), host_target()
    inputs = inputs_for(kernel)
    outcome = run_guarded(kernel, default_schedule(kernel, target), inputs, target, 1)
    assert not outcome.problem
    expected = evaluate_kernel(kernel, inputs)
    assert np.allclose(outcome.output, expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
def test_long_rows_are_computed_in_vectors(name: str) -> None:
    kernel = _kernel(name)
    nest = lower(kernel, default_schedule(kernel, host_target()))
    scalar, total = _steps(nest.body, 1, False)
    assert scalar <= SCALAR_PART * total


@pytest.mark.parametrize(
    ("shape", "waits"), [((3, LONG), True), ((1, LONG), True), ((3, LONG // 4), False)]
)
def test_exponentials_of_long_rows_wait_in_the_output(shape: tuple[int, int], waits: bool) -> None:
    node = Node("softmax", ("x",), "y", {"axis": 1})
    kernel = node_kernel(node, (TensorType(DType.F32, shape),))
    steps = default_schedule(kernel, host_target()).steps
    assert waits == (StoreInOutput("exp") in steps)


@pytest.mark.parametrize(("rows_in_cache", "asked"), [(8, True), (2, False)])
def test_a_row_is_asked_for_ahead_where_the_cache_has_room(rows_in_cache: int, asked: bool) -> None:
    target = host_target()
    row = target.l2_bytes // rows_in_cache // DType.F32.bytes
    node = Node("log_softmax", ("x",), "y", {"axis": 1})
    kernel = node_kernel(node, (TensorType(DType.F32, (64, row)),))
    steps = default_schedule(kernel, target).steps
    assert asked == any(isinstance(step, Prefetch) for step in steps)


def _steps(statements: Sequence[Stmt], times: int, vector: bool) -> tuple[int, int]:
    """How often a leaf runs outside of vectorised loops, and how often any does."""
    scalar = total = 0
    for statement in statements:
        if isinstance(statement, For):
            inside = times * (statement.stop - statement.start)
            vectors = statement.kind is LoopKind.VECTORISED
            found = _steps(statement.body, times if vectors else inside, vector or vectors)
        elif isinstance(statement, If | Let | Allocate):
            found = _steps(statement.body, times, vector)
        else:
            found = (0 if vector else times, times)
        scalar, total = scalar + found[0], total + found[1]
    return scalar, total
