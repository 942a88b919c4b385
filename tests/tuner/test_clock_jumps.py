"""The system's clock is set three hours back or forward: deadlines, durations and leases stay."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from sqlalchemy import select

from tests.db.examples import KEY
from tests.processes import python
from tunefarm.configs.clock import since_boot
from tunefarm.db import processes, queries, schema
from tunefarm.db.queue import add_entry, entries, take_entry
from tunefarm.db.store import Store
from tunefarm.db.work import CLAIM_SECONDS, claim, close_lost_jobs, renew_lease
from tunefarm.tuner.commands.job_status import resuming, time_left, time_taken
from tunefarm.tuner.records.job_command import JobCommand
from tunefarm.tuner.reports.job_state import JobState

pytestmark = pytest.mark.usefixtures("populated")

HOURS = (-3.0, 3.0)

NIGHT = """
import json, sys, time

real, hours = time.time, [0.0]
time.time = lambda: real() + 3600.0 * hours[0]

from tunefarm.tuner.commands import jobs_cli
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.queues import queue_runner

found = []


def run(self):
    hours[0] = float(sys.argv[1])
    found.append(self.left)


queue_runner.QueueRunner.run = run
app(["jobs", "run", "--minutes", "10", "--db", sys.argv[2], "--json", sys.argv[3]],
    standalone_mode=False)
summary = json.load(open(sys.argv[3]))
print(json.dumps([found[0], summary["ended"] - summary["began"]]))
"""


@pytest.fixture(params=HOURS, ids=["back", "forward"])
def hours(request: pytest.FixtureRequest) -> float:
    return float(request.param)


class WallClock:
    """The system's clock, which `set` moves by hours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now, self._hours = time.time, 0.0
        monkeypatch.setattr(time, "time", lambda: self._now() + 3600.0 * self._hours)

    def set(self, hours: float) -> None:
        self._hours = hours


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(monkeypatch)


def test_a_queue_that_ends_after_ten_minutes_ends_after_ten_minutes(
    store: Store, tmp_path: Path, hours: float
) -> None:
    add_entry(store, "net", ("--model", "/m.onnx"), "/", {})
    store.close()
    ran = python("-c", NIGHT, str(hours), store.name, str(tmp_path / "summary.json"))
    assert ran.stdout, ran.stderr
    left, took = json.loads(ran.stdout.splitlines()[-1])
    assert 500 < left <= 600 and 0 <= took < 100


def test_a_job_has_the_minutes_that_it_did_not_use(
    store: Store, clock: WallClock, hours: float
) -> None:
    command = JobCommand(("--model", "/m.onnx"), "/", time.time(), 10.0)
    job = store.start_job("net.onnx", "h", command.kept_in({})).id
    clock.set(hours)
    store.finish_job(job, "interrupted")
    (found,) = queries.jobs(store)
    assert time_taken(found) < 100
    _, arguments = resuming(store, job, "/t.db", minutes=None, trials=None)
    assert 8.0 < float(arguments[-1]) <= 10.0


def test_a_lost_job_has_the_minutes_that_it_did_not_use(
    store: Store, clock: WallClock, hours: float
) -> None:
    command = JobCommand(("--model", "/m.onnx"), "/", time.time(), 10.0)
    job = store.start_job("net.onnx", "h", command.kept_in({})).id
    clock.set(hours)
    renew_lease(store, job)
    with store.writing() as session:
        session.scalars(select(schema.Lease)).one().process_started = -7  # it is gone
    assert len(close_lost_jobs(store)) == 1
    _, arguments = resuming(store, job, "/t.db", minutes=None, trials=None)
    assert 8.0 < float(arguments[-1]) <= 10.0


def test_what_is_shown_of_a_running_job_is_right_from_its_next_word(
    store: Store, clock: WallClock, hours: float
) -> None:
    job = store.start_job("net.onnx", "h", {}).id
    clock.set(hours)
    store.update_job(job, JobState(elapsed=30.0, left=60.0, at=time.time()).to_json())
    (found,) = queries.jobs(store)
    left = time_left(found, JobState.of(found.progress))
    assert left is not None
    assert 30.0 <= time_taken(found) < 60.0 and 30.0 < left <= 60.0


def be_of_another_machine(store: Store, seen: float | None = None) -> None:
    """The running jobs and entries are a living process's elsewhere, which says something now."""
    now = time.time() if seen is None else seen
    with store.writing() as session:
        for lease in session.scalars(select(schema.Lease)).all():
            lease.host, lease.seen = "elsewhere", now
        for entry in session.scalars(select(schema.QueueEntry)).all():
            entry.holder = {**entry.holder, "host": "elsewhere", "seen": now}


def states(store: Store) -> tuple[str, bool]:
    return queries.jobs(store)[0].state, entries(store)[0].is_held


@pytest.fixture
def watched(store: Store) -> Store:
    """With a job and an entry of another machine that this process has looked at."""
    store.start_job("net.onnx", "h", {})
    assert take_entry(store, add_entry(store, "net", (), "/", {}).id)
    be_of_another_machine(store)
    assert states(store) == ("running", True)
    return store


def test_who_was_seen_alive_stays_alive_when_this_machines_clock_is_set(
    watched: Store, clock: WallClock, hours: float
) -> None:
    clock.set(hours)
    assert states(watched) == ("running", True)
    assert not take_entry(watched, entries(watched)[0].id)
    assert close_lost_jobs(watched) == []


def test_who_says_something_new_is_alive_whatever_its_clock_says(
    watched: Store, hours: float
) -> None:
    be_of_another_machine(watched, seen=time.time() + 3600.0 * hours)
    assert states(watched) == ("running", True)


def test_who_says_nothing_new_is_gone_after_a_minute_also_when_the_clock_was_set_back(
    watched: Store, clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = since_boot() + processes.LEASE_SECONDS + 1.0
    clock.set(-(processes.LEASE_SECONDS + 1.0) / 3600.0)  # by the clock no time has passed
    monkeypatch.setattr(processes, "since_boot", lambda: later)
    assert states(watched) == ("lost", False)
    assert take_entry(watched, entries(watched)[0].id)


def test_a_claim_does_not_last_longer_after_the_clock_was_set_back(
    store: Store, clock: WallClock
) -> None:
    first, second = (store.start_job(name, "h", {}).id for name in "ab")
    clock.set(3.0)
    assert claim(store, first, [(KEY, "one")])
    clock.set(0.0)
    assert claim(store, second, [(KEY, "one")]) == {(KEY, "one")}
    clock.set(1.5 * CLAIM_SECONDS / 3600.0)
    assert claim(store, first, [(KEY, "one")]) == {(KEY, "one")}
