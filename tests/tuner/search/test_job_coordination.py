"""Jobs that share a database share the work: nothing is measured twice, and what a killed one had
claimed is measured by another.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.db.examples import count_claims
from tests.tuner.setting import TILES, Setting, SyntheticRunner
from tests.tuner.synthetic import matmul_kernel, small_space
from tunefarm.db import queries
from tunefarm.db.check import check
from tunefarm.db.store import Store
from tunefarm.db.work import claim, close_lost_jobs
from tunefarm.measure.measurement import MeasureResult
from tunefarm.tuner.model.cost_model import BoostedTrees
from tunefarm.tuner.search.budget import End, Limits

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
