"""A job with a target gain stops when the whole model confirms it, and goes on until then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tests.instant_runner import InstantRunner, measured
from tests.tuner.setting import Messages
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.configs.errors import SettingsError
from tunefarm.configs.settings import load_settings
from tunefarm.db.records import hash_json
from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.tuner import tune
from tunefarm.tuner.commands.options import UsageError, parsed_tune, tune_options
from tunefarm.tuner.confirm.latency import ModelLatency
from tunefarm.tuner.confirm.whole_model import CompareSpecs
from tunefarm.tuner.job_request import JobRequest
from tunefarm.tuner.result import TuneResult, summary_lines
from tunefarm.tuner.search.budget import Budget, End, Limits, TaskProgress, expected_gain
from tunefarm.tuner.tune_model import tune_model


def latency(ratio: float, doubt: float = 0.01) -> ModelLatency:
    low, high = ratio * (1 - doubt), ratio * (1 + doubt)
    return ModelLatency(1e-3, 1e-3 * ratio, 0.0, 0.0, ratio, low, high)


class GainingRunner(InstantRunner):
    """Each schedule of a kernel that is new takes 0.93 of the time of the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, dict[str, float]] = {}

    def answer(self, request: MeasureRequest) -> MeasureResult:
        known = self._seen.setdefault(request.workload_key, {})
        for schedule in request.schedules:
            known.setdefault(hash_json(schedule), 1e-3 * 0.93 ** len(known))
        return measured(request, [known[hash_json(each)] for each in request.schedules], 12)


class Setting:
    """Jobs on the tiny model, whose comparisons with the untuned one come out as they are told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.ratios: list[float] = []
        self.compared = 0
        self.runner = GainingRunner()
        self.progress = Messages()
        onnx.save(tiny_model(), folder / "tiny.onnx")
        monkeypatch.setattr("tunefarm.tuner.job_models.compare_here", self.compare_here)
        monkeypatch.setattr("tunefarm.tuner.confirm.model_times._timed", lambda *_: ())
        monkeypatch.setattr("tunefarm.tuner.job_models.with_roof", lambda times, *_: times)

    def compare_here(self, seconds: float, agree: object) -> CompareSpecs:
        def compare(specs: Sequence[ExecutableSpec]) -> ModelLatency:
            self.compared += 1
            return latency(self.ratios[min(self.compared, len(self.ratios)) - 1])

        return compare

    def tune(self, *ratios: float, **values: Any) -> TuneResult:
        self.ratios, self.compared = list(ratios), 0
        own = {
            "database.url": str(self.folder / "tuning.db"),
            "search.trials_per_task": 30,
            "search.patience": 200,  # the budget or the target ends a search, whatever it meets
            "search.min_gain": 0.0,
            "search.nothing_to_win": 0.0,
            "cache.enabled": False,
            **values,
        }
        settings = load_settings("ci", own, environment={})
        model = str(self.folder / "tiny.onnx")
        return tune_model(
            JobRequest(model, settings, progress=self.progress, make_runner=lambda *_: self.runner)
        )


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    return Setting(tmp_path, monkeypatch)


def test_a_job_stops_at_a_confirmed_gain(setting: Setting) -> None:
    result = setting.tune(0.8, **{"search.target_gain": 1.2})
    assert result.end is End.TARGET_GAIN and setting.compared == 1
    assert result.measured < 30 * len(result.tasks) / 2
    first, *lines = summary_lines(result, "next")
    assert first.startswith(f"{result.measured} measurements in ")
    assert ": the target gain was confirmed; " in first
    assert "target gain: 1.2x, reached" in lines
    assert result.to_json()["end"] == "the target gain was confirmed"


def test_what_only_kernels_gain_does_not_stop_it(setting: Setting) -> None:
    """The whole model is twice less: as much more is to be expected of the kernels then."""
    result = setting.tune(0.97, 0.95, 0.9, **{"search.target_gain": 1.1})
    assert result.end is End.TARGET_GAIN and setting.compared == 3
    goes_on = [text for text in setting.progress.said if text.endswith("the search goes on")]
    assert [text.split(" so far")[0] for text in goes_on] == [
        "the whole model is 1.03x as fast",
        "the whole model is 1.05x as fast",
    ]


def test_a_target_that_is_not_reached_is_no_reason(setting: Setting) -> None:
    result = setting.tune(0.97, **{"search.target_gain": 1.2, "search.trials_per_task": 8})
    assert result.end is not End.TARGET_GAIN and setting.compared
    assert "target gain: 1.2x, not reached" in summary_lines(result, "next")


def test_a_job_goes_on_to_a_higher_target_where_another_ended(setting: Setting) -> None:
    before = setting.tune(0.8, **{"search.target_gain": 1.2})
    after = setting.tune(0.6, **{"search.target_gain": 1.4})
    assert after.end is End.TARGET_GAIN
    assert after.known.trials == before.new.trials
    again = setting.tune(0.6, **{"search.target_gain": 1.4})
    assert again.end is End.TARGET_GAIN and again.new.trials == 0


def test_without_a_target_the_budget_decides(setting: Setting) -> None:
    result = setting.tune(0.5, **{"search.trials_per_task": 8})
    assert result.end is not End.TARGET_GAIN
    assert not any(line.startswith("target gain") for line in summary_lines(result, "next"))


def test_the_expected_gain_is_known_when_all_kernels_are() -> None:
    tasks = [TaskProgress(2, best=1.0, default=1.5), TaskProgress(1)]
    assert math.isnan(expected_gain(tasks))
    assert Budget(Limits(gain=1.1)).job_end(tasks, 0.0) is None
    tasks[1].best = tasks[1].default = 2.0
    assert expected_gain(tasks) == 1.25
    assert Budget(Limits(gain=1.25)).job_end(tasks, 0.0) is End.TARGET_GAIN
    assert Budget(Limits(gain=1.26)).job_end(tasks, 0.0) is None


@pytest.mark.parametrize("value", ["1", "0.9", "-2", "nan", "inf", "1001"])
def test_what_is_no_speed_up_is_one_error(value: str) -> None:
    context = parsed_tune(["m.onnx", "--target-gain", value])
    with pytest.raises(UsageError, match=r"--target-gain is a speed-up above 1 .*as in 1\.10"):
        tune_options(context.params)
    with pytest.raises(SettingsError, match=r"search\.target_gain"):
        tune("m.onnx", target_gain=float(value))


def test_a_command_is_resumed_with_its_target() -> None:
    context = parsed_tune(["m.onnx", "--target-gain", "1.10"])
    assert tune_options(context.params).settings.search.target_gain == 1.1
