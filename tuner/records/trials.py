"""Between measurements and the database: requests, trial records, and what was measured before."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tunefarm import compiler
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import (
    DEFAULT_NUMERICS,
    DETERMINISTIC_NUMERICS,
    INT8_ACTIVATIONS,
    STRICT_NUMERICS,
)
from tunefarm.db import queries
from tunefarm.db.records import CONFIRMED, TaskKey, TrialRecord
from tunefarm.db.store import Store
from tunefarm.measure.compare import pair_of
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.tuner.records.estimates import (
    UNCONFIRMED_MARGIN,
    grouped,
    is_dangerous,
    joint,
    most_promising,
    scales,
)
from tunefarm.tuner.records.unapplied import NO_SCHEDULE

CENSORED = "censored"
"""Key in a trial's conditions: few samples were taken, all clearly above the best latency then."""

CONTENDERS = 24
"""So many of a task's fastest trials are looked at for what is applied."""

SLICE_DIGITS = 5
"""Significant digits of the slices in a record: a thousandth of what neighbours differ by."""

_MACHINE_FACTS = ("cpu", "features", "cores", "kernel", "governor", "fingerprint")


def task_key(workload: str, target: Target, threads: int, numerics: str) -> TaskKey:
    """The key under which this version of the compiler keeps records of a workload.

    What a kernel stores its numbers in is part of the workload: of the precision it only matters
    which algorithms and orders of sums are admitted.
    """
    own = (STRICT_NUMERICS.name, DETERMINISTIC_NUMERICS.name, INT8_ACTIVATIONS.name)
    admitted = numerics if numerics in own else DEFAULT_NUMERICS.name
    return TaskKey(workload, target.key, threads, admitted, compiler.VERSION)


def trial_record(
    key: TaskKey,
    result: MeasureResult,
    *,
    sketch: str,
    choices: Mapping[str, Any],
    schedule: list[Any],
    job: str | None,
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


class Measured(NamedTuple):
    """What a search knows of a schedule: the trial that counts, and the latency and its standard
    error (of the logarithm) by all of them; infinity, and None where none is ok or a pair."""

    record: TrialRecord
    latency: float
    deviation: float | None


def measured(records: Iterable[TrialRecord]) -> list[Measured]:
    """What is known of each schedule that a search measured.

    Of its trials the first ok one counts, else the first that was too noisy, else its failure;
    a crash, a hang or a wrong result goes before all of them. Left out are finalists' repetitions
    that went well, and failures of the machinery, which say nothing about the candidate.
    """
    counting = [
        record
        for record in records
        if record.status != Status.INFRASTRUCTURE
        and (not is_confirmed(record) or is_dangerous([record]))
    ]
    references = scales(counting)
    result = []
    for hash, group in grouped(counting).items():
        record = min(group, key=_rank)
        known = joint(group, is_scale=hash in references) if record.is_ok else None
        if known is None:
            result.append(Measured(record, math.inf, None))
        else:
            deviation = None if known.alone else known.deviation
            result.append(Measured(record, known.latency, deviation))
    return result


def _rank(record: TrialRecord) -> int:
    if is_dangerous([record]):
        return 0
    return 1 if record.is_ok else 2 if record.is_lost_to_noise else 3


def search_trials(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The trials that count of `measured`, each with the latency by all trials of its schedule."""
    return [
        replace(record, latency=latency) if record.is_ok else record
        for record, latency, _ in measured(records)
    ]


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


def record_to_apply(
    store: Store, key: TaskKey, origin: queries.Origin | None = None
) -> tuple[TrialRecord, bool] | None:
    """The trial whose schedule is applied, and whether a job has confirmed it in a whole model, or
    a check has; by all records of the task, or by those of one origin.

    A confirmed one has the latency that all its meetings came to. Before a job has settled the task
    it is what its trials speak for (`best_record`): of those that have not met as finalists the
    trials of the schedules that have one of the `CONTENDERS` fastest.
    """
    with store.reading():  # all of it sees one state
        found = queries.best(store, key, origin)
        if found is not None:
            best, trial = found
            return replace(trial, latency=best.default_latency * best.ratio), True
        decisive = _decisive(store, key, origin)
    record = best_record(decisive)
    return None if record is None else (record, False)


def readable_record(
    store: Store, key: TaskKey, origin: queries.Origin | None = None
) -> tuple[TrialRecord, bool] | None:
    """The record to apply of those that hold schedules: others are left out from now on."""
    while (found := record_to_apply(store, key, origin)) is not None:
        try:
            Schedule.from_json(found[0].schedule)
        except ScheduleError as error:
            queries.leave_trial(store, found[0].number or 0, f"{NO_SCHEDULE}: {error.message}")
        else:
            return found
    return None


def _decisive(store: Store, key: TaskKey, origin: queries.Origin | None) -> list[TrialRecord]:
    """Those of a task's trials that decide what `best_record` of all of them is, in their order."""
    finalists = queries.finalists(store, key, origin)
    confirmed = confirmations(finalists)
    refuted = _refuted(confirmed)
    last = finalists[-1].number or 0 if finalists else 0
    later = _contender(store, key, last, refuted, origin)
    if later or not finalists or confirmed.keys() - refuted:
        return [*finalists, *later]
    return [*_contender(store, key, 0, refuted, origin), *finalists]


def _contender(
    store: Store,
    key: TaskKey,
    after: int,
    without: Collection[str],
    origin: queries.Origin | None,
) -> list[TrialRecord]:
    """The trials of the schedule to apply by those that were recorded after the one numbered so."""
    glances = queries.contenders(
        store, key, CONTENDERS, after=after, without=without, origin=origin
    )
    return queries.numbered(store, [trial.number for trial in most_promising(glances)])


def best_record(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The record to apply as long as no job has settled the task, of its trials in their order.

    The schedule with the lowest median over its finalist's trials; the record is the trial with
    that median. A schedule that failed as a finalist is out. The one that the trials after all
    finalists speak for (`most_promising`) takes its place if it is faster by `UNCONFIRMED_MARGIN`.
    Without finalists the one that all trials speak for; the record is its middle trial, with the
    latency by all of them.
    """
    confirmed = confirmations(records)
    refuted = _refuted(confirmed)
    medians = [
        _median_record(group)
        for hash, group in confirmed.items()
        if hash not in refuted and any(record.is_ok for record in group)
    ]
    last = max((i for i, record in enumerate(records) if is_confirmed(record)), default=-1)
    later = most_promising(records[last + 1 :], refuted)
    if not medians and not later:
        later = most_promising(records, refuted)
    best = min(medians, key=latency_of, default=None)
    challenger = _middle(later, records)
    if best is None or challenger is None:
        return best or challenger
    beaten = latency_of(challenger) < (1.0 - UNCONFIRMED_MARGIN) * latency_of(best)
    return challenger if beaten else best


def _middle(trials: Sequence[TrialRecord], records: Sequence[TrialRecord]) -> TrialRecord | None:
    """A schedule's middle ok trial, with the latency by all of them."""
    if not trials:
        return None
    known = joint(trials, is_scale=trials[0].schedule_hash in scales(records))
    return None if known is None else replace(_median_record(trials), latency=known.latency)


def _refuted(confirmed: Mapping[str, Sequence[TrialRecord]]) -> set[str]:
    """The schedules that failed as finalists; what was too noisy is no failure."""
    return {
        hash
        for hash, group in confirmed.items()
        if not all(record.is_ok or record.is_lost_to_noise for record in group)
    }


def _median_record(group: Sequence[TrialRecord]) -> TrialRecord:
    ordered = sorted((record for record in group if record.is_ok), key=latency_of)
    return ordered[(len(ordered) - 1) // 2]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def reference_note(count: int) -> str:
    """The line for so many records whose references have no record any more."""
    were = "1 record was" if count == 1 else f"{count} records were"
    return (
        f"{were} measured against schedules that have no record here (pruned, or not imported); "
        "latencies count as they were recorded"
    )
