"""A task's latencies are places in one scale, whatever measured them; what to believe follows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.db.examples import trial
from tunefarm.db.records import TrialRecord
from tunefarm.measure.compare import ALONE_DEVIATION, LogRatio
from tunefarm.tuner.search.pairwise_estimates import PairwiseEstimates
from tunefarm.tuner.search.posterior import posterior
from tunefarm.tuner.search.tasks import AGAIN_SHARE, GONE_DEVIATION, Ranking, References


def pair(ratio: float, deviation: float = 0.01) -> LogRatio:
    return LogRatio(math.log(ratio), deviation, 14)


def recorded(number: int, latency: float, reference: str | None = None) -> TrialRecord:
    """A trial as the database has it; its ratio is that of latencies of 1 ms and `latency`."""
    made = replace(trial(number), latency=latency, status="ok")
    if reference is None:
        return made
    found = pair(latency / 1e-3)
    return replace(
        made,
        reference=reference,
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        reference_samples=made.samples,
    )


def measured(*ratios: float) -> Ranking:
    """The default at 1 ms, and schedules beside it."""
    ranking = Ranking("default")
    ranking.add("default", 1e-3)
    for number, ratio in enumerate(ratios):
        ranking.add(str(number), 7.0, "default", pair(ratio))
    return ranking


def test_the_first_that_is_measured_alone_gives_the_scale() -> None:
    ranking = Ranking("default")
    assert ranking.add("default", 2e-3) == 2e-3
    assert ranking.scale == 2e-3
    assert ranking.references.current == "default"
    assert ranking.add("default", 5e-3) == 2e-3


def test_latencies_of_pairs_are_ratios_times_the_scale() -> None:
    ranking = measured(0.5)
    assert ranking.add("a", 123.0, "0", pair(0.8)) == pytest.approx(0.4e-3)
    assert ranking.is_paired("a") and not ranking.is_paired("default")


def test_what_is_measured_alone_later_is_known_less_well() -> None:
    ranking = measured()
    assert ranking.add("alone", 0.7e-3) == pytest.approx(0.7e-3)
    assert ranking.estimates(["alone"])[1] == pytest.approx([ALONE_DEVIATION])


@pytest.mark.parametrize("known", [True, False])
def test_records_whose_reference_is_gone_count_by_their_latency(known: bool) -> None:
    ranking = measured(0.5)
    record = recorded(1, 0.6e-3, "default" if known else "0123456789abcdef")
    assert ranking.take_over(record) == pytest.approx(0.6e-3)
    (deviation,) = ranking.estimates([record.schedule_hash])[1]
    assert (deviation < GONE_DEVIATION) == known


def test_the_scale_of_records_is_the_defaults() -> None:
    default = recorded(1, 3e-3)
    ranking = Ranking(default.schedule_hash)
    ranking.prepare([recorded(2, 1e-3), default, replace(default, latency=4e-3)])
    assert ranking.scale == 3e-3
    assert ranking.latency(default.schedule_hash) == 3e-3


def test_without_the_defaults_own_record_its_pairs_give_the_scale() -> None:
    default = recorded(1, 3e-3).schedule_hash
    ranking = Ranking(default)
    ranking.prepare([recorded(2, 0.5e-3, default)])
    assert ranking.scale == pytest.approx(1e-3)


def test_where_the_default_never_worked_another_one_gives_the_scale() -> None:
    ranking = Ranking("default")
    first = recorded(2, 0.5e-3)
    ranking.prepare([first, recorded(3, 0.7e-3)])
    assert ranking.latency(first.schedule_hash) == 0.5e-3


def test_one_that_scatters_may_be_the_best_if_its_interval_says_so() -> None:
    ranking = measured(0.5, 0.9)
    assert ranking.may_be_best("default", pair(0.55, 0.1))
    assert not ranking.may_be_best("default", pair(0.8, 0.02))
    assert not ranking.may_be_best(None, None)
    assert Ranking("default").may_be_best(None, None)


def test_what_leads_beyond_doubt_is_measured_again_and_then_is_the_reference() -> None:
    ranking = measured(0.5, 0.9, 1.0, 1.1, 1.2)
    assert ranking.again(6) == ("0", "default")
    ranking.add("0", 1.0, "default", pair(0.5))
    assert ranking.again(100) is None
    assert ranking.references.current == "0"


def test_few_trials_measure_again() -> None:
    ranking = measured(0.5, 0.505, 0.9, 1.0, 1.1)
    assert ranking.again(4) is None  # one of four is more than a fifth
    assert ranking.again(6) is not None
    for _ in range(4):
        ranking.add("0", 1.0, "default", pair(0.5))
    assert ranking.replications == 4
    assert ranking.again(int(4 / AGAIN_SHARE)) is None


def test_what_was_refuted_is_neither_believed_nor_timed() -> None:
    ranking = measured(0.5, 0.9, 1.0)
    assert ranking.refute("0")
    assert not ranking.refute("0")
    beliefs = ranking.beliefs
    assert beliefs is not None and "0" not in beliefs.schedules
    assert ranking.latency("0") == math.inf
    assert ranking.expected == pytest.approx(0.9e-3, rel=0.02)
    low, high = ranking.interval
    assert low < ranking.expected < high


def test_nothing_is_expected_before_anything_was_measured() -> None:
    ranking = Ranking("default")
    assert ranking.expected == math.inf
    assert math.isnan(ranking.interval[0])
    assert ranking.latency("default") == math.inf
    assert ranking.again(10) is None


class Setting:
    """A few slow schedules, and what else is measured."""

    def __init__(self) -> None:
        self.pairwise = PairwiseEstimates("default")
        self.references = References(self.pairwise)
        self.references.begin("default")
        self.times: dict[str, int] = {"default": 1}
        for number in range(8):
            self.measure(f"slow {number}", 0.2 + 0.1 * number)

    def measure(self, schedule: str, mean: float, against: str = "default") -> None:
        self.pairwise.add(schedule, against, LogRatio(mean, 0.01, 14))
        self.times[schedule] = self.times.get(schedule, 0) + 1

    def advance(self) -> str | None:
        working = [s for s in self.times if not self.references.is_refuted(s)]
        found = posterior(self.pairwise, working)
        assert found is not None
        return self.references.advance(found, lambda schedule: self.times[schedule])


def test_the_first_reference_is_the_first_that_works() -> None:
    references = References(PairwiseEstimates())
    assert references.current is None
    references.begin("a")
    references.begin("b")
    assert references.current == "a"


def test_a_faster_schedule_becomes_the_reference_when_it_was_measured_again() -> None:
    setting = Setting()
    setting.measure("fast", -0.2)
    assert setting.advance() == "fast"
    assert setting.references.current == "default"
    setting.measure("fast", -0.2)
    assert setting.advance() is None
    assert setting.references.current == "fast"


def test_one_that_may_be_as_slow_does_not() -> None:
    setting = Setting()
    for _ in range(2):
        setting.measure("hardly faster", -0.015)
        assert setting.advance() is None
    assert setting.references.current == "default"


def test_the_end_of_a_long_chain_is_measured_against_the_default_again() -> None:
    setting = Setting()
    assert not setting.references.is_adrift
    former = "default"
    for name in ("a", "b", "c"):
        setting.measure(name, -0.2, former)
        setting.measure(name, -0.2, former)
        setting.advance()
        assert setting.references.current == name
        former = name
    assert setting.references.is_adrift
    for _ in range(3):
        setting.measure("c", -0.6)
    assert not setting.references.is_adrift


def test_the_former_reference_takes_over_from_one_that_fails() -> None:
    setting = Setting()
    for name, former in (("a", "default"), ("b", "a")):
        setting.measure(name, -0.2, former)
        setting.measure(name, -0.2, former)
        setting.advance()
    assert setting.references.current == "b"
    assert setting.references.refute("b", [])
    assert not setting.references.refute("b", [])  # known
    assert setting.references.current == "a"
    assert setting.references.refute("a", [])
    assert setting.references.current == "default"
    assert setting.references.is_refuted("a") and not setting.references.is_refuted("default")


def test_after_the_default_the_best_other_one_takes_over() -> None:
    setting = Setting()
    assert setting.references.refute("default", ["slow 3", "slow 0"])
    assert setting.references.current == "slow 3"
    assert not setting.references.is_adrift  # there is nothing to measure it against
    setting.references.refute("slow 3", [])
    assert setting.references.current is None
    setting.references.begin("default")
    assert setting.references.current is None


def test_a_schedule_that_failed_elsewhere_leaves_the_reference_alone() -> None:
    setting = Setting()
    assert setting.references.refute("slow 1", [])
    assert setting.references.current == "default"
