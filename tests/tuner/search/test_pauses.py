"""A job whose process was stopped for long goes on, with what is left for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from tests.db.examples import count_claims
from tests.tuner.setting import TILES, Setting, SyntheticRunner
from tunefarm.configs.errors import LeaseTakenError
from tunefarm.db import queries, schema
from tunefarm.db.records import TrialRecord, hash_json
from tunefarm.db.store import Store
from tunefarm.db.work import claim, close_lost_jobs, renew_lease
from tunefarm.measure.measurement import MeasureResult
from tunefarm.tuner.search.budget import End, Limits
from tunefarm.tuner.search.pauses import PAUSE_SECONDS, Pauses


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
