"""Jobs that share a database share the work: nothing is measured twice, and what a killed one had
claimed is measured by another.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from sqlalchemy import select

from tests.db.examples import count_claims
from tests.tuner.setting import TILES, Setting, SyntheticRunner
from tests.tuner.synthetic import matmul_kernel, small_space
from tunefarm.configs.errors import LeaseTakenError
from tunefarm.db import queries, schema
from tunefarm.db.check import check
from tunefarm.db.records import TrialRecord, hash_json
from tunefarm.db.store import Store
from tunefarm.db.work import ask, claim, close_lost_jobs, renew_lease
from tunefarm.measure.measurement import MeasureResult
from tunefarm.tuner.interrupt import Interrupt, interrupt_thread, interruptible
from tunefarm.tuner.model.cost_model import BoostedTrees
from tunefarm.tuner.search.budget import End, Limits
from tunefarm.tuner.search.job_coordination import PAUSE_SECONDS, Pauses, heartbeat

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.tuner.setting"])

SIZES = (40, 30)
SECONDS = 60.0


class TellingRunner(SyntheticRunner):
    """Answers one request at a time; after as many as there are default schedules when it is told
    to."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(4)
        self._connection = connection
        self._goes_on = False
        self._answered = 0

    def results(self, timeout: float | None = None) -> list[MeasureResult]:
        self._answered += 1
        if not self._goes_on and self._answered > len(SIZES):
            self._connection.send("measuring")
            self._goes_on = self._connection.recv() == "go on"
        one, self._ready = self._ready[:1], self._ready[1:]
        return one


def drive(path: Path, connection: Connection) -> None:
    setting = Setting(path)
    setting.runner = TellingRunner(connection)
    kernels = matmul_kernel(), matmul_kernel(7, 13, 97)
    kinds = [(kernel, small_space(size), 1) for kernel, size in zip(kernels, SIZES, strict=True)]
    setting.run(Limits(), *kinds)
    setting.store.finish_job(setting.job, "finished")
    connection.send(f"measured {len(setting.runner.requests)}")


class Driver:
    def __init__(self, path: Path) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self.process: BaseProcess = _CONTEXT.Process(target=drive, args=(path, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def says(self) -> str:
        assert self.connection.poll(SECONDS)
        return str(self.connection.recv())

    def goes_on(self) -> None:
        self.connection.send("go on")


def recorded(path: Path) -> tuple[int, int]:
    """How many trials there are, and of how many schedules."""
    with Store.open(path) as store:
        assert check(store) == []
        schedules = [(r.key, r.schedule_hash) for r in queries.iterate_trials(store)]
        return len(schedules), len(set(schedules))


def test_two_drivers_measure_everything_once(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    first = Driver(path)
    assert first.says() == "measuring"  # so that there is a database, and both are at work
    second = Driver(path)
    assert second.says() == "measuring"
    first.goes_on()
    second.goes_on()
    counts = [int(driver.says().removeprefix("measured ")) for driver in (first, second)]
    for driver in (first, second):
        driver.process.join(SECONDS)
    assert recorded(path) == (sum(counts), sum(SIZES))
    assert sum(counts) <= 1.4 * sum(SIZES)  # each measures a fifth of its own again, at most
    assert min(counts) > 0
    with Store.open(path) as store:
        assert count_claims(store) == 0
        assert {job.state for job in queries.jobs(store)} == {"finished"}


def test_what_a_killed_driver_had_claimed_is_measured_by_the_other(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    killed = Driver(path)
    assert killed.says() == "measuring"
    with Store.open(path) as store:
        assert count_claims(store) > 0
        assert [job.state for job in queries.jobs(store)] == ["running"]
    other = Driver(path)
    assert other.says() == "measuring"
    assert killed.process.pid is not None
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.join(SECONDS)
    other.goes_on()
    measured = int(other.says().removeprefix("measured "))
    other.process.join(SECONDS)
    assert recorded(path) == (len(SIZES) + measured, sum(SIZES))
    with Store.open(path) as store:
        assert [job.state for job in queries.jobs(store)] == ["finished", "lost"]
        (lost,) = close_lost_jobs(store)
        assert f"process {killed.process.pid} on " in lost.where
        assert close_lost_jobs(store) == []
        assert queries.jobs(store)[1].finished is not None
        assert count_claims(store) == 0


def test_results_of_another_job_are_learnt_from_and_not_measured(tmp_path: Path) -> None:
    """The other job has claimed three schedules before, and records them when it is waited for."""
    setting = Setting(tmp_path / "tuning.db")
    scout = Setting(tmp_path / "scout.db")
    scout.run(Limits(), TILES)
    trials = queries.trials(scout.store, scout.made[0].key)
    setting.tasks(BoostedTrees(0), TILES)
    other = setting.store.start_job("model", "hash", {}).id
    theirs = trials[2:5]
    claims = [(record.key, record.schedule_hash) for record in theirs]
    assert claim(setting.store, other, claims) == set(claims)

    class Recording(SyntheticRunner):
        def results(self, timeout: float | None = None) -> list[MeasureResult]:
            if len(self.requests) == 6 and not recorded_theirs:
                recorded_theirs.append(True)
                setting.store.add(replace(record, job=other) for record in theirs)
                setting.store.finish_job(other, "finished")
            return super().results(timeout)

    recorded_theirs: list[bool] = []
    setting.runner = Recording(1)
    assert setting.run(Limits(), TILES) is End.EXHAUSTED
    assert recorded_theirs
    assert len(setting.runner.requests) == 6
    assert setting.made[0].progress.trials == 9
    assert setting.made[0].progress.pending == 0
    assert len(setting.made[0].lessons) == 9


def test_failures_of_the_machinery_are_no_reason_to_leave_a_candidate(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "tuning.db")
    setting.run(Limits(trials=1), TILES)
    (record,) = queries.trials(setting.store, setting.made[0].key)
    wanted = {(record.key, record.schedule_hash)}
    job = setting.store.start_job("model", "hash", {}).id
    assert claim(setting.store, job, wanted) == set()
    assert claim(setting.store, job, wanted, unmeasured=("ok",)) == wanted


def lose(store: Store) -> None:
    """Have another machine take the running jobs to be lost: their leases ended long ago."""
    with store.writing() as session:
        for lease in session.scalars(select(schema.Lease)).all():
            lease.host, lease.seen = "elsewhere", lease.seen - 3600.0
    assert len(close_lost_jobs(store)) == 1


class StoppedRunner(SyntheticRunner):
    """Lets an hour pass before it answers for the sixth request, in which others do something."""

    def __init__(self, meanwhile: Callable[[list[str]], None]) -> None:
        super().__init__(3)
        self.now = 0.0
        self._meanwhile = meanwhile

    def results(self, timeout: float | None = None) -> list[MeasureResult]:
        if len(self.requests) >= 6 and not self.now:
            self.now = 3600.0
            waiting = {result.request_id for result in self._ready}
            asked = [request for request in self.requests if request.request_id in waiting]
            self._meanwhile([hash_json(request.schedule) for request in asked])
        return super().results(timeout)


def stopped(setting: Setting, meanwhile: Callable[[list[str]], None]) -> StoppedRunner:
    runner = StoppedRunner(meanwhile)
    setting.runner = runner
    setting.pauses = Pauses(lambda: runner.now)
    return runner


def known(tmp_path: Path) -> dict[str, TrialRecord]:
    """What a job finds out about each schedule, by its hash."""
    scout = Setting(tmp_path / "scout.db")
    scout.run(Limits(), TILES)
    return {r.schedule_hash: r for r in queries.trials(scout.store, scout.made[0].key)}


def test_a_job_that_was_taken_to_be_lost_goes_on_with_what_nobody_else_has(tmp_path: Path) -> None:
    found = known(tmp_path)
    setting = Setting(tmp_path / "tuning.db")
    theirs: list[str] = []

    def meanwhile(pending: list[str]) -> None:
        store, key = setting.store, setting.made[0].key
        lose(store)
        assert [job.state for job in queries.jobs(store)] == ["lost"]
        theirs.extend([store.start_job("model", "hash", {"another": 1}).id, *pending[:2]])
        wanted = {(key, hash) for hash in pending[:2]}
        assert claim(store, theirs[0], wanted) == wanted
        store.add([replace(found[pending[0]], job=theirs[0])])
        store.finish_job(theirs[0], "finished")

    stopped(setting, meanwhile)
    assert setting.run(Limits(), TILES) is End.EXHAUSTED
    other, measured, claimed = theirs
    jobs = {job.id: job.state for job in queries.jobs(setting.store)}
    assert jobs == {setting.job: "running", other: "finished"}
    trials = queries.trials(setting.store, setting.made[0].key)
    first = {trial.schedule_hash: trial.job for trial in reversed(trials)}
    assert set(first) == set(found)
    assert first[measured] == other and first[claimed] == setting.job
    fresh = [trial.schedule_hash for trial in trials if trial.reference != trial.schedule_hash]
    assert fresh.count(measured) == 1
    assert setting.made[0].progress.pending == 0
    assert count_claims(setting.store) == 0


def test_a_job_that_another_process_goes_on_with_ends_with_a_word(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "tuning.db")

    def meanwhile(_: list[str]) -> None:
        lose(setting.store)
        setting.store.start_job("model", "hash", {})

    stopped(setting, meanwhile)
    with pytest.raises(LeaseTakenError, match=r"^process [0-9]+ on .* goes on with this job"):
        setting.run(Limits(), TILES)
    assert [job.state for job in queries.jobs(setting.store)] == ["running", "lost"]


def test_results_that_came_meanwhile_are_used(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "tuning.db")
    runner = stopped(setting, lambda _: None)
    assert setting.run(Limits(), TILES) is End.EXHAUSTED
    trials = queries.trials(setting.store, setting.made[0].key)
    assert {trial.job for trial in trials} == {setting.job}
    assert len(trials) == len(runner.requests)


def test_a_lease_that_lapsed_is_taken_again(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        job = store.start_job("model", "hash", {}).id
        assert not renew_lease(store, job)
        lose(store)
        assert queries.jobs(store)[0].finished is not None
        assert renew_lease(store, job)
        (found,) = queries.jobs(store)
        assert (found.state, found.finished) == ("running", None)
        assert not renew_lease(store, job)


def test_a_pause_is_what_nobody_asked_in() -> None:
    moments = iter([0.0, 1.0, PAUSE_SECONDS, 5 * PAUSE_SECONDS, 5 * PAUSE_SECONDS + 1.0])
    pauses = Pauses(lambda: next(moments))
    assert [pauses.has_been() for _ in range(4)] == [False, False, True, False]


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
