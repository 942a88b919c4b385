"""Recorded plans are applied by builds, or it is said why not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm import compiler
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, PLAIN, GraphPlan, Layout
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import Settings, load_settings
from tunefarm.db import model_queries, queries
from tunefarm.db.records import TargetRecord
from tunefarm.db.store import Store
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner.building.cache import BuildCache
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.recorded_plan import PlanToApply, plan_to_apply, record_plan
from tunefarm.tuner.building.request import BuildRequest, BuildResult
from tunefarm.tuner.building.size_plan import record_size_plan, size_plan
from tunefarm.tuner.records.graph_choice import GraphChoice
from tunefarm.tuner.records.size_ranges import SizePlan, SizeRange

PLAIN_CONV = GraphChoice(GraphPlan((Layout("c", PLAIN),)), "NCHW at c", 1.2, 1.1, 1.3, 1e-5)


class Setting:
    """The tiny model, a database with plans of it, and builds from that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "tiny.onnx"
        onnx.save(tiny_model(), self.model)
        self.hash = structural_hash(import_model(self.model))
        self.db = folder / "tuning.db"
        Store.open(self.db).close()

    def settings(self, **changes: object) -> Settings:
        folder = {"cache.folder": str(self.folder / "cache"), "database.url": str(self.db)}
        return load_settings(None, folder | changes, environment={})

    def record(self, choice: GraphChoice, **changes: Any) -> None:
        target = host_target()
        with Store.open(":memory:") as scratch, Store.open(self.db) as store:
            record_plan(scratch, choice, "tiny", self.hash, self.settings(), target)
            (record,) = model_queries.plans(scratch)
            store.add([TargetRecord(target.key, target.to_json())])
            store.add([replace(record, **changes)])

    def build(self, *, cache: bool = True, **options: Any) -> tuple[bytes, BuildResult]:
        output = self.folder / "tiny.tuned"
        settings = options.pop("settings", None) or self.settings(**{"cache.enabled": cache})
        result = build(BuildRequest(str(self.model), str(output), settings, **options))
        return output.read_bytes(), result

    def keys(self, plan: GraphPlan) -> list[str]:
        return list(kernels_of(self.model, plan=plan).kernel_calls())


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def keys(result: BuildResult) -> list[str]:
    return [use.report.key for use in result.report.kernels]


def test_a_build_applies_the_recorded_plan_and_names_it(setting: Setting) -> None:
    before, _ = setting.build()
    setting.record(PLAIN_CONV)
    planned, result = setting.build()
    assert planned != before
    assert keys(result) == setting.keys(PLAIN_CONV.plan) != setting.keys(DEFAULT_PLAN)
    assert result.report.plan == PLAIN_CONV
    assert result.lines()[0] == (
        "plan: NCHW at c (1.20x faster than the rules, 1.10-1.30, confirmed)"
    )
    assert result.to_json()["plan"]["decisions"] == PLAIN_CONV.plan.to_json()


def test_decisions_that_plans_do_not_have_any_more_are_left_to_the_rules(setting: Setting) -> None:
    """As a record of an earlier version has them."""
    retired = [{"decide": "separate", "value": "c"}, {"decide": "spelled", "value": "p"}]
    decisions = [*PLAIN_CONV.plan.to_json(), *retired]
    region = {"decisions": retired[:1], "described": "separate c", "rival": "fused"}
    plan = {**PLAIN_CONV.to_json(), "decisions": decisions, "regions": [region]}
    setting.record(PLAIN_CONV, plan=plan)
    _, result = setting.build()
    assert keys(result) == setting.keys(PLAIN_CONV.plan)
    assert any("2 of the decisions of the recorded plan" in line for line in result.report.notes)
    setting.record(PLAIN_CONV, plan={**plan, "decisions": retired})
    _, result = setting.build()
    assert result.report.plan is None and keys(result) == setting.keys(DEFAULT_PLAN)


def test_an_untuned_build_takes_no_plan(setting: Setting) -> None:
    setting.record(PLAIN_CONV)
    _, result = setting.build(untuned=True)
    assert result.report.plan is None and keys(result) == setting.keys(DEFAULT_PLAN)


@pytest.mark.parametrize(
    "changes", [{"threads": 2}, {"numerics": "strict by graph"}, {"model_hash": "other"}]
)
def test_a_plan_of_something_else_is_not_applied(setting: Setting, changes: Any) -> None:
    setting.record(PLAIN_CONV, **changes)
    with Store.open(setting.db) as store:
        asked = store, setting.hash, setting.settings(), host_target()
        assert plan_to_apply(*asked) == PlanToApply()


def test_the_newest_plan_counts(setting: Setting) -> None:
    setting.record(PLAIN_CONV)
    setting.record(GraphChoice())  # a later job found the rules as good
    _, result = setting.build()
    assert result.report.plan is None
    assert not any("plan" in note for note in result.notes)


def test_a_plan_that_does_not_fit_is_said_and_the_rules_decide(setting: Setting) -> None:
    plain, _ = setting.build()
    setting.record(GraphChoice(GraphPlan((Layout("nothing", 16),)), "NCHW16c at nothing"))
    for _ in range(2):
        found, result = setting.build()
        assert found == plain and result.report.plan is None
        (note,) = [note for note in result.notes if "plan" in note]
        assert note.startswith("the recorded plan does not fit the model, the rules decide: ")
        assert "no node computes 'nothing'" in note


def test_a_plan_of_another_compiler_is_said_and_the_rules_decide(setting: Setting) -> None:
    setting.record(PLAIN_CONV, compiler_version="0")
    _, result = setting.build()
    assert result.report.plan is None and keys(result) == setting.keys(DEFAULT_PLAN)
    (note,) = [note for note in result.notes if "plan" in note]
    assert note == (
        "the recorded plan (NCHW at c) is of version 0 of the compiler, this is "
        f"{compiler.VERSION}: the rules decide"
    )


def test_a_record_that_is_no_plan_is_said(setting: Setting) -> None:
    setting.record(PLAIN_CONV, plan={"decisions": [{"decide": "colour"}]})
    _, result = setting.build()
    assert result.report.plan is None
    assert any("cannot be read" in note for note in result.notes)


@pytest.mark.nightly
def test_kernels_of_another_plan_are_not_put_together(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the same bytes were not built before, the plan decides which artefact is found."""
    monkeypatch.setattr(BuildCache, "repeated", lambda _: None)
    rules, _ = setting.build()
    setting.record(PLAIN_CONV)
    first, _ = setting.build()
    again, result = setting.build()
    assert first == again != rules and result.report.plan == PLAIN_CONV
    assert setting.build(cache=False)[0] == first
    setting.record(GraphChoice())
    assert setting.build()[0] == rules


@pytest.mark.nightly
def test_a_fallback_takes_the_plan_of_its_own_target(setting: Setting) -> None:
    setting.record(PLAIN_CONV)
    setting.build(fallback=True)
    model = compiler.load(setting.folder / "tiny.tuned", fallback=True)
    setting.build(fallback=True, untuned=True)
    other = compiler.load(setting.folder / "tiny.tuned", fallback=True)
    assert [k.key for k in model.spec.kernels] == [k.key for k in other.spec.kernels]


@pytest.mark.nightly
def test_every_program_of_several_is_built_with_its_plan(setting: Setting) -> None:
    setting.record(PLAIN_CONV)
    settings = setting.settings(**{"compile.targets": ("host", "x86-64-v2")})
    _, result = setting.build(settings=settings)
    plans = {program.target: program.report.plan for program in result.programs}
    assert plans.pop(host_target().key) == PLAIN_CONV
    assert set(plans.values()) == {None}


@pytest.mark.nightly
def test_the_same_records_give_the_same_bytes_in_another_process(setting: Setting) -> None:
    setting.record(PLAIN_CONV)
    here, _ = setting.build(cache=False)
    output = setting.folder / "there.tuned"
    script = (
        "import sys; from tunefarm.configs.settings import load_settings;"
        "from tunefarm.tuner.building.flow import build;"
        "from tunefarm.tuner.building.request import BuildRequest;"
        "values = {'cache.enabled': False, 'database.url': sys.argv[2]};"
        "settings = load_settings(None, values, environment={});"
        "build(BuildRequest(sys.argv[1], sys.argv[3], settings))"
    )
    command = [sys.executable, "-c", script, str(setting.model), str(setting.db), str(output)]
    subprocess.run(command, check=True, timeout=120)
    assert output.read_bytes() == here


def test_a_plan_is_no_task_and_no_choice_of_precisions(setting: Setting) -> None:
    """Records of other kinds have other keys: neither is taken for the other."""
    setting.record(PLAIN_CONV)
    with Store.open(setting.db) as store:
        asked = store, setting.hash, host_target().key, 1, "default", compiler.VERSION
        assert model_queries.newest_plan(*asked) is None
        assert size_plan(store, setting.hash, setting.settings(), host_target()) == (None, ())
        assert queries.tasks(store) == []


def test_ranges_that_another_cpu_chose_are_named(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = (SizeRange({"n": (1, 8)}, {}), SizeRange({"n": (9, 64)}, {}))
    found = SizePlan(ranges, {})
    with Store.open(setting.db) as store:
        asked = store, setting.hash, setting.settings(), host_target()
        with monkeypatch.context() as patch:
            patch.setattr("tunefarm.tuner.building.record.cpu_name", lambda: "another CPU")
            record_size_plan(store, found, "tiny", *asked[1:])
        plan, (note,) = size_plan(*asked)
        assert plan is None
        assert "another CPU" in note
        assert "--accept-nominees" in note
        assert size_plan(*asked, accept_nominees=True) == (found, ())
