"""Why candidates of a kernel failed: how many by reason, with one example of each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tunefarm.db.records import TrialRecord
from tunefarm.tuner.pages.packed import shortened
from tunefarm.tuner.pages.schedule_text import choices_text

_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?")
_MOST_REASONS = 12
_EXAMPLE_CHARACTERS = 2_000


def failures_of(trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """The reasons, the most frequent first; reasons that differ in numbers alone are one.

    What was too noisy has not failed, and is no part of it.
    """
    groups: dict[tuple[str, str], list[TrialRecord]] = {}
    for trial in trials:
        if not trial.is_ok and not trial.is_lost_to_noise:
            groups.setdefault((trial.status, _reason(trial.error)), []).append(trial)
    found = [
        {
            "status": status,
            "count": len(group),
            "reason": _line(group[0].error) or status,
            "error": shortened(group[0].error, _EXAMPLE_CHARACTERS),
            "example": f"{group[0].sketch}: {choices_text(group[0].choices)}",
        }
        for (status, _), group in groups.items()
    ]
    found.sort(key=lambda item: -int(str(item["count"])))
    return found[:_MOST_REASONS]


def _reason(error: str) -> str:
    """What two failures have in common."""
    return _NUMBERS.sub("#", _line(error))


def _line(error: str) -> str:
    """What a traceback or a message comes to: its last line."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return shortened(lines[-1], 200) if lines else ""
