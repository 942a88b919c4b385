"""What changed between two jobs, or two builds, and by how much.

Times of two days are not comparable: the machine was not the same. What is compared are ratios to
the default schedule and to the untuned model, which were measured next to each other in each job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tunefarm.configs.errors import DatabaseError
from tunefarm.db import model_queries, queries
from tunefarm.db.records import BestRecord, BuildRecord, JobRecord, TaskKey
from tunefarm.db.store import Store
from tunefarm.tuner.pages.contents import Contents
from tunefarm.tuner.pages.kernels import Kernel
from tunefarm.tuner.records.jobs import find_job
from tunefarm.tuner.records.model_latencies import MeasuredModel, Ratio, measured_models
from tunefarm.tuner.reports.gains import gain, gain_class
from tunefarm.tuner.reports.report import format_seconds, format_share, format_time

SAME, OTHER = "the same schedule", "another schedule"
_NORMAL_95 = 1.96
_MOST_SETTINGS = 30


def compared(store: Store, contents: Contents, kernels: Sequence[Kernel]) -> dict[str, Any] | None:
    """The part of a page about what was asked to be compared; None if nothing was.

    Raises DatabaseError for a job or a build that there is not.
    """
    options = contents.options
    if options.against is not None:
        return _jobs(store, contents, find_job(store, options.against), kernels)
    if options.builds is not None:
        every = model_queries.builds(store)
        old, new = (find_build(every, name) for name in options.builds)
        return _builds(old, new)
    return None


def find_build(builds: Sequence[BuildRecord], name: str) -> BuildRecord:
    """The newest build whose artifact, or id, begins so. Raises DatabaseError."""
    named = [b for b in builds if name and (b.artefact_sha256.startswith(name) or b.id == name)]
    if len({build.artefact_sha256 for build in named}) == 1:
        return named[0]
    text = f"{len(named)} builds begin" if named else "no build's artifact begins"
    raise DatabaseError(f"{text} with {name!r}", hint="tune db builds lists them")


def ratio_of(new: Ratio, old: Ratio) -> Ratio:
    """A ratio over another one that was measured apart: their errors add up as logarithms."""
    error = math.hypot(_deviation(new), _deviation(old))
    ratio = new.ratio / old.ratio
    return Ratio(ratio, ratio * math.exp(-_NORMAL_95 * error), ratio * math.exp(_NORMAL_95 * error))


def _deviation(ratio: Ratio) -> float:
    return math.log(ratio.high / ratio.low) / (2 * _NORMAL_95)


def _jobs(
    store: Store, contents: Contents, old: JobRecord, kernels: Sequence[Kernel]
) -> dict[str, Any]:
    (new,) = contents.jobs
    shares = _shares(kernels)
    before, after = _settled(store, old), _settled(store, new)
    known = {task.key for task in old.tasks}, {task.key for task in new.tasks}
    names = {key: record.name for key, record in queries.workloads(store).items()}
    rows = [
        _row(names, key, before.get(key), after.get(key), shares.get(key, 0.0))
        for key in dict.fromkeys(task.key for job in (new, old) for task in job.tasks)
        if key in known[0] and key in known[1]
    ]
    rows.sort(key=lambda row: (-row["weight"], row["name"]))
    return {
        "what": "job",
        "old": f"{old.model_name} {old.id[:8]}, {format_time(old.started)}",
        "new": f"{new.model_name} {new.id[:8]}, {format_time(new.started)}",
        "model": _model(_measured(store, old), _measured(store, new)),
        "rows": rows,
        "only": _only(names, known[1] - known[0], "only in the new job")
        + _only(names, known[0] - known[1], "only in the old job"),
        "settings": _changed(old.settings, new.settings),
    }


def _shares(kernels: Sequence[Kernel]) -> dict[TaskKey, float]:
    total = math.fsum(kernel.cost for kernel in kernels)
    return {kernel.key: kernel.cost / total for kernel in kernels} if total > 0 else {}


def _settled(store: Store, job: JobRecord) -> dict[TaskKey, BestRecord]:
    """What was applied when the job had ended: settled by it, or by jobs before."""
    keys, jobs = {task.key for task in job.tasks}, [each.id for each in queries.jobs(store)]
    known = set(jobs[jobs.index(job.id) :])
    return {
        best.key: best
        for best in queries.iterate_bests(store)
        if best.key in keys and best.job in known
    }


def _measured(store: Store, job: JobRecord) -> MeasuredModel | None:
    return next(measured_models(store, job=job.id), None)


def _row(
    names: Mapping[str, str],
    key: TaskKey,
    old: BestRecord | None,
    new: BestRecord | None,
    share: float,
) -> dict[str, Any]:
    """One kernel, in both jobs; `weight` is what the change means to the model."""
    row = {
        "name": names.get(key.workload, key.workload),
        "key": key.workload[:8],
        "share": format_share(share) if share else "-",
        "old": "-" if old is None else gain(old.ratio, old.low, old.high),
        "new": "-" if new is None else gain(new.ratio, new.low, new.high),
        "schedule": "-",
        "change": "-",
        "change_class": "same",
        "weight": 0.0,
    }
    if old is None or new is None:
        return row
    row["schedule"] = SAME if old.schedule_hash == new.schedule_hash else OTHER
    if row["schedule"] == SAME:
        return row
    ratio = ratio_of(Ratio(new.ratio, new.low, new.high), Ratio(old.ratio, old.low, old.high))
    row["change"] = gain(ratio.ratio, ratio.low, ratio.high)
    row["change_class"] = gain_class(ratio.low, ratio.high)
    row["weight"] = share * abs(math.log(ratio.ratio))
    return row


def _model(old: MeasuredModel | None, new: MeasuredModel | None) -> dict[str, str] | None:
    """The whole model in both, over the untuned model that it met."""
    if old is None or new is None:
        return None
    a, b = old.times, new.times
    found = {
        "old": format_seconds(a.tuned),
        "new": format_seconds(b.tuned),
        "change": "-",
        "change_class": "same",
        "note": _differences(old, new),
    }
    if a.over_untuned is not None and b.over_untuned is not None:
        ratio = ratio_of(b.over_untuned, a.over_untuned)
        found["change"] = gain(ratio.ratio, ratio.low, ratio.high)
        found["change_class"] = gain_class(ratio.low, ratio.high)
    return found


def _differences(old: MeasuredModel, new: MeasuredModel) -> str:
    """What else was not the same."""
    a, b = old.record, new.record
    named = [
        ("model", a.model_hash, b.model_hash),
        ("target", a.target, b.target),
        ("threads", a.threads, b.threads),
        ("numerics", a.numerics, b.numerics),
        ("compiler", a.compiler_version, b.compiler_version),
        ("LLVM", old.times.llvm, new.times.llvm),
        ("machine", a.machine.get("cpu"), b.machine.get("cpu")),
    ]
    return "; ".join(f"{name} {x} before, {y} now" for name, x, y in named if x != y)


def _only(names: Mapping[str, str], keys: Iterable[TaskKey], where: str) -> list[dict[str, str]]:
    return [
        {"name": names.get(key.workload, key.workload), "key": key.workload[:8], "where": where}
        for key in sorted(keys, key=lambda key: key.workload)
    ]


def _changed(old: Any, new: Any) -> list[dict[str, str]]:
    """The settings that differ, by their names with dots."""
    before, after = dict(_flat("", old)), dict(_flat("", new))
    names = [name for name in (before | after) if before.get(name) != after.get(name)]
    return [
        {"name": name, "old": before.get(name, "-"), "new": after.get(name, "-")}
        for name in sorted(names)[:_MOST_SETTINGS]
    ]


def _flat(prefix: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), item)
    else:
        yield prefix, str(value)


def _builds(old: BuildRecord, new: BuildRecord) -> dict[str, Any]:
    before, after = _kernels(old), _kernels(new)
    rows = [
        _built(key, before.get(key), after.get(key)) for key in dict.fromkeys((*after, *before))
    ]
    rows.sort(key=lambda row: (-row["weight"], row["name"]))
    return {
        "what": "build",
        "old": f"{old.model_name} {old.artefact_sha256[:8]}, {format_time(old.created)}",
        "new": f"{new.model_name} {new.artefact_sha256[:8]}, {format_time(new.created)}",
        "model": None,
        "tuned": [format_share(old.tuned_share), format_share(new.tuned_share)],
        "rows": rows,
        "only": [],
        "settings": [
            {"name": name, "old": str(getattr(old, name)), "new": str(getattr(new, name))}
            for name in ("model_hash", "target", "threads", "numerics", "compiler_version")
            if getattr(old, name) != getattr(new, name)
        ],
    }


def _kernels(build: BuildRecord) -> dict[str, dict[str, Any]]:
    """A build's kernels by workload key, as far as others wrote them so."""
    listed = build.report.get("kernels")
    items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return {str(item.get("key", item.get("name"))): item for item in items}


def _built(
    key: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> dict[str, Any]:
    shown = new or old or {}
    before, after = _seconds(old), _seconds(new)
    row = {
        "name": str(shown.get("name", key)),
        "key": key[:8],
        "share": format_share(_number(shown.get("share"))),
        "old": _text(old),
        "new": _text(new),
        "schedule": _same_record(old, new),
        "change": "-",
        "change_class": "same",
        "weight": 0.0,
    }
    if before > 0 and after > 0 and row["schedule"] == OTHER:
        row["change"] = f"{before / after:.2f}x by its records"
        row["weight"] = abs(math.log(before / after)) * max(_number(shown.get("share")), 0.0)
    return row


def _text(kernel: Mapping[str, Any] | None) -> str:
    if kernel is None:
        return "not in it"
    seconds = _seconds(kernel)
    text = format_seconds(seconds) if seconds > 0 else "-"
    return f"{kernel.get('schedule_source', '-')}, {text}"


def _same_record(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> str:
    if old is None or new is None:
        return "-"
    named = ("schedule_source", "record_id")
    return SAME if all(old.get(name) == new.get(name) for name in named) else OTHER


def _seconds(kernel: Mapping[str, Any] | None) -> float:
    return 0.0 if kernel is None else _number(kernel.get("latency"))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 <= value < 1e15 else 0.0
