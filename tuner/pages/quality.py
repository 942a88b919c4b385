"""How well a kernel was measured: what the machine did meanwhile, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from tunefarm.db.records import TrialRecord
from tunefarm.tuner.records.estimates import grouped
from tunefarm.tuner.reports.report import format_seconds, format_share

_MOST_POINTS = 300
_MOST = 1e15
"""What is larger is no time, and no share, of anything."""


def quality_of(trials: Sequence[TrialRecord]) -> dict[str, Any]:
    """Figures as pairs of a name and a text, and the references' speed over the trials.

    The reference is timed next to every candidate: where its time moves, the machine's speed does.
    """
    numbered = [(number, trial) for number, trial in enumerate(trials, 1)]
    drift = _reference_speed(numbered)
    again = sum(len(group) - 1 for group in grouped(trials).values() if len(group) > 1)
    lost = sum(trial.is_lost_to_noise for trial in trials)
    steal = sum(_number(trial.conditions, "steal_seconds") for trial in trials)
    queued = sum(_number(trial.conditions, "queued_seconds") for trial in trials)
    run = sum(trial.run_seconds for trial in trials if math.isfinite(trial.run_seconds))
    drifts = [abs(_number(t.conditions, "anchor_drift")) for t in trials if t.conditions]
    spreads = [_number(trial.conditions, "spread") for trial in trials if trial.is_ok]
    machines = {str(trial.machine.get("cpu", "-")) for trial in trials}
    figures = [
        ("measured again", f"{again} of {len(trials)} trials"),
        ("too noisy", f"{lost}: right results whose times said nothing"),
        ("stolen by other guests", _of_run(steal, run)),
        ("waiting for a core", _of_run(queued, run)),
        ("the core's speed changed within a trial by", _typical(drifts)),
        ("ratios to the reference spread by", _typical([s for s in spreads if s])),
        ("machines", ", ".join(sorted(machines))),
    ]
    if drift["y"]:
        low, high = min(drift["y"]), max(drift["y"])
        figures.insert(0, ("the reference's time ranged over", f"{high / low:.2f} to 1"))
    return {"figures": [list(figure) for figure in figures], "drift": drift}


def _reference_speed(numbered: Sequence[tuple[int, TrialRecord]]) -> dict[str, list[float]]:
    """The time of each trial's reference, over its median over all trials with that reference."""
    samples: dict[str, list[tuple[int, float]]] = {}
    for number, trial in numbered:
        times = [time for time in trial.reference_samples if 0 < time < math.inf]
        if trial.reference is not None and times:
            samples.setdefault(trial.reference, []).append((number, median(times)))
    points = []
    for group in samples.values():
        if len(group) > 1:
            usual = median(time for _, time in group)
            points += [(number, time / usual) for number, time in group]
    points.sort()
    every = -(-len(points) // _MOST_POINTS) or 1
    kept = points[::every]
    return {"x": [float(number) for number, _ in kept], "y": [ratio for _, ratio in kept]}


def _number(conditions: Mapping[str, Any], name: str) -> float:
    value = conditions.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if abs(value) < _MOST else 0.0


def _of_run(seconds: float, run: float) -> str:
    if run <= 0:
        return "-"
    return f"{format_seconds(seconds) if seconds else '0 s'}, {format_share(seconds / run)} of it"


def _typical(values: Sequence[float]) -> str:
    """The middle one and the largest."""
    if not values:
        return "-"
    return f"{format_share(median(values))} typically, {format_share(max(values))} at most"
