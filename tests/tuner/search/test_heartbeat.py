"""What others ask of a job is heard, on a file and on a server, until the job was told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunefarm.db.requests import ask
from tunefarm.db.store import Store
from tunefarm.tuner.interrupt import Interrupt, interrupt_thread, interruptible
from tunefarm.tuner.search.heartbeat import heartbeat

LIMIT = 60.0


@pytest.fixture(params=["file", "server"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return str(tmp_path / "tuning.db")
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as store:
        yield store


def test_a_stop_that_somebody_asks_for_is_heard_until_it_is_done(store: Store, url: str) -> None:
    job = store.start_job("net", "h", {}).id
    heard: list[str] = []
    done = threading.Event()

    def stop(by: str) -> bool:
        heard.append(by)
        if len(heard) == 2:  # the first time the job could not be told
            done.set()
        return done.is_set()

    with heartbeat(store, job, stop, seconds=0.02):
        with Store.open(url) as elsewhere:
            assert ask(elsewhere, job, "stop")
        assert done.wait(LIMIT)
    assert len(heard) == 2 and all(by.startswith("process ") for by in heard)


def test_a_job_that_nobody_asks_is_not_stopped(store: Store) -> None:
    job, other = (store.start_job(name, "h", {}).id for name in ("net", "other"))
    assert ask(store, other, "stop")
    heard = threading.Event()

    def stop(by: str) -> bool:
        heard.set()
        return True

    with heartbeat(store, job, stop, seconds=0.01):
        assert not heard.wait(0.2)  # several looks


def test_a_thread_that_works_is_told_by_its_interrupt() -> None:
    ready, told = threading.Event(), threading.Event()
    found: list[Interrupt] = []

    def work() -> None:
        with interruptible() as interrupt:
            found.append(interrupt)
            interrupt.add_listener(told.set)
            ready.set()
            told.wait(LIMIT)

    thread = threading.Thread(target=work)
    assert not interrupt_thread(thread)  # it does not run yet
    thread.start()
    assert ready.wait(LIMIT)
    assert interrupt_thread(thread) and told.wait(LIMIT)
    assert found[0].asked and interrupt_thread(thread)  # asked once is enough
    thread.join(LIMIT)
    assert not interrupt_thread(thread)


def test_the_main_thread_is_told_as_by_ctrl_c() -> None:
    with interruptible() as interrupt:
        helper = threading.Thread(target=interrupt_thread, args=(threading.main_thread(),))
        helper.start()
        helper.join(LIMIT)
        assert interrupt.asked
