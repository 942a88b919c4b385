"""Plans for models whose values need more memory than is allowed."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.tuner.plans.conv_net import conv_net
from tests.tuner.plans.test_job_plans import TARGET as JOB_TARGET
from tests.tuner.plans.test_job_plans import Setting
from tunefarm.compiler.errors import LimitError
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.limits import Limits
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS
from tunefarm.configs.settings import load_settings
from tunefarm.db.store import Store
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.recorded_plan import record_plan
from tunefarm.tuner.building.request import BuildRequest
from tunefarm.tuner.plans.job_plans import Arenas, within_memory
from tunefarm.tuner.records.graph_choice import GraphChoice

TARGET = host_target()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Channels that the rules pad from 20 to 32."""
    path = tmp_path / "net.onnx"
    onnx.save(conv_net((20, 20, 20)), path)
    return path


@pytest.fixture
def arenas(model: Path) -> Arenas:
    return Arenas(import_model(model), TARGET, DEFAULT_NUMERICS, Limits())


def needs(arenas: Arenas) -> int:
    return arenas.bytes_of(DEFAULT_PLAN)


def test_the_rules_decide_where_they_need_little_enough(arenas: Arenas) -> None:
    assert within_memory(arenas, needs(arenas)) == DEFAULT_PLAN


def test_a_plan_that_needs_less_is_found(arenas: Arenas) -> None:
    plan = within_memory(arenas, needs(arenas) - 1)
    assert plan != DEFAULT_PLAN and arenas.bytes_of(plan) < needs(arenas)


def test_the_least_is_named_where_nothing_needs_as_little(arenas: Arenas) -> None:
    with pytest.raises(LimitError, match=r"take ([0-9]+) bytes at least, and 100 are") as found:
        within_memory(arenas, 100)
    least = int(found.value.message.split(" take ")[1].split()[0])
    assert arenas.bytes_of(within_memory(arenas, least)) == least


@pytest.mark.nightly
def test_a_job_takes_a_plan_for_its_memory(tmp_path: Path, arenas: Arenas, model: Path) -> None:
    most = needs(arenas) - 1
    with Store.open(tmp_path / "tuning.db") as store:
        setting = Setting(tmp_path, store, {"limits.memory": most}, conv_net((20, 20, 20)))
        setting.ratio = 1.1
        assert setting.choose(seconds=7.0)  # too little for a search, enough for one for memory
        choice = setting.plans.chosen[JOB_TARGET.key]
        assert choice.arena_bytes is not None and choice.arena_bytes <= most
        setting.confirm()
        setting.plans.give_up(JOB_TARGET, "net")  # it is slower, but the rules are not allowed
        recorded = setting.recorded()
    assert recorded is not None and recorded.plan == choice.plan
    assert "0.91x as fast as the rules" in str(recorded)


def test_rules_alone_are_refused_where_they_need_too_much(tmp_path: Path, arenas: Arenas) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        values = {"limits.memory": 100, "search.plan": "rules"}
        with pytest.raises(LimitError, match="by the rules, and 100 are allowed"):
            Setting(tmp_path, store, values)


@pytest.mark.nightly
def test_a_build_takes_what_fits_or_names_what_is_needed(
    tmp_path: Path, arenas: Arenas, model: Path
) -> None:
    plan = within_memory(arenas, needs(arenas) - 1)
    least = arenas.bytes_of(plan)
    db = tmp_path / "tuning.db"

    def built(memory: int) -> GraphChoice | None:
        values = {"cache.enabled": False, "database.url": str(db), "limits.memory": memory}
        settings = load_settings(None, values, environment={})
        request = BuildRequest(str(model), str(tmp_path / "net.tuned"), settings)
        return build(request).report.plan

    with Store.open(db) as store:
        settings = load_settings(None, environment={})
        model_hash = structural_hash(arenas.graph)
        record_plan(store, GraphChoice(plan), "net", model_hash, settings, TARGET)
    assert built(least + 100_000) == GraphChoice(plan)
    with pytest.raises(LimitError, match=r"100 bytes are allowed") as found:
        built(100)
    assert "this plan of the graph needs" in (found.value.hint or "")
