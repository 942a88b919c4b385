"""A kernel's trials as points: which latency was found when, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from tunefarm.db.records import BestRecord, TrialRecord
from tunefarm.tuner.records.trials import is_censored, is_confirmed, latency_of

MOST_POINTS = 1_500
"""Of one kernel; of more every second, third, … one is left out, those that say little."""

OK, EARLY, NOISE, FAILED, REJECTED, APPLIED = (
    "measured",
    "given up early",
    "too noisy",
    "failed",
    "rejected",
    "applied",
)
"""What became of a trial; each is a kind of point. `rejected` ones were nominated by a search and
lost when the finalists met."""


def trial_points(trials: Sequence[TrialRecord], bests: Sequence[BestRecord]) -> dict[str, Any]:
    """Points by kind as lists of trial numbers, seconds and strings, and the best so far as a line.

    Failures have no latency: they stand above all others.
    """
    applied = bests[-1].schedule_hash if bests else None
    rejected = {hash for best in bests for hash in best.met} - {applied}
    known = [latency_of(trial) for trial in trials]
    top = max(filter(math.isfinite, known), default=1.0)
    points: dict[str, Any] = {
        kind: {"x": [], "y": [], "text": []}
        for kind in (OK, EARLY, NOISE, FAILED, REJECTED, APPLIED)
    }
    line_x: list[int] = []
    line_y: list[float] = []
    best = math.inf
    every = -(-len(trials) // MOST_POINTS)
    for number, (trial, seconds) in enumerate(zip(trials, known, strict=True), 1):
        improves = seconds < best and not is_censored(trial)
        if improves:
            best = seconds
            line_x.append(number)
            line_y.append(seconds)
        kind = _kind(trial, applied, rejected)
        if number % every and not improves and kind in (OK, EARLY, NOISE, FAILED):
            continue
        group = points[kind]
        group["x"].append(number)
        group["y"].append(_height(trial, seconds, top))
        group["text"].append(trial.sketch if kind in (OK, EARLY) else _text(trial))
    if line_x:
        line_x.append(len(trials))
        line_y.append(best)
    return {"points": points, "line": {"x": line_x, "y": line_y}, "shown": 1 / max(1, every)}


def _kind(trial: TrialRecord, applied: str | None, rejected: Collection[str]) -> str:
    if trial.is_lost_to_noise:
        return NOISE
    if not trial.is_ok:
        return FAILED
    if is_confirmed(trial):
        hash = trial.schedule_hash
        return APPLIED if hash == applied else REJECTED if hash in rejected else OK
    return EARLY if is_censored(trial) else OK


def _height(trial: TrialRecord, seconds: float, top: float) -> float:
    if math.isfinite(seconds):
        return seconds
    return trial.latency if trial.is_lost_to_noise and trial.latency else 1.15 * top


def _text(trial: TrialRecord) -> str:
    error = trial.error.strip().splitlines()
    return f"{trial.sketch}, {trial.status}: {error[-1][:120]}" if error else trial.sketch
