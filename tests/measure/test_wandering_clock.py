"""The simulated clocks wander as they say, and the same way each time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.measure.wandering_clock import NOISY, SLICE, STILL, WanderingClock, make_clock

SEEDS = range(6)


def factors(clock: WanderingClock) -> npt.NDArray[np.float64]:
    """How many times as long as on a still core each slice takes."""
    return np.diff(clock.done) / SLICE


@pytest.mark.parametrize("kind", NOISY)
def test_a_seed_draws_one_clock(kind: str) -> None:
    assert make_clock(kind, 1) == make_clock(kind, 1)
    assert make_clock(kind, 1) != make_clock(kind, 2)


@pytest.mark.parametrize("kind", NOISY)
def test_work_in_parts_takes_as_long_as_at_once(kind: str) -> None:
    """Past the end of the recording too: it goes round."""
    clock = make_clock(kind, 0)
    now = start = 0.95 * clock.period
    for _ in range(2000):
        now = clock.after(now, 0.02)
    assert now > clock.period
    assert now == pytest.approx(clock.after(start, 40.0))
    assert clock.after(start, 0.0) == pytest.approx(start)


def test_a_still_core_always_takes_as_long() -> None:
    clock = make_clock(STILL, 0)
    assert [clock.after(start, 0.3) - start for start in (0.0, 0.001, 7.7)] == pytest.approx(
        3 * [0.3]
    )


def test_a_slice_takes_as_long_as_the_clock_says() -> None:
    clock = WanderingClock.of(np.array([1.0, 2.0, 3.0]))
    assert clock.after(0.0, 2.5 * SLICE) == pytest.approx(4.5 * SLICE)
    assert clock.after(2.0 * SLICE, SLICE) == pytest.approx(4.5 * SLICE)
    assert clock.after(5.5 * SLICE, SLICE) == pytest.approx((6.0 + 5.0 / 6.0) * SLICE)


@pytest.mark.parametrize("kind", ["quiet", "building"])
def test_recorded_clocks_have_their_tails(kind: str) -> None:
    values = np.concatenate([factors(make_clock(kind, seed)) for seed in SEEDS])
    assert np.median(values) == pytest.approx(1.0, abs=0.01)
    assert 1.4 < np.quantile(values, 0.95) < 1.9
    assert 2.2 < np.quantile(values, 0.99) < 3.2


def test_the_walk_stays_in_its_range_and_remembers() -> None:
    clocks = [factors(make_clock("walk", seed)) for seed in range(20)]
    low, high = np.quantile(np.concatenate(clocks), (0.05, 0.95))
    assert low == pytest.approx(0.75, abs=0.05) and high == pytest.approx(1.40, abs=0.07)
    for values in clocks:
        blocks = np.median(values[: len(values) // 8 * 8].reshape(-1, 8), axis=1)  # 20 ms
        assert np.corrcoef(blocks[:-1], blocks[1:])[0, 1] > 0.8


def test_steps_are_high_and_last() -> None:
    for seed in SEEDS:
        values = factors(make_clock("steps", seed))
        blocks = np.median(values[: len(values) // 40 * 40].reshape(-1, 40), axis=1)  # 0.1 s
        changes = np.abs(np.diff(np.log(blocks)))
        high = changes[changes > 0.05]
        assert 20 <= len(high) <= 160  # in 160 s; one that falls into a block shows as two
        assert high.max() < np.log(1.45)
