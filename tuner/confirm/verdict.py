"""Who wins when schedules of one kernel met: whoever beats the incumbent beyond doubt."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import TypeAlias

from tunefarm.measure.compare import Comparison, across_runs, log_ratio
from tunefarm.tuner.search.pairwise_estimates import Estimate

LEAST_PAIRS = 9
EFFECT = 0.02  # smaller gains are not worth a change, and drift of that size is common
DOUBT = 0.05  # chance that a schedule which is no faster wins, over all rivals together

Meeting: TypeAlias = Mapping[int, Sequence[float]]
"""What one process, or one placement of whole models, timed: seconds per call by number, the i-th
ones taken side by side."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The winner's number, and the time of each schedule against that of the default one."""

    winner: int
    against_default: Mapping[int, Comparison]
    default_latency: float  # seconds per call, median


def standing(meetings: Iterable[Meeting], one: int, other: int) -> Estimate | None:
    """log(time of `one` / time of `other`) over the processes in which both took part.

    Each process counts as a run, see `across_runs`. None without any.
    """
    pairs = [log_ratio(m[one], m[other]) for m in meetings if one in m and other in m]
    if not pairs:
        return None
    found = across_runs(pairs)
    return Estimate(found.mean, found.deviation)


def judge(meetings: Sequence[Meeting], default: int = 0) -> Verdict | None:
    """The verdict on schedules that were timed side by side, in one process or several.

    Number 0 is the incumbent, `default` the number of the default schedule; both took part in every
    process, the others in some. A rival with `LEAST_PAIRS` pairs wins when the interval of its time
    over the incumbent's excludes 1, at a level divided by the number of rivals, and the ratio is
    better by `EFFECT`; of several the fastest. None when the incumbent itself has fewer pairs.
    """
    numbers = sorted({number for meeting in meetings for number in meeting})
    if _pairs(meetings, 0) < LEAST_PAIRS:
        return None
    winner, best = 0, 1.0
    for number in numbers[1:]:
        compared = compare(meetings, number, 0, DOUBT / (len(numbers) - 1))
        if compared.pairs < LEAST_PAIRS or not compared.a_is_faster(EFFECT):
            continue
        if compared.ratio < best:
            winner, best = number, compared.ratio
    return Verdict(
        winner,
        {number: compare(meetings, number, default) for number in numbers},
        median(seconds for meeting in meetings for seconds in meeting[default]),
    )


def compare(meetings: Sequence[Meeting], one: int, other: int, doubt: float = 0.05) -> Comparison:
    """The ratio of the times of two; its interval misses it with the chance `doubt`."""
    found = standing(meetings, one, other)
    if one == other or found is None:
        return Comparison(1.0, 1.0, 1.0, _pairs(meetings, one))
    reach = NormalDist().inv_cdf(1.0 - doubt / 2.0) * found.deviation
    low, high = math.exp(found.mean - reach), math.exp(found.mean + reach)
    return Comparison(math.exp(found.mean), low, high, _pairs(meetings, one))


def _pairs(meetings: Sequence[Meeting], number: int) -> int:
    return sum(len(meeting.get(number, ())) for meeting in meetings)
