"""Jobs of models in 8 bits: what a build begins with is what they record for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.configs.settings import Settings, load_settings
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner import tune_precisions
from tunefarm.tuner.building.lowered import LoweredModel
from tunefarm.tuner.calibration.options import PrecisionOptions
from tunefarm.tuner.job_request import JobRequest


def test_a_quantised_model_is_recorded_as_it_was_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_model(), "tiny.onnx")
    graph = import_model("tiny.onnx")
    arrays: dict[str, Any] = {n: np.zeros(graph.types[n].shape, np.float32) for n in graph.inputs}
    np.savez("data.npz", **arrays)
    told: list[tuple[str, Settings] | None] = []

    def tuned(
        request: JobRequest, lowered: LoweredModel, built_from: tuple[str, Settings] | None = None
    ) -> None:
        assert request.settings.compile.numerics == "default"  # the graph says the rest
        told.append(built_from)

    monkeypatch.setattr(tune_precisions, "tune_lowered", tuned)
    options = {"database.url": "t.db", "compile.numerics": "int8"}
    settings = load_settings("ci", options, environment={})
    request = JobRequest("tiny.onnx", settings, PrecisionOptions("data.npz"))
    tune_precisions.tune_with(request)
    assert told == [(structural_hash(graph), settings)]
