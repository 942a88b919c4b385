"""Kernels that stop at dynamic sizes give what they give without, as far as it matters.

Every kernel runs between guard pages, with results and workspace that are NaN before.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.compiler.schedule.drawn_limits import filled_planes, filled_rows, limits
from tests.compiler.schedule.guarded_run import run_guarded
from tests.compiler.schedule.test_generated_code import (
    FAMILIES,
    SMALLEST_PARALLEL,
    TARGETS,
    assert_agrees,
)
from tunefarm.compiler.kernels.split_rows import split_rows
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.types.dtypes import DType

EXAMPLES = {"attentions": 6, "filled_rows": 20, "products": 8, "normalisations": 6}
STRATEGIES = {name: strategy for name, (strategy, _) in FAMILIES.items()}
STRATEGIES["filled_rows"] = filled_rows


@pytest.mark.parametrize("family", STRATEGIES)
def test_limited_kernels_compute_what_is_needed(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, least in SMALLEST_PARALLEL:
        monkeypatch.setattr(module, least, 1)  # kernels this small would not run in parallel

    @settings(
        max_examples=EXAMPLES.get(family, 3),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        target = TARGETS[data.draw(st.sampled_from(sorted(TARGETS)), "target")]
        threads = data.draw(st.sampled_from([1, 2]), "threads")
        for case in data.draw(STRATEGIES[family](target.lanes(DType.F32)), "cases"):
            kernel, inputs, needed = data.draw(limits(case), "limits")
            kernel = split_rows(kernel)
            verify_kernel(kernel)
            inputs = {item.name: inputs[item.name].reshape(item.shape) for item in kernel.inputs}
            space = schedule_space(kernel, target, threads)
            candidate = space.candidate(data.draw(st.integers(0, space.size - 1), "candidate"))
            schedule = space.schedule(candidate)
            note(f"{candidate.sketch}: {space.choices(candidate)}")
            verify_loops(lower(kernel, schedule))
            outcome = run_guarded(kernel, schedule, inputs, target, threads)
            assert not outcome.problem
            result = outcome.output.reshape(case.expected.shape)
            actual = np.where(needed, result, case.expected)
            assert_agrees(kernel, schedule, actual, case.expected)

    check()


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.data())
@pytest.mark.nightly
def test_convolutions_fill_what_their_readers_need(data: st.DataObject) -> None:
    target = TARGETS[data.draw(st.sampled_from(sorted(TARGETS)), "target")]
    threads = data.draw(st.sampled_from([1, 2]), "threads")
    case, needed = data.draw(filled_planes(target.lanes(DType.F32)), "case")
    verify_kernel(case.kernel)
    space = schedule_space(case.kernel, target, threads)
    candidate = space.candidate(data.draw(st.integers(0, space.size - 1), "candidate"))
    schedule = space.schedule(candidate)
    note(f"{candidate.sketch}: {space.choices(candidate)}")
    verify_loops(lower(case.kernel, schedule))
    outcome = run_guarded(case.kernel, schedule, case.inputs, target, threads)
    assert not outcome.problem
    actual = np.where(needed, outcome.output, case.expected)
    assert_agrees(case.kernel, schedule, actual, case.expected)
