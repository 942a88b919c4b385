"""A session on synthetic tasks with a runner in this process: nothing lost, nothing repeated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuner.setting import OTHER, TILES, Setting, SyntheticRunner
from tests.tuner.synthetic import matmul_kernel, small_space, tile_space
from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.db import queries
from tunefarm.db.records import hash_json
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.tuner.confirm.finalists import Finalists, RaceOptions, refresh
from tunefarm.tuner.model.cost_model import BoostedTrees
from tunefarm.tuner.records.trials import best_record, is_confirmed, record_to_apply
from tunefarm.tuner.search import session
from tunefarm.tuner.search.budget import End, Limits
from tunefarm.tuner.search.monitor import FINAL
from tunefarm.tuner.search.session import MAX_MACHINERY_FAILURES
from tunefarm.tuner.search.tasks import plan


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path / "tuning.db")
    yield made
    made.store.close()


def test_every_result_is_in_the_store(setting: Setting) -> None:
    assert setting.run(Limits(), TILES, OTHER) is End.EXHAUSTED
    trials = [queries.trials(setting.store, task.key) for task in setting.made]
    assert [len({record.schedule_hash for record in found}) for found in trials] == [9, 7]
    assert len(setting.runner.requests) == sum(map(len, trials))
    best = queries.fastest_trial(setting.store, setting.made[0].key)
    assert best is not None
    assert best.choices == {"tile": 9}
    assert best.machine == {"cpu": "made-up"}
    assert best.conditions == {"load": 0.5}


def test_every_request_names_the_precision_of_its_job(setting: Setting) -> None:
    setting.numerics = "deterministic"
    setting.run(Limits(trials=10), TILES)
    setting.confirm()
    assert {request.numerics for request in setting.runner.requests} == {"deterministic"}
    assert FINAL in setting.runner.requests[-1].request_id


def test_the_default_schedule_is_measured_first(setting: Setting) -> None:
    setting.run(Limits(trials=2), TILES, OTHER)
    hashes = [hash_json(request.schedule) for request in setting.runner.requests]
    assert hashes == [task.default.hash for task in setting.made]
    assert all(math.isfinite(task.default_latency) for task in setting.made)


def test_a_second_run_of_the_same_job_measures_nothing(setting: Setting) -> None:
    assert setting.run(Limits(trials=10), TILES, OTHER) is End.TOTAL_TRIALS
    before = len(setting.runner.requests)
    assert setting.run(Limits(trials=10), TILES, OTHER) is End.TOTAL_TRIALS
    assert len(setting.runner.requests) == before == 10


def test_a_longer_run_goes_on_without_repeating(setting: Setting) -> None:
    setting.run(Limits(trials=6), TILES, OTHER)
    setting.run(Limits(trials=13), TILES, OTHER)
    measured = [(r.workload_key, hash_json(r.schedule)) for r in setting.runner.requests]
    replications = sum(task.ranking.replications for task in setting.made)
    assert len(set(measured)) + replications == len(measured) == 13
    assert sum(task.progress.trials for task in setting.made) == 13


def test_earlier_results_train_the_model_of_the_next_run(setting: Setting) -> None:
    space = tile_space()
    kind = (matmul_kernel(), space, 1)
    setting.run(Limits(trials=40), kind)
    setting.run(Limits(trials=40), kind)
    task = setting.made[0]
    learnt = 40 - task.ranking.replications
    assert len(task.candidates) == len(task.lessons) == learnt
    data = task.training_data(0)
    assert len(data) == learnt
    assert task.progress.best == pytest.approx(data.latencies.min(), rel=0.02)


def test_schedules_equal_to_a_measured_one_are_not_measured_again(setting: Setting) -> None:
    space = small_space(4)
    sketch = space.sketches[0]
    build = sketch.build
    same = replace(sketch, build=lambda choices: build({"tile": min(int(str(choices["tile"])), 2)}))
    setting.run(Limits(), (matmul_kernel(), ScheduleSpace([same]), 1))
    hashes = [hash_json(request.schedule) for request in setting.runner.requests]
    assert len(hashes) == len(set(hashes)) == 2


def test_failures_are_recorded_with_their_text(setting: Setting) -> None:
    setting.latency = lambda candidate: math.inf  # type: ignore[method-assign]
    assert setting.run(Limits(failing_after=4), TILES) is End.FAILING
    records = queries.trials(setting.store, setting.made[0].key)
    assert {record.status for record in records} == {"crashed"}
    assert {record.error for record in records} == {"signal 11"}
    assert best_record(records) is None


def test_a_space_of_one_point_is_measured_once(setting: Setting) -> None:
    assert setting.run(Limits(), (matmul_kernel(), small_space(1), 1)) is End.EXHAUSTED
    assert len(setting.runner.requests) == 1


def test_stop_keeps_what_was_measured_and_submits_no_more(setting: Setting) -> None:
    class Stopping(SyntheticRunner):
        def results(self, timeout: float | None = None) -> list[MeasureResult]:
            if len(self.requests) >= 6:
                assert setting.session is not None
                setting.session.stop()
            return super().results(timeout)

    setting.runner = Stopping(capacity=2)
    assert setting.run(Limits(), TILES, OTHER) is End.INTERRUPTED
    assert len(setting.runner.requests) == 6
    recorded = [
        record for task in setting.made for record in queries.trials(setting.store, task.key)
    ]
    assert len(recorded) == 6
    assert all(task.progress.pending == 0 for task in setting.made)


def test_failures_of_the_machinery_are_not_charged_to_the_candidate(setting: Setting) -> None:
    class Flaky(SyntheticRunner):
        def answer(self, request: MeasureRequest) -> MeasureResult:
            if len(self.requests) == 3:
                return MeasureResult(request.request_id, Status.INFRASTRUCTURE, error="lost")
            return super().answer(request)

    setting.runner = Flaky()
    setting.run(Limits(), TILES)
    task = setting.made[0]
    assert task.progress.trials == 8
    assert task.failures == 0
    setting.runner = SyntheticRunner()
    setting.run(Limits(), TILES)
    assert len(setting.runner.requests) == 1  # the lost one, and only that


def test_machinery_that_never_works_ends_the_session_with_an_error(setting: Setting) -> None:
    class Dead(SyntheticRunner):
        def answer(self, request: MeasureRequest) -> MeasureResult:
            return MeasureResult(request.request_id, Status.INFRASTRUCTURE, error="no worker")

    setting.runner = Dead()
    with pytest.raises(MeasureError, match="no worker"):
        setting.run(Limits(), (matmul_kernel(), tile_space(), 1))
    assert len(setting.runner.requests) <= MAX_MACHINERY_FAILURES + setting.runner.capacity


def test_the_same_seed_measures_the_same_candidates(setting: Setting, tmp_path: Path) -> None:
    kind = (matmul_kernel(), tile_space(), 1)
    setting.run(Limits(trials=60), kind)
    other = Setting(tmp_path / "other.db")
    other.run(Limits(trials=60), kind)
    other.store.close()
    first, again = (
        [hash_json(request.schedule) for request in runner.requests]
        for runner in (setting.runner, other.runner)
    )
    assert first == again


def test_finalists_meet_side_by_side_in_fresh_processes(setting: Setting) -> None:
    setting.run(Limits(), OTHER)
    before = len(setting.runner.requests)
    finalists = setting.confirm()
    requests = setting.runner.requests[before:]
    assert len(requests) == RaceOptions().processes
    assert finalists.measured == sum(len(request.schedules) for request in requests)
    assert {request.options["fresh_process"] for request in requests} == {1}
    assert len({request.seed for request in requests}) == len(requests)
    met = {hash_json(schedule) for schedule in requests[0].schedules}
    assert hash_json(requests[0].schedule) == setting.made[0].default.hash  # the incumbent
    assert len(met) == len(requests[0].schedules) >= 2
    records = queries.trials(setting.store, setting.made[0].key)
    assert sum(map(is_confirmed, records)) == finalists.measured


def test_finalists_that_met_do_not_meet_again(setting: Setting) -> None:
    setting.run(Limits(), OTHER)
    setting.confirm()
    before = len(setting.runner.requests)
    trials = setting.made[0].progress.trials
    setting.run(Limits(), OTHER)
    assert not setting.confirm().settled
    assert len(setting.runner.requests) == before
    assert setting.made[0].progress.trials == trials  # confirmations are none


def test_the_finalists_decide_and_not_a_lucky_trial(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = (1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 0.52e-3, 0.5e-3)
    monkeypatch.setattr(setting, "latency", lambda candidate: times[candidate.positions[0]])
    setting.run(Limits(), OTHER)
    task = setting.made[0]
    lucky = plan(task.space, Candidate("only", (6,)))
    setting.runner.answers[task.key.workload, lucky.hash] = 1.0
    (settled,) = setting.confirm().settled
    assert settled.changes and settled.best.schedule_hash != lucky.hash
    assert lucky.hash in settled.best.met
    found = queries.best(setting.store, task.key)
    assert found is not None
    best, trial = found
    assert best.schedule_hash == trial.schedule_hash == settled.best.schedule_hash
    refresh(setting.made, setting.store)
    assert task.confirmed_latency == trial.latency
    default = setting.runner.answers[task.key.workload, task.default.hash]
    assert task.default_latency == pytest.approx(default)
    assert best.ratio == pytest.approx(task.confirmed_latency / default)
    shown = task.status()
    assert shown.speed_up == pytest.approx(1 / best.ratio)
    assert shown.latency == pytest.approx([default * r for r in (best.ratio, best.low, best.high)])


def test_nothing_is_believed_before_it_is_recorded(setting: Setting) -> None:
    setting.run(Limits(), OTHER)
    finalists = Finalists(setting.store, job=setting.job, seed=0)
    finalists.run(setting.made, setting.runner, {}, lambda _: False, lambda: None)
    assert finalists.settled
    assert queries.best(setting.store, setting.made[0].key) is None


def test_equal_schedules_leave_the_default_in_place(setting: Setting) -> None:
    setting.run(Limits(), OTHER)
    for key in setting.runner.answers:
        setting.runner.answers[key] = 1e-3
    (settled,) = setting.confirm().settled
    assert settled.best.schedule_hash == setting.made[0].default.hash
    assert not settled.changes


def test_a_finalist_that_crashes_is_found_and_never_wins(setting: Setting) -> None:
    setting.run(Limits(), OTHER)
    task = setting.made[0]
    fastest = plan(task.space, Candidate("only", (6,)))
    setting.runner.answers[task.key.workload, fastest.hash] = math.inf
    before = len(setting.runner.requests)
    finalists = setting.confirm()
    alone = [r for r in setting.runner.requests[before:] if not r.rivals]
    assert fastest.hash in {hash_json(request.schedule) for request in alone}
    for settled in finalists.settled:
        assert fastest.hash not in settled.best.met
    applied = record_to_apply(setting.store, task.key)
    assert applied is not None and applied[0].schedule_hash != fastest.hash


def test_finalists_stop_when_time_is_up(setting: Setting) -> None:
    setting.run(Limits(), OTHER)
    before = len(setting.runner.requests)
    setting.confirm(out_of_time=True)
    assert len(setting.runner.requests) == before


def test_a_late_session_does_not_wait_for_cores_of_others(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LATE_SECONDS", 0.05)
    monkeypatch.setattr(setting.runner, "results", lambda timeout=None: [])
    assert setting.run(Limits(minutes=0.002), TILES) is End.TIME
    assert setting.runner.requests and setting.made[0].progress.pending == 0


def test_a_late_session_takes_what_others_can_spare(setting: Setting) -> None:
    setting.spare = lambda: 0.0
    assert setting.run(Limits(minutes=0.0), TILES) is End.TIME
    assert not setting.runner.requests
    setting.spare = lambda: 1e3
    assert setting.run(Limits(minutes=0.0), TILES) is End.EXHAUSTED


def test_candidates_are_measured_beside_the_reference(setting: Setting) -> None:
    setting.run(Limits(), TILES)
    first, *later = setting.runner.requests
    assert not first.rivals and "give_up" not in first.options
    assert hash_json(later[0].rivals[0]) == setting.made[0].default.hash
    seen = {hash_json(first.schedule)}
    for request in later:
        again = hash_json(request.schedule) in seen
        assert request.options["give_up"] == int(not again)
        assert hash_json(request.rivals[0]) in seen
        seen.add(hash_json(request.schedule))
    assert len({request.seed for request in later}) == len(later)


def test_the_fastest_becomes_the_reference_when_it_was_measured_again(setting: Setting) -> None:
    setting.run(Limits(trials=60), (matmul_kernel(), tile_space(), 1))
    asked = [hash_json(request.schedule) for request in setting.runner.requests]
    references = {hash_json(r.rivals[0]) for r in setting.runner.requests if r.rivals}
    assert len(references) > 1
    assert all(asked.count(hash) > 1 for hash in references - {setting.made[0].default.hash})
    assert setting.made[0].ranking.replications <= 12


class WanderingRunner(SyntheticRunner):
    """The host becomes slower and slower; all schedules of a request alike."""

    def answer(self, request: MeasureRequest) -> MeasureResult:
        speed = 1.0 + 0.1 * len(self.requests)
        result = super().answer(request)
        return replace(
            result,
            samples=tuple(speed * seconds for seconds in result.samples),
            rivals=tuple(tuple(speed * t for t in samples) for samples in result.rivals),
        )


def test_latencies_do_not_follow_the_mood_of_the_clock(setting: Setting) -> None:
    """All are told in the speed that the default schedule was measured at."""
    setting.runner = WanderingRunner()
    setting.run(Limits(), TILES)
    task = setting.made[0]
    for record in queries.trials(setting.store, task.key):
        truth = setting.runner.answers[task.key.workload, record.schedule_hash]
        assert record.latency == pytest.approx(1.1 * truth)  # it was measured first
        if record.reference is None:
            assert record.schedule_hash == task.default.hash and record.ratio is None
            continue
        reference = setting.runner.answers[task.key.workload, record.reference]
        assert record.ratio == pytest.approx(truth / reference)
        assert not record.contradiction
        assert len(record.reference_samples) == len(record.samples)
    assert task.default_latency == pytest.approx(1.1e-3)


def test_the_next_run_stands_where_the_last_one_did(setting: Setting) -> None:
    setting.runner = WanderingRunner()
    kind = (matmul_kernel(), tile_space(), 1)
    setting.run(Limits(trials=40), kind)
    before = setting.made[0]
    setting.run(Limits(trials=40), kind)
    after = setting.made[0]
    for hash in before.known:
        assert before.ranking.latency(hash) == pytest.approx(after.ranking.latency(hash))
    assert after.progress.best == pytest.approx(before.progress.best)
    assert after.ranking.scale == before.ranking.scale
    assert after.ranking.replications == before.ranking.replications


class ScatteringRunner(SyntheticRunner):
    """The first answer for each schedule scatters."""

    def answer(self, request: MeasureRequest) -> MeasureResult:
        result = super().answer(request)
        earlier = [r for r in self.requests[:-1] if r.schedule == request.schedule]
        return result if earlier else replace(result, status=Status.SCATTERED, error="two modes")


def test_a_measurement_that_scatters_is_repeated_once_if_it_may_be_the_best(
    setting: Setting,
) -> None:
    setting.runner = ScatteringRunner()
    setting.run(Limits(), TILES)
    task = setting.made[0]
    hashes = [hash_json(request.schedule) for request in setting.runner.requests]
    assert hashes.count(task.default.hash) == 2
    records = queries.trials(setting.store, task.key)
    assert len(records) == len(hashes) == task.progress.trials  # those that scattered too
    assert math.isfinite(task.progress.best)
    status = task.status()
    assert status.scattered == 9
    assert status.failures == 0
    assert math.isfinite(status.expected) and status.low < status.expected < status.high


class FailingLater(SyntheticRunner):
    """A schedule fails from its n-th measurement on, in whatever part."""

    def __init__(self, victim: str, times: int, status: Status = Status.CRASHED) -> None:
        super().__init__(1)
        self.victim, self.times, self.status = victim, times, status

    def answer(self, request: MeasureRequest) -> MeasureResult:
        hashes = [hash_json(schedule) for schedule in request.schedules]
        if self.victim in hashes:
            self.times -= 1
            if self.times < 0:
                culprit = hashes.index(self.victim)
                return MeasureResult(
                    request.request_id, self.status, error="signal 11", culprit=culprit
                )
        return super().answer(request)


def test_a_default_that_crashes_as_reference_is_replaced(setting: Setting) -> None:
    space = small_space(9)
    default = plan(space, space.default())
    setting.runner = FailingLater(default.hash, 3)
    setting.run(Limits(), TILES)
    task = setting.made[0]
    (message,) = (text for text in setting.progress.said if "reference" in text)
    assert message == (
        f"the reference of {task.kernel.name} crashed (signal 11): "
        "candidates are measured against another schedule now"
    )
    records = queries.trials(setting.store, task.key)
    measured = {record.schedule_hash for record in records if record.is_ok}
    assert len(measured) == 9  # no candidate is lost for it
    (failure,) = (record for record in records if not record.is_ok)
    assert failure.schedule_hash == default.hash
    assert records[-1].reference in measured - {default.hash}
    assert task.failures == 0 and task.progress.pending == 0
    applied = record_to_apply(setting.store, task.key)
    assert applied is not None and applied[0].schedule_hash != default.hash
    setting.run(Limits(), TILES)
    assert setting.made[0].ranking.references.is_refuted(default.hash)


def test_a_default_that_never_works_leaves_its_place_to_the_first_that_does(
    setting: Setting,
) -> None:
    space = small_space(9)
    default = plan(space, space.default())
    setting.runner = FailingLater(default.hash, 0, Status.BUILD_ERROR)
    setting.run(Limits(), TILES)
    task = setting.made[0]
    first, second, *later = queries.trials(setting.store, task.key)
    assert first.schedule_hash == default.hash and first.status == "build_error"
    assert second.reference is None
    references = {record.reference for record in later}
    assert None not in references and second.schedule_hash in references
    assert task.ranking.scale == second.latency
    assert task.failures == 1
    setting.run(Limits(), TILES)
    assert setting.made[0].ranking.scale == second.latency


def test_a_schedule_that_fails_when_it_is_measured_again_is_out(setting: Setting) -> None:
    space = small_space(20)
    fastest = plan(space, space.candidate(19))
    setting.runner = FailingLater(fastest.hash, 1)
    setting.run(Limits(), (matmul_kernel(), space, 1))
    task = setting.made[0]
    records = queries.trials(setting.store, task.key)
    assert [r.is_ok for r in records if r.schedule_hash == fastest.hash] == [True, False]
    beliefs = task.ranking.beliefs
    assert beliefs is not None and fastest.hash not in beliefs.schedules
    applied = record_to_apply(setting.store, task.key)
    assert applied is not None and applied[0].schedule_hash != fastest.hash


def test_records_of_a_former_version_are_gone_on_from(setting: Setting, tmp_path: Path) -> None:
    """They were measured alone: they count, and what a pair says counts more."""
    setting.run(Limits(trials=6), TILES)
    old = [
        replace(record, reference=None, ratio=None, low=None, high=None, reference_samples=())
        for record in queries.trials(setting.store, setting.made[0].key)
    ]
    former = Setting(tmp_path / "former.db")
    former.tasks(BoostedTrees(0), TILES)
    job = former.store.start_job("model", "hash", {}).id
    former.store.add(replace(record, job=job) for record in old)
    former.run(Limits(trials=8), TILES)
    task = former.made[0]
    former.store.close()
    assert task.progress.trials == 8
    assert task.ranking.scale == pytest.approx(1e-3)
    _, deviations = task.ranking.estimates([record.schedule_hash for record in old[1:]])
    assert deviations.max() == pytest.approx(0.1)
    assert all(request.rivals for request in former.runner.requests)
