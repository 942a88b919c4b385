"""Kernels that stop at dynamic sizes give what they give without, as far as it matters.

Every kernel runs between guard pages, with results and workspace that are NaN before.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.schedule.drawn_limits import filled_planes, filled_rows, limits
from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.compiler.schedule.test_generated_code import (
    DRAWN,
    FAMILIES,
    assert_agrees,
    drawn_target,
    run_drawn,
)
from tests.targets import target_named
from tunefarm.compiler.kernels.split_rows import split_rows
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

EXAMPLES = {"attentions": 6, "filled_rows": 20, "products": 8, "normalisations": 6}
STRATEGIES = {name: strategy for name, (strategy, _) in FAMILIES.items()}
STRATEGIES["filled_rows"] = filled_rows


@pytest.mark.usefixtures("small_in_parallel")
@pytest.mark.parametrize("family", STRATEGIES)
def test_limited_kernels_compute_what_is_needed(family: str) -> None:
    @settings(DRAWN, max_examples=EXAMPLES.get(family, 3))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        on = drawn_target(data)
        for case in data.draw(STRATEGIES[family](on[0].lanes(DType.F32)), "cases"):
            kernel, inputs, needed = data.draw(limits(case), "limits")
            kernel = split_rows(kernel)
            verify_kernel(kernel)
            inputs = {item.name: inputs[item.name].reshape(item.shape) for item in kernel.inputs}
            schedule, output = run_drawn(data, kernel, inputs, on)
            verify_loops(lower(kernel, schedule))
            actual = np.where(needed, output.reshape(case.expected.shape), case.expected)
            assert_agrees(kernel, schedule, actual, case.expected)

    check()


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.data())
@pytest.mark.nightly
def test_convolutions_fill_what_their_readers_need(data: st.DataObject) -> None:
    on = drawn_target(data)
    case, needed = data.draw(filled_planes(on[0].lanes(DType.F32)), "case")
    verify_kernel(case.kernel)
    schedule, output = run_drawn(data, case.kernel, case.inputs, on)
    verify_loops(lower(case.kernel, schedule))
    actual = np.where(needed, output, case.expected)
    assert_agrees(case.kernel, schedule, actual, case.expected)


@pytest.mark.parametrize("shape", [(24, 32, 256), (12, 16, 128, 16)], ids=["rows", "blocks"])
def test_rows_that_end_at_run_time_are_reduced_side_by_side(shape: tuple[int, ...]) -> None:
    """By themselves short rows wait for their one sum, and for a last step in vain."""
    filled: dict[str, Attribute] = {"axis": 2, "number": 0, "value": "lowest"}
    whole: dict[str, Attribute] = {"axes": tuple(range(len(shape))), "keepdims": 0}
    nodes = [("fill", ["x0", "x1"], filled), ("reduce_max", ["v0"], whole)]
    kernel = kernel_of([f32(*shape), TensorType(DType.I64, (1,))], nodes)
    target = target_named("x86-64-v4")
    loops = format_loops(lower(kernel, default_schedule(kernel, target)))
    assert "lanes.lanes: f32[4, 16]" in loops
