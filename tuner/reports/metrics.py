"""Where a job stands as a text file for Prometheus (its exposition format 0.0.4).

node_exporter's textfile collector reads such files; what is not known has no line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from tunefarm.tuner.reports.job_state import JobState
from tunefarm.tuner.reports.report import TaskStatus
from tunefarm.tuner.reports.terminal import printable


def metrics_text(state: JobState, job: str, model: str, job_state: str) -> str:
    """The state of a job as metrics, each with the job's id and its model's name."""
    common = {"job": job, "model": model}
    now = {**common, "state": job_state, "phase": state.phase}
    latency, untuned = state.expected, state.untuned
    families = [
        _family("job_info", "gauge", "What the job is doing.", [(now, 1.0)]),
        _family(
            "trials_total",
            "counter",
            "Measurements of this job, by how they ended.",
            [({**common, "status": name}, count) for name, count in state.measured.items()],
        ),
        _one("model_latency_seconds", "What all kernels together take.", common, latency.value),
        _one("model_untuned_latency_seconds", "The same untuned.", common, untuned),
        *_kernels(state.tasks, common),
        _one("elapsed_seconds", "Since the job began.", common, state.elapsed),
        _one("left_seconds", "At most, to the job's end.", common, state.left),
        _one("workers", "Requests that can be under way.", common, state.workers),
        _one("requests_under_way", "Requests that are.", common, state.busy),
        _one("updated_timestamp_seconds", "When this was written.", common, state.at),
    ]
    return "".join(families)


def _kernels(tasks: Iterable[TaskStatus], common: Mapping[str, str]) -> list[str]:
    """What is known of each kernel."""
    rows = [
        (
            {
                **common,
                "kernel": task.kernel,
                "workload": task.key,
                "target": task.target,
                "sizes": task.sizes,
            },
            task,
        )
        for task in tasks
    ]
    return [
        _family(
            "kernel_latency_seconds",
            "gauge",
            "What a call with the best schedule is expected to take, or was confirmed to.",
            [(labels, task.latency.value) for labels, task in rows],
        ),
        _family(
            "kernel_default_latency_seconds",
            "gauge",
            "What a call with the default schedule takes.",
            [(labels, task.default) for labels, task in rows],
        ),
        _family(
            "kernel_trials",
            "gauge",
            "Trials of the kernel, those of earlier jobs included.",
            [(labels, task.trials) for labels, task in rows],
        ),
    ]


def _one(name: str, text: str, labels: Mapping[str, str], value: float | None) -> str:
    return _family(name, "gauge", text, [] if value is None else [(labels, value)])


def _family(
    name: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, str], float]]
) -> str:
    """A metric with all its samples that have a value; "" without any."""
    known = [(labels, value) for labels, value in samples if math.isfinite(value)]
    if not known:
        return ""
    name = f"tunefarm_{name}"
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in known:
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{pairs}}} {float(value)!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """A label's value, as the format has it."""
    visible = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return visible.replace("\n", "\\n")
