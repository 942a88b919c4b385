"""Databases of every earlier schema become this one's with all that they held, or stay whole.

`tests/data/schema_REVISION.db.gz` was written by the version that had this schema.
"""

from __future__ import annotations

import gzip
import multiprocessing
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tunefarm.configs.errors import DatabaseError
from tunefarm.db import model_queries, queries, schema
from tunefarm.db.check import check, schema_of
from tunefarm.db.prepare import known_revisions
from tunefarm.db.records import JobTask, TaskKey
from tunefarm.db.store import Store

DATA = Path(__file__).resolve().parents[1] / "data"
KEY = TaskKey("89abcdef01234567", "x86-64-v3/8", 1, "default", "1")
OTHER = TaskKey("89abcdef01234567", "x86-64-v3/8", 2, "strict", "1")
OLDER = [revision for revision in known_revisions() if revision != schema.REVISION]

WITH_CHECKSUMS = [revision for revision in OLDER if revision in schema.WITH_CHECKSUMS]


def unpacked(revision: str, folder: Path) -> Path:
    path = folder / "tuning.db"
    path.write_bytes(gzip.decompress((DATA / f"schema_{revision}.db.gz").read_bytes()))
    return path


def dump(path: Path) -> list[str]:
    """Everything in the file, as SQL."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def revision_of(path: Path) -> str | None:
    """The schema that a database's version table names."""
    return schema_of(path)


@pytest.mark.parametrize("revision", known_revisions())
def test_every_schema_is_read_with_all_that_it_held(revision: str, tmp_path: Path) -> None:
    with Store.open(unpacked(revision, tmp_path)) as store:
        assert check(store) == []
        trials = list(queries.iterate_trials(store))
        assert [trial.request_id for trial in trials] == [f"request-{n}" for n in range(1, 5)]
        assert [trial.latency for trial in trials] == [0.5, 2.0, None, 0.25]
        assert trials[0].schedule == [["Tile", "oc", 1], ["Vectorize", "oci"]]
        assert trials[0].conditions == {"load": 0.5, "note": "größer"}
        assert trials[2].error == "signal 11\nat 0x0"
        (job,) = queries.jobs(store)
        assert (job.state, job.tasks) == ("finished", (JobTask(KEY, 4), JobTask(OTHER, 1)))
        assert queries.fastest_trial(store, KEY) == trials[0]
        settled = queries.best(store, OTHER)
        assert (settled is not None) == (revision != "0001")
        assert queries.finalists(store, OTHER) == [trials[3]]
        assert queries.finalists(store, KEY) == []
        assert model_queries.builds(store) == []
        pair = (trials[0].reference, trials[0].ratio, trials[0].reference_samples)
        paired = (trials[1].schedule_hash, 0.25, (2.0, 2.5, 1.5))
        assert pair == (paired if revision >= "0005" else (None, None, ()))


@pytest.mark.parametrize("revision", WITH_CHECKSUMS)
def test_damaged_row_of_an_older_schema_is_found_before_its_upgrade(
    revision: str, tmp_path: Path
) -> None:
    path = unpacked(revision, tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE trials SET latency = 0.4 WHERE id = 1")
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match="trials 1: its checksum is not right"):
        Store.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("revision", OLDER)
def test_a_backup_of_the_older_file_is_kept(revision: str, tmp_path: Path) -> None:
    path = unpacked(revision, tmp_path)
    before, backup = dump(path), tmp_path / f"tuning.db.{revision}.backup"
    with Store.open(path) as store:
        note = f"{path}: schema {revision} upgraded to {schema.REVISION}, as it was before in "
        assert store.upgrade_note == f"{note}{backup}"
    assert dump(backup) == before
    assert dump(path) != before


@pytest.mark.parametrize("revision", OLDER)
def test_older_schema_is_read_and_left_alone_by_readers(revision: str, tmp_path: Path) -> None:
    path = unpacked(revision, tmp_path)
    before = path.read_bytes()
    path.chmod(0o444)
    with Store.open(path, read_only=True) as store:
        assert check(store) == []
        assert [trial.latency for trial in queries.trials(store, KEY)] == [0.5, 2.0, None]
        assert store.upgraded_from == revision
        assert store.upgrade_note.endswith(f"to upgrade the file: tune db upgrade --db {path}")
        with pytest.raises(DatabaseError, match="open for reading only"):
            store.start_job("model", "hash", {})
    with pytest.raises(DatabaseError, match=rf"schema {revision}, older .*tune db upgrade --db "):
        Store.open(path, upgrade=False)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def _open(path: Path) -> None:
    os.setsid()
    Store.open(path).close()


@pytest.mark.parametrize("revision", OLDER)
def test_killed_upgrade_leaves_the_old_or_the_new_schema(revision: str, tmp_path: Path) -> None:
    """Killed at six moments, spread over the time that the whole takes."""
    context = multiprocessing.get_context("fork")
    start = time.perf_counter()
    _upgrade_in(context, unpacked(revision, tmp_path), None)
    whole = time.perf_counter() - start
    seen = set()
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = unpacked(revision, folder)
        _upgrade_in(context, path, whole * (number + 1) / 6)
        found = revision_of(path)
        assert found in (revision, schema.REVISION)
        seen.add(found)
        with Store.open(path) as store:  # and it can be upgraded again
            assert check(store) == []
            assert sum(queries.count_trials(store).values()) == 4
    assert revision in seen


def _upgrade_in(
    context: multiprocessing.context.ForkContext, path: Path, seconds: float | None
) -> None:
    """Upgrade in a process that is killed after so many seconds."""
    process = context.Process(target=_open, args=(path,))
    process.start()
    process.join(seconds)
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
