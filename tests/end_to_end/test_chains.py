"""A job tunes the kernels that a build has, those that estimates chain included."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx

from tests.end_to_end.chain_net import SHAPE, chain_net
from tests.tuner.test_target_gain import GainingRunner
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.runtime.execution.executable import load
from tunefarm.configs.settings import load_settings
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.request import BuildRequest
from tunefarm.tuner.job_request import JobRequest
from tunefarm.tuner.tune_model import tune_model


def test_a_job_and_a_build_have_the_chains_that_are_estimated(tmp_path: Path) -> None:
    model, output = str(tmp_path / "net.onnx"), str(tmp_path / "net.tuned")
    onnx.save(chain_net(), model)
    values = {"database.url": str(tmp_path / "tuning.db"), "search.trials_per_task": 1}
    settings = load_settings("ci", {**values, "cache.enabled": False}, environment={})
    result = tune_model(JobRequest(model, settings, make_runner=lambda *_: GainingRunner()))
    x = np.linspace(-1, 1, math.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    outputs: list[np.ndarray] = []
    for untuned in (True, False):
        found = build(BuildRequest(model, output, settings, untuned=untuned)).report.kernels
        outputs += load(output).run({"x": x}).values()
        assert [use.report.key for use in found] == [task.key for task in result.tasks]
    assert [task.key for task in result.tasks] == list(kernels_of(model).kernel_calls())
    assert len(result.tasks) < len(kernels_of(model, chains=()).kernel_calls())
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
