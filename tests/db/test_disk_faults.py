"""A full or failing disk stops no job: every write waits, and nothing acknowledged is lost.

A small library that is preloaded makes the calls that change the database's files fail, one after
the other: each call of a job's writes is once the first of a few that fail.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.db.examples import KEY, populate, trial
from tests.processes import python
from tunefarm.configs.errors import DatabaseUnavailableError
from tunefarm.db import queries
from tunefarm.db.check import check
from tunefarm.db.records import BestRecord, JobTask
from tunefarm.db.store import Store

SOURCE = Path(__file__).with_name("disk_faults.c")
FAILING_CALLS = 3


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc)")
@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "failing"])
def test_every_write_waits_for_the_disk(error: int, step: int, tmp_path: Path) -> None:
    """Every call that changes the database's files fails once; by day every twelfth."""
    library = tmp_path / "disk_faults.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    script = "import sys; from tests.db.test_disk_faults import run; run(*sys.argv[1:])"
    done = python("-c", script, str(library), str(tmp_path), str(error), str(step), env=environment)
    assert done.returncode == 0, done.stderr
    calls, tried, waits = map(int, done.stdout.split())
    assert calls > 50
    assert tried >= calls // step
    assert waits >= 0.8 * tried  # a failure that SQLite gets over by itself needs no waiting


class CountingPatience:
    """Tries again at once, and counts how often."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, error: DatabaseUnavailableError) -> bool:
        self.asked += 1
        return True


def run(library: str, folder: str, error: str, step: str) -> None:
    """In a process with the library preloaded: fail every `step`th call once; prints the number of
    calls, of those that failed, and how often a write had to wait."""
    faults = ctypes.CDLL(library)
    faults.disk_faults_arm.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_int]
    faults.disk_faults_seen.restype = ctypes.c_long
    calls, tried, waits, number = 1, 0, 0, 0
    empty = Path(folder, "empty.db")
    Store.open(empty).close()
    while number < calls:
        path = Path(folder, f"{number}.tuning.db")
        shutil.copyfile(empty, path)
        with Store.open(path) as store:
            patience = store.patience = CountingPatience()
            faults.disk_faults_arm(number, FAILING_CALLS, int(error))
            write_like_a_job(store)
            calls = max(calls, faults.disk_faults_seen()) if number == 0 else calls
            faults.disk_faults_arm(0, 0, 0)
        waits += patience.asked > 0
        verify(path)
        path.unlink()
        tried += 1
        number += int(step)
    print(calls, tried, waits)


def write_like_a_job(store: Store) -> None:
    """Everything that a job writes, acknowledged step by step."""
    populate(store)
    job = store.start_job("model", "hash", {}, [JobTask(KEY, 2)]).id
    store.add([trial(1, job=job), trial(2, job=job)])
    store.update_job(job, {"trials": 2})
    store.add([trial(3, job=job)])
    record = trial(3)
    best = BestRecord(KEY, record.schedule_hash, record.request_id, 2.0, 0.5, 0.4, 0.6, ("a",), job)
    store.add([best])
    store.finish_job(job, "finished", {"trials": 3})


def verify(path: Path) -> None:
    """All of it is there, once."""
    with Store.open(path, create=False) as store:
        assert check(store) == []
        found = queries.trials(store, KEY)
        assert [record.request_id for record in found] == [f"request-{n}" for n in (1, 2, 3)]
        (job,) = queries.jobs(store)
        assert (job.state, job.progress) == ("finished", {"trials": 3})
        settled = queries.best(store, KEY)
        assert settled is not None and settled[1].request_id == "request-3"
