"""The timing loop against a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.errors import MeasureError
from measure.timer import SamplePlan, TimingOptions, plan_samples, time_calls


class FakeKernel:
    """A kernel of `seconds` per call, and the clock that it moves."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.calls: list[int] = []

    def call(self, calls: int) -> None:
        self.calls.append(calls)
        self.now += calls * self.seconds

    def clock(self) -> float:
        return self.now


def test_samples_of_a_short_kernel_last_long_enough() -> None:
    kernel = FakeKernel(1e-6)
    timing = time_calls(kernel.call, TimingOptions(), clock=kernel.clock)
    assert timing.samples == pytest.approx([1e-6] * 7)
    assert timing.calls * 1e-6 >= 0.0099


def test_kernel_of_some_milliseconds_has_three_calls_in_a_sample() -> None:
    assert plan_samples(0.008, TimingOptions()) == SamplePlan(7, 3)


def test_slow_kernel_loses_calls_first_then_samples() -> None:
    options = TimingOptions()
    assert plan_samples(0.03, options) == SamplePlan(7, 1)
    assert plan_samples(0.08, options) == SamplePlan(3, 1)
    assert plan_samples(0.2, options) == SamplePlan(2, 1)
    assert plan_samples(5.0, options) == SamplePlan(1, 1)


@given(st.floats(1e-8, 10.0))
def test_plan_keeps_the_time_limit_or_the_minimum(seconds: float) -> None:
    options = TimingOptions()
    plan = plan_samples(seconds, options)
    assert 1 <= plan.samples <= options.samples
    if plan.samples > options.min_samples:
        assert plan.samples * plan.calls * seconds <= options.max_seconds * 1.0001
    if seconds < options.max_seconds:
        assert plan.calls * seconds >= options.min_sample_seconds * 0.9999


def test_slow_kernel_is_not_run_again_to_calibrate() -> None:
    kernel = FakeKernel(0.05)
    timing = time_calls(kernel.call, TimingOptions(), estimate=0.05, clock=kernel.clock)
    assert len(kernel.calls) == len(timing.samples)


def test_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(MeasureError, match=r"unknown timing option sample \(known: samples"):
        TimingOptions.of({"sample": 3})


@pytest.mark.parametrize("options", [{"samples": 1}, {"min_calls": 0}, {"run_timeout": 0}])
def test_senseless_option_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(MeasureError):
        TimingOptions.of(options)


def test_whole_numbers_stay_whole() -> None:
    options = TimingOptions.of({"samples": 9.0, "max_seconds": 1})
    assert isinstance(options.samples, int) and isinstance(options.max_seconds, float)
