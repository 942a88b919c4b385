"""The whole choice, on a small model and without tuning: budgets hold on held-out samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.tuner.calibration.sized_rows import MOST_ROWS, SHAPES, sized_rows, sized_run
from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.apply_precisions import prepare
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.precision import Precision
from tunefarm.configs.settings import Settings, load_settings
from tunefarm.tuner.calibration.choice import ChoicePoint, PrecisionChoice
from tunefarm.tuner.calibration.options import PrecisionOptions
from tunefarm.tuner.confirm.verdict import Meeting
from tunefarm.tuner.precision import choose
from tunefarm.tuner.precision.choose import choose_precisions, fastest_within
from tunefarm.tuner.precision.model import PlannedModel, UniformTimes
from tunefarm.tuner.precision.report import contractions_table, points_table, summary_lines
from tunefarm.tuner.reports.terminal import console

SECONDS = {Precision.F32: 1.0, Precision.BF16: 0.5, Precision.F16: 0.6, Precision.INT8: 0.25}


def network() -> Graph:
    maker = GraphMaker()
    x = maker.input(4, 32)
    for _ in range(3):
        x = maker.node("relu", maker.node("matmul", x, maker.weights(32, 32, scale=0.2)))
    return maker.graph(x)


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "inputs.npz"
    values = np.random.default_rng(0).standard_normal((12, 4, 32)).astype(np.float32)
    np.savez(path, x0=values)
    return str(path)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(None, {"cache.folder": str(tmp_path / "cache")}, environment={})


@pytest.fixture(autouse=True)
def made_up_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every contraction takes as long as SECONDS says, in whole models too."""

    def times(model: Any, kinds: Any, calibration: Any) -> dict[Precision, UniformTimes]:
        return {
            kind: UniformTimes({item.identity: SECONDS[kind] for item in model.found}, 1.0)
            for kind in kinds
        }

    def samples(model: Any, assignments: Any, calibration: Any) -> list[Meeting]:
        taken = [
            [1.0 + 3 - sum(1 - SECONDS[kind] for kind in plan.values())] * 12
            for plan in assignments
        ]
        return [dict(enumerate(taken))]

    monkeypatch.setattr(PlannedModel, "times", times)
    monkeypatch.setattr(choose, "run_in_turn", samples)


def chosen(settings: Settings, options: PrecisionOptions, graph: Graph | None = None) -> Any:
    said: list[str] = []
    tuned: list[Any] = []
    choice = choose_precisions(
        graph or network(),
        settings,
        host_target(),
        options,
        lambda *job: tuned.append(job),
        None,
        said.append,
    )
    return choice, tuned


@pytest.mark.parametrize("budget", [0.05, 0.07, 0.6])
def test_the_fastest_plan_within_the_error_is_chosen(
    budget: float, settings: Settings, data: str
) -> None:
    choice, tuned = chosen(settings, PrecisionOptions(data, max_error=budget))
    point = choice.points[choice.chosen]
    assert point.worst <= budget
    assert point.held_out is not None and point.checked is not None
    assert point.precisions
    within = [other.ratio for other in choice.points if other.worst <= budget]
    assert point.ratio == min(within)
    assert choice.points[0].precisions == {}
    assert len(tuned) == len({kind for item in choice.contractions for kind in item.seconds})
    if budget == 0.6:
        assert set(point.precisions.values()) == {Precision.INT8}
    assert PrecisionChoice.from_json(choice.to_json()) == choice


def test_a_model_of_open_sizes_is_judged_by_samples_of_several(
    settings: Settings, tmp_path: Path
) -> None:
    for number in range(12):
        run = sized_run(1 + number % 3, 1 + 5 * number % MOST_ROWS)
        np.savez(tmp_path / f"{number:02}.npz", **run)  # type: ignore[arg-type]
    graph = import_model_proto(sized_rows(), shapes=SHAPES)
    calibrated = PrecisionOptions(str(tmp_path), max_error=0.6)
    choice, tuned = chosen(settings, calibrated, graph)
    assert set(choice.points[choice.chosen].precisions.values()) == {Precision.INT8}
    assert all(not job[0].is_fixed for job in tuned)
    drawn, _ = chosen(settings, PrecisionOptions(max_error=0.6), graph)
    assert drawn.calibration is None
    assert Precision.INT8 not in drawn.points[drawn.chosen].precisions.values()


def test_plans_of_open_sizes_are_timed_at_several(settings: Settings) -> None:
    graph = prepare(import_model_proto(sized_rows(), shapes=SHAPES))
    sizes = choose.representative_sizes(graph)
    assert sizes[0] == {"b": 1, "s": 1} and sizes[-1] == {"b": 3, "s": MOST_ROWS}
    assert len(sizes) == choose.MOST_SIZES
    assert choose.representative_sizes(network()) == [{}]
    small, large = [[1.0, 1.0], [0.5, 0.5]], [[200.0, 100.0, 100.0], [100.0, 75.0, 50.0]]
    assert choose.together([small, large]) == [[3.0, 2.0], [1.5, 1.25]]


@pytest.mark.parametrize(("high", "best"), [(0.99, 1), (1.01, 0)])
def test_a_plan_that_may_be_slower_is_not_chosen(high: float, best: int) -> None:
    points = [
        ChoicePoint({}, 1.0, 0.0, 0.0, 1.0, 1.0),
        ChoicePoint({"a": Precision.INT8}, 0.9, 0.01, 0.02, 0.8, high),
        ChoicePoint({"b": Precision.INT8}, 0.5, 0.01, 0.2, 0.4, 0.6),
    ]
    assert fastest_within(points, 0.1) == best


@pytest.mark.parametrize(("plan_over_uniform", "best"), [(0.97, 2), (1.02, 1)])
def test_a_plan_gives_way_to_a_uniform_one_that_fresh_runs_show_as_faster(
    plan_over_uniform: float, best: int, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    uniform = {"a": Precision.BF16, "b": Precision.BF16}
    points = [
        ChoicePoint({}, 1.0, 0.0, 0.0, 1.0, 1.0),
        ChoicePoint(uniform, 0.6, 0.004, 0.004, 0.59, 0.61),
        ChoicePoint({"a": Precision.INT8, "b": Precision.BF16}, 0.5, 0.008, 0.008, 0.49, 0.51),
    ]
    asked = []

    def samples(model: Any, assignments: Any, calibration: Any) -> list[Meeting]:
        asked.append(list(assignments))
        return [{0: [1.0] * 12, 1: [plan_over_uniform] * 12}]

    monkeypatch.setattr(choose, "run_in_turn", samples)
    model = PlannedModel(network(), settings, host_target(), None, lambda text: None)
    assert choose.confirmed(model, points, 2, 0.01, [uniform], None) == best
    assert asked == [[points[1].precisions, points[2].precisions]]
    assert choose.confirmed(model, points, 2, 0.001, [uniform], None) == 2  # no rival is within
    assert len(asked) == 1


def test_an_error_that_nothing_meets_names_the_nearest(settings: Settings, data: str) -> None:
    with pytest.raises(SettingsError, match=r"nothing below f32 is within 1e-09 .the nearest has"):
        chosen(settings, PrecisionOptions(data, max_error=1e-9))


def test_a_metric_may_lose_so_much(settings: Settings, data: str, tmp_path: Path) -> None:
    code = tmp_path / "metric.py"
    code.write_text(
        "import numpy\n"
        "def top1(outputs, labels):\n"
        "    (scores,) = outputs.values()\n"
        "    return float((scores.argmax(1) == labels).mean())\n"
        "def nan(outputs, labels):\n"
        "    return float('nan')\n"
    )
    labels = tmp_path / "labels.npy"
    np.save(labels, np.zeros(48, np.int64))
    options = PrecisionOptions(data, metric=f"{code}:top1", labels=str(labels), max_loss=0.5)
    choice, _ = chosen(settings, options)
    assert choice.measure.startswith("loss of ")
    assert set(choice.points[choice.chosen].precisions.values()) == {Precision.INT8}
    bad = PrecisionOptions(data, metric=f"{code}:nan", max_loss=0.5)
    with pytest.raises(SettingsError, match="returned nan"):
        chosen(settings, bad)


def test_a_model_without_contractions_is_refused(settings: Settings) -> None:
    maker = GraphMaker()
    graph = maker.graph(maker.node("relu", maker.input(2, 3)))
    with pytest.raises(SettingsError, match="no contraction whose precision could be chosen"):
        chosen(settings, PrecisionOptions(max_error=0.01), graph)


def test_what_was_chosen_is_told(settings: Settings, data: str) -> None:
    choice, _ = chosen(settings, PrecisionOptions(data, max_error=0.6))
    lines = summary_lines(choice, "tune build --model m.onnx")
    assert lines[0].startswith(f"point {choice.chosen} of {len(choice.points) - 1}: 3 int8;")
    late = replace(choice.points[choice.chosen], held_out=0.7)
    (line, *_) = summary_lines(replace(choice, points=(late,), chosen=0), "")
    assert "0.7 on held-out samples (more than 0.6: give more samples" in line
    assert lines[-2] == "another point: tune build --model m.onnx --point N"
    out = console()
    with out.capture() as captured:
        out.print(contractions_table(choice))
        out.print(points_table(choice))
    text = captured.get()
    assert text.count("int8") >= 4
    assert "█" in text and "→" in text
