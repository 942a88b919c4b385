"""Between measurements and the database: requests, trial records, and what was measured before."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import compiler
from compiler.target import Target
from db import queries
from db.records import CONFIRMED, TaskKey, TrialRecord
from db.store import Store
from measure.compare import pair_of
from measure.measurement import MeasureResult, Status

UNCONFIRMED_MARGIN = 0.02
"""How much faster than the confirmed best a later, unconfirmed trial must be to replace it."""

CENSORED = "censored"
"""Key in a trial's conditions: few samples were taken, all clearly above the best latency then."""

SLICE_DIGITS = 5
"""Significant digits of the slices in a record: a thousandth of what neighbours differ by."""

_MACHINE_FACTS = ("cpu", "features", "cores", "kernel", "governor", "fingerprint")


def task_key(workload: str, target: Target, threads: int, numerics: str) -> TaskKey:
    """The key under which this version of the compiler keeps records of a workload."""
    return TaskKey(workload, target.key, threads, numerics, compiler.VERSION)


def trial_record(
    key: TaskKey,
    result: MeasureResult,
    *,
    sketch: str,
    choices: Mapping[str, Any],
    schedule: list[Any],
    job: str,
    confirmed: bool = False,
    reference: str | None = None,
    latency: float | None = None,
) -> TrialRecord:
    """The record of one measurement.

    Of a pair, `reference` is the hash of the schedule that the result's first rival has, and
    `latency` the ratio times that one's latency in the task's scale. Without a `latency` it is the
    median of the samples. Slices are kept to SLICE_DIGITS significant digits.
    """
    pair = None if reference is None else pair_of(result)
    if latency is None or result.status is not Status.OK:
        latency = result.latency
    machine = {name: result.machine[name] for name in _MACHINE_FACTS if name in result.machine}
    conditions = {name: v for name, v in result.machine.items() if name not in machine}
    if confirmed:
        conditions[CONFIRMED] = job
    if result.censored:
        conditions[CENSORED] = True
    return TrialRecord(
        key=key,
        request_id=result.request_id,
        sketch=sketch,
        choices={name: _plain(value) for name, value in choices.items()},
        schedule=schedule,
        status=result.status.value,
        latency=latency if math.isfinite(latency) else None,
        samples=_slices(result.samples),
        error=result.error,
        build_seconds=result.build_seconds,
        check_seconds=result.check_seconds,
        run_seconds=result.run_seconds,
        machine=machine,
        conditions=conditions,
        job=job,
        reference=None if pair is None else reference,
        ratio=None if pair is None else pair.ratio,
        low=None if pair is None else pair.low,
        high=None if pair is None else pair.high,
        reference_samples=() if pair is None else _slices(result.rivals[0]),
    )


def _slices(seconds: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{SLICE_DIGITS}g}") for value in seconds)


def latency_of(record: TrialRecord) -> float:
    """The record's latency in seconds, infinity for a failure."""
    return record.latency if record.is_ok and record.latency is not None else math.inf


def is_censored(record: TrialRecord) -> bool:
    """Whether the trial was given up early: its schedule is clearly slower than the best then."""
    return bool(record.conditions.get(CENSORED))


def is_confirmed(record: TrialRecord) -> bool:
    """Whether the record is a finalist's."""
    return bool(record.conditions.get(CONFIRMED))


def search_trials(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The first stable trial of each schedule that the search measured, else an unstable one.

    Left out are finalists' repetitions and failures of the machinery, which say nothing about the
    candidate.
    """
    first: dict[str, TrialRecord] = {}
    for record in records:
        if is_confirmed(record) or record.status == Status.INFRASTRUCTURE:
            continue
        kept = first.get(record.schedule_hash)
        if kept is None or kept.status == Status.UNSTABLE:
            first[record.schedule_hash] = record
    return list(first.values())


def confirmations(records: Iterable[TrialRecord]) -> dict[str, list[TrialRecord]]:
    """The finalists' trials by schedule hash, of each schedule those of the newest job."""
    newest: dict[str, list[TrialRecord]] = {}
    for record in records:
        if not is_confirmed(record) or record.status == Status.INFRASTRUCTURE:
            continue
        group = newest.setdefault(record.schedule_hash, [])
        if group and group[-1].conditions[CONFIRMED] != record.conditions[CONFIRMED]:
            group.clear()
        group.append(record)
    return newest


def record_to_apply(store: Store, key: TaskKey) -> tuple[TrialRecord, bool] | None:
    """The trial whose schedule is applied, and whether a job has confirmed it in a whole model.

    Before a job has settled the task it is the best that is known, a lucky one perhaps.
    """
    found = queries.best(store, key)
    if found is not None:
        return found[1], True
    record = best_record(_decisive(store, key))
    return None if record is None else (record, False)


def _decisive(store: Store, key: TaskKey) -> list[TrialRecord]:
    """Those of a task's trials that decide what `best_record` of all of them is, in their order."""
    finalists = queries.finalists(store, key)
    refuted = _refuted(confirmations(finalists))
    last = finalists[-1].number or 0 if finalists else 0
    later = queries.fastest_trial(store, key, after=last, without=refuted)
    fastest = queries.fastest_trial(store, key, without=refuted) if finalists else later
    first = [] if fastest is None or fastest == later else [fastest]
    return [*first, *finalists, *([] if later is None else [later])]


def best_record(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The record to apply as long as no job has settled the task, of its trials in their order.

    The schedule with the lowest median over its finalist's trials; the record is the trial with
    that median. A schedule that failed as a finalist is out. A trial later than all finalists takes
    their place if it is faster by `UNCONFIRMED_MARGIN`. Without finalists the fastest trial.
    """
    confirmed = confirmations(records)
    refuted = _refuted(confirmed)
    medians = [_median_record(group) for hash, group in confirmed.items() if hash not in refuted]
    last = max((i for i, record in enumerate(records) if is_confirmed(record)), default=-1)
    later = [r for r in records[last + 1 :] if r.is_ok and r.schedule_hash not in refuted]
    if not medians and not later:
        later = [r for r in records if r.is_ok and r.schedule_hash not in refuted]
    best = min(medians, key=latency_of, default=None)
    challenger = min(later, key=latency_of, default=None)
    if best is None or challenger is None:
        return best or challenger
    beaten = latency_of(challenger) < (1.0 - UNCONFIRMED_MARGIN) * latency_of(best)
    return challenger if beaten else best


def _refuted(confirmed: Mapping[str, Sequence[TrialRecord]]) -> set[str]:
    """The schedules that failed as finalists."""
    return {hash for hash, group in confirmed.items() if not all(r.is_ok for r in group)}


def _median_record(group: Sequence[TrialRecord]) -> TrialRecord:
    return sorted(group, key=latency_of)[(len(group) - 1) // 2]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def unusable(store: Store, like: TaskKey) -> list[str]:
    """One line for each other version of the compiler whose records do not apply to this one."""
    counts = Counter(
        key.compiler_version
        for key in queries.tasks(store)
        if key.target == like.target and key.compiler_version != like.compiler_version
    )
    return [
        f"the records of {count} kernel{'s' if count > 1 else ''} of compiler version {version} in "
        f"{store.name} do not apply to version {like.compiler_version}: tune again"
        for version, count in sorted(counts.items())
    ]
