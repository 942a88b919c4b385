"""The models of a page: what each job gained, how they compare with other engines, and what was
chosen for them as a whole: points of speed and error.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from tunefarm.db import model_queries
from tunefarm.db.records import JobRecord
from tunefarm.db.store import Store
from tunefarm.tuner.pages.best_curve import round_values
from tunefarm.tuner.pages.contents import Contents
from tunefarm.tuner.pages.kernels import Kernel
from tunefarm.tuner.pages.model_graph import drawing_of
from tunefarm.tuner.pages.model_plan import NO_GRAPH, graphs_of, plan_of, planned_parts
from tunefarm.tuner.records.model_latencies import EngineTime, MeasuredModel, ModelTimes, Ratio
from tunefarm.tuner.reports.gains import gain, gain_class
from tunefarm.tuner.reports.report import (
    format_duration,
    format_ratio,
    format_seconds,
    format_share,
    format_time,
)

MOST_DRAWN = 6
"""Graphs that are drawn, of the newest models; `--full` draws all."""
DRAWINGS = ("drawing", "by_rules")
"""The parts of a model's section that are drawings."""
MOST_SPEED_UP = 1e4
"""Of a bar: what is more is no measurement."""
_STATES = {"lost": "lost: its process is gone, what it recorded is kept"}


def models_of(contents: Contents, kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """A section for each model under each target and thread count, the newest first."""
    groups: dict[tuple[str, str, int, str], list[MeasuredModel]] = {}
    for found in contents.models:
        record = found.record
        shared = record.model_hash, record.target, record.threads, record.numerics
        groups.setdefault(shared, []).append(found)
    sections = []
    left = len(groups) * 2 if contents.options.full else MOST_DRAWN
    for (_, target, threads, numerics), group in groups.items():
        anchors = {
            kernel.key.workload: kernel.anchor
            for kernel in kernels
            if (kernel.key.target, kernel.key.threads) == (target, threads)
        }
        drawings = _drawings(group, anchors, left)
        left -= sum(drawings.get(name) is not None for name in DRAWINGS)
        sections.append(
            {
                "name": group[0].record.model_name,
                "target": _cpu(contents, target),
                "threads": threads,
                "numerics": numerics,
                "runs": [_run(found) for found in group],
                "engines": _engines(group),
                "bench": _bench_command(contents, group[0]),
                "plan": plan_of(group[0].record, contents.plans),
                **drawings,
            }
        )
    return sections


def _cpu(contents: Contents, key: str) -> str:
    target = contents.targets.get(key)
    description = target.description if target is not None else None
    cpu = description.get("cpu") if isinstance(description, dict) else None
    return str(cpu or key)


def _run(found: MeasuredModel) -> dict[str, Any]:
    """What one job, benchmark or check found."""
    record, times = found.record, found.times
    ratio = times.over_untuned
    unchanged = ratio is not None and ratio.is_unchanged
    sizes = ", ".join(f"{name}={size}" for name, size in times.sizes.items())
    return {
        "purpose": record.purpose,
        "job": (record.job or "")[:8],
        "created": format_time(record.created),
        "machine": str(record.machine.get("cpu", "-")),
        "sizes": sizes,
        "llvm": times.llvm,
        "tuned": format_seconds(times.tuned),
        "untuned": None if times.untuned is None or unchanged else format_seconds(times.untuned),
        "gain": None if ratio is None else gain(ratio.ratio, ratio.low, ratio.high),
        "gain_class": "same" if ratio is None else gain_class(ratio.low, ratio.high),
        "interval": None if ratio is None or unchanged else _interval(ratio),
        "refused": _refused(times.refused),
        "claims": _claims(times),
    }


def _interval(ratio: Ratio) -> dict[str, Any] | None:
    """The bar of a speed-up over the untuned model on an axis from 0, in per cent of the width."""
    if not 1.0 / MOST_SPEED_UP < ratio.low <= ratio.ratio <= ratio.high < math.inf:
        return None
    end = max(1.1, 1.05 / ratio.low)
    places = {"low": 1 / ratio.high, "ratio": 1 / ratio.ratio, "high": 1 / ratio.low, "one": 1.0}
    ticks = [
        {"at": round(100 * value / end, 2), "text": f"{value:g}x"}
        for value in round_values(0.0, end)
    ]
    return {name: round(100 * value / end, 2) for name, value in places.items()} | {"ticks": ticks}


def _refused(refused: Ratio | None) -> str:
    if refused is None:
        return ""
    return (
        "newer schedules made the model slower than the former ones and were discarded; "
        f"their speed-up over the untuned model: {gain(refused.ratio, refused.low, refused.high)}"
    )


def _claims(times: ModelTimes) -> dict[str, str] | None:
    """The sum of kernels as the search expected it, and what its finalists came to."""
    if times.claimed is None or times.confirmed is None:
        return None
    return {
        "claimed": format_seconds(times.claimed),
        "confirmed": format_seconds(times.confirmed),
        "kept": format_share(times.confirmed / times.claimed - 1.0),
    }


def _bench_command(contents: Contents, found: MeasuredModel) -> str:
    """What compares the model with other engines."""
    words = ["tune", "bench", "--model", found.record.model_name, "--db", contents.name]
    return " ".join(shlex.quote(word) for word in (*words, "--threads", str(found.record.threads)))


def _engines(group: Sequence[MeasuredModel]) -> list[dict[str, str]]:
    """The newest benchmark next to other engines."""
    for found in group:
        if found.times.engines:
            return [_engine(engine) for engine in found.times.engines]
    return []


def _engine(engine: EngineTime) -> dict[str, str]:
    over = engine.over_ours
    is_ours = over.ratio == over.low == over.high == 1.0
    times = "-" if is_ours else f"{over.ratio:.2f} ({over.low:.2f} to {over.high:.2f})"
    error = "-" if engine.error is None else f"{engine.error:.1e}"
    return {
        "engine": engine.engine,
        "numerics": engine.numerics,
        "sizes": engine.sizes,
        "seconds": format_seconds(engine.seconds),
        "over": "wrong outputs" if engine.wrong else times,
        "error": error,
        "class": "ours" if is_ours else "same" if over.low <= 1 <= over.high else "",
    }


def _drawings(
    group: Sequence[MeasuredModel], anchors: Mapping[str, str], left: int
) -> dict[str, Any]:
    """The newest run with steps, and how much of the model's time they are; `left` drawings are
    allowed."""
    for found in group if left > 0 else ():
        steps = found.times.steps
        if not steps:
            continue
        spent = math.fsum(step.seconds or 0.0 for step in steps)
        graphs = graphs_of(group, steps)
        parts = (
            {"drawing": drawing_of(steps, anchors), **NO_GRAPH}
            if graphs is None
            else planned_parts(steps, graphs, anchors, both=left > 1)
        )
        return {
            **parts,
            "steps": len(steps),
            "steps_seconds": format_seconds(spent) if spent else "",
            "steps_of": format_time(found.record.created),
        }
    return {"drawing": None}


def jobs_of(contents: Contents) -> list[dict[str, Any]]:
    """A row for each job. Measurements discarded as too noisy have not failed."""
    return [_job(contents, job) for job in contents.jobs]


def _job(contents: Contents, job: JobRecord) -> dict[str, Any]:
    progress = job.progress if isinstance(job.progress, dict) else {}
    counts = {name: _count(progress.get(name)) for name in ("trials", "failures", "scattered")}
    found = next((m for m in contents.models if m.record.job == job.id), None)
    ratio = None if found is None else found.times.over_untuned
    lasted = (job.finished or job.updated) - job.started
    return {
        "id": job.id[:8],
        "model": job.model_name,
        "started": format_time(job.started),
        "duration": format_duration(lasted) if math.isfinite(lasted) else "-",
        "state": _STATES.get(job.state, job.state),
        "kernels": len(job.tasks),
        **counts,
        "gain": "-" if ratio is None else gain(ratio.ratio, ratio.low, ratio.high),
        "gain_class": "same" if ratio is None else gain_class(ratio.low, ratio.high),
    }


def _count(value: object) -> str:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return str(value) if is_count else "-"


PLAN_WIDTH, PLAN_HEIGHT, MARGIN = 360, 160, 12
"""Of a drawing of speed against error, in pixels."""


def plan_rows(store: Store) -> list[dict[str, object]]:
    """One item per recorded choice, the newest first.

    The records are JSON that others may have written: what does not read as one is left out.
    """
    rows = []
    for record in model_queries.plans(store):
        try:
            rows.append(
                {
                    "model": record.model_name,
                    "numerics": record.numerics,
                    "threads": record.threads,
                    "created": format_time(record.created),
                    **_choice(record.plan),
                }
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            continue
    return rows


def _choice(plan: Any) -> dict[str, object]:
    points = [_point(number, point) for number, point in enumerate(plan["points"])]
    chosen = int(plan["chosen"])
    places = _places([(float(p["ratio"]), float(p["error"])) for p in plan["points"]])
    for point, place in zip(points, places, strict=True):
        point |= {"x": f"{place[0]:.1f}", "y": f"{place[1]:.1f}"}
    precisions = plan["points"][chosen]["precisions"]
    return {
        "measure": str(plan["measure"]),
        "chosen": chosen,
        "points": points,
        "line": " ".join(f"{point['x']},{point['y']}" for point in points),
        "contractions": [_contraction(item, precisions) for item in plan["contractions"]],
    }


def _point(number: int, point: Any) -> dict[str, object]:
    kinds = [str(kind) for kind in point["precisions"].values()]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    held_out = point["held_out"]
    return {
        "number": number,
        "precisions": counts or "all f32",
        "error": f"{float(point['error']):.2g}",
        "held_out": "-" if held_out is None else f"{float(held_out):.2g}",
        "speed": format_ratio(1.0 / float(point["ratio"])),
    }


def _contraction(item: Any, precisions: Any) -> dict[str, object]:
    kind = str(precisions.get(item["identity"], "f32"))
    before = float(item["seconds"]["f32"])
    now = float(item["seconds"].get(kind, before))
    error = item["errors"].get(kind)
    return {
        "name": str(item["label"]),
        "precision": kind,
        "before": format_seconds(before),
        "now": format_seconds(now),
        "gained": f"{1 - now / before:.0%}",
        "error": "-" if error is None else f"{float(error):.2g}",
    }


def _places(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Where points are drawn: speed to the right, the logarithm of the error upwards."""
    speeds = [1.0 / ratio for ratio, _ in points]
    errors = [error for _, error in points if error > 0]
    least = min(errors, default=1e-6) / 2.0
    heights = [math.log(max(error, least)) for _, error in points]

    def scaled(value: float, values: list[float], length: int) -> float:
        span = max(values) - min(values) or 1.0
        return MARGIN + (value - min(values)) / span * (length - 2 * MARGIN)

    return [
        (scaled(speed, speeds, PLAN_WIDTH), PLAN_HEIGHT - scaled(height, heights, PLAN_HEIGHT))
        for speed, height in zip(speeds, heights, strict=True)
    ]
