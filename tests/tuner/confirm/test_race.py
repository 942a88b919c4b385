"""Races of simulated schedules on wandering clocks: who wins, and with how few slices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean

import numpy as np
import pytest

from tests.measure.wandering_clock import NOISY, SLICE, make_clock
from tunefarm.tuner.confirm.finalists import Race, RaceOptions
from tunefarm.tuner.confirm.verdict import Meeting, judge
from tunefarm.tuner.search.pairwise_estimates import Estimate

UNSURE = 0.02


class Host:
    """A core whose speed wanders; schedules take their turns on it, slice by slice."""

    def __init__(self, times: Sequence[float], seed: int) -> None:
        """`times` of the schedules, on a core that stands still."""
        self.times = times
        self.slices = 0
        self._rng = np.random.default_rng(seed)
        self._clock = make_clock(NOISY[seed % len(NOISY)], seed)

    def meet(self, numbers: Sequence[int], rounds: int) -> Meeting:
        """One process: slices one after the other, from some moment on, in an order drawn."""
        self.slices += rounds * len(numbers)
        now = self._rng.uniform(0.0, self._clock.period)
        placed = {n: self.times[n] * math.exp(self._rng.normal(0.0, 0.003)) for n in numbers}
        taken: dict[int, list[float]] = {number: [] for number in numbers}
        for _ in range(rounds):
            for number in self._rng.permutation(numbers).tolist():
                end = self._clock.after(now, SLICE)
                taken[number].append(placed[number] * (end - now) / SLICE)
                now = end
        return taken


def run(
    host: Host,
    expected: Sequence[float] | None = None,
    starters: int | None = None,
    *,
    thorough: bool = False,
) -> tuple[Race, int]:
    """A race to its end, and the winner. Number 0 is the incumbent and the default."""
    means = [math.log(time / host.times[0]) for time in expected or host.times]
    estimates = [Estimate(0.0, 0.0), *(Estimate(mean, UNSURE) for mean in means[1:])]
    starters = len(estimates) if starters is None else starters
    race = Race(estimates, starters=starters, default=0)
    while numbers := race.next(thorough=thorough):
        race.add(host.meet(numbers, RaceOptions().rounds))
    verdict = judge(race.meetings)
    return race, 0 if verdict is None else verdict.winner


def test_equal_schedules_never_dethrone_the_incumbent() -> None:
    wins = [run(Host([1.0, 1.0], seed))[1] for seed in range(200)]
    assert sum(wins) == 0


def test_five_percent_is_always_seen() -> None:
    assert {run(Host([1.0, 1.05], seed))[1] for seed in range(100)} == {0}
    assert {run(Host([1.05, 1.0], seed))[1] for seed in range(100)} == {1}


def test_what_clearly_loses_leaves_and_saves_slices() -> None:
    """Against eight rivals that all meet as often as the winner needs."""
    times = [1.0, 0.9, *[0.96] * 3, *[1.0] * 4]
    saved = []
    for seed in range(30):
        host = Host(times, seed)
        race, winner = run(host)
        assert winner == 1
        saved.append(host.slices / (RaceOptions().rounds * len(times) * len(race.meetings)))
    assert mean(saved) < 0.8


def test_the_race_ends_when_nobody_can_be_faster_by_enough() -> None:
    processes = [len(run(Host([1.0, 0.9, 1.0, 1.1], seed))[0].meetings) for seed in range(30)]
    assert min(processes) == RaceOptions().processes
    assert mean(processes) < 3.0


def test_a_race_that_stays_open_ends_all_the_same() -> None:
    lengths = []
    for seed in range(30):
        race, _ = run(Host([1.0, 0.98], seed))  # exactly at the effect that is asked for
        lengths.append(len(race.meetings))
    assert max(lengths) == RaceOptions().most
    assert min(lengths) >= RaceOptions().processes


def test_a_nominee_that_regresses_is_replaced_by_the_next() -> None:
    """The search had the first at 0.7; it takes 0.95, and the next one was expected at 0.8."""
    host = Host([1.0, 0.95, 0.8, 0.97], 3)
    race, winner = run(host, expected=[1.0, 0.7, 0.8, 0.97], starters=2)
    assert winner == 2
    assert not any(3 in meeting for meeting in race.meetings)  # nobody expects it to be faster


def test_a_nominee_that_keeps_its_promise_meets_nobody_else() -> None:
    race, winner = run(Host([1.0, 0.7, 0.8], 3), starters=2)
    assert winner == 1
    assert {number for meeting in race.meetings for number in meeting} == {0, 1}


def test_those_with_time_know_the_winners_speed_better() -> None:
    usual, thorough = [], []
    for seed in range(20):
        usual.append(len(run(Host([1.0, 0.8, 0.9], seed))[0].meetings))
        race, _ = run(Host([1.0, 0.8, 0.9], seed), thorough=True)
        thorough.append(len(race.meetings))
        assert set(race.meetings[-1]) == {0, 1}
    assert mean(thorough) > mean(usual)


@pytest.mark.parametrize("culprit", [1, 2])
def test_a_schedule_that_fails_is_out(culprit: int) -> None:
    host = Host([1.0, 0.8, 0.85], 1)
    estimates = [Estimate(math.log(time), UNSURE) for time in host.times]
    race = Race(estimates, starters=3, default=0)
    race.add(host.meet(race.next(), 16))
    race.refute(culprit)
    while numbers := race.next():
        assert culprit not in numbers
        race.add(host.meet(numbers, 16))
    verdict = judge(race.meetings)
    assert verdict is not None and verdict.winner == 3 - culprit


def test_slow_kernels_meet_until_there_are_pairs_enough() -> None:
    host = Host([1.0, 0.5], 0)
    race = Race([Estimate(0.0, 0.01)] * 2, starters=2, default=0)
    while numbers := race.next():
        race.add(host.meet(numbers, 4))  # no more rounds within the seconds of a process
    verdict = judge(race.meetings)
    assert verdict is not None and verdict.winner == 1


def test_who_waits_takes_the_place_of_one_that_fails() -> None:
    race = Race([Estimate(0.0, 0.01)] * 3, starters=2, default=0)
    assert race.next() == [0, 1]
    race.refute(1)
    assert race.next() == [0, 2]


def test_without_the_incumbent_there_is_no_race() -> None:
    race = Race([Estimate(0.0, 0.01)] * 3, starters=3, default=0)
    race.refute(0)
    assert race.next() == []


def test_a_process_in_vain_counts_against_the_limit() -> None:
    race = Race([Estimate(0.0, 0.01)] * 2, starters=2, default=0)
    for _ in range(RaceOptions().most):
        assert race.next() == [0, 1]
        race.miss()
    assert race.next() == []


def test_the_default_and_the_incumbent_take_part_in_every_process() -> None:
    host = Host([0.8, 0.7, 1.0, 0.9], 0)
    estimates = [Estimate(math.log(time), UNSURE) for time in host.times]
    race = Race(estimates, starters=3, default=2)
    while numbers := race.next():
        assert {0, 2} <= set(numbers)
        race.add(host.meet(numbers, 16))
    verdict = judge(race.meetings, default=2)
    assert verdict is not None and verdict.winner == 1
    assert verdict.against_default[1].ratio == pytest.approx(0.7, rel=0.03)
    assert verdict.against_default[2].ratio == 1.0
