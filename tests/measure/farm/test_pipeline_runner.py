"""The pipeline over a backend that fails on purpose."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.farm.pipeline_runner import PipelineRunner, SlotLostError
from tunefarm.measure.farm.slots import SlotPlan
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.sandbox.worker_process import WorkerLostError, WorkerStartError
from tunefarm.measure.worker.build_candidate import BuildResult


class FakeBackend:
    """Answers at once. `losses[request_id]` workers are lost under a request before it succeeds."""

    def __init__(self, slots: int = 1, losses: dict[str, int] | None = None) -> None:
        cores = tuple((1 + index,) for index in range(slots))
        self.plans: Sequence[SlotPlan] = (SlotPlan((0,), cores),)
        self.losses = Counter(losses or {})
        self.runs: Counter[str] = Counter()
        self.builds: Counter[str] = Counter()
        self.gone: set[int] = set()
        self.error: Exception = WorkerLostError("the worker is gone")
        self.broken = False
        self.machine: dict[str, int] = {}
        self.hold = threading.Event()
        self.hold.set()
        self.closed = False

    def build(self, node: int, index: int, request: MeasureRequest) -> Future[BuildResult]:
        if self.broken:
            raise ZeroDivisionError("a bug")
        self.builds[request.request_id] += 1
        future: Future[BuildResult] = Future()
        future.set_result(BuildResult(Status.OK))
        return future

    def measure(
        self, node: int, index: int, request: MeasureRequest, build: BuildResult
    ) -> Future[MeasureResult]:
        self.hold.wait(30)
        future: Future[MeasureResult] = Future()
        self.runs[request.request_id] += 1
        if index in self.gone:
            future.set_exception(SlotLostError("the node is gone"))
        elif self.losses[request.request_id]:
            self.losses[request.request_id] -= 1
            future.set_exception(self.error)
        else:
            result = MeasureResult(request.request_id, Status.OK, (1.0,), machine=self.machine)
            future.set_result(result)
        return future

    def close(self) -> None:
        self.closed = True


def run(runner: PipelineRunner, count: int) -> dict[str, MeasureResult]:
    for number in range(count):
        runner.submit(MeasureRequest(str(number), {}, "key", [], 1))
    results: list[MeasureResult] = []
    while runner.pending:
        results += runner.results(timeout=30)
    assert len(results) == count
    return {result.request_id: result for result in results}


def test_lost_worker_costs_another_try_not_the_result() -> None:
    backend = FakeBackend(losses={"1": 1})
    with PipelineRunner(backend, threads=1) as runner:
        results = run(runner, 3)
    assert {result.status for result in results.values()} == {Status.OK}
    assert (backend.runs["1"], backend.builds["1"]) == (2, 1)
    assert backend.closed


def test_a_request_for_a_target_that_no_node_has_is_refused() -> None:
    backend = FakeBackend()
    backend.plans = (*backend.plans, *backend.plans)
    with PipelineRunner(backend, threads=1, kinds=("a", "b")) as runner:
        assert set(runner.capacities) == {"a", "b"}
        for target in ("", "c"):
            with pytest.raises(MeasureError, match="no node has the target"):
                runner.submit(MeasureRequest("0", {}, "key", [], 1, target=target))
        runner.submit(MeasureRequest("1", {}, "key", [], 1, target="b"))
        assert runner.results(timeout=30)[0].status is Status.OK


def test_request_that_loses_every_worker_is_quarantined() -> None:
    backend = FakeBackend(losses={"1": 99})
    with PipelineRunner(backend, threads=1) as runner:
        results = run(runner, 3)
    assert results["1"].status is Status.QUARANTINED
    assert "WorkerLostError: the worker is gone" in results["1"].error
    assert results["0"].status is results["2"].status is Status.OK
    assert backend.runs["1"] == 2


@pytest.mark.parametrize(
    "error", [ConnectionError("the node is gone"), WorkerStartError("no memory to start one")]
)
def test_what_no_candidate_can_do_is_never_charged_to_one(error: Exception) -> None:
    backend = FakeBackend(losses={"1": 99})
    backend.error = error
    with PipelineRunner(backend, threads=1) as runner:
        results = run(runner, 3)
    assert results["1"].status is Status.INFRASTRUCTURE
    assert backend.runs["1"] == 3


def test_lost_slot_is_not_used_again() -> None:
    backend = FakeBackend(slots=2)
    backend.gone = {0}
    with PipelineRunner(backend, threads=1) as runner:
        results = run(runner, 10)
    assert {result.status for result in results.values()} == {Status.OK}
    assert backend.runs.total() == 11


def test_without_any_slot_every_request_fails_instead_of_waiting() -> None:
    backend = FakeBackend(slots=2)
    backend.gone = {0, 1}
    with PipelineRunner(backend, threads=1) as runner:
        results = run(runner, 5)
    assert {result.status for result in results.values()} == {Status.INFRASTRUCTURE}


def test_bug_in_the_backend_reaches_the_driver() -> None:
    backend = FakeBackend()
    backend.broken = True
    with PipelineRunner(backend, threads=1) as runner:
        runner.submit(MeasureRequest("0", {}, "key", [], 1))
        with pytest.raises(MeasureError, match="a bug"):
            runner.results(timeout=30)


def test_results_that_were_ready_can_be_taken_after_closing() -> None:
    backend = FakeBackend()
    runner = PipelineRunner(backend, threads=1)
    runner.submit(MeasureRequest("0", {}, "key", [], 1))
    assert len(runner.results(timeout=30)) == 1
    for number in range(4):
        runner.submit(MeasureRequest(str(number), {}, "key", [], 1))
    first = runner.results(timeout=30)
    runner.close()
    rest = runner.results(timeout=None)
    assert len(first) + len(rest) <= 4
    assert runner.pending == 0 and runner.results(timeout=None) == []


def test_timeout_without_a_result_gives_an_empty_list() -> None:
    backend = FakeBackend()
    backend.hold.clear()
    with PipelineRunner(backend, threads=1) as runner:
        runner.submit(MeasureRequest("0", {}, "key", [], 1))
        assert runner.results(timeout=0) == []
        assert runner.results(timeout=0.01) == []
        backend.hold.set()
        assert len(runner.results(timeout=30)) == 1


def test_request_for_another_thread_count_is_refused() -> None:
    with (
        PipelineRunner(FakeBackend(), threads=1) as runner,
        pytest.raises(MeasureError, match="wants 2 threads, this runner has 1"),
    ):
        runner.submit(MeasureRequest("0", {}, "key", [], 2))


def test_work_on_a_node_that_has_joined_needs_no_plan_of_this_machine() -> None:
    backend = FakeBackend()
    with PipelineRunner(backend, threads=1, patience=300.0) as runner:
        plan = SlotPlan((5,), ((6,), (7,)))
        runner.change(lambda crew: crew.retire_node(0))
        runner.change(lambda crew: require(crew.add_node(plan) == 1))
        results = run(runner, 4)
    assert {result.status for result in results.values()} == {Status.OK}


def require(holds: bool) -> None:
    assert holds


def test_quota_that_stops_timed_runs_is_told_once() -> None:
    backend = FakeBackend()
    backend.machine = {"throttled_slices": 3}
    told: list[str] = []
    with PipelineRunner(backend, threads=1, notify=told.append) as runner:
        run(runner, 4)
    assert told == ["the CPU quota stops timed runs: 3 slices of one run timed again"]
