"""A self-contained HTML page about a tuning database; `html_report.jinja` is its form.

Names come from models and from other people's records: the template escapes everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from db import queries
from db.records import TaskKey, TrialRecord
from db.store import Store
from tuner.records.trials import latency_of, record_to_apply, search_trials
from tuner.reports import html_plans, size_curves
from tuner.reports.report import (
    format_duration,
    format_ratio,
    format_seconds,
    format_speed_up,
    format_time,
)
from tuner.reports.size_curves import SizeCurves, curves_of_plans, drawn
from tuner.reports.terminal import printable

_WIDTH, _HEIGHT = 160, 28


def html_report(store: Store, benches: Sequence[SizeCurves] = ()) -> str:
    """The page: jobs, precisions that were chosen, latencies by size, every tuned kernel with its
    progress. `benches` are further latencies by size."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        finalize=_visible,
    )
    template = environment.get_template("html_report.jinja")
    return template.render(
        name=store.name,
        jobs=_jobs(store),
        kernels=_kernels(store),
        width=_WIDTH,
        height=_HEIGHT,
        plans=html_plans.plans(store),
        plan_width=html_plans.WIDTH,
        plan_height=html_plans.HEIGHT,
        size_curves=drawn([*benches, *curves_of_plans(store)]),
        curves_width=size_curves.WIDTH,
        curves_height=size_curves.HEIGHT,
    )


def _visible(value: Any) -> Any:
    """Control characters are no HTML, and those of direction would turn a line round."""
    return printable(value) if isinstance(value, str) else value


def _jobs(store: Store) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for job in queries.jobs(store):
        progress = job.progress if isinstance(job.progress, dict) else {}
        rows.append(
            {
                "model": job.model_name,
                "started": format_time(job.started),
                "duration": format_duration((job.finished or job.updated) - job.started),
                "state": job.state,
                "kernels": len(job.tasks),
                "trials": progress.get("trials", "-"),
            }
        )
    return rows


def _kernels(store: Store) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for task in queries.summary(store):
        trials = search_trials(queries.trials(store, task.key))
        lost = sum(trial.is_lost_to_noise for trial in trials)
        rows.append(
            {
                "name": task.workload_name,
                "workload": task.key.workload,
                "target": task.key.target,
                "threads": task.key.threads,
                "trials": len(trials),
                "failed": sum(not trial.is_ok for trial in trials) - lost,
                "scattered": lost,
                **_gain(store, task.key),
                "curve": _curve(trials),
            }
        )
    return rows


def _gain(store: Store, key: TaskKey) -> dict[str, str]:
    """Latencies of the default and the best schedule and their ratio, all of the same pairs.

    Before the finalists have met there is a best latency, and no speed-up to be relied on.
    """
    settled = queries.best(store, key)
    if settled is None:
        found = record_to_apply(store, key)
        seconds = math.inf if found is None else latency_of(found[0])
        return {"default": "-", "best": format_seconds(seconds), "gain": "not confirmed"}
    best = settled[0]
    latency = best.ratio * best.default_latency
    bounds = f"{format_ratio(1 / best.high)} to {format_ratio(1 / best.low)}"
    return {
        "default": format_seconds(best.default_latency),
        "best": format_seconds(latency),
        "gain": f"{format_speed_up(best.default_latency, latency)} ({bounds})",
    }


def _curve(trials: Sequence[TrialRecord]) -> str:
    """The points of a small drawing: best latency after each trial, on a logarithmic scale."""
    best = math.inf
    points = []
    for trial in trials:
        best = min(best, latency_of(trial))
        if math.isfinite(best):
            points.append(math.log(best))
    if len(points) < 2:
        return ""
    low, high = points[-1], points[0]
    span = max(high - low, 1e-9)
    return " ".join(
        f"{i * _WIDTH / (len(points) - 1):.1f},{2 + (high - y) / span * (_HEIGHT - 4):.1f}"
        for i, y in enumerate(points)
    )
