"""A range of sizes, from `tune --shape` to the programs that serve its intervals.

Times are made up: one schedule of each kernel is the fastest at the greatest sizes, another one at
all others. Everything else is as it is.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.end_to_end.test_cli import CommandLine
from tests.instant_runner import InstantRunner, measured
from tests.onnxruntime_session import exact_session
from tunefarm import compiler
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.types.extents import Shapes
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.configs.settings import load_settings
from tunefarm.db import queries
from tunefarm.db.records import hash_json
from tunefarm.db.store import Store
from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.tuner.confirm import size_race, whole_model
from tunefarm.tuner.confirm.latency import ModelLatency
from tunefarm.tuner.job_request import JobRequest
from tunefarm.tuner.tune_model import tune_model

SHAPES: Shapes = {"batch": (1,), "sequence": ("1..24",)}
LENGTHS = (1, 7, 24)
GREATEST = 24


class MadeUpRunner(InstantRunner):
    """The schedules that are fast at the greatest sizes are slow below."""

    def answer(self, request: MeasureRequest) -> MeasureResult:
        sizes = request.sizes or tuple(request.kernel.get("sizes", ())) or (GREATEST,)
        greatest = max(sizes) >= GREATEST
        shares = [int(hash_json(schedule), 16) / 2**64 for schedule in request.schedules]
        return measured(request, [1e-6 * (1 + 3 * (x if greatest else 1 - x)) for x in shares])


RUN = """
import sys, numpy, tunefarm
executable = tunefarm.load(sys.argv[1])
(name,) = executable.inputs
for length in map(int, sys.argv[3:]):
    x = numpy.load(f"{sys.argv[2]}-{length}.npy")
    numpy.savez(f"{sys.argv[2]}-{length}.npz", **executable.run({name: x}))
"""


@pytest.mark.nightly
def test_what_a_job_finds_for_a_range_of_sizes_serves_it_in_any_process(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    same = ModelLatency(2e-3, 1e-3, 0.0, 0.0, 0.5, 0.4, 0.6)
    monkeypatch.setattr(whole_model, "compare_models", lambda *_, **__: same)
    monkeypatch.setattr(size_race, "compare_models", lambda *_, **__: same)
    size = Size(width=0.0625, tokens=13, layers=1, dynamic=True)
    onnx.save(build_model("encoder", size=size), "encoder.onnx")
    options = {"database.url": "tuning.db", "search.total_trials": 100}
    settings = load_settings("ci", options, environment={})
    runner = MadeUpRunner()
    request = JobRequest("encoder.onnx", settings, shapes=SHAPES, make_runner=lambda *_: runner)
    result = tune_model(request)

    assert result.size_plan is not None and len(result.size_plan.ranges) == 2
    assert set(result.size_plan.models) == {"sequence=1", "sequence=3", "sequence=8", "sequence=24"}
    assert {task.sizes for task in result.tasks} == {"", "sequence=1", "sequence=8"}
    with Store.open("tuning.db") as store:
        small = next(task for task in result.tasks if task.sizes and "matmul" in task.kernel)
        (key,) = [key for key in queries.tasks(store) if key.workload == small.key]
        settled = queries.best(store, key)
        assert settled is not None and settled[0].ratio < 1.0  # of its own sizes' records

    tune = CommandLine(tmp_path, capsys)
    shape = ("--shape", "batch=1", "--shape", "sequence=1..24")
    built = tune(
        "build", "--model", "encoder.onnx", "--db", "tuning.db", "--output", "e.tuned", *shape
    )
    assert built.code == 0, built.err
    outputs = {length: run_at(tune, length) for length in LENGTHS}  # input, its array, outputs
    loaded = compiler.load("e.tuned")
    assert len(loaded.programs) > 1
    chosen = [loaded.program_for_shapes({name: x.shape}) for name, x, _ in outputs.values()]
    assert chosen[0] is chosen[1] is not chosen[2]
    arguments = ["e.tuned", "x", *map(str, LENGTHS)]
    subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        check=True,
        timeout=120,
    )
    session = exact_session("encoder.onnx")
    for length, (name, x, found) in outputs.items():
        expected: list[Any] = session.run(list(found), {name: x})
        elsewhere = np.load(f"x-{length}.npz")
        for output, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(found[output], wanted, rtol=1e-3, atol=1e-5)
            np.testing.assert_array_equal(found[output], elsewhere[output])


def run_at(tune: CommandLine, length: int) -> tuple[str, Array, dict[str, Any]]:
    """`tune run` of an input of this length: its name, the array and the outputs."""
    model = onnx.load("encoder.onnx")
    (port,) = model.graph.input
    width = port.type.tensor_type.shape.dim[2].dim_value
    x = np.random.default_rng(length).standard_normal((1, length, width)).astype(np.float32)
    np.save(f"x-{length}.npy", x)
    given = ("--input", f"{port.name}=x-{length}.npy", "--output", "out.npz")
    result = tune("run", "e.tuned", *given)
    assert result.code == 0, result.err
    with np.load("out.npz") as arrays:
        return port.name, x, dict(arrays)
