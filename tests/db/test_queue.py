"""The queue: entries outlive the processes that work on them, and nobody takes what is taken."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.db.examples import KEY, populate, trial
from tunefarm.configs.errors import DatabaseError
from tunefarm.db.check import check
from tunefarm.db.queue import (
    add_entry,
    change_entry,
    entries,
    entry,
    hold_entry,
    jobs_of_process,
    remove_entry,
    take_entry,
    trials_of_jobs,
)
from tunefarm.db.records import JobTask
from tunefarm.db.store import Store

ARGUMENTS = ("--model", "größer.onnx", "--threads", "2")


@pytest.fixture(params=["file", "server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Of both kinds."""
    is_file = request.param == "file"
    url = tmp_path / "tuning.db" if is_file else request.getfixturevalue("postgresql_url")
    with Store.open(url) as store:
        yield store


def test_entries_keep_their_order_and_all_that_was_said(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        first = add_entry(store, "a.onnx", ARGUMENTS, "/models", {"weight": 2.0})
        second = add_entry(store, "b.onnx", (), "/models", {})
    with Store.open(tmp_path / "tuning.db", read_only=True) as store:
        assert entries(store) == [first, second]
        assert (first.arguments, first.options) == (ARGUMENTS, {"weight": 2.0})
        assert (first.state, first.attempts, first.is_held) == ("waiting", 0, False)
        assert check(store) == []


def test_entry_is_taken_once_and_let_go_when_it_ends(store: Store) -> None:
    id = add_entry(store, "a.onnx", (), "/", {}).id
    assert take_entry(store, id)
    assert not take_entry(store, id)
    hold_entry(store, id)
    assert entry(store, id).is_held
    ended = change_entry(store, id, state="finished", seconds=12.5, job="abc")
    assert (ended.is_held, ended.seconds, ended.job, ended.attempts) == (False, 12.5, "abc", 1)
    assert not take_entry(store, id)
    remove_entry(store, id)
    assert entries(store) == []


def _take(path: Path, id: str, told: Connection) -> None:
    with Store.open(path) as store:
        told.send(take_entry(store, id))
        signal.pause()


def test_entry_of_a_killed_process_is_taken_by_another(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    context = multiprocessing.get_context("forkserver")
    with Store.open(path) as store:
        id = add_entry(store, "a.onnx", (), "/", {}).id
        here, there = context.Pipe()
        process = context.Process(target=_take, args=(path, id, there))
        process.start()
        assert here.poll(60)
        assert here.recv()
        assert not take_entry(store, id)
        with pytest.raises(DatabaseError, match="is being worked on"):
            remove_entry(store, id)
        with pytest.raises(DatabaseError, match="another process"):
            change_entry(store, id, seconds=1.0)
        process.kill()
        process.join(60)
        assert not entry(store, id).is_held
        assert take_entry(store, id)
        assert entry(store, id).attempts == 2


def test_what_cannot_be_is_refused(store: Store) -> None:
    id = add_entry(store, "a.onnx", (), "/", {}).id
    with pytest.raises(DatabaseError, match="no such state"):
        change_entry(store, id, state="asleep")
    with pytest.raises(DatabaseError, match="has no colour"):
        change_entry(store, id, colour="red")
    with pytest.raises(DatabaseError, match="'nothing' is not in the queue"):
        remove_entry(store, "nothing")


def test_what_an_entry_costs_is_told_while_it_runs(store: Store) -> None:
    id = add_entry(store, "a.onnx", (), "/", {}).id
    assert take_entry(store, id)
    hold_entry(store, id, 7.5)
    assert entry(store, id).seconds == 7.5


def test_jobs_of_a_process_and_their_trials(store: Store) -> None:
    populate(store)
    job = store.start_job("model", "hash", {}, [JobTask(KEY, 2)]).id
    assert jobs_of_process(store, os.getpid()) == [job]
    assert jobs_of_process(store, 1) == []
    store.add([trial(1, job=job), trial(2, job=job), trial(3)])
    store.finish_job(job, "finished")
    assert jobs_of_process(store, os.getpid()) == []
    assert trials_of_jobs(store, [job]) == 2
    assert trials_of_jobs(store, []) == 0
