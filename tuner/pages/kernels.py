"""The kernels of a page: a row of the table for each, and what is shown when it is opened."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunefarm.configs.settings import shown_precision
from tunefarm.db.records import BestRecord, TaskKey, TrialRecord
from tunefarm.tuner.pages.contents import Contents, TaskRecords, seconds_in_models
from tunefarm.tuner.pages.failures import failures_of
from tunefarm.tuner.pages.finalists import finalists_of
from tunefarm.tuner.pages.quality import quality_of
from tunefarm.tuner.pages.schedule_text import choices_text, steps_text
from tunefarm.tuner.pages.trial_plot import trial_points
from tunefarm.tuner.records.trials import best_record, latency_of
from tunefarm.tuner.reports.gains import gain, gain_class
from tunefarm.tuner.reports.report import format_seconds, format_share, format_time

NOT_CONFIRMED = "not confirmed"
_SPARK_WIDTH, _SPARK_HEIGHT = 120, 24
_MOST_TRIALS_LISTED = 10


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel under one key, with all that is worked out of its records.

    `number` names it within the page. `seconds` are those of one call as it is applied, NaN where
    unknown, `in_model` those that a run of its newest model spends in it. `nodes` are the model's
    nodes that it computes, or its name where they are not known.
    """

    number: int
    records: TaskRecords
    applied: TrialRecord | None
    best: BestRecord | None
    seconds: float
    in_model: float
    calls: int
    nodes: str

    @property
    def anchor(self) -> str:
        """Its place in the page."""
        return f"k{self.number}"

    @property
    def name(self) -> str:
        """As the compiler called it."""
        return self.records.workload.name

    @property
    def key(self) -> TaskKey:
        """What its records have in common."""
        return self.records.key

    @property
    def cost(self) -> float:
        """Seconds of a run that are spent in it, timed there or by its record."""
        cost = self.in_model if math.isfinite(self.in_model) else self.calls * self.seconds
        return cost if math.isfinite(cost) else 0.0


def kernels_of(contents: Contents) -> list[Kernel]:
    """The page's kernels, those that cost most first."""
    spent = seconds_in_models(contents)
    found = []
    for records in contents.tasks:
        best = records.bests[-1] if records.bests else None
        applied = _applied(records, best)
        if best is not None:
            seconds = best.default_latency * best.ratio
        else:
            seconds = math.nan if applied is None else latency_of(applied)
        calls = contents.occurrences.get(records.key, 1)
        in_model = spent.get(records.key, math.nan)
        nodes = contents.nodes.get(records.key.workload) or records.workload.name
        found.append(Kernel(0, records, applied, best, seconds, in_model, calls, nodes))
    found.sort(key=lambda kernel: -kernel.cost)
    return [replace(kernel, number=number) for number, kernel in enumerate(found)]


def _applied(records: TaskRecords, best: BestRecord | None) -> TrialRecord | None:
    """The trial whose schedule a build applies."""
    if best is None:
        return best_record(records.trials)
    named = (best.schedule_hash, best.request_id)
    return next((t for t in records.trials if (t.schedule_hash, t.request_id) == named), None)


def rows_of(kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """What the table of kernels shows: strings, and the values that its columns are sorted by."""
    totals: dict[tuple[str, int], float] = {}
    for kernel in kernels:
        group = kernel.key.target, kernel.key.threads
        totals[group] = totals.get(group, 0.0) + kernel.cost
    return [_row(kernel, totals[kernel.key.target, kernel.key.threads]) for kernel in kernels]


def _row(kernel: Kernel, total: float) -> dict[str, Any]:
    trials = kernel.records.trials
    lost = sum(trial.is_lost_to_noise for trial in trials)
    failed = sum(not trial.is_ok for trial in trials) - lost
    best = kernel.best
    default = math.nan if best is None else best.default_latency
    shown = NOT_CONFIRMED, "same"
    if best is not None:
        shown = gain(best.ratio, best.low, best.high), gain_class(best.low, best.high)
    share = kernel.cost / total if total > 0 else math.nan
    return {
        "anchor": kernel.anchor,
        "nodes": kernel.nodes,
        "name": kernel.name,
        "workload": kernel.key.workload,
        "target": kernel.key.target,
        "threads": kernel.key.threads,
        "calls": kernel.calls,
        "share": format_share(share),
        "cost": kernel.cost,
        "default": format_seconds(default),
        "default_value": _sortable(default),
        "now": format_seconds(kernel.seconds),
        "now_value": _sortable(kernel.seconds),
        "gain": shown[0],
        "gain_class": shown[1],
        "gain_value": 1.0 if best is None else 1.0 / best.ratio,
        "trials": len(trials),
        "failed": failed,
        "lost": lost,
        "curve": sparkline(trials),
    }


def _sortable(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def sparkline(trials: Sequence[TrialRecord]) -> str:
    """The points of a small drawing: best latency after each trial, on a logarithmic scale."""
    best = math.inf
    points = []
    for number, trial in enumerate(trials):
        seconds = latency_of(trial)
        if seconds < best:
            best = seconds
            points.append((number, math.log(best)))
    if not points or len(trials) < 2:
        return ""
    points.append((len(trials) - 1, points[-1][1]))
    low, high = points[-1][1], points[0][1]
    span, width = max(high - low, 1e-9), len(trials) - 1
    return " ".join(
        f"{number * _SPARK_WIDTH / width:.0f},"
        f"{2 + (high - height) / span * (_SPARK_HEIGHT - 4):.0f}"
        for number, height in points
    )


def details_of(kernel: Kernel, roof: Mapping[str, Any] | None, code: Any) -> dict[str, Any]:
    """What is shown when a kernel is opened; `roof` and `code` are as their files make them."""
    records, best = kernel.records, kernel.best
    key = kernel.key
    facts = [
        ("kernel", kernel.name),
        ("workload", key.workload),
        ("target", key.target),
        ("threads", str(key.threads)),
        ("precision", shown_precision(key.numerics)),
        ("compiler version", key.compiler_version),
        ("calls in the model", str(kernel.calls)),
        ("one call", format_seconds(kernel.seconds)),
        ("all calls of a run", format_seconds(kernel.in_model)),
    ]
    if best is not None:
        facts += [
            ("default schedule", format_seconds(best.default_latency)),
            ("confirmed", format_time(best.created)),
        ]
    return {
        "nodes": kernel.nodes,
        "name": kernel.name,
        "facts": [list(fact) for fact in facts],
        "gain": NOT_CONFIRMED if best is None else gain(best.ratio, best.low, best.high),
        "trials": trial_points(records.trials, records.bests),
        "finalists": finalists_of(records.trials, best),
        "roof": roof,
        "schedule": _schedule(kernel.applied),
        "code": code,
        "failures": failures_of(records.trials),
        "quality": quality_of(records.trials),
        "fastest": _fastest(records.trials),
    }


def _schedule(trial: TrialRecord | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    return {
        "hash": trial.schedule_hash,
        "sketch": trial.sketch,
        "choices": choices_text(trial.choices),
        "steps": steps_text(trial.schedule),
    }


def _fastest(trials: Sequence[TrialRecord]) -> list[list[str]]:
    """The fastest trials of different schedules: latency, sketch and choices."""
    found: dict[str, TrialRecord] = {}
    for trial in sorted((t for t in trials if t.is_ok), key=latency_of):
        found.setdefault(trial.schedule_hash, trial)
        if len(found) == _MOST_TRIALS_LISTED:
            break
    return [
        [format_seconds(latency_of(trial)), trial.sketch, choices_text(trial.choices)]
        for trial in found.values()
    ]
