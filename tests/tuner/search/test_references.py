"""The reference of a task is what is the fastest beyond doubt; one that fails is replaced."""

from __future__ import annotations

from tunefarm.measure.compare import LogRatio
from tunefarm.tuner.search.pairwise_estimates import PairwiseEstimates
from tunefarm.tuner.search.posterior import posterior
from tunefarm.tuner.search.references import References


class Setting:
    """A few slow schedules, and what else is measured."""

    def __init__(self) -> None:
        self.standings = PairwiseEstimates("default")
        self.references = References(self.standings)
        self.references.begin("default")
        self.times: dict[str, int] = {"default": 1}
        for number in range(8):
            self.measure(f"slow {number}", 0.2 + 0.1 * number)

    def measure(self, schedule: str, mean: float, against: str = "default") -> None:
        self.standings.add(schedule, against, LogRatio(mean, 0.01, 14))
        self.times[schedule] = self.times.get(schedule, 0) + 1

    def advance(self) -> str | None:
        working = [s for s in self.times if not self.references.is_refuted(s)]
        found = posterior(self.standings, working)
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
