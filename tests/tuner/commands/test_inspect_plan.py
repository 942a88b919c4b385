"""`tune inspect --stage plan` says what a build decides of a graph, and what else it could."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.tuner.building.test_recorded_plan import PLAIN_CONV, Setting
from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder
from tunefarm.compiler.plan.decisions.graph_plan import PLAIN, FusionBarrier, GraphPlan, Layout
from tunefarm.configs.settings import Settings, load_settings
from tunefarm.db.store import Store
from tunefarm.tuner.commands.inspect_model import inspect_model
from tunefarm.tuner.records.graph_choice import GraphChoice


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def shown(setting: Setting, stage: str = "plan") -> str:
    settings: Settings = setting.settings()
    with Store.open(setting.db) as store:
        return inspect_model(setting.model, stage, settings, store=store)


def test_plan_without_records_is_that_of_the_rules(setting: Setting) -> None:
    text = inspect_model(setting.model, "plan", setting.settings())
    assert text.splitlines()[1] == "as the rules decide"
    assert "# cut" in text
    assert "candidates (us)" in text


@pytest.mark.nightly
def test_recorded_plan_is_shown_and_its_kernels_are(setting: Setting) -> None:
    ruled = shown(setting, "kernels")
    setting.record(PLAIN_CONV)
    text = shown(setting)
    assert text.startswith("# NCHW at c (1.20x faster than the rules, 1.10-1.30, confirmed)\n")
    assert "layout c NCHW\n" in text
    assert shown(setting, "kernels") != ruled


def test_recorded_plan_that_no_longer_fits_is_said_and_left(setting: Setting) -> None:
    gone = GraphPlan((Layout("c", PLAIN), FusionBarrier("nothing")))
    setting.record(GraphChoice(gone, "gone"))
    text = shown(setting)
    assert text.startswith("# the recorded plan does not fit the model, the rules decide: separate")
    assert "\nas the rules decide\n" in text


def test_plan_has_no_kernels(setting: Setting) -> None:
    with pytest.raises(SettingsError, match="the plan has no kernels yet"):
        inspect_model(setting.model, "plan", setting.settings(), kernel="conv")


def test_plan_without_a_database_is_what_an_untuned_build_takes(tmp_path: Path) -> None:
    model = tmp_path / "heads.onnx"
    net = NetworkBuilder("heads", 0)
    image = net.conv("image", Layer(net.input("x", (1, 16, 28, 28)), 16), 32, 1)
    branches = [net.relu(net.conv(f"head{number}", image, 16, 3, padding=1)) for number in (0, 1)]
    net.output(net.add(*branches).name, "y", (1, 16, 28, 28))
    onnx.save(net.model(), model)
    settings = load_settings(None, {"compile.target": "sapphirerapids"}, environment={})
    text = inspect_model(str(model), "plan", settings)
    assert text.startswith("# by estimates, without a database")
    assert "\nmerged head0" in text
