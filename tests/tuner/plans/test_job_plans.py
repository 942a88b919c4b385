"""The plans of a job: chosen and confirmed by whole models, recorded, taken up again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import onnx
import pytest

from tests.targets import target_named
from tests.tuner.plans.chain_net import chain_net
from tunefarm.compiler.errors import LoweringError, MeasureError
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.compiler.plan.choices.estimate import Estimator
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, Chain, GraphPlan, Layout
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.configs.settings import load_settings
from tunefarm.db.store import Store
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner.building.recorded_plan import plan_to_apply, record_plan
from tunefarm.tuner.confirm.latency import ModelLatency
from tunefarm.tuner.confirm.whole_model import ModelBuilds
from tunefarm.tuner.interrupt import Interrupt
from tunefarm.tuner.plans.job_plans import JobPlans, confirmed_choice
from tunefarm.tuner.records.graph_choice import GraphChoice

TARGET = target_named("x86-64-v4")
ESTIMATES = Estimator(SpaceCache(TARGET))


def latency(ratio: float, doubt: float = 0.01) -> ModelLatency:
    low, high = ratio * (1 - doubt), ratio * (1 + doubt)
    return ModelLatency(1e-3, 1e-3 * ratio, 0.0, 0.0, ratio, low, high)


class FakeRunner:
    """Kernels take what is estimated; `asked` are the workloads in order."""

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
        samples = (ESTIMATES(kernel).seconds,) * 12
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
        onnx.save(chain_net() if model is None else model, folder / "tiny.onnx")
        self.graph = import_model(folder / "tiny.onnx")
        self.hash = structural_hash(self.graph)
        self.ratio = 0.5
        self.latency: ModelLatency | None = None
        self.compared = 0
        self.said: list[str] = []
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
        return latency(self.ratio) if self.latency is None else self.latency

    def choose(self, seconds: float | None = None, interrupt: Interrupt | None = None) -> bool:
        return self.plans.choose(
            TARGET,
            self.builds,
            self.compare,
            Interrupt() if interrupt is None else interrupt,
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
    assert setting.choose()
    choice = setting.plans.chosen[TARGET.key]
    assert choice.plan == GraphPlan((Chain("a"),))
    assert choice.speedup == pytest.approx(2.0) and choice == setting.recorded()
    assert "2.00x faster than the rules, 1.98-2.02, confirmed" in str(choice)
    assert choice.described == "chain a" and choice.notes == ()
    assert setting.plans.of(TARGET) == choice.plan


def test_a_plan_that_whole_models_do_not_confirm_is_not_taken(setting: Setting) -> None:
    setting.ratio = 0.995
    assert not setting.choose()
    assert setting.compared == 1 and setting.recorded() is None
    assert setting.plans.of(TARGET) == DEFAULT_PLAN
    assert str(setting.plans.decided(TARGET)) == "as the rules decide"
    assert any("is not faster than the rules (1.01x as fast, " in text for text in setting.said)


def test_the_recorded_plan_is_taken_up_and_not_raced_again(setting: Setting) -> None:
    setting.choose()
    chosen, compared = setting.plans.chosen, setting.compared
    setting.plans = setting.new_plans()
    assert setting.plans.chosen == setting.plans.recorded == chosen
    assert not setting.choose()
    assert setting.compared == compared and setting.plans.chosen == chosen


@pytest.mark.parametrize("ratio", [0.9, 1.0])
def test_the_tuned_model_says_what_the_plan_gains(ratio: float, setting: Setting) -> None:
    setting.choose()
    setting.ratio = ratio
    setting.confirm()
    found = setting.recorded()
    assert found is not None and found.speedup == pytest.approx(1 / ratio)
    assert found == setting.plans.chosen[TARGET.key]
    assert ("confirmed" in str(found)) == (ratio < 1.0)


def test_the_rules_stay_if_the_tuned_model_is_slower_under_the_plan(setting: Setting) -> None:
    setting.choose()
    setting.ratio = 1.05
    setting.confirm()
    assert setting.recorded() is None and setting.plans.of(TARGET) == DEFAULT_PLAN
    assert setting.said[-1].endswith("is slower when tuned: the rules stay")


def test_the_rules_stay_if_their_tuned_model_is_that_of_the_plan(setting: Setting) -> None:
    setting.choose()
    same = ModelLatency(1e-3, 1e-3, 0.0, 0.0, 1.0, 1.0, 1.0)
    setting.plans.confirm(TARGET, setting.builds, lambda _: same, (), "tiny")
    assert setting.recorded() is None and setting.plans.of(TARGET) == DEFAULT_PLAN
    assert setting.said[-1].endswith("is unchanged, the rules' build: the rules stay")


@pytest.mark.nightly
def test_what_was_applied_before_comes_back_if_the_whole_is_slower(setting: Setting) -> None:
    setting.choose()
    setting.plans.give_up(TARGET, "tiny")
    assert setting.recorded() is None and setting.plans.of(TARGET) == DEFAULT_PLAN
    setting.plans.give_up(TARGET, "tiny")
    setting.choose()
    setting.plans = setting.new_plans()
    setting.plans.give_up(TARGET, "tiny")
    assert setting.recorded() is not None


def test_a_plan_that_memory_needs_stays_though_it_cannot_be_compared(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differ(specs: Sequence[ExecutableSpec]) -> ModelLatency:
        raise MeasureError("the models' outputs differ")

    setting.choose()
    chosen = setting.plans.chosen[TARGET.key]
    monkeypatch.setattr(JobPlans, "_needs_less", lambda *_: True)
    setting.plans.confirm(TARGET, setting.builds, differ, (), "tiny")
    assert setting.recorded() == setting.plans.chosen[TARGET.key] == chosen
    assert "stays, since the rules need more memory than is allowed" in setting.said[-1]


@pytest.mark.nightly
def test_models_that_differ_are_no_plan(setting: Setting) -> None:
    def differ(specs: Sequence[ExecutableSpec]) -> ModelLatency:
        raise MeasureError("the tuned model's output 'y' differs from the untuned one's")

    setting.choose()
    setting.plans.confirm(TARGET, setting.builds, differ, (), "tiny")
    assert setting.recorded() is None


def test_the_rules_decide_where_the_settings_say_so(tmp_path: Path, store: Store) -> None:
    setting = Setting(tmp_path, store, {"search.plan": "rules"})
    record_plan(
        store,
        GraphChoice(GraphPlan((Chain("a"),))),
        "t",
        setting.hash,
        setting.settings,
        TARGET,
    )
    setting.plans = setting.new_plans()
    assert not setting.choose() and setting.compared == 0
    assert setting.plans.decided(TARGET) is None and setting.plans.of(TARGET) == DEFAULT_PLAN


def test_with_little_time_the_rules_decide(setting: Setting) -> None:
    assert not setting.choose(seconds=1.0) and setting.compared == 0
    assert setting.said == ["plan: the rules decide, since there is little time"]


def test_an_interrupted_search_chooses_nothing(setting: Setting) -> None:
    interrupt = Interrupt()
    interrupt.ask()
    assert not setting.choose(interrupt=interrupt)
    assert setting.compared == 0


def test_a_plan_that_is_the_build_of_the_rules_is_unchanged_and_not_taken(
    setting: Setting,
) -> None:
    setting.latency = ModelLatency(1e-3, 1e-3, 0.0, 0.0, 1.0, 1.0, 1.0)
    assert not setting.choose()
    assert "plan: chain a is the build of the rules, unchanged" in setting.said
    assert not any("1.00x" in text for text in setting.said)


def test_a_plan_that_cannot_be_built_is_told_and_not_taken(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LoweringError("no such loop")

    monkeypatch.setattr(ModelBuilds, "compile", fail)
    assert not setting.choose()
    assert "plan: chain a is not taken: no such loop" in setting.said


def test_a_confirmed_choice_has_the_bounds_of_its_speed_up() -> None:
    found = confirmed_choice(GraphChoice(GraphPlan((Layout("a", 8),))), latency(0.8))
    assert found.speedup == pytest.approx(1.25) and found.seconds == pytest.approx(0.8e-3)
    assert found.low == pytest.approx(1.25 / 1.01) and found.high == pytest.approx(1.25 / 0.99)
