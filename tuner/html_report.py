"""A self-contained HTML page about a tuning database."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from db import queries
from db.records import TrialRecord
from db.store import Store
from tuner.records import latency_of, record_to_apply, search_trials
from tuner.report import format_duration, format_ratio, format_seconds

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 2rem; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
th { position: sticky; top: 0; background: #fff; }
svg { vertical-align: middle; }
polyline { fill: none; stroke: #2563eb; stroke-width: 1.5; }
code { font-size: .85em; }
@media (prefers-color-scheme: dark) {
  body, th { background: #16181c; color: #e6e6e6; }
  th, td { border-color: #3a3d44; }
  polyline { stroke: #7aa2ff; }
}
"""
_WIDTH, _HEIGHT = 160, 28


def html_report(store: Store) -> str:
    """The page: jobs, then every tuned kernel with its progress over the trials."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(store.name)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Tuning records in {escape(store.name)}</h1>",
        "<h2>Jobs</h2>",
        _jobs(store),
        "<h2>Kernels</h2>",
        _kernels(store),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _jobs(store: Store) -> str:
    rows = []
    for job in queries.jobs(store):
        progress = job.progress if isinstance(job.progress, dict) else {}
        rows.append(
            [
                escape(job.model_name),
                datetime.fromtimestamp(job.started, UTC).strftime("%Y-%m-%d %H:%M"),
                format_duration((job.finished or job.updated) - job.started),
                job.state,
                str(len(job.tasks)),
                str(progress.get("trials", "-")),
            ]
        )
    return _table(["model", "started (UTC)", "duration", "state", "kernels", "trials"], rows)


def _kernels(store: Store) -> str:
    rows = []
    for task in queries.summary(store):
        records = queries.trials(store, task.key)
        trials = search_trials(records)
        found = record_to_apply(store, task.key)
        seconds = math.inf if found is None else latency_of(found[0])
        first = next((latency_of(trial) for trial in trials if trial.is_ok), math.inf)
        failed = sum(not trial.is_ok for trial in trials)
        rows.append(
            [
                f"{escape(task.workload_name)} <code>{task.key.workload}</code>",
                escape(task.key.target),
                str(task.key.threads),
                str(len(trials)),
                str(failed),
                format_seconds(seconds),
                format_ratio(first / seconds if math.isfinite(seconds) else math.nan),
                _curve(trials),
            ]
        )
    names = ["kernel", "target", "threads", "trials", "failed", "best", "first / best", "progress"]
    return _table(names, rows)


def _curve(trials: Sequence[TrialRecord]) -> str:
    """Best latency after each trial, on a logarithmic scale, as a small drawing."""
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
    coordinates = " ".join(
        f"{i * _WIDTH / (len(points) - 1):.1f},{2 + (high - y) / span * (_HEIGHT - 4):.1f}"
        for i, y in enumerate(points)
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="best latency by trial">'
        f'<polyline points="{coordinates}"/></svg>'
    )


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
