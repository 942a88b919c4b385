"""The models of a page: what each job gained, how they compare with other engines, and what was
chosen for them as a whole: points of speed and error.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from typing import Any

from tunefarm.compiler.errors import with_count
from tunefarm.db import model_queries
from tunefarm.db.records import JobRecord
from tunefarm.db.store import Store
from tunefarm.tuner.pages.contents import Contents
from tunefarm.tuner.records.model_latencies import (
    EngineTime,
    MeasuredModel,
    ModelTimes,
    Ratio,
)
from tunefarm.tuner.records.size_ranges import SizePlan
from tunefarm.tuner.reports.gains import gain, gain_class
from tunefarm.tuner.reports.report import (
    format_duration,
    format_ratio,
    format_seconds,
    format_share,
    format_time,
)

_STATES = {"lost": "lost: its process is gone, what it recorded is kept"}


def models_of(contents: Contents) -> list[dict[str, Any]]:
    """A section for each model under each target and thread count, the newest first."""
    groups: dict[tuple[str, str, int, str], list[MeasuredModel]] = {}
    for found in contents.models:
        record = found.record
        shared = record.model_hash, record.target, record.threads, record.numerics
        groups.setdefault(shared, []).append(found)
    sections = []
    for (_, target, threads, numerics), group in groups.items():
        sections.append(
            {
                "name": group[0].record.model_name,
                "target": _cpu(contents, target),
                "threads": threads,
                "numerics": numerics,
                "runs": [_run(found) for found in group],
                "engines": _engines(group),
                "bench": _bench_command(contents, group[0]),
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
        "refused": _refused(times.refused),
        "claims": _claims(times),
    }


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
    precisions = plan["points"][chosen]["precisions"]
    return {
        "measure": str(plan["measure"]),
        "chosen": chosen,
        "points": points,
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


def size_tables(store: Store) -> list[dict[str, object]]:
    """What jobs found for models with a range of sizes, the newest first.

    Of whole models where they were measured, else of the kernels that depend on sizes.
    """
    found: list[dict[str, object]] = []
    for record in model_queries.plans(store):
        try:
            plan = SizePlan.from_json(record.plan)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue  # a choice of precisions, or what others wrote
        title = f"{record.model_name}, {with_count(record.threads, 'thread')}, "
        title += format_time(record.created)
        times, other = plan.models, "untuned"
        if not times:
            title, times, other = f"kernels of {title}", plan.seconds, "one schedule for all sizes"
        if len(times) > 1:
            rows = [
                {"sizes": sizes, "cells": [format_seconds(seconds) for seconds in times[sizes]]}
                for sizes in sorted(times, key=_magnitude)
            ]
            found.append({"title": title, "names": ["tuned", other], "rows": rows})
    return found


def _magnitude(sizes: str) -> int:
    """The product of all sizes: what computes less comes first."""
    return math.prod(map(int, re.findall(r"=(\d{1,10})\b", sizes)))
