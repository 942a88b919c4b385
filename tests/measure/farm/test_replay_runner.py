"""Measured on a core whose speed wanders: in pairs, and alone as earlier versions did."""

from __future__ import annotations

import math
from functools import cache
from statistics import mean

import numpy as np
import numpy.typing as npt
import pytest

from tests.measure.absolute_measuring import AbsoluteMachine
from tests.measure.wandering_clock import NOISY, STILL, make_clock
from tunefarm.measure.compare import pair_of
from tunefarm.measure.farm.replay_runner import SimulatedCore
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.measure.worker.timer import TimingOptions

SEEDS = 5
EACH = 40  # measurements of a seed
FULL = TimingOptions()
HASTY = TimingOptions(give_up=1)


@cache
def measured(
    kind: str, ratio: float, seconds: float = 4e-4, options: TimingOptions = FULL
) -> list[MeasureResult]:
    """Many measurements of a schedule `ratio` times as slow as its reference."""
    results = []
    for seed in range(SEEDS):
        core = SimulatedCore(make_clock(kind, seed))
        results += [core.measure([ratio * seconds, seconds], options, n) for n in range(EACH)]
    return results


def errors(results: list[MeasureResult], ratio: float) -> npt.NDArray[np.float64]:
    pairs = [pair_of(result) for result in results]
    return np.array([pair.mean for pair in pairs if pair is not None]) - math.log(ratio)


@pytest.mark.parametrize("kind", [STILL, *NOISY])
def test_measurements_are_the_same_to_the_bit(kind: str) -> None:
    core = SimulatedCore(make_clock(kind, 0))
    again = [core.measure([1.1 * 4e-4, 4e-4], FULL, number) for number in range(EACH)]
    assert again == measured(kind, 1.1)[:EACH]


@pytest.mark.parametrize("kind", NOISY)
@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.1])
def test_ratios_are_unbiased_and_near(kind: str, ratio: float) -> None:
    off = errors(measured(kind, ratio), ratio)
    assert np.quantile(np.abs(off), 0.9) < 0.03
    assert abs(off.mean()) < 3.0 * off.std() / math.sqrt(len(off))


@pytest.mark.parametrize("kind", NOISY)
def test_deviations_hold_the_truth(kind: str) -> None:
    """95 %, up to three standard errors of a share; or more."""
    results = measured(kind, 1.0)
    deviations = np.array([pair.deviation for r in results if (pair := pair_of(r)) is not None])
    inside = np.abs(errors(results, 1.0)) < 1.96 * deviations
    assert inside.mean() > 0.95 - 3.0 * math.sqrt(0.95 * 0.05 / len(inside))


@pytest.mark.parametrize("kind", NOISY)
def test_next_to_nothing_is_lost_to_the_clock(kind: str) -> None:
    lost = [result.status is not Status.OK for result in measured(kind, 1.1)]
    assert mean(lost) <= 0.02


@pytest.mark.parametrize("kind", NOISY)
def test_slow_schedules_are_given_up_after_three_or_four_rounds(kind: str) -> None:
    results = measured(kind, 1.3, options=HASTY)
    assert mean(result.censored for result in results) > 0.95
    assert mean(len(result.samples) for result in results) < 4.0


@pytest.mark.parametrize("kind", NOISY)
def test_equals_are_seldom_given_up(kind: str) -> None:
    """1 %, up to three standard errors of a share."""
    count = SEEDS * EACH
    given_up = mean(result.censored for result in measured(kind, 1.0, options=HASTY))
    assert given_up <= 0.01 + 3.0 * math.sqrt(0.01 * 0.99 / count)


@pytest.mark.parametrize("seconds", [1e-6, 4e-4, 0.004, 0.07, 0.2])
def test_a_still_core_yields_the_ratio(seconds: float) -> None:
    result = measured(STILL, 1.5, seconds)[0]
    pair = pair_of(result)
    assert pair is not None and pair.ratio == pytest.approx(1.5)
    assert result.latency == pytest.approx(1.5 * seconds)


def test_time_passes_for_what_is_no_timing_too() -> None:
    core = SimulatedCore(make_clock(STILL, 0))
    result = core.measure([1e-3], FULL, 0)
    assert core.now == pytest.approx(
        result.build_seconds + result.check_seconds + result.run_seconds
    )
    assert result.run_seconds > FULL.samples * FULL.min_sample_seconds


@pytest.mark.parametrize("kind", NOISY)
def test_alone_the_clock_is_measured_instead(kind: str) -> None:
    """What pairs are for: the former way scatters five times as much."""
    logs = []
    for seed in range(SEEDS):
        machine = AbsoluteMachine(make_clock(kind, seed))
        answers = [machine.measure(4e-4, math.inf) for _ in range(EACH)]
        logs += [math.log(answer.median / 4e-4) for answer in answers]
    low, high = np.quantile(logs, (0.05, 0.95))
    near = np.abs(errors(measured(kind, 1.0), 1.0))
    assert high - low > 5.0 * 2.0 * np.quantile(near, 0.9)
