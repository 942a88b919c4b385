"""The driver dies at random moments: nothing acknowledged is lost, nothing is there twice, and the
next run repeats only what was in flight.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.tuner.setting import Setting, SyntheticRunner
from tests.tuner.synthetic import matmul_kernel, small_space
from tunefarm.db import queries
from tunefarm.db.check import check
from tunefarm.db.records import Record, TrialRecord
from tunefarm.db.store import Store
from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.tuner.search.budget import Limits
from tunefarm.tuner.search.tasks import AGAIN_SHARE

# One process imports the libraries; every driver is forked from it.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.tuner.setting"])

TRIALS_PER_KILL = 8
CAPACITY = 4


class SlowRunner(SyntheticRunner):
    """Takes its time, and tells of every request that it takes in."""

    def __init__(self, tell: Connection) -> None:
        super().__init__(CAPACITY)
        self._tell = tell

    def submit(self, request: MeasureRequest) -> None:
        super().submit(request)
        self._tell.send(("submitted", request.request_id))

    def results(self, timeout: float | None = None) -> list[MeasureResult]:
        time.sleep(0.003)
        one, self._ready = self._ready[:1], self._ready[1:]
        return one


class TellingStore(Store):
    """Tells of every trial when it is acknowledged."""

    tell: Connection

    def add(self, records: Iterable[Record], addition: int | None = None) -> int:
        new = list(records)
        count = super().add(new, addition)
        for record in new:
            if isinstance(record, TrialRecord):
                self.tell.send(("recorded", record.request_id))
        return count


def drive(path: Path, tell: Connection, trials: int) -> None:
    """Tune two tasks, as a job does, until all trials are used up."""
    setting = Setting(path, TellingStore)
    assert isinstance(setting.store, TellingStore)
    setting.store.tell = tell
    setting.runner = SlowRunner(tell)
    each = 2 * trials // 3  # candidates: more in all than there are trials
    first, second = matmul_kernel(), matmul_kernel(7, 13, 97)
    kinds = (first, small_space(each), 1), (second, small_space(each - 4), 3)
    setting.run(Limits(trials=trials), *kinds)
    setting.store.close()
    tell.send(("finished", ""))


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=pytest.mark.nightly)])
def test_killed_drivers_lose_nothing_and_repeat_nothing(kills: int, tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    rng = random.Random(kills)
    trials = TRIALS_PER_KILL * kills
    recorded: set[str] = set()
    submitted = killed = 0
    while True:
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        driver = _CONTEXT.Process(target=drive, args=(path, theirs, trials), daemon=True)
        driver.start()
        theirs.close()
        end = rng.randrange(1, 2 + TRIALS_PER_KILL // 2) if killed < kills else trials
        events: list[tuple[str, str]] = []
        while len([e for e in events if e[0] == "recorded"]) < end and (event := receive(ours)):
            events.append(event)
        if killed < kills and ("finished", "") not in events:
            ours.poll(rng.random() * 0.005)  # somewhere within what comes next
            assert driver.pid is not None
            os.kill(driver.pid, signal.SIGKILL)
            killed += 1
        while event := receive(ours):
            events.append(event)
        driver.join()
        recorded |= {request for kind, request in events if kind == "recorded"}
        submitted += sum(kind == "submitted" for kind, _ in events)
        verify(path, recorded)
        if ("finished", "") in events:
            break
    assert killed >= kills // 2
    with Store.open(path) as store:
        assert sum(queries.count_trials(store).values()) == trials
        assert check(store) == []
    assert submitted <= trials + killed * CAPACITY


def receive(connection: Connection) -> tuple[str, str] | None:
    """The next event; None when the driver is gone."""
    try:
        event: tuple[str, str] = connection.recv()
    except EOFError:
        return None
    return event


def verify(path: Path, acknowledged: set[str]) -> None:
    """Every acknowledged trial is there, none twice, and few measure again what is known."""
    with Store.open(path) as store:
        records = list(queries.iterate_trials(store))
        requests = [record.request_id for record in records]
        assert acknowledged <= set(requests)
        assert len(requests) == len(set(requests))
        schedules = [(record.key, record.schedule_hash) for record in records]
        assert len(schedules) - len(set(schedules)) <= AGAIN_SHARE * len(schedules)
