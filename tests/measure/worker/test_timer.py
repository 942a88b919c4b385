"""The timing loop with kernels that only say how long they took."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.worker.timer import (
    FEWEST_TOLD,
    MORE_ROUNDS,
    Run,
    TimingOptions,
    calibrate,
    plan_rounds,
    time_in_turn,
)

SAMPLES = TimingOptions().samples


class FakeKernel:
    """A kernel of `seconds` per call, times what `noise` says of each run."""

    def __init__(self, seconds: float, noise: Callable[[], float] = lambda: 1.0) -> None:
        self.seconds = seconds
        self.noise = noise
        self.calls: list[int] = []

    def run(self, calls: int) -> float:
        self.calls.append(calls)
        return calls * self.seconds * self.noise()


def scatter(sigma: float, seed: int = 0) -> Callable[[], float]:
    rng = random.Random(seed)
    return lambda: rng.lognormvariate(0.0, sigma)


def test_slices_of_a_short_kernel_last_long_enough() -> None:
    kernel = FakeKernel(1e-6)
    options = TimingOptions()
    timing = time_in_turn([kernel.run], options, [calibrate(kernel.run, options, 0.0)])
    assert list(timing.samples[0]) == pytest.approx([1e-6] * SAMPLES)
    assert timing.calls[0] * 1e-6 == pytest.approx(TimingOptions().min_sample_seconds)


def test_slow_kernels_lose_rounds() -> None:
    options = TimingOptions()
    assert plan_rounds([0.001, 0.002], options).calls == (2, 1)
    assert plan_rounds([0.001, 0.002], options).rounds == SAMPLES
    assert plan_rounds([0.01, 0.01], options).rounds == 12
    assert plan_rounds([0.3, 0.1], options).rounds == options.min_samples


def test_kernels_of_seconds_leave_time_for_the_answer() -> None:
    options = TimingOptions(run_timeout=20.0)
    assert plan_rounds([1.0, 1.0], options).rounds == 2
    assert plan_rounds([8.0, 8.0], options).rounds == 1


@given(st.lists(st.floats(1e-8, 10.0), min_size=1, max_size=4))
def test_a_plan_keeps_the_time_limit_or_the_minimum(seconds: list[float]) -> None:
    options = TimingOptions()
    plan = plan_rounds(seconds, options)
    assert 1 <= plan.rounds <= plan.most <= MORE_ROUNDS * options.samples
    spent = sum(calls * one for calls, one in zip(plan.calls, seconds, strict=True))
    if plan.most > options.min_samples:
        assert plan.most * spent <= options.max_seconds * 1.0001
    for calls, one in zip(plan.calls, seconds, strict=True):
        assert calls * one >= options.min_sample_seconds * 0.666


def test_a_slow_kernel_is_not_run_again_to_calibrate() -> None:
    kernel = FakeKernel(0.05)
    assert calibrate(kernel.run, TimingOptions(), estimate=0.05) == 0.05
    assert kernel.calls == []


def test_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(MeasureError, match=r"unknown timing option sample \(known: samples"):
        TimingOptions.of({"sample": 3})


@pytest.mark.parametrize(
    "options",
    [
        {"samples": 1},
        {"run_timeout": 0},
        {"max_seconds": float("inf")},
        {"min_sample_seconds": float("nan")},
        {"unstable_limit": -0.1},
        {"unstable_limit": float("nan")},
    ],
)
def test_senseless_option_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(MeasureError):
        TimingOptions.of(options)


def test_whole_numbers_stay_whole() -> None:
    options = TimingOptions.of({"samples": 9.0, "max_seconds": 1})
    assert isinstance(options.samples, int) and isinstance(options.max_seconds, float)


@pytest.mark.parametrize(
    ("slower", "most"), [(3.0, 3), (1.12, 3), (1.04, FEWEST_TOLD), (0.5, SAMPLES)]
)
def test_a_kernel_clearly_slower_than_its_reference_is_given_up(slower: float, most: int) -> None:
    candidate, reference = FakeKernel(slower * 1e-3), FakeKernel(1e-3)
    options = TimingOptions(give_up=1)
    timing = time_in_turn([candidate.run, reference.run], options, [slower * 1e-3, 1e-3])
    taken = {len(samples) for samples in timing.samples}
    assert taken == {most}
    assert timing.censored == (most < FEWEST_TOLD)


def test_nothing_is_given_up_unasked() -> None:
    timing = time_in_turn(
        [FakeKernel(3e-3).run, FakeKernel(1e-3).run], TimingOptions(), [3e-3, 1e-3]
    )
    assert [len(samples) for samples in timing.samples] == [SAMPLES] * 2
    assert not timing.censored


def test_a_wide_interval_takes_more_rounds_up_to_twice_as_many() -> None:
    noisy = [FakeKernel(1e-3, scatter(0.3, seed)).run for seed in (1, 2)]
    timing = time_in_turn(noisy, TimingOptions(), [1e-3, 1e-3])
    assert len(timing.samples[0]) == len(timing.samples[1]) == MORE_ROUNDS * SAMPLES
    quiet = [FakeKernel(1e-3, scatter(0.01, seed)).run for seed in (1, 2)]
    assert len(time_in_turn(quiet, TimingOptions(), [1e-3, 1e-3]).samples[0]) == SAMPLES


def test_a_kernel_alone_is_timed_in_as_many_rounds_however_it_scatters() -> None:
    timing = time_in_turn([FakeKernel(1e-3, scatter(0.3)).run], TimingOptions(give_up=1), [1e-3])
    assert (len(timing.samples), len(timing.samples[0])) == (1, SAMPLES)


def test_kernels_take_turns_in_random_order() -> None:
    order: list[str] = []

    def kernel(name: str) -> Run:
        def run(calls: int) -> float:
            order.append(name)
            return calls * 0.002

        return run

    options = TimingOptions(samples=20)
    runs = [kernel(name) for name in "abc"]
    timing = time_in_turn(runs, options, [0.002] * 3, seed=5)
    assert [len(samples) for samples in timing.samples] == [20] * 3
    rounds = ["".join(order[i : i + 3]) for i in range(0, 60, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) > 3


def test_a_slice_with_flushed_caches_is_one_call() -> None:
    kernel = FakeKernel(1e-6)
    options = TimingOptions(flush_cache=1)
    timing = time_in_turn([kernel.run], options, [calibrate(kernel.run, options, 1e-6)])
    assert timing.calls == (1,)
    assert kernel.calls == [1] * SAMPLES


def test_a_slice_that_took_no_time_does_not_make_the_next_endless() -> None:
    kernel = FakeKernel(1e-3, lambda: 1e-12)
    time_in_turn([kernel.run], TimingOptions(), [1e-3])
    assert max(kernel.calls) <= 100
