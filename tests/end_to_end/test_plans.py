"""From a model to a build under a plan that its job has searched: the whole walk."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.tuner.plans.chain_net import SHAPE, chain_net
from tests.tuner.plans.test_job_plans import FakeRunner, latency
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan
from tunefarm.compiler.runtime.execution.executable import load
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.configs.settings import Settings, load_settings
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.request import BuildRequest
from tunefarm.tuner.confirm.latency import ModelLatency
from tunefarm.tuner.confirm.whole_model import CompareSpecs
from tunefarm.tuner.job_request import JobRequest
from tunefarm.tuner.result import TuneResult, summary_lines
from tunefarm.tuner.tune_model import tune_model


class Walk:
    """A network whose convolutions may be chained, its database, and jobs and builds of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "net.onnx"
        self.db = folder / "tuning.db"
        onnx.save(chain_net(), self.model)

    def settings(self, **values: object) -> Settings:
        own = {"database.url": str(self.db), "search.plan": "search", "cache.enabled": False}
        return load_settings("ci", own | values, environment={})

    def tune(self, runner: FakeRunner | None = None, **values: object) -> TuneResult:
        request = JobRequest(str(self.model), self.settings(**values))
        if runner is not None:
            request = JobRequest(
                str(self.model), self.settings(**values), make_runner=lambda *_: runner
            )
        return tune_model(request)

    def build(self, *, untuned: bool = False) -> tuple[bytes, GraphPlan]:
        output = str(self.folder / "net.tuned")
        found = build(BuildRequest(str(self.model), output, self.settings(), untuned=untuned))
        plan = found.report.plan
        return Path(output).read_bytes(), DEFAULT_PLAN if plan is None else plan.plan

    def run(self, *, untuned: bool = False) -> np.ndarray:
        self.build(untuned=untuned)
        x = np.linspace(-1, 1, math.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
        (output,) = load(self.folder / "net.tuned").run({"x": x}).values()
        return output

    def keys(self, plan: GraphPlan) -> list[str]:
        return list(kernels_of(self.model, plan=plan).kernel_calls())

    def job_keys(self) -> list[str]:
        with Store.open(self.db, read_only=True) as store:
            return [task.key.workload for task in queries.jobs(store)[0].tasks]


def twice_as_fast(seconds: float, agree: object) -> CompareSpecs:
    """Whatever is compared: the second model takes half the time, if it is another one."""

    def compare(specs: Sequence[ExecutableSpec]) -> ModelLatency:
        return latency(0.5 if specs[0].objects != specs[1].objects else 1.0)

    return compare


@pytest.mark.nightly
def test_a_job_tunes_and_a_build_takes_the_plan_that_was_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunefarm.tuner.job_models.compare_here", twice_as_fast)
    walk = Walk(tmp_path)
    result = walk.tune(FakeRunner(), **{"search.trials_per_task": 1})
    assert result.plan is not None and result.plan.plan != DEFAULT_PLAN
    assert f"plan: {result.plan}" in summary_lines(result, "next")
    assert result.to_json()["plan"]["decisions"] == result.plan.plan.to_json()
    _, plan = walk.build()
    assert plan == result.plan.plan
    assert walk.job_keys() == walk.keys(plan) != walk.keys(DEFAULT_PLAN)
    assert [task.key for task in result.tasks] == walk.job_keys()
    expected = walk.run(untuned=True)
    np.testing.assert_allclose(walk.run(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_the_walk_on_this_machine_twice_and_in_another_process(tmp_path: Path) -> None:
    """Measured for real; which plan is faster here is not what is asked."""
    walk = Walk(tmp_path)
    for _ in range(2):
        result = walk.tune()
        assert result.plan is not None
        first, plan = walk.build()
        assert plan == result.plan.plan
        expected = walk.run(untuned=True)
        np.testing.assert_allclose(walk.run(), expected, rtol=1e-4, atol=1e-5)
    there = tmp_path / "there.tuned"
    main = "from tunefarm.tuner.commands.entry import main; main()"
    command = [sys.executable, "-c", main, "build", "--model", str(walk.model), "--db"]
    command += [str(walk.db), "--output", str(there), "--no-cache"]
    subprocess.run(command, check=True, timeout=120)
    assert there.read_bytes() == first
