"""The timing loop with kernels that only say how long they took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.errors import MeasureError
from measure.worker.timer import (
    RETAKES,
    Run,
    SamplePlan,
    TimingOptions,
    plan_samples,
    time_calls,
    time_in_turn,
)


class FakeKernel:
    """A kernel of `seconds` per call."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.calls: list[int] = []

    def run(self, calls: int) -> float:
        self.calls.append(calls)
        return calls * self.seconds


def test_samples_of_a_short_kernel_last_long_enough() -> None:
    kernel = FakeKernel(1e-6)
    timing = time_calls(kernel.run, TimingOptions())
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
    timing = time_calls(kernel.run, TimingOptions(), estimate=0.05)
    assert len(kernel.calls) == len(timing.samples)


def test_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(MeasureError, match=r"unknown timing option sample \(known: samples"):
        TimingOptions.of({"sample": 3})


@pytest.mark.parametrize(
    "options",
    [
        {"samples": 1},
        {"min_calls": 0},
        {"run_timeout": 0},
        {"incumbent_seconds": -1},
        {"incumbent_seconds": float("inf")},
    ],
)
def test_senseless_option_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(MeasureError):
        TimingOptions.of(options)


def test_whole_numbers_stay_whole() -> None:
    options = TimingOptions.of({"samples": 9.0, "max_seconds": 1})
    assert isinstance(options.samples, int) and isinstance(options.max_seconds, float)


class FakeWatch:
    """Says of each sample in turn whether it was disturbed; of later ones, no."""

    def __init__(self, *disturbed: bool) -> None:
        self.left = list(disturbed)
        self.begun = 0

    def begin(self) -> None:
        self.begun += 1

    def disturbed(self) -> bool:
        return self.left.pop(0) if self.left else False


def test_a_disturbed_sample_is_taken_again() -> None:
    watch = FakeWatch(False, True, True, False)
    timing = time_calls(FakeKernel(0.02).run, TimingOptions(), estimate=0.02, watch=watch)
    assert (len(timing.samples), timing.retaken, timing.tainted) == (7, 2, 0)
    assert watch.begun == 9


def test_a_sample_that_is_always_disturbed_is_kept_after_two_more_tries() -> None:
    watch = FakeWatch(*[True] * 100)
    timing = time_calls(FakeKernel(0.02).run, TimingOptions(), estimate=0.02, watch=watch)
    assert (len(timing.samples), timing.tainted) == (7, 7)
    assert watch.begun == 7 * (1 + RETAKES)


@pytest.mark.parametrize(("slower", "taken"), [(3.0, 2), (1.1, 3), (1.03, 7), (0.5, 7)])
def test_a_kernel_clearly_slower_than_the_incumbent_is_given_up(slower: float, taken: int) -> None:
    options = TimingOptions(incumbent_seconds=0.02)
    timing = time_calls(FakeKernel(slower * 0.02).run, options, estimate=slower * 0.02)
    assert len(timing.samples) == min(taken, plan_samples(slower * 0.02, options).samples)
    assert timing.censored == (taken < 7)


def test_disturbed_samples_do_not_count_against_a_kernel() -> None:
    options = TimingOptions(incumbent_seconds=0.01)
    watch = FakeWatch(*[True] * 100)
    timing = time_calls(FakeKernel(0.03).run, options, estimate=0.03, watch=watch)
    assert not timing.censored


def test_kernels_take_turns_in_random_order() -> None:
    order: list[str] = []

    def kernel(name: str) -> Run:
        def run(calls: int) -> float:
            order.append(name)
            return calls * 0.02

        return run

    options = TimingOptions(samples=20)
    runs = [kernel(name) for name in "abc"]
    timings = time_in_turn(runs, options, estimates=[0.02] * 3, seed=5)
    assert [len(timing.samples) for timing in timings] == [20] * 3
    rounds = ["".join(order[i : i + 3]) for i in range(0, 60, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) > 3


def test_flushed_calls_are_few() -> None:
    kernel = FakeKernel(1e-6)
    timing = time_calls(kernel.run, TimingOptions(flush_cache=1))
    assert timing.calls == TimingOptions().min_calls
    assert sum(kernel.calls) <= 1 + 7 * timing.calls
