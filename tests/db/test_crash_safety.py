"""A record that was acknowledged survives the death of its writer, and is there once."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.db.examples import KEY, populate, trial
from tunefarm.db import queries
from tunefarm.db.check import check
from tunefarm.db.store import Store

# One process imports the libraries; every writer is forked from it.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tunefarm.db.store", "tests.db.examples"])

KILLS = 20


def write_until_killed(path: Path, start: int, acknowledge: Connection) -> None:
    """Record trials one by one from number `start`, again from the one before it."""
    with Store.open(path) as store:
        populate(store)
        number = max(start - 1, 1)
        while True:
            store.add([trial(number), trial(number + 1)])
            acknowledge.send(number + 1)
            number += 2


@pytest.mark.nightly
def test_acknowledged_trials_survive_kills(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    rng = random.Random(7)
    acknowledged = 0
    for _ in range(KILLS):
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        writer = _CONTEXT.Process(
            target=write_until_killed, args=(path, acknowledged + 1, theirs), daemon=True
        )
        writer.start()
        theirs.close()
        for _ in range(rng.randrange(1, 12)):
            acknowledged = ours.recv()
        ours.poll(rng.random() * 0.01)  # die somewhere within the next transaction
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        acknowledged = last_message(ours, acknowledged)
        with Store.open(path) as store:
            numbers = [int(t.request_id.split("-")[1]) for t in queries.trials(store, KEY)]
            assert len(numbers) == len(set(numbers))
            assert set(range(1, acknowledged + 1)) <= set(numbers)
            assert max(numbers) <= acknowledged + 2
            assert max(numbers) == len(numbers), "a transaction was kept in part"
    with Store.open(path) as store:
        assert check(store) == []


def last_message(connection: Connection, default: int) -> int:
    """The last number that the writer sent before it died."""
    try:
        while True:
            default = connection.recv()
    except EOFError:
        return default


def create_and_write(path: Path, start: int, done: Connection) -> None:
    with Store.open(path) as store:
        populate(store)
        for number in range(start, start + 20):
            store.add([trial(number)])
    done.send("done")


def test_processes_that_create_the_same_database_agree(tmp_path: Path) -> None:
    """None overwrites another's tables, loses a record or reports a lock."""
    path = tmp_path / "tuning.db"
    writers = []
    for number in range(4):
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(
            target=create_and_write, args=(path, 1 + 20 * number, theirs), daemon=True
        )
        process.start()
        theirs.close()
        writers.append((process, ours))
    for process, ours in writers:
        assert ours.recv() == "done"
        process.join()
    with Store.open(path) as store:
        assert queries.count_trials(store, KEY) == {"ok": 80}
        assert check(store) == []


def test_reader_beside_a_writer_sees_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    with Store.open(path) as reader:
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        writer = _CONTEXT.Process(target=write_until_killed, args=(path, 1, theirs), daemon=True)
        writer.start()
        theirs.close()
        seen = 0
        for _ in range(40):
            acknowledged = ours.recv()
            count = queries.count_trials(reader, KEY).get("ok", 0)
            assert count >= acknowledged
            assert count >= seen
            assert count % 2 == 0
            best = queries.fastest_trial(reader, KEY)
            assert best is not None
            assert best.number == 1
            seen = count
        writer.kill()
        writer.join()
