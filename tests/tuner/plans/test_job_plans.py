"""The plans of a job: searched by a runner, confirmed by whole models, recorded, taken up again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import onnx
import pytest

from tests.targets import target_named
from tests.tuner.plans.branch_net import WIDTH, branch_net
from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.compiler.plan.choices.estimate import Estimator
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan, Merged
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.configs.settings import load_settings
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner.building.recorded_plan import plan_to_apply, record_plan
from tunefarm.tuner.confirm.latency import ModelLatency
from tunefarm.tuner.confirm.whole_model import ModelBuilds
from tunefarm.tuner.interrupt import Interrupt
from tunefarm.tuner.plans.job_plans import (
    LOOKING,
    MEASURABLE_SECONDS,
    JobPlans,
    PlanningTime,
)
from tunefarm.tuner.plans.problems import Kind
from tunefarm.tuner.records.graph_choice import GraphChoice

TARGET = target_named("x86-64-v4")
ESTIMATES = Estimator(SpaceCache(TARGET))


def latency(ratio: float, doubt: float = 0.01) -> ModelLatency:
    low, high = ratio * (1 - doubt), ratio * (1 + doubt)
    return ModelLatency(1e-3, 1e-3 * ratio, 0.0, 0.0, ratio, low, high)


class FakeRunner:
    """Products apart take longer than estimated; `asked` are the workloads in order."""

    capacity = 4

    def __init__(self, status: Status = Status.OK) -> None:
        self.asked: list[str] = []
        self._status = status
        self._waiting: list[MeasureRequest] = []

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def submit(self, request: MeasureRequest) -> None:
        self.asked.append(request.workload_key)
        self._waiting.append(request)

    def results(self, timeout: float | None = None) -> list[MeasureResult]:
        found, self._waiting = [self._answer(request) for request in self._waiting], []
        return found

    def _answer(self, request: MeasureRequest) -> MeasureResult:
        if self._status is not Status.OK:
            return MeasureResult(request.request_id, self._status, error="no")
        kernel = kernel_from_json(request.kernel)
        is_apart = "matmul" in kernel.name and kernel.output.shape[-1] == WIDTH
        slower = 4.0 if is_apart else 1.0
        seconds = slower * ESTIMATES(kernel).seconds
        samples = (seconds,) * 12
        rivals = (samples,) * len(request.rivals)
        return MeasureResult(request.request_id, Status.OK, samples=samples, rivals=rivals)

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Setting:
    """A model, its plans, and whole models whose plans take `ratio` of the rules' time."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        values: Mapping[str, object] | None = None,
        model: onnx.ModelProto | None = None,
    ) -> None:
        self.store = store
        self.settings = load_settings(
            "ci", {"search.plan": "search", **(values or {})}, environment={}
        )
        onnx.save(branch_net() if model is None else model, folder / "tiny.onnx")
        self.graph = import_model(folder / "tiny.onnx")
        self.hash = structural_hash(self.graph)
        self.runner = FakeRunner()
        self.ratio = 0.5
        self.compared = 0
        self.said: list[str] = []
        self.job = store.start_job("tiny", self.hash, {}).id
        self.plans = self.new_plans()

    def new_plans(self) -> JobPlans:
        built_from = self.hash, self.settings
        plans = JobPlans(
            self.graph, self.settings, None, self.store, built_from, lambda text: self.say(text)
        )
        plans.begin([TARGET])
        return plans

    def say(self, text: str) -> None:
        self.said.append(text)

    @property
    def builds(self) -> ModelBuilds:
        return ModelBuilds(self.graph, self.settings, None, self.store)

    def compare(self, specs: Sequence[ExecutableSpec]) -> ModelLatency:
        assert specs[0].objects != specs[1].objects
        self.compared += 1
        return latency(self.ratio)

    def search(self, seconds: float | None = None) -> bool:
        return self.plans.search(
            TARGET,
            self.builds,
            self.compare,
            lambda *_: self.runner,
            Interrupt(),
            job=self.job,
            name="tiny",
            seconds=seconds,
        )

    def confirm(self) -> None:
        self.plans.confirm(TARGET, self.builds, self.compare, (), "tiny")

    def recorded(self) -> GraphChoice | None:
        return plan_to_apply(self.store, self.hash, self.settings, TARGET).choice


@pytest.fixture
def setting(tmp_path: Path, store: Store) -> Setting:
    return Setting(tmp_path, store)


def test_a_plan_that_is_confirmed_is_chosen_and_recorded(setting: Setting) -> None:
    assert setting.search()
    choice = setting.plans.chosen[TARGET.key]
    assert choice.plan == GraphPlan((Merged(("a", "b")),))
    assert choice.speedup == pytest.approx(2.0) and choice == setting.recorded()
    assert choice.found["measured"] == len(setting.runner.asked)
    assert "2.00x faster than the rules, 1.98-2.02, confirmed" in str(choice)
    assert choice.described == "merged a b" and choice.notes == ()
    assert setting.plans.of(TARGET) == choice.plan


def test_every_kernel_is_measured_once_and_recorded_as_a_trial(setting: Setting) -> None:
    setting.search()
    asked = setting.runner.asked
    assert len(set(asked)) == len(asked) > 3
    assert {key.workload for key in queries.tasks(setting.store)} == set(asked)
    assert set(queries.workloads(setting.store)) == set(asked)
    trials = list(queries.iterate_trials(setting.store))
    assert {trial.job for trial in trials} == {setting.job} and all(t.is_ok for t in trials)


def test_a_plan_that_whole_models_do_not_confirm_is_not_taken(setting: Setting) -> None:
    setting.ratio = 0.995
    assert not setting.search()
    assert setting.compared >= 1 and setting.recorded() is None
    assert setting.plans.of(TARGET) == DEFAULT_PLAN
    assert str(setting.plans.decided(TARGET)) == "as the rules decide"
    assert any("is not faster than the rules (1.01x as fast, " in text for text in setting.said)


def test_a_resumed_job_measures_nothing_again(setting: Setting) -> None:
    setting.ratio = 1.0
    setting.search()
    measured = len(setting.runner.asked)
    setting.plans, setting.ratio = setting.new_plans(), 0.5
    assert setting.search()
    assert len(setting.runner.asked) == measured


def test_the_recorded_plan_is_taken_up_and_not_raced_again(setting: Setting) -> None:
    setting.search()
    chosen, compared = setting.plans.chosen, setting.compared
    setting.plans = setting.new_plans()
    assert setting.plans.chosen == setting.plans.recorded == chosen
    assert not setting.search()
    assert setting.compared == compared and setting.plans.chosen == chosen


@pytest.mark.parametrize("ratio", [0.9, 1.0])
def test_the_tuned_model_says_what_the_plan_gains(ratio: float, setting: Setting) -> None:
    setting.search()
    setting.ratio = ratio
    setting.confirm()
    found = setting.recorded()
    assert found is not None and found.speedup == pytest.approx(1 / ratio)
    assert found == setting.plans.chosen[TARGET.key]
    assert ("confirmed" in str(found)) == (ratio < 1.0)


def test_the_rules_stay_if_the_tuned_model_is_slower_under_the_plan(setting: Setting) -> None:
    setting.search()
    setting.ratio = 1.05
    setting.confirm()
    assert setting.recorded() is None and setting.plans.of(TARGET) == DEFAULT_PLAN
    assert setting.said[-1].endswith("is slower when tuned: the rules stay")


def test_the_rules_stay_if_their_tuned_model_is_that_of_the_plan(setting: Setting) -> None:
    setting.search()
    same = ModelLatency(1e-3, 1e-3, 0.0, 0.0, 1.0, 1.0, 1.0)
    setting.plans.confirm(TARGET, setting.builds, lambda _: same, (), "tiny")
    assert setting.recorded() is None and setting.plans.of(TARGET) == DEFAULT_PLAN
    assert setting.said[-1].endswith("is unchanged, the rules' build: the rules stay")


@pytest.mark.nightly
def test_what_was_applied_before_comes_back_if_the_whole_is_slower(setting: Setting) -> None:
    setting.search()
    setting.plans.give_up(TARGET, "tiny")
    assert setting.recorded() is None and setting.plans.of(TARGET) == DEFAULT_PLAN
    setting.plans.give_up(TARGET, "tiny")
    setting.search()
    setting.plans = setting.new_plans()
    setting.plans.give_up(TARGET, "tiny")
    assert setting.recorded() is not None


def test_a_plan_that_memory_needs_stays_though_it_cannot_be_compared(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differ(specs: Sequence[ExecutableSpec]) -> ModelLatency:
        raise MeasureError("the models' outputs differ")

    setting.search()
    chosen = setting.plans.chosen[TARGET.key]
    monkeypatch.setattr(JobPlans, "_needs_less", lambda *_: True)
    setting.plans.confirm(TARGET, setting.builds, differ, (), "tiny")
    assert setting.recorded() == setting.plans.chosen[TARGET.key] == chosen
    assert "stays, since the rules need more memory than is allowed" in setting.said[-1]


@pytest.mark.nightly
def test_models_that_differ_are_no_plan(setting: Setting) -> None:
    def differ(specs: Sequence[ExecutableSpec]) -> ModelLatency:
        raise MeasureError("the tuned model's output 'y' differs from the untuned one's")

    setting.search()
    setting.plans.confirm(TARGET, setting.builds, differ, (), "tiny")
    assert setting.recorded() is None


def test_the_rules_decide_where_the_settings_say_so(tmp_path: Path, store: Store) -> None:
    setting = Setting(tmp_path, store, {"search.plan": "rules"})
    record_plan(
        store,
        GraphChoice(GraphPlan((Merged(("a", "b")),))),
        "t",
        setting.hash,
        setting.settings,
        TARGET,
    )
    setting.plans = setting.new_plans()
    assert not setting.search() and setting.runner.asked == []
    assert setting.plans.decided(TARGET) is None and setting.plans.of(TARGET) == DEFAULT_PLAN


def test_with_little_time_the_rules_decide(setting: Setting) -> None:
    assert not setting.search(seconds=1.0) and setting.runner.asked == []
    assert setting.said == ["plan: the rules decide, since there is little time"]


def test_with_not_much_time_whole_models_alone_decide(setting: Setting) -> None:
    setting.search(seconds=MEASURABLE_SECONDS - 1.0)
    assert setting.runner.asked == []
    assert setting.said[0].endswith(
        " looked at, by what is known of their kernels, since there is little time"
    )


@pytest.mark.nightly
def test_a_plan_gets_a_share_of_the_trials(tmp_path: Path, store: Store) -> None:
    setting = Setting(tmp_path, store, {"search.total_trials": 25})
    setting.search()
    assert len(setting.runner.asked) == 5


def test_an_interrupted_search_chooses_nothing(setting: Setting) -> None:
    interrupt = Interrupt()
    interrupt.ask()
    setting.plans.search(
        TARGET,
        setting.builds,
        setting.compare,
        lambda *_: setting.runner,
        interrupt,
        job=setting.job,
        name="tiny",
        seconds=None,
    )
    assert setting.runner.asked == [] and setting.compared == 0


@pytest.mark.nightly
def test_kernels_that_cannot_be_measured_end_the_search(setting: Setting) -> None:
    setting.runner = FakeRunner(Status.INFRASTRUCTURE)
    setting.search()
    assert len(set(setting.runner.asked)) == len(setting.runner.asked)


OWN, CHAINS = Kind.OWN, Kind.CHAINS


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def begun(seconds: float | None, passed: float, interrupt: Interrupt | None = None) -> PlanningTime:
    clock = Clock()
    time = PlanningTime(seconds, interrupt or Interrupt(), clock)
    clock.now += passed
    return time


@pytest.mark.parametrize(
    ("passed", "kinds"),
    [(24.0, {OWN, CHAINS}), (26.0, {CHAINS}), (70.0, set())],
)
def test_the_kernels_of_the_model_as_it_is_leave_time_for_others(
    passed: float, kinds: set[Kind]
) -> None:
    time = begun(100.0, passed)
    assert {kind for kind in (OWN, CHAINS) if time.may_measure(kind)} == kinds


def test_whole_plans_have_time_beyond_that_of_candidates() -> None:
    assert begun(100.0, 90.0).is_late(LOOKING) and not begun(100.0, 90.0).is_late()
    assert begun(100.0, 110.0).is_late()


def test_where_a_runner_would_take_all_the_time_no_kernel_is_measured() -> None:
    time = begun(12.0, 0.0)
    assert not time.may_measure(CHAINS) and not time.is_late(LOOKING)
    assert time.describe(0) == "by what is known of their kernels, since there is little time"
    assert begun(100.0, 0.0).describe(1) == "1 kernel measured for them"


def test_without_a_limit_only_an_interrupt_ends_it() -> None:
    interrupt = Interrupt()
    time = begun(None, 1e6, interrupt)
    assert time.may_measure(OWN) and not time.is_late()
    interrupt.ask()
    assert time.is_late() and not time.may_measure(CHAINS)
