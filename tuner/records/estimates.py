"""What the trials of one schedule say together, and for which schedule of a task they speak.

A schedule that was measured again counts by its joint latency: the mean of the logarithms of its
trials' latencies, each weighted by the inverse of its variance. The lowest of many noisy values is
partly luck, so a schedule that held when it was measured again goes first:

- Of the schedules with two ok trials or more it is the one whose joint latency is lowest at the
  upper end of its 95 % interval.
- One with a single trial takes its place if even the upper end of its interval is faster by
  `UNCONFIRMED_MARGIN`; the lowest upper end of those counts, too, if none was measured twice.
- One that ever crashed, hung or gave a wrong result is out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from tunefarm.db.queries import TrialSummary
from tunefarm.db.records import OK, TrialRecord
from tunefarm.measure.compare import ALONE_DEVIATION, BETWEEN_RUNS, LogRatio
from tunefarm.measure.measurement import Status

UNCONFIRMED_MARGIN = 0.02
"""How much faster than what was confirmed an unconfirmed schedule must be to take its place."""

_DANGEROUS = frozenset((Status.CRASHED, Status.WRONG_RESULT, Status.RUN_TIMEOUT))
_NORMAL_95 = 1.96


Trial: TypeAlias = TrialRecord | TrialSummary
_Trial = TypeVar("_Trial", bound=Trial)


class Joint(NamedTuple):
    """A schedule's latency by all its ok trials: seconds, and the standard error of its logarithm.

    `alone`: none of them is a pair.
    """

    latency: float
    deviation: float
    alone: bool

    @property
    def upper(self) -> float:
        """The upper end of the 95 % interval, in seconds."""
        return self.latency * math.exp(_NORMAL_95 * self.deviation)


def recorded_pair(trial: TrialRecord) -> LogRatio | None:
    """The trial's schedule against its reference; None for one that was measured alone."""
    if trial.ratio is None:
        return None
    return LogRatio(math.log(trial.ratio), _pair_deviation(trial) or 0.0, len(trial.samples))


def joint(trials: Iterable[Trial], *, is_scale: bool = False) -> Joint | None:
    """What the ok trials among those of one schedule say; None if there is none.

    With `is_scale` a schedule that was never measured in a pair is what the task's latencies are
    measured by (`scales`): known to what two runs differ by.
    """
    latencies, deviations = [], []
    for trial in trials:
        if trial.status == OK and trial.latency is not None:
            latencies.append(trial.latency)
            deviations.append(_pair_deviation(trial))
    if not latencies:
        return None
    first, alone = latencies[0], all(deviation is None for deviation in deviations)
    if alone and is_scale:
        return Joint(first, BETWEEN_RUNS, alone)
    weights = [
        1.0 / (ALONE_DEVIATION**2 if deviation is None else deviation**2 + BETWEEN_RUNS**2)
        for deviation in deviations
    ]
    logs = [math.log(latency / first) for latency in latencies]  # 0 of a single one: no rounding
    mean = math.fsum(map(operator.mul, logs, weights)) / math.fsum(weights)
    return Joint(first * math.exp(mean), math.sqrt(1.0 / math.fsum(weights)), alone)


def grouped(trials: Iterable[_Trial]) -> dict[str, list[_Trial]]:
    """Trials by the hash of their schedules, in the order in which these come first."""
    groups: dict[str, list[_Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.schedule_hash, []).append(trial)
    return groups


def scales(trials: Iterable[Trial]) -> set[str]:
    """The schedules that others were measured against."""
    return {trial.reference for trial in trials if trial.reference is not None}


def is_dangerous(trials: Iterable[Trial]) -> bool:
    """Whether a schedule with these trials ever crashed, hung or gave a wrong result."""
    return any(trial.status in _DANGEROUS for trial in trials)


def most_promising(trials: Sequence[_Trial], without: Collection[str] = ()) -> list[_Trial]:
    """The ok trials of the schedule to apply by these; [] if there is none.

    Schedules with the hashes `without` do not count.
    """
    references = scales(trials)
    once: list[tuple[Joint, list[_Trial]]] = []
    again: list[tuple[Joint, list[_Trial]]] = []
    for hash, group in grouped(trials).items():
        if hash in without or is_dangerous(group):
            continue
        found = joint(group, is_scale=hash in references)
        if found is not None:
            ok = [trial for trial in group if trial.status == OK]
            held = len(ok) > 1 or (found.alone and hash in references)
            (again if held else once).append((found, ok))
    single = min(once, key=_upper, default=None)
    best = min(again, key=_upper, default=None)
    if single is None or best is None:
        return (single or best or (None, []))[1]
    is_faster = single[0].upper < (1.0 - UNCONFIRMED_MARGIN) * best[0].latency
    return (single if is_faster else best)[1]


def _upper(found: tuple[Joint, object]) -> float:
    return found[0].upper


def _pair_deviation(trial: Trial) -> float | None:
    if trial.low is None or trial.high is None:
        return None
    return math.log(trial.high / trial.low) / (2.0 * _NORMAL_95)
