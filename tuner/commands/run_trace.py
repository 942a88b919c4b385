"""`tune run --trace`: one run of a model as a trace, a slice for each call of a kernel."""

from __future__ import annotations

from tunefarm.compiler.runtime.execution.profile import Profile
from tunefarm.configs.errors import SettingsError
from tunefarm.tuner.reports.trace import Trace


def run_trace(profile: Profile, model: str, threads: int) -> Trace:
    """The steps of the model one after the other, by their medians, next to the whole run's.

    A kernel's own threads are not told apart: its slice is as long as the longest of them takes.
    """
    trace = Trace()
    count = "1 thread" if threads == 1 else f"{threads} threads"
    process = f"{model} ({count}, medians of {profile.repeat} runs)"
    trace.slice(process, "whole model", model, 0.0, profile.run_seconds)
    kernels = {row.key: row for row in profile.kernels}
    began = 0.0
    for number, step in enumerate(profile.steps):
        row = kernels[step.key]
        text: dict[str, object] = {"step": number, "workload": step.key}
        if row.schedule_source:
            text |= {"schedule": row.schedule_source, "record": row.record_id}
        if row.flops:
            text["GFLOP/s of all its calls"] = round(row.gflops, 3)
        trace.slice(process, "kernels one by one", step.name, began, began + step.seconds, **text)
        began += step.seconds
    return trace


def write_run_trace(profile: Profile, model: str, threads: int, path: str) -> None:
    """Write the trace as a file. Raises SettingsError where that fails."""
    try:
        run_trace(profile, model, threads).write(path)
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror or error}") from error
