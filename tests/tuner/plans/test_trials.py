"""Kernels that decide about plans are measured with their default schedules, and recorded."""

from __future__ import annotations

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.tuner.plans.test_job_plans import TARGET, FakeRunner
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.configs.settings import load_settings
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.tuner.plans.costs import DefaultTrials


def kernels(*rows: int) -> dict[str, FusedKernel]:
    made = [kernel_of([f32(count, 8)], [("relu", ["x0"], {})]) for count in rows]
    return {workload_key(kernel): kernel for kernel in made}


def trials(store: Store, runner: FakeRunner, most: int | None = None) -> DefaultTrials:
    settings = load_settings("ci", environment={})
    job = store.start_job("net", "hash", {}).id
    return DefaultTrials(store, TARGET, settings, runner, job=job, most=most)


def test_a_kernel_is_measured_once_however_often_it_is_asked_for(store: Store) -> None:
    runner, asked = FakeRunner(), kernels(2, 3)
    measuring = trials(store, runner)
    assert sorted(measuring.measure(asked)) == sorted(asked)
    assert measuring.measure(asked) == [] and measuring.measured.total() == 2
    assert sorted(runner.asked) == sorted(asked)
    assert queries.count_trials(store) == {"ok": 2}


def test_no_more_are_measured_than_may_be(store: Store) -> None:
    measuring = trials(store, FakeRunner(), most=2)
    assert len(measuring.measure(kernels(2, 3, 4))) == 2 and measuring.ended
    assert measuring.measure(kernels(5)) == []


def test_none_is_begun_when_it_is_late(store: Store) -> None:
    runner = FakeRunner()
    measuring = trials(store, runner)
    found = measuring.measure(kernels(2, 3, 4, 5, 6, 7), is_late=lambda: bool(runner.asked))
    assert len(found) == len(runner.asked) == 1 and not measuring.ended


def test_nothing_is_submitted_after_a_stop(store: Store) -> None:
    runner = FakeRunner()
    measuring = trials(store, runner)
    measuring.stop()
    assert measuring.measure(kernels(2)) == [] and runner.asked == []


def test_a_failed_kernel_is_recorded_with_its_status(store: Store) -> None:
    measuring = trials(store, FakeRunner(Status.BUILD_ERROR))
    assert len(measuring.measure(kernels(2))) == 1
    assert queries.count_trials(store) == {Status.BUILD_ERROR.value: 1}


def test_results_of_others_are_left_alone(store: Store) -> None:
    class Busy(FakeRunner):
        def results(self, timeout: float | None = None) -> list[MeasureResult]:
            stranger = MeasureResult("another-request", Status.OK, samples=(1.0,))
            return [stranger, *super().results(timeout)]

    assert len(trials(store, Busy()).measure(kernels(2))) == 1
    assert queries.count_trials(store) == {"ok": 1}
