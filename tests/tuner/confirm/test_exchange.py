"""Kernels exchanged in the running model: who meets whom, and which of them is the fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler.errors import MeasureError, VerifyError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.schedule.schedule import ScheduleChoice
from tunefarm.compiler.schedule.spaces import untiled_schedule
from tunefarm.compiler.target import host_target
from tunefarm.measure.compare import Comparison
from tunefarm.tuner.confirm.exchange import (
    DEFAULT,
    FORMER,
    LEAST_PLACEMENTS,
    MOST_PLACEMENTS,
    TUNED,
    InModel,
    Takes,
    exchange_kernels,
    meet,
    verdicts,
)
from tunefarm.tuner.confirm.latency import outputs_agree

TWO, THREE = (DEFAULT, TUNED), (DEFAULT, TUNED, FORMER)


class Model:
    """Kernels take so long with the code of each build, and `noise` more or less."""

    def __init__(self, seconds: Mapping[str, Sequence[float]], noise: float = 0.002) -> None:
        self.seconds, self.noise = seconds, noise
        self.takes: list[Sequence[Takes]] = []

    def measure(self, takes: Sequence[Takes], number: int) -> list[dict[str, list[float]]]:
        rng = np.random.default_rng(number)
        self.takes.append(takes)
        return [
            {
                key: list(own[each.get(key, DEFAULT)] * np.exp(rng.normal(0.0, self.noise, 8)))
                for key, own in self.seconds.items()
            }
            for each in takes
        ]


def never(_: int) -> bool:
    return False


def found(
    model: Model, choices: Mapping[str, Sequence[int]], is_late: Callable[[int], bool] = never
) -> dict[str, InModel]:
    return verdicts(meet(choices, model.measure, is_late))


def test_each_kernel_has_the_schedule_that_is_faster_in_the_model() -> None:
    model = Model({"a": (1.0, 0.9), "b": (1.0, 1.1), "c": (1.0, 0.8, 0.7)})
    verdict = found(model, {"a": TWO, "b": TWO, "c": THREE})
    assert {key: item.fastest for key, item in verdict.items()} == {"a": 1, "b": 0, "c": 2}
    assert verdict["a"].compared.ratio == pytest.approx(0.9, rel=0.01)
    assert verdict["b"].compared.is_unchanged
    assert verdict["c"].over_default[TUNED].ratio == pytest.approx(0.8, rel=0.01)


def test_in_a_placement_each_kernel_is_taken_from_each_build() -> None:
    model = Model({"a": (1.0, 1.0), "b": (1.0, 1.0), "c": (1.0, 1.0, 1.0)})
    choices = {"a": TWO, "b": TWO, "c": THREE}
    found(model, choices)
    assert len(model.takes) == MOST_PLACEMENTS
    for takes in model.takes:
        for key, numbers in choices.items():
            assert {each[key] for each in takes} == set(numbers)


def test_neighbours_are_drawn_anew() -> None:
    model = Model({"a": (1.0, 1.0), "b": (1.0, 1.0)})
    found(model, {"a": TWO, "b": TWO})
    alike = {takes[0]["a"] == takes[0]["b"] for takes in model.takes}
    assert alike == {True, False}


def test_what_is_clear_stays_and_the_rest_goes_on() -> None:
    model = Model({"a": (1.0, 0.5), "b": (1.0, 1.0)})
    verdict = found(model, {"a": TWO, "b": TWO})
    assert len(model.takes) == MOST_PLACEMENTS
    assert {each["a"] for takes in model.takes[LEAST_PLACEMENTS:] for each in takes} == {TUNED}
    assert verdict["a"].compared.pairs == LEAST_PLACEMENTS * 8
    assert verdict["b"].over_default[TUNED].pairs == MOST_PLACEMENTS * 8


def test_it_ends_when_all_is_clear() -> None:
    model = Model({"a": (1.0, 0.5), "b": (1.0, 2.0)})
    found(model, {"a": TWO, "b": TWO})
    assert len(model.takes) == LEAST_PLACEMENTS


def test_without_time_for_enough_placements_nothing_is_said() -> None:
    model = Model({"a": (1.0, 0.5)})
    assert found(model, {"a": TWO}, lambda number: number >= 2) == {}
    assert found(Model({}), {}) == {}


def test_nothing_but_what_is_surely_faster_is_left_of_a_slower_model() -> None:
    over = {DEFAULT: Comparison(1.0, 1.0, 1.0, 9), TUNED: Comparison(0.99, 0.97, 1.01, 9)}
    assert InModel(TUNED, over).surely.fastest == DEFAULT
    over[TUNED] = Comparison(0.95, 0.93, 0.97, 9)
    assert InModel(TUNED, over).surely.fastest == TUNED


@pytest.fixture(scope="module")
def builds() -> list[ExecutableSpec]:
    graph = import_model_proto(tiny_model())
    untiled = compile_model(
        graph, lambda k: ScheduleChoice(untiled_schedule(k, host_target()), "tuned", "1", 1.0)
    )
    return [compile_model(graph).spec, untiled.spec]


def test_models_are_really_run(builds: list[ExecutableSpec]) -> None:
    verdict = exchange_kernels(builds, 20.0, outputs_agree)
    different = [
        report.key
        for report, *codes in zip(builds[0].kernels, *(b.objects for b in builds), strict=True)
        if codes[0] != codes[1]
    ]
    assert different and list(verdict) == different
    assert all(item.over_default[TUNED].ratio > 0 for item in verdict.values())


def test_wrong_outputs_are_an_error(builds: list[ExecutableSpec]) -> None:
    with pytest.raises(MeasureError, match="differs from the untuned one's"):
        exchange_kernels(builds, 5.0, lambda *_: False)


def test_builds_of_other_models_are_an_error(builds: list[ExecutableSpec]) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(tiny_model())
    del model.graph.node[-1]  # the softmax
    model.graph.output[0].name = "g"
    other = compile_model(import_model_proto(model)).spec
    with pytest.raises(VerifyError, match="cannot be exchanged"):
        exchange_kernels([builds[0], other], 5.0, outputs_agree)
