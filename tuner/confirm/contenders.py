"""Contenders: who of a task may be the best, by what the search believes, and so meets the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tunefarm.db import queries
from tunefarm.db.records import BestRecord, TrialRecord
from tunefarm.db.store import Store
from tunefarm.tuner.confirm.verdict import EFFECT
from tunefarm.tuner.records.trials import is_censored, is_confirmed, search_trials
from tunefarm.tuner.search.pairwise_estimates import Estimate
from tunefarm.tuner.search.posterior import Posterior
from tunefarm.tuner.search.tasks import TuningTask

LEAST_CHANCE = 0.04  # of being the best, of those who meet from the beginning
STARTERS = 6  # of these at most, apart from the incumbent and the default
WAITING = 8  # who are kept in case the first disappoint


@dataclass(frozen=True, slots=True)
class Contender:
    """A schedule that may be the best of its task: a trial of it, and its log of time over the
    default's as the search expects it."""

    trial: TrialRecord
    expected: Estimate

    @property
    def hash(self) -> str:
        """The hash of its schedule."""
        return self.trial.schedule_hash


@dataclass(frozen=True, slots=True)
class Lineup:
    """The contenders of one task: the incumbent, then who meets it from the beginning (the default
    schedule among them, if it works), then who waits, the most promising first."""

    contenders: tuple[Contender, ...]
    starters: int
    default: str  # hash of the default schedule

    @property
    def default_number(self) -> int | None:
        """Where the default schedule is among the contenders; None if it does not work."""
        hashes = [contender.hash for contender in self.contenders]
        return hashes.index(self.default) if self.default in hashes else None

    @property
    def claimed(self) -> Estimate:
        """What the search expects of the schedule that will be applied: its nominee, if that is
        expected to gain enough to replace the incumbent."""
        incumbent, *rivals = [contender.expected for contender in self.contenders]
        nominee = min(rivals, default=incumbent)
        return nominee if nominee.mean < incumbent.mean + math.log1p(-EFFECT) else incumbent

    def without(self, hash: str) -> Lineup | None:
        """The lineup after one has failed; None if there is nobody left to compare.

        The default takes the place of an incumbent, and where it fails itself, the most promising.
        """
        left = [contender for contender in self.contenders if contender.hash != hash]
        if len(left) < 2:
            return None
        starters = sum(contender.hash != hash for contender in self.contenders[: self.starters])
        if self.contenders[0].hash == hash:
            left.sort(key=lambda contender: contender.hash != self.default)
        return Lineup(tuple(left), max(2, starters), self.default)


def lineup_of(store: Store, task: TuningTask, beliefs: Posterior | None) -> Lineup | None:
    """Who of a task should meet, by what is believed; None if there is no choice, or all met.

    The incumbent is what a job of this database has settled on, else the default schedule, else the
    nominee.
    """
    if beliefs is None:
        return None
    records = queries.trials(store, task.key)
    refuted = {r.schedule_hash for r in records if is_confirmed(r) and not r.is_ok}
    trials = {
        r.schedule_hash: r
        for r in search_trials(records)
        if r.is_ok and not is_censored(r) and r.schedule_hash not in refuted
    }
    likely = _likely(beliefs, trials)
    found = queries.best(store, task.key, queries.own(store))
    if found is not None and all(contender.hash in found[0].met for contender in likely):
        return None
    expected = dict(zip(beliefs.schedules, _expectations(beliefs), strict=True))
    trial = trials.get(task.default.hash)
    default = None if trial is None else Contender(trial, Estimate(0.0, 0.0))
    incumbent = default or (likely[0] if likely else None)
    if found is not None and found[1].schedule_hash not in refuted:
        incumbent = _settled(*found, expected)
    if incumbent is None:
        return None
    waiting = [Contender(trials[h], e) for h, e in expected.items() if h in trials]
    return _lineup(incumbent, default, likely, waiting, task.default.hash)


def _likely(beliefs: Posterior, trials: dict[str, TrialRecord]) -> list[Contender]:
    """Who may be the best with more than `LEAST_CHANCE`, the most promising first."""
    chances = beliefs.probabilities()
    pairs = zip(beliefs.schedules, _expectations(beliefs), strict=True)
    found = [
        Contender(trials[hash], expected)
        for hash, expected in pairs
        if hash in trials and chances[hash] >= LEAST_CHANCE
    ]
    return found[:STARTERS]


def _expectations(beliefs: Posterior) -> list[Estimate]:
    variances = beliefs.covariance.diagonal().tolist()
    return [
        Estimate(mean, math.sqrt(variance))
        for mean, variance in zip(beliefs.means.tolist(), variances, strict=True)
    ]


def _settled(best: BestRecord, trial: TrialRecord, expected: dict[str, Estimate]) -> Contender:
    """What a job has settled on, as the incumbent of another meeting."""
    known = Estimate(math.log(best.ratio), math.log(best.high / best.low) / (2.0 * 1.96))
    return Contender(trial, expected.get(best.schedule_hash, known))


def _lineup(
    incumbent: Contender,
    default: Contender | None,
    likely: Sequence[Contender],
    waiting: Sequence[Contender],
    default_hash: str,
) -> Lineup | None:
    """All in their order, nobody twice; None if the incumbent is alone."""
    ordered = {incumbent.hash: incumbent}
    for contender in (*likely, *([] if default is None else [default])):
        ordered.setdefault(contender.hash, contender)
    starters = len(ordered)
    if all(c.hash == incumbent.hash for c in likely):
        return None
    for contender in waiting:
        if len(ordered) < starters + WAITING:
            ordered.setdefault(contender.hash, contender)
    return Lineup(tuple(ordered.values()), starters, default_hash)
