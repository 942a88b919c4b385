"""The measure of outputs: relative errors, and metrics of users."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm import compiler
from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.precision import PrecisionPlan
from tunefarm.tuner.calibration.data import SampleForm, Samples
from tunefarm.tuner.calibration.metric import Joints, Metric, relative_error, unseen_error
from tunefarm.tuner.precision.choose import Effects

CODE = """
import numpy
def top1(outputs, labels):
    return float((outputs["y"].argmax(1) == labels).mean())
def raises(outputs, labels):
    raise KeyError("logits")
def leaves(outputs, labels):
    raise SystemExit(3)
def nan(outputs, labels):
    return float("nan")
def text(outputs, labels):
    return "good"
number = 3
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    file = tmp_path / "metric.py"
    file.write_text(CODE)
    np.save(tmp_path / "labels.npy", np.array([0, 1, 1]))
    return file


def test_error_is_that_of_the_worst_output_relative_to_its_largest() -> None:
    expected = {"a": np.array([0.0, -4.0]), "b": np.array([1.0, 1.0])}
    actual = {"a": np.array([0.1, -4.0]), "b": np.array([1.0, 1.1])}
    assert relative_error(actual, expected) == pytest.approx(0.1)
    assert relative_error(expected, expected) == 0.0


def test_error_is_infinite_where_a_number_became_nan() -> None:
    expected = {"a": np.array([1.0, np.inf])}
    assert relative_error({"a": np.array([np.nan, np.inf])}, expected) == math.inf
    assert relative_error({"a": np.array([1.0, np.inf])}, expected) == 0.0


def test_integer_outputs_count_by_the_share_that_differs() -> None:
    assert relative_error({"a": np.array([1, 2])}, {"a": np.array([1, 3])}) == 0.5


@pytest.mark.parametrize(
    ("samples", "factor"), [(6, 3.78), (9, 3.16), (24, 2.0), (99, 1.0), (500, 1.0)]
)
def test_few_samples_leave_room_for_errors_not_seen(samples: int, factor: float) -> None:
    errors = [0.002, 0.01, 0.005]
    assert unseen_error(errors, samples) == pytest.approx(0.01 * factor, rel=2e-3)


def _boxes_and_scores() -> Graph:
    maker = GraphMaker()
    boxes, scores = maker.input(1, 2, 3), maker.input(1, 1, 3)
    kept = [maker.node("relu", name) for name in (boxes, scores)]
    return maker.graph(maker.node("concat", *kept, axis=1), kept[0])


def test_parts_of_a_concatenated_output_are_taken_apart() -> None:
    graph = _boxes_and_scores()
    joined, plain = graph.outputs
    run = {joined: np.arange(9.0).reshape(1, 3, 3), plain: np.ones((1, 2, 3))}
    parts = Joints.of(graph).apart(run)
    assert list(parts) == [f"{joined}/0", f"{joined}/1", plain]
    assert parts[f"{joined}/1"].tolist() == [[[6.0, 7.0, 8.0]]]


def test_error_of_scores_is_not_relative_to_boxes_beside_them() -> None:
    graph = _boxes_and_scores()
    boxes, scores = graph.inputs
    run = {
        boxes: np.full((1, 2, 3), 300.0, np.float32),
        scores: np.full((1, 1, 3), 0.5, np.float32),
    }
    samples = Samples.of([run], SampleForm(graph.signature))
    effects = Effects(graph, None, samples, lambda graph, numerics: compiler.build(graph))
    (outputs,) = effects._outputs(PrecisionPlan())
    changed = {name: array.copy() for name, array in outputs.items()}
    changed[graph.outputs[0]][0, 2, 0] = 0.4
    assert effects.errors_of([changed]) == pytest.approx((0.2,), rel=1e-5)


def test_metric_sees_all_runs_joined_and_their_labels(code: Path) -> None:
    metric = Metric.load(f"{code}:top1", str(code.parent / "labels.npy"))
    runs = [{"y": np.eye(2)[[label]]} for label in (0, 1, 0)]
    assert metric.of(runs) == pytest.approx(2 / 3)
    assert metric.part([2, 0], 3).of([runs[0], runs[2]]) == 0.5
    with pytest.raises(SettingsError, match="3 labels do not fit 2 samples"):
        metric.check(2)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "failed: KeyError: 'logits'"),
        ("leaves", "failed: SystemExit: 3"),
        ("nan", "returned nan"),
        ("text", "failed: ValueError"),
    ],
)
def test_a_metric_that_fails_is_one_line(name: str, reason: str, code: Path) -> None:
    metric = Metric.load(f"{code}:{name}", None)
    with pytest.raises(SettingsError, match=reason) as caught:
        metric.of([{"y": np.zeros((1, 2))}])
    assert "\n" not in str(caught.value)


def test_a_metric_that_is_not_there_is_refused(code: Path) -> None:
    for text, reason in (
        (f"{code}:nothing", "has no function 'nothing'"),
        (f"{code}:number", "has no function 'number'"),
        (str(code), "give it as FILE.py:FUNCTION"),
        (f"{code.parent}/other.py:top1", "FileNotFoundError"),
    ):
        with pytest.raises(SettingsError, match=reason):
            Metric.load(text, None)
    for labels in ("nothing.npy", "metric.py"):
        with pytest.raises(SettingsError, match="--labels"):
            Metric.load(f"{code}:top1", str(code.parent / labels))
