"""Kernels of a model with a range of sizes: which schedules serve which sizes."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.instant_runner import InstantRunner, measured
from tests.tuner.setting import TILES, Setting
from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.kernels.kernel_sizes import greatest_sizes
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.extents import Shapes
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS
from tunefarm.configs.settings import load_settings
from tunefarm.db.store import Store
from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner.building.size_plan import record_size_plan, size_plan
from tunefarm.tuner.confirm import size_race
from tunefarm.tuner.confirm.latency import outputs_agree
from tunefarm.tuner.confirm.size_race import CONTENDERS, SizeRace, confirm_plan, contenders
from tunefarm.tuner.confirm.whole_model import ModelBuilds
from tunefarm.tuner.model.cost_model import BoostedTrees
from tunefarm.tuner.records.size_ranges import SizePlan, SizeRange, points_of
from tunefarm.tuner.search.make_tasks import TaskSource, distinct_kernels, make_tasks
from tunefarm.tuner.search.tasks import TuningTask, plan

SHAPES: Shapes = {"batch": (1,), "sequence": ("1..24",)}


class FakeRunner(InstantRunner):
    """The first schedule is the fastest at the greatest size, the last one below."""

    def answer(self, request: MeasureRequest) -> MeasureResult:
        numbers = range(len(request.schedules))
        slower = numbers if max(request.sizes) == 24 else reversed(numbers)
        return measured(request, [1e-6 * (1 + number) for number in slower], 4)


def known(task: TuningTask) -> TuningTask:
    """The task with its default schedule and another one measured."""
    task.known[task.default.hash] = 1e-6
    for number in range(task.space.size):
        other = plan(task.space, task.space.candidate(number))
        if other.hash != task.default.hash:
            task.plans[other.hash] = other
            task.known[other.hash] = 2e-6
            break
    return task


def test_what_serves_which_sizes_is_measured_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    size = Size(width=0.0625, tokens=13, layers=1, dynamic=True)
    onnx.save(build_model("encoder", size=size), "encoder.onnx")
    settings = load_settings(overrides={"database.url": "tuning.db"}, environment={})
    graph, host = import_model("encoder.onnx", SHAPES), host_target()
    kernels = distinct_kernels(kernels_of(graph, host))
    tasks = make_tasks([TaskSource(host, kernels)], settings, BoostedTrees(0))
    race, runner = SizeRace(points_of(graph.signature), job="job", seed=0), FakeRunner()
    race.run([known(task) for task in tasks], {}, runner, {}, lambda seconds: False)
    sized = {task.key.workload for task in tasks if greatest_sizes(task.kernel)}
    assert {request.workload_key for request in runner.requests} <= sized
    assert {request.sizes for request in runner.requests} == {
        point.sizes for point in points_of(graph.signature)
    }
    found = race.plan()
    assert found is not None and [dict(item.bounds) for item in found.ranges] == [
        {"sequence": (1, 13)},
        {"sequence": (14, 24)},
    ]
    assert found.ranges[0].schedules and not found.ranges[1].schedules
    with Store.open("tuning.db") as store:
        assert size_plan(store, structural_hash(graph), settings, host) == (None, ())
        record_size_plan(store, found, "encoder", structural_hash(graph), settings, host)
        kept, _ = size_plan(store, structural_hash(graph), settings, host)
    assert kept is not None and kept.to_json() == json.loads(json.dumps(found.to_json()))


def test_without_measurements_there_is_no_plan() -> None:
    assert SizeRace([], job="job", seed=0).plan() is None


def test_what_was_found_best_at_any_size_races(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "tuning.db")
    setting.tasks(BoostedTrees(0), TILES, TILES)
    task, other = setting.made
    for each in (task, other):
        for number in range(each.space.size):
            planned = plan(each.space, each.space.candidate(number))
            each.plans[planned.hash] = planned
    fast = [name for name in task.plans if name != task.default.hash]
    for number, name in enumerate(fast):
        task.known[name], other.known[name] = 1e-6 * (number + 1), 1e-6 * (99 - number)
    found = list(contenders(task, [other], {task.key.workload: fast[1]}))
    assert found[:2] == [fast[1], task.default.hash]
    assert {fast[0], fast[-1]} <= set(found) and len(found) == CONTENDERS


def test_sizes_that_contradict_each_other_have_no_latency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that does not agree with itself is not measured; with other ones outputs count."""

    def differ(*_: object, **__: object) -> None:
        raise MeasureError("outputs differ")

    monkeypatch.chdir(tmp_path)
    size = Size(width=0.0625, tokens=13, layers=1, dynamic=True)
    onnx.save(build_model("encoder", size=size), "encoder.onnx")
    settings = load_settings(overrides={"database.url": "tuning.db"}, environment={})
    graph, host = import_model("encoder.onnx", SHAPES), host_target()
    points = points_of(graph.signature)
    whole = SizePlan((SizeRange({"sequence": (1, 24)}, {}),), {})
    monkeypatch.setattr(size_race, "compare_models", differ)
    with Store.open("tuning.db") as store:
        builds = ModelBuilds(graph, settings, DEFAULT_NUMERICS, store)
        untuned, _ = builds.compile(host, builds.choose(host))

        def confirmed() -> SizePlan:
            return confirm_plan(builds, host, untuned, whole, points, 60.0, outputs_agree)

        with pytest.raises(MeasureError):
            confirmed()
        monkeypatch.setattr(size_race, "repeats_itself", lambda *_: False)
        assert not confirmed().models
