"""The headline of a page: what the newest job gained, or what is known of it so far."""

from __future__ import annotations

from typing import Any

from tunefarm.db.records import JobRecord
from tunefarm.tuner.pages.best_curve import best_curve
from tunefarm.tuner.pages.contents import Contents
from tunefarm.tuner.records.model_latencies import MeasuredModel
from tunefarm.tuner.reports.gains import gain_class, headline
from tunefarm.tuner.reports.job_state import JobState
from tunefarm.tuner.reports.report import (
    format_counts,
    format_duration,
    format_seconds,
)


def headline_of(contents: Contents) -> dict[str, Any] | None:
    """The newest job's result in a line, what it is made of, and its curve; None without a job and
    without a model that was measured."""
    job = next(iter(contents.jobs), None)
    found = _measured(contents, job)
    if job is None and found is None:
        return None
    history = () if job is None else JobState.of(job.progress).history
    shown: dict[str, Any] = {
        "model": job.model_name if found is None and job is not None else "",
        "text": "the whole model was not measured yet",
        "class": "same",
        "details": [] if job is None else [_effort(job)],
        "curve": best_curve(history),
    }
    ratio = None if found is None else found.times.over_untuned
    if found is None or ratio is None:
        return shown
    times = found.times
    shown["model"] = found.record.model_name
    shown["text"] = headline(ratio.ratio, ratio.low, ratio.high)
    shown["class"] = gain_class(ratio.low, ratio.high)
    latency = f"{format_seconds(times.tuned)} per run"
    if times.untuned is not None and not ratio.is_unchanged:
        untuned, tuned = format_seconds(times.untuned), format_seconds(times.tuned)
        latency = f"{untuned} untuned, {tuned} tuned"
    shown["details"] = [latency, *shown["details"]]
    return shown


def _measured(contents: Contents, job: JobRecord | None) -> MeasuredModel | None:
    """The newest latency that the job measured; without a job the newest that met the untuned."""
    for found in contents.models:
        if found.times.over_untuned is not None and (job is None or found.record.job == job.id):
            return found
    return None


def _effort(job: JobRecord) -> str:
    """How much was measured, and how long that took."""
    state = JobState.of(job.progress)
    lasted = format_duration((job.finished or job.updated) - job.started)
    trials = f"{state.trials} {'trial' if state.trials == 1 else 'trials'}"
    return f"{format_counts(trials, state.failures, state.scattered)} in {lasted}"
