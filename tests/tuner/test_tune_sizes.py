"""Jobs for several sizes: how they share trials and minutes, and how latencies are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tuner.test_job import latency_of_model
from tunefarm.configs.settings import load_settings
from tunefarm.tuner import tune_precisions as module
from tunefarm.tuner.job_request import JobRequest
from tunefarm.tuner.result import SizeResult, TuneResult, size_lines
from tunefarm.tuner.search.budget import End
from tunefarm.tuner.tune_precisions import tune_sizes


def result(measured: int, end: End = End.TOTAL_TRIALS) -> TuneResult:
    return TuneResult("m", "db", "job", end, measured, 1.0, (), None, None)


@pytest.mark.parametrize("interrupted", [False, True])
def test_trials_are_shared_out_and_an_interrupt_ends_all(
    interrupted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = load_settings(overrides={"search.total_trials": 30}, environment={})
    asked: list[tuple[object, int | None]] = []

    def tune(part: JobRequest) -> TuneResult:
        asked.append((part.shapes, part.settings.search.total_trials))
        end = End.INTERRUPTED if interrupted and len(asked) == 2 else End.TOTAL_TRIALS
        return result(4, end)

    monkeypatch.setattr(module, "tune_with", tune)
    shapes = {"batch": ("1|4|16",)}
    found = tune_sizes(JobRequest("m.onnx", settings, shapes=shapes))
    expected = [({"batch": (1,)}, 10), ({"batch": (4,)}, 13), ({"batch": (16,)}, 22)]
    assert asked == (expected[:2] if interrupted else expected)
    assert found.measured == 4 * len(asked) and found.interrupted == interrupted
    assert [item.sizes for item in found.sizes] == ["batch=1", "batch=4", "batch=16"][: len(asked)]


def test_latencies_are_drawn_against_sizes() -> None:
    latency = latency_of_model(2.0)
    drawn = size_lines([SizeResult("seq=1", None), SizeResult("seq=1..64", latency)])
    assert drawn == [f"seq=1..64  {'█' * 32}  2 s, untuned 1 s"]
