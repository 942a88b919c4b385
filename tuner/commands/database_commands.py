"""What `tune db list`, `show`, `builds`, `check` and `salvage` print."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rich.table import Table

from tunefarm import compiler
from tunefarm.compiler.errors import DatabaseError, with_count
from tunefarm.compiler.kernels.printer import format_kernel
from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import shown_precision
from tunefarm.db import model_queries, queries
from tunefarm.db.check import check
from tunefarm.db.queries import TaskSummary
from tunefarm.db.records import TaskKey, TrialRecord, WorkloadRecord
from tunefarm.db.salvage import Salvage
from tunefarm.db.store import Store
from tunefarm.measure.measurement import is_unchanged
from tunefarm.tuner.records.applicable_records import own_origin
from tunefarm.tuner.records.replay import replay_records
from tunefarm.tuner.records.trials import latency_of, record_to_apply, reference_note, search_trials
from tunefarm.tuner.records.unapplied import difference
from tunefarm.tuner.reports.gains import UNCHANGED
from tunefarm.tuner.reports.report import format_seconds, format_share, format_time, format_times

_DIGITS = 12  # of a digest or an id in a table


def listed(store: Store) -> list[TaskSummary]:
    """What is recorded of each task; its best latency is that of what a build applies."""
    result = []
    for task in queries.summary(store):
        applied = record_to_apply(store, task.key)
        result.append(replace(task, best_latency=None if applied is None else applied[0].latency))
    return result


def list_table(tasks: Iterable[TaskSummary]) -> Table:
    """A row per kernel, target and thread count."""
    table = Table(header_style="bold")
    table.add_column("workload", no_wrap=True)
    table.add_column("kernel", overflow="ellipsis", no_wrap=True)
    counts = ("trials", "failed", "noisy")
    for name in ("target", "threads", "precision", *counts, "best", "last (UTC)"):
        table.add_column(name, justify="right", no_wrap=True)
    for task in tasks:
        best = task.best_latency
        table.add_row(
            task.key.workload,
            task.workload_name,
            task.key.target,
            str(task.key.threads),
            shown_precision(task.key.numerics),
            str(task.trials),
            str(task.failed),
            str(task.scattered),
            "-" if best is None else format_seconds(best),
            format_time(task.last_created),
        )
    return table


def job_lines(store: Store) -> list[str]:
    """A line for each job that is running, or was lost."""
    notes = {
        "running": "running",
        "lost": "lost: its process has ended; the same tune command continues from its records",
    }
    return [
        f"{job.model_name}, started {format_time(job.started)} UTC: {notes[job.state]}"
        for job in queries.jobs(store)
        if job.state in notes
    ]


def list_to_json(tasks: Iterable[TaskSummary]) -> list[dict[str, Any]]:
    """The same as JSON values."""
    return [
        {
            "workload": task.key.workload,
            "kernel": task.workload_name,
            "target": task.key.target,
            "threads": task.key.threads,
            "numerics": task.key.numerics,
            "compiler_version": task.key.compiler_version,
            "trials": task.trials,
            "failed": task.failed,
            "scattered": task.scattered,
            "best_seconds": task.best_latency,
        }
        for task in tasks
    ]


def show_lines(store: Store, start: str, top: int) -> list[str]:
    """A workload whose key begins with `start`: its kernel and, per task, its best trials."""
    record = _workload(store, start)
    lines = [f"workload {record.key}", format_kernel(kernel_from_json(record.kernel))]
    described = {key: target.description for key, target in queries.targets(store).items()}
    for task in queries.summary(store, record.key):
        key = task.key
        records = queries.trials(store, key)
        numbers = {record.schedule_hash: record.number for record in reversed(records)}
        trials = search_trials(records)
        precision = shown_precision(key.numerics)
        lines += ["", f"{key.target}, {with_count(key.threads, 'thread')}, precision {precision}"]
        left = difference(key, described.get(key.target), host_target(), compiler.VERSION)
        lines += [f"  builds on this machine do not use these: they are {left}"] if left else []
        for trial in sorted(trials, key=latency_of)[:top]:
            latency = format_seconds(latency_of(trial)) if trial.is_ok else trial.status
            choices = json.dumps(trial.choices, separators=(",", ":"))
            lines.append(f"  {trial.number:>8} {latency:>12}  {trial.sketch} {choices}")
            again = [r for r in records if r.schedule_hash == trial.schedule_hash and r.reference]
            lines += [f"{'':24}{_against(one, numbers.get(one.reference or ''))}" for one in again]
        own = own_origin(store, key.target)
        applied = record_to_apply(store, key, own)
        if applied is not None:
            best = applied[0]
            lines.append(f"  a build uses record {best.number} ({_confirmed(store, key, own)})")
            lines += [f"    {json.dumps(step)}" for step in best.schedule]
        elif (nominee := record_to_apply(store, key)) is not None:
            number = nominee[0].number
            lines.append(f"  record {number} is a nominee: tune verify --quick measures it here")
    return lines


def show_to_json(store: Store, start: str, top: int) -> dict[str, Any]:
    """The same as JSON values; seconds that are not known are null."""
    record = _workload(store, start)
    tasks = []
    for task in queries.summary(store, record.key):
        trials = sorted(search_trials(queries.trials(store, task.key)), key=latency_of)
        applied = record_to_apply(store, task.key, own_origin(store, task.key.target))
        tasks.append(
            {
                **_key_to_json(task.key),
                "trials": [_trial_to_json(trial) for trial in trials[:top]],
                "applied": None if applied is None else _trial_to_json(applied[0]),
            }
        )
    return {"workload": record.key, "kernel": record.kernel, "tasks": tasks}


def _workload(store: Store, start: str) -> WorkloadRecord:
    """The one workload whose key begins so."""
    keys = [key for key in queries.workloads(store) if key.startswith(start)]
    if len(keys) != 1:
        found = f"{len(keys)} workloads begin" if keys else "no workload begins"
        raise DatabaseError(f"{store.name}: {found} with {start!r}", hint="see tune db list")
    return queries.workloads(store, keys)[keys[0]]


def _key_to_json(key: TaskKey) -> dict[str, Any]:
    return {
        "target": key.target,
        "threads": key.threads,
        "numerics": key.numerics,
        "compiler_version": key.compiler_version,
    }


def _trial_to_json(trial: TrialRecord) -> dict[str, Any]:
    latency = latency_of(trial)
    return {
        "number": trial.number,
        "status": trial.status,
        "seconds": latency if trial.is_ok and math.isfinite(latency) else None,
        "sketch": trial.sketch,
        "choices": trial.choices,
        "schedule": trial.schedule,
    }


def _against(trial: TrialRecord, number: int | None) -> str:
    """What a trial was measured against, and its time relative to that; both in pairs."""
    name = f"schedule {trial.reference}, which was deleted" if number is None else f"trial {number}"
    if trial.ratio is None or trial.low is None or trial.high is None:
        return f"measured against {name}"
    return f"time relative to {name}: {format_times(trial.ratio, trial.low, trial.high)}"


def _confirmed(store: Store, key: TaskKey, origin: queries.Origin) -> str:
    """Whether the finalists of a task were compared, and the result."""
    found = queries.best(store, key, origin)
    if found is None:
        return "not confirmed yet"
    settled = found[0]
    if is_unchanged(settled.low, settled.high):
        return f"confirmed, {UNCHANGED}: the default schedule"
    times = format_times(settled.ratio, settled.low, settled.high)
    return f"confirmed, time relative to the default: {times}"


def builds_table(store: Store, limit: int) -> Table:
    """A row per build, the newest first."""
    table = Table(header_style="bold")
    table.add_column("built (UTC)", no_wrap=True)
    table.add_column("model", overflow="ellipsis", no_wrap=True)
    for name in ("target", "threads", "precision", "tuned", "artifact", "parent"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("file", overflow="fold")
    for build in model_queries.builds(store, limit=limit):
        table.add_row(
            format_time(build.created),
            build.model_name,
            build.target,
            str(build.threads),
            shown_precision(build.numerics),
            format_share(build.tuned_share),
            build.artefact_sha256[:_DIGITS],
            str(build.report.get("parent", "-"))[:_DIGITS],
            str(build.report.get("output", "-")),
        )
    return table


def builds_to_json(store: Store, limit: int) -> list[dict[str, Any]]:
    """The same as JSON values."""
    return [
        {
            "created": build.created,
            "model": build.model_name,
            "target": build.target,
            "threads": build.threads,
            "numerics": build.numerics,
            "tuned_share": build.tuned_share,
            "artefact_sha256": build.artefact_sha256,
            "parent": build.report.get("parent"),
            "output": build.report.get("output"),
        }
        for build in model_queries.builds(store, limit=limit)
    ]


def check_lines(store: Store, replay: int) -> tuple[list[str], bool]:
    """The problems of the database, or that there are none; and whether it is sound.

    If its rows are intact, a sample of `replay` records is replayed as well.
    """
    problems = check(store)
    if problems and replay:
        return [*problems, "no record was replayed because the database is damaged"], False
    gone = len(queries.without_reference(store))
    notes = [reference_note(gone)] if gone else []
    if replay:
        replayed = replay_records(store, replay)
        problems += replayed.problems
        notes.append(replayed.summary())
    return [*(problems or [f"{store.name}: no problems"]), *notes], not problems


def salvage_lines(result: Salvage) -> list[str]:
    """What was saved of each table, and what was lost."""
    lines = []
    for table in result.tables:
        line = f"{table.name}: {table.kept - table.stand_ins} saved"
        if table.missing:
            line += f", {table.missing} missing (lost, or deleted before)"
        if table.stand_ins:
            line += f", {table.stand_ins} lost ones replaced by placeholders"
        if table.useless:
            line += f", {table.useless} dropped because they refer to lost rows"
        lines.append(line)
    lines.append(f"{result.damaged} damaged rows were skipped")
    return lines
