"""A kernel's finalists: what each came to next to the default schedule, and who won."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunefarm.compiler.errors import MeasureError
from tunefarm.db.records import BestRecord, TrialRecord
from tunefarm.tuner.confirm.verdict import compare
from tunefarm.tuner.pages.schedule_text import choices_text
from tunefarm.tuner.records.trials import confirmations

MOST_FINALISTS = 12


def finalists_of(trials: Sequence[TrialRecord], best: BestRecord | None) -> list[dict[str, Any]]:
    """The newest meetings of each schedule that was a finalist, the fastest first.

    Times are over the default schedule's, with 95 % intervals over all processes in which both took
    part; None of the default itself and of those that failed.
    """
    found = []
    for hash, group in confirmations(trials).items():
        compared = _against_default(group)
        failed = [trial for trial in group if not trial.is_ok and not trial.is_lost_to_noise]
        found.append(
            {
                "schedule": hash[:8],
                "sketch": group[-1].sketch,
                "choices": choices_text(group[-1].choices),
                "won": best is not None and hash == best.schedule_hash,
                "processes": len(group),
                "failed": failed[0].status if failed else "",
                **compared,
            }
        )
    found.sort(key=lambda item: (not item["won"], item["ratio"] or 1.0))
    return found[:MOST_FINALISTS]


def _against_default(group: Sequence[TrialRecord]) -> Mapping[str, Any]:
    meetings = [
        {0: trial.reference_samples, 1: trial.samples}
        for trial in group
        if trial.is_ok and trial.samples and trial.reference_samples
    ]
    nothing = {"ratio": None, "low": None, "high": None, "pairs": 0}
    if not meetings:
        return nothing
    try:
        found = compare(meetings, 1, 0)
    except MeasureError:  # others' samples, which may be anything
        return nothing
    return {"ratio": found.ratio, "low": found.low, "high": found.high, "pairs": found.pairs}
