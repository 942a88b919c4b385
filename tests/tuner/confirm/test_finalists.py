"""The finalists of synthetic tasks, with a runner in this process that answers as it is told."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuner.setting import OTHER, TILES, Setting, SyntheticRunner
from tunefarm.db import queries
from tunefarm.db.records import hash_json
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.tuner.confirm.finalists import Finalists, RaceOptions
from tunefarm.tuner.records.trials import is_confirmed
from tunefarm.tuner.search.budget import Limits
from tunefarm.tuner.search.tasks import plan


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    """Every schedule of a task of seven was measured; the last one is the fastest by far."""
    made = Setting(tmp_path / "tuning.db")
    made.run(Limits(), OTHER)
    yield made
    made.store.close()


class NamingRunner(SyntheticRunner):
    """A comparison that fails names the schedule to blame."""

    def answer(self, request: MeasureRequest) -> MeasureResult:
        result = super().answer(request)
        hashes = [hash_json(schedule) for schedule in request.schedules]
        times = [self.answers[request.workload_key, hash] for hash in hashes]
        return replace(result, culprit=times.index(math.inf)) if math.inf in times else result


class ScatteringRunner(SyntheticRunner):
    """All slices are there, and said to scatter."""

    def answer(self, request: MeasureRequest) -> MeasureResult:
        return replace(super().answer(request), status=Status.SCATTERED, error="two modes")


def test_who_is_known_to_crash_is_not_looked_for(setting: Setting) -> None:
    task = setting.made[0]
    fastest = plan(task.space, task.space.candidate(6))
    runner = NamingRunner()
    runner.answers = {**setting.runner.answers, (task.key.workload, fastest.hash): math.inf}
    setting.runner = runner
    (settled,) = setting.confirm().settled
    assert all(request.rivals for request in runner.requests)  # nobody was tried alone
    assert fastest.hash not in settled.best.met
    assert settled.changes  # the next one won
    records = queries.trials(setting.store, task.key)
    failed = [record for record in records if is_confirmed(record) and not record.is_ok]
    assert {record.schedule_hash for record in failed} == {fastest.hash}


def test_slices_that_scatter_are_slices_all_the_same(setting: Setting) -> None:
    runner = ScatteringRunner()
    runner.answers = setting.runner.answers
    setting.runner = runner
    (settled,) = setting.confirm().settled
    assert settled.changes
    assert len(runner.requests) == RaceOptions().processes


def test_the_claim_is_what_was_expected_before_the_meeting(setting: Setting) -> None:
    task = setting.made[0]
    fastest = plan(task.space, task.space.candidate(6))
    before = setting.runner.answers[task.key.workload, fastest.hash] / task.default_latency
    setting.runner.answers[task.key.workload, fastest.hash] *= 1.1
    finalists = setting.confirm()
    (settled,) = finalists.settled
    assert finalists.claims == {task.key: settled.claimed}
    claimed = math.exp(settled.claimed.mean)
    assert claimed == pytest.approx(before, rel=0.1)
    assert settled.best.ratio == pytest.approx(1.1 * before, rel=0.01)


def test_records_of_finalists_are_ratios_in_the_scale_of_the_task(setting: Setting) -> None:
    task = setting.made[0]
    for key in setting.runner.answers:
        setting.runner.answers[key] *= 1.5  # the core has become slower
    (settled,) = setting.confirm().settled
    records = [r for r in queries.trials(setting.store, task.key) if is_confirmed(r)]
    winners = [r for r in records if r.schedule_hash == settled.best.schedule_hash]
    for record in winners:
        assert record.reference == task.default.hash
        assert record.ratio == pytest.approx(settled.best.ratio, rel=1e-6)
        assert record.latency == pytest.approx(task.default_latency * settled.best.ratio, rel=1e-6)


def test_where_most_is_claimed_confirms_first(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "tuning.db")
    setting.run(Limits(), TILES, OTHER)
    before = len(setting.runner.requests)
    claims = setting.confirm().claims
    first = setting.runner.requests[before].workload_key
    gains = {
        task.key.workload: -task.progress.cost * math.expm1(-claims[task.key].mean)
        for task in setting.made
    }
    assert first == min(gains, key=lambda workload: gains[workload])
    setting.store.close()


def test_what_is_still_measured_when_time_is_up_is_given_up(setting: Setting) -> None:
    class Silent(SyntheticRunner):
        @property
        def pending(self) -> int:
            return len(self.requests)

        def answer(self, request: MeasureRequest) -> MeasureResult:
            return MeasureResult(request.request_id, Status.INFRASTRUCTURE)

        def results(self, timeout: float | None = None) -> list[MeasureResult]:
            return []

    runner = Silent()
    polls = iter([False] * 5)  # then time is up
    finalists = Finalists(setting.store, job=setting.job, seed=0)
    finalists.run(setting.made, runner, {}, lambda _: next(polls, True), lambda: None)
    assert len(runner.requests) == 1
    assert not finalists.settled
