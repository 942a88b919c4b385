"""Replay a sample of a database's records: do kernels and schedules still give the right results?

A record is rebuilt from the database alone: its kernel, its schedule, the loops that both lead to.
What was measured on this machine by this version of the compiler is also compiled, run and compared
with the reference, as a job does with candidates: in disposable processes. Nothing is written.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tunefarm import compiler
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.target import host_target
from tunefarm.db import queries
from tunefarm.db.records import TrialRecord, WorkloadRecord, hash_json
from tunefarm.db.store import Store
from tunefarm.measure.cpus import usable_cpus
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.runner import Runner, RunnerOptions
from tunefarm.measure.measurement import LOST_TO_NOISE, MeasureRequest, MeasureResult, Status
from tunefarm.tuner.records.trials import record_to_apply

_QUICK: Mapping[str, float | int] = {
    "samples": 1,
    "min_samples": 1,
    "min_sample_seconds": 1e-6,
    "warmup_seconds": 1e-6,
    "cold_constants": 0,
}
"""Timing options of a run that is about results alone."""

_NEWEST = 1000  # trials of a task that are drawn from
_NEVER_COMPILED = frozenset(
    (
        Status.BUILD_ERROR,
        Status.BUILD_TIMEOUT,
        Status.OUT_OF_MEMORY,
        Status.INFRASTRUCTURE,
        Status.QUARANTINED,
    )
)
"""With these a schedule need not fit its kernel, or takes too long to lower."""

OTHER_TARGET = "of another target"
OTHER_COMPILER = "of another compiler version"
NOT_OK = "without a right result when measured"
TOO_FEW_CORES = "with more threads than this machine has cores"
NO_WORKER = "because no process could be had for them"

MakeRunner: TypeAlias = Callable[[int], Runner]
"""A runner for kernels of so many threads."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay came to.

    Of `recorded` records `records` were taken; `rebuilt` of them are sound, and `run` of these were
    executed and checked. `not_run` counts the other rebuilt ones by reason, `unreadable` those of
    other compiler versions that this version cannot rebuild. `problems` are lines such as
    `trials 12: …`, in the order of the records.
    """

    recorded: int
    records: int
    rebuilt: int
    run: int
    not_run: Mapping[str, int]
    unreadable: int
    problems: tuple[str, ...]

    def summary(self) -> str:
        """How many were rebuilt and run, and why not the others, in a line."""
        line = (
            f"replayed {self.records} of {self.recorded} records: "
            f"{self.rebuilt} rebuilt, {self.run} run"
        )
        reasons = [f"{count} {reason}" for reason, count in sorted(self.not_run.items())]
        if reasons:
            line += f"; not run: {', '.join(reasons)}"
        if self.unreadable:
            line += f"; {self.unreadable} {OTHER_COMPILER} cannot be rebuilt by this one"
        return line


def replay_records(
    store: Store,
    count: int,
    *,
    seed: int = 0,
    make_runner: MakeRunner | None = None,
) -> Replay:
    """Replay `count` records, drawn by `seed`; the kernels that can run here do so.

    `make_runner` replaces the local runner. Raises DatabaseError for a database that cannot be
    read, MeasureError when no kernel can be run on this machine at all.
    """
    records = sample_records(store, count, seed)
    keys = list({record.key.workload for record in records})
    workloads = queries.workloads(store, keys)
    kernels = {key: _read_kernel(workloads, key) for key in keys}
    rebuilt: list[TrialRecord] = []
    problems: dict[int, str] = {}
    unreadable = 0
    for record in records:
        problem = _problem(record, kernels[record.key.workload])
        if not problem:
            rebuilt.append(record)
        elif record.key.compiler_version != compiler.VERSION:
            unreadable += 1
        else:
            problems[record.number or 0] = problem
    runs, not_run = _run(rebuilt, workloads, make_runner or _local_runner)
    for number, result in runs.items():
        if result.status is not Status.OK and result.status not in LOST_TO_NOISE:
            problems[number] = (
                f"trials {number}: {result.status} when replayed: {_first_line(result.error)}"
            )
    return Replay(
        recorded=sum(queries.count_trials(store).values()),
        records=len(records),
        rebuilt=len(rebuilt),
        run=len(runs),
        not_run=not_run,
        unreadable=unreadable,
        problems=tuple(dict.fromkeys(problems[number] for number in sorted(problems))),
    )


def sample_records(store: Store, count: int, seed: int = 0) -> list[TrialRecord]:
    """So many records, spread over the tasks; those that a build would apply come first."""
    draw = random.Random(seed)
    keys = queries.tasks(store)
    draw.shuffle(keys)
    chosen: list[TrialRecord] = []
    for key in keys:
        applied = record_to_apply(store, key) if len(chosen) < count else None
        if applied is not None:
            chosen.append(applied[0])
    missing = count - len(chosen)
    if missing <= 0:
        return chosen
    applied_numbers = {record.number for record in chosen}
    others = []
    for key in keys:
        known = queries.trials(store, key, limit=_NEWEST)
        left = [record for record in known if record.number not in applied_numbers]
        others.append(draw.sample(left, min(missing, len(left))))
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*others))
    chosen += itertools.islice((record for record in in_turn if record is not None), missing)
    return chosen


def _read_kernel(workloads: Mapping[str, WorkloadRecord], key: str) -> FusedKernel | str:
    """The kernel, or what is wrong with it."""
    try:
        kernel = kernel_from_json(workloads[key].kernel)
        verify_kernel(kernel)
        found = workload_key(kernel)
    except Exception as error:  # noqa: BLE001 - whatever the JSON breaks, it is no kernel
        return f"the kernel cannot be rebuilt: {_reason(error)}"
    return kernel if found == key else f"the kernel is another one's, {found}"


def _problem(record: TrialRecord, kernel: FusedKernel | str) -> str:
    """The line that says what is wrong with the record or its kernel; empty if nothing."""
    if isinstance(kernel, str):
        return f"workloads {record.key.workload}: {kernel}"
    try:
        problem = _schedule_problem(record, kernel)
    except Exception as error:  # noqa: BLE001 - whatever a schedule breaks, it does not fit
        problem = f"the schedule does not fit its kernel: {_reason(error)}"
    return f"trials {record.number}: {problem}" if problem else ""


def _schedule_problem(record: TrialRecord, kernel: FusedKernel) -> str:
    """What is wrong with the record's schedule; empty if nothing. Raises what lowering raises."""
    schedule = Schedule.from_json(record.schedule)
    if hash_json(schedule.to_json()) != record.schedule_hash:
        return "the schedule that is read is not the one that was recorded"
    if record.status not in _NEVER_COMPILED:
        lower(kernel, schedule)
    return ""


def _run(
    rebuilt: Sequence[TrialRecord],
    workloads: Mapping[str, WorkloadRecord],
    make_runner: MakeRunner,
) -> tuple[dict[int, MeasureResult], Counter[str]]:
    """Results of what can run here by the record's number; how many were not run, by reason."""
    target, cores = host_target().key, len(usable_cpus().timing)
    not_run: Counter[str] = Counter()
    by_threads: dict[int, list[TrialRecord]] = {}
    for record in rebuilt:
        reason = _why_not(record, target, cores)
        if reason:
            not_run[reason] += 1
        else:
            by_threads.setdefault(record.key.threads, []).append(record)
    results: dict[int, MeasureResult] = {}
    for threads, records in sorted(by_threads.items()):
        with make_runner(threads) as runner:
            results |= _results(runner, records, workloads)
    for number in [n for n, result in results.items() if result.status is Status.INFRASTRUCTURE]:
        del results[number]
        not_run[NO_WORKER] += 1
    return results, not_run


def _why_not(record: TrialRecord, target: str, cores: int) -> str:
    """Why the record is not run on this machine; empty if it is."""
    if record.key.target != target:
        return OTHER_TARGET
    if record.key.compiler_version != compiler.VERSION:
        return OTHER_COMPILER
    if not record.is_ok and not record.is_lost_to_noise:
        return NOT_OK
    return TOO_FEW_CORES if record.key.threads > cores else ""


def _results(
    runner: Runner, records: Sequence[TrialRecord], workloads: Mapping[str, WorkloadRecord]
) -> dict[int, MeasureResult]:
    for record in records:
        key = record.key
        runner.submit(
            MeasureRequest(
                request_id=str(record.number),
                kernel=workloads[key.workload].kernel,
                workload_key=key.workload,
                schedule=record.schedule,
                threads=key.threads,
                options=_QUICK,
                numerics=key.numerics,
            )
        )
    results: dict[int, MeasureResult] = {}
    while runner.pending:
        results |= {int(result.request_id): result for result in runner.results()}
    return results


def _local_runner(threads: int) -> Runner:
    return create_runner("local", RunnerOptions(threads=threads, builders=1))


def _reason(error: Exception) -> str:
    """The error's first line, with its kind where that is not one of ours."""
    if isinstance(error, TunefarmError):
        return _first_line(error.message)
    return _first_line(f"{type(error).__name__}: {error}")


def _first_line(text: str) -> str:
    """The line that says what happened: the first one, of a traceback the last one."""
    lines = text.strip().splitlines() or ["no reason given"]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
