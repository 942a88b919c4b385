"""Who wins when schedules of one kernel met: whoever beats the incumbent beyond doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from measure.compare import Comparison, compare_paired

LEAST_PAIRS = 9
EFFECT = 0.02  # smaller gains are not worth a change, and drift of that size is common
DOUBT = 0.05  # chance that a schedule which is no faster wins, over all rivals together


@dataclass(frozen=True, slots=True)
class Verdict:
    """The winner's number, and the time of each schedule against that of the default one."""

    winner: int
    against_default: tuple[Comparison, ...]
    default_latency: float  # seconds per call, median


def judge(samples: Sequence[Sequence[float]], default: int) -> Verdict | None:
    """The verdict on schedules whose i-th samples (seconds per call) were taken side by side.

    Number 0 is the incumbent, `default` the number of the default schedule. A rival wins when the
    bootstrap interval of the median log-ratio excludes zero, at a level divided by the number of
    rivals, and the ratio is better by `EFFECT`; of several the fastest. None with fewer than
    `LEAST_PAIRS` pairs.
    """
    if len(samples[0]) < LEAST_PAIRS:
        return None
    rivals = len(samples) - 1
    winner, best = 0, 1.0
    for number in range(1, len(samples)):
        compared = compare_paired(samples[number], samples[0], confidence=1.0 - DOUBT / rivals)
        if compared.a_is_faster(EFFECT) and compared.ratio < best:
            winner, best = number, compared.ratio
    against_default = tuple(compare_paired(taken, samples[default]) for taken in samples)
    return Verdict(winner, against_default, median(samples[default]))
