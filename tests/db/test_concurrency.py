"""Eight processes have trials to record: all are there, none twice, none is refused.

On a server each of them writes; a file has one writer, the driver, to which they send theirs.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from tests.db.examples import KEY, populate, trial
from tunefarm.db import queries
from tunefarm.db.check import check
from tunefarm.db.records import JobTask, TargetRecord, TaskKey, TrialRecord, WorkloadRecord
from tunefarm.db.store import Store

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tunefarm.db.store", "tests.db.examples", "psycopg"])

WRITERS = 8
TRIALS = 1000  # of each process that writes to a server
SUBMITTED = 250  # of each process that sends them to a driver
COMMON = 100  # of each writer's trials, those that all of them have
BATCH = 20
WORKLOADS = 7


def key_of(number: int) -> TaskKey:
    workload, target = f"workload {number % WORKLOADS}", f"target {number % 3}"
    return replace(KEY, workload=workload, target=target, threads=1 + number % 2)


def trials_of(writer: int) -> list[TrialRecord]:
    """Every other writer goes through workloads, tasks, machines and trials backwards."""
    numbers = [*range(COMMON), *range((1 + writer) * TRIALS + COMMON, (2 + writer) * TRIALS)]
    records = [trial(n, key=key_of(n), machine={"number": n % 5}, created=1.0) for n in numbers]
    return records if writer % 2 else records[::-1]


def batches(records: Sequence[TrialRecord]) -> Iterator[Sequence[TrialRecord]]:
    for start in range(0, len(records), BATCH):
        yield records[start : start + BATCH]


def add_parents(store: Store, order: int) -> None:
    names = [f"workload {number}" for number in range(WORKLOADS)][::order]
    store.add(WorkloadRecord(name, name, {}) for name in names)
    store.add(TargetRecord(f"target {number}", {}) for number in (0, 1, 2)[::order])


def write(url: str, writer: int, start: Any, done: Connection) -> None:
    """Record everything, from the creation of the schema on at the same time as the others."""
    records = trials_of(writer)
    start.wait()
    with Store.open(url) as store:
        add_parents(store, 1 if writer % 2 else -1)
        tasks = list(dict.fromkeys(record.key for record in records))
        job = store.start_job("model", "hash", {}, [JobTask(key, 1) for key in tasks]).id
        added = 0
        for batch in batches(records):
            added += store.add([replace(record, job=job) for record in batch])
            store.update_job(job, {"added": added})
        store.finish_job(job, "finished")
    done.send(added)


@pytest.mark.nightly
def test_eight_drivers_write_to_a_server_at_the_same_time(postgresql_url: str) -> None:
    start = _CONTEXT.Barrier(WRITERS)
    processes, results = [], []
    for writer in range(WRITERS):
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        arguments = postgresql_url, writer, start, theirs
        processes.append(_CONTEXT.Process(target=write, args=arguments, daemon=True))
        processes[-1].start()
        theirs.close()
        results.append(ours)
    added = [result.recv() for result in results]  # EOFError if a writer has failed
    for process in processes:
        process.join()
    distinct = WRITERS * (TRIALS - COMMON) + COMMON
    assert sum(added) == distinct
    with Store.open(postgresql_url, read_only=True) as store:
        found = [(t.key, t.request_id) for t in queries.iterate_trials(store)]
        assert len(found) == len(set(found)) == distinct
        expected = {(t.key, t.request_id) for n in range(WRITERS) for t in trials_of(n)}
        assert set(found) == expected
        assert {job.state for job in queries.jobs(store)} == {"finished"}
        assert sum(job.progress["added"] for job in queries.jobs(store)) == distinct
        assert check(store) == []


def submit(writer: int, trials: Queue[TrialRecord | None]) -> None:
    for number in range(SUBMITTED):
        trials.put(trial(1 + writer * SUBMITTED + number))
    trials.put(None)


def drive(path: Path, trials: Queue[TrialRecord | None], done: Connection) -> None:
    """Record in batches what is submitted, until every writer has said that it was all."""
    added, ended = 0, 0
    with Store.open(path) as store:
        populate(store)
        while ended < WRITERS:
            received = [trials.get()]
            while len(received) < BATCH:
                try:
                    received.append(trials.get_nowait())
                except Empty:
                    break
            ended += received.count(None)
            added += store.add(record for record in received if record is not None)
    done.send(added)


def test_one_driver_writes_what_eight_processes_submit_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    trials = _CONTEXT.Queue()
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    processes = [_CONTEXT.Process(target=drive, args=(path, trials, theirs), daemon=True)]
    for writer in range(WRITERS):
        processes.append(_CONTEXT.Process(target=submit, args=(writer, trials), daemon=True))
    for process in processes:
        process.start()
    theirs.close()
    assert ours.recv() == WRITERS * SUBMITTED
    for process in processes:
        process.join()
    with Store.open(path) as store:
        found = [record.request_id for record in queries.iterate_trials(store)]
        assert len(found) == WRITERS * SUBMITTED
        assert set(found) == {f"request-{1 + number}" for number in range(WRITERS * SUBMITTED)}
        assert check(store) == []
