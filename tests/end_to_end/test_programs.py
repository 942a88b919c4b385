"""Several programs of one model: `tune build --targets`, and `--shape` with values."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.runtime.c_models import compile_example, run
from tests.end_to_end.tiny_model import tiny_model
from tests.onnxruntime_session import exact_session
from tunefarm import compiler
from tunefarm.compiler.errors import InputError
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.runtime.artefact import artefact
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target, host_target
from tunefarm.configs.settings import load_target
from tunefarm.db import model_queries
from tunefarm.db.records import TargetRecord, TrialRecord, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.tuner.building.request import LIBRARY
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.records.trials import task_key
from tunefarm.tuner.search.make_tasks import distinct_kernels

HOST = host_target()
ABLE = [
    name
    for name in ("x86-64-v2", "x86-64-v3")
    if set(load_target(name).features) <= set(HOST.features)
]
pytestmark = pytest.mark.skipif(len(ABLE) < 2, reason="the named targets do not run on this CPU")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a model whose batch is open."""
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_model("batch"), tmp_path / "tiny.onnx")
    return tmp_path


def tune(*arguments: str) -> int:
    return run_command(app, list(arguments))


def build(*options: str) -> int:
    return tune("build", "--model", "tiny.onnx", "--output", "tiny.tuned", *options)


def record(path: Path, target_name: str) -> str:
    """A record of the convolution for a target; its workload."""
    target = Target.from_json(load_target(target_name).model_dump())
    kernels = distinct_kernels(kernels_of("tiny.onnx", target, {"batch": (1,)}))
    workload, kernel = next((key, k) for key, (k, _) in kernels.items() if k.anchor == "conv")
    space = schedule_space(kernel, target)
    with Store.open(path) as store:
        store.add([TargetRecord(target.key, target.to_json())])
        store.add([WorkloadRecord(workload, kernel.name, kernel_to_json(kernel))])
        found, rng = {space.default(): 2e-4}, random.Random(0)
        while len(found) < 2:  # a record of the default alone is no choice
            found.setdefault(space.sample(rng), 1e-4)
        for candidate, latency in found.items():
            trial = TrialRecord(
                task_key(workload, target, 1, "default"),
                target_name,
                candidate.sketch,
                space.choices(candidate),
                space.schedule(candidate).to_json(),
                "ok",
                latency=latency,
            )
            store.add([trial])
    return workload


def test_each_target_is_built_from_its_own_records_and_the_best_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ABLE:
        record(folder / "tuning.db", name)
    newer = "sapphirerapids"
    named = ",".join((*ABLE, newer))
    assert build("--targets", named, "--shape", "batch=1", "--json", "report.json") == 0
    told = capsys.readouterr().out
    assert "for x86-64-v3: " in told and "tiny.tuned: 3 programs" in told
    report = json.loads(Path("report.json").read_text())
    assert [item["cpu"] for item in report["programs"]] == [newer, *reversed(ABLE)]
    sources = [
        {kernel["schedule_source"] for kernel in item["kernels"]} for item in report["programs"]
    ]
    assert ["tuned" in found for found in sources] == [False, True, True]
    best = newer if set(load_target(newer).features) <= set(HOST.features) else ABLE[1]
    assert compiler.load("tiny.tuned").spec.target.cpu == best
    with Store.open(folder / "tuning.db") as store:
        built = model_queries.builds(store)
    assert len({item.target for item in built}) == 3
    assert len({item.artefact_sha256 for item in built}) == 1
    assert tune("run", "tiny.tuned") == 0
    assert f"code for {best}" in capsys.readouterr().out


def test_values_of_a_symbol_make_a_program_each(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build("--untuned", "--shape", "x=batch:1|4,3,12,12") == 0
    assert f"for {HOST.cpu}, batch=4" in capsys.readouterr().out
    session = exact_session("tiny.onnx")
    rng = np.random.default_rng(0)
    for rows in (1, 4):
        x = rng.standard_normal((rows, 3, 12, 12), np.float32)
        np.save("x.npy", x)
        assert tune("run", "tiny.tuned", "--input", "x=x.npy", "--output", "y.npz") == 0
        assert f"batch={rows})" in capsys.readouterr().out
        (expected,) = session.run(["y"], {"x": x})
        np.testing.assert_allclose(np.load("y.npz")["y"], expected, rtol=1e-4, atol=1e-6)
    np.save("x.npy", np.zeros((3, 3, 12, 12), np.float32))
    assert tune("run", "tiny.tuned", "--input", "x=x.npy") == 1
    told = capsys.readouterr().err
    assert "batch = 3 is none of the sizes that the model was built for: 1|4" in told
    assert len(told.splitlines()) == 1


def test_buckets_of_bounds_make_a_program_each(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build("--untuned", "--shape", "batch=1|2..4|5..9") == 0
    assert f"for {HOST.cpu}, batch=5..9" in capsys.readouterr().out
    loaded = compiler.load("tiny.tuned")
    session = exact_session("tiny.onnx")
    rng = np.random.default_rng(0)
    for rows in (5, 1, 3, 9, 2, 4):
        x = rng.standard_normal((rows, 3, 12, 12), np.float32)
        (expected,) = session.run(["y"], {"x": x})
        np.testing.assert_allclose(loaded.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(InputError, match=r"\(batch\): the model was built for 1, 2\.\.4, 5\.\.9"):
        loaded.run({"x": np.zeros((10, 3, 12, 12), np.float32)})


@pytest.mark.nightly
def test_each_bucket_is_tuned_and_their_latencies_are_drawn(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--model", "tiny.onnx", "--shape", "batch=1|2..4", "--trials", "8"]
    assert tune(*command, "--runner", "local", "--config", "ci", "--json", "job.json") == 0
    told = capsys.readouterr().out
    assert "batch=1     █" in told and "batch=2..4  █" in told
    sizes = json.loads(Path("job.json").read_text())["sizes"]
    assert [item["sizes"] for item in sizes] == ["batch=1", "batch=2..4"]
    assert build("--shape", "batch=1|2..4", "--require-tuned", "0.01") == 0


def test_targets_and_values_go_together(folder: Path) -> None:
    named = ",".join(ABLE)
    assert build("--untuned", "--targets", named, "--shape", "batch=1|2", "--fallback") == 0
    specs = artefact.read_programs("tiny.tuned")
    assert [str(guard) for spec in specs for guard in spec.guards] == ["batch=1", "batch=2"]
    assert {spec.target.cpu for spec in specs} == {"x86-64-v3"}
    assert {s.target.cpu for s in artefact.read_programs("tiny.tuned", fallback=True)} == {"x86-64"}


def test_a_library_holds_values_and_bounds_for_several_cpus(folder: Path) -> None:
    options = ("--untuned", "--targets", ",".join(ABLE), "--shape", "batch=1|3..4")
    assert build(*options, "--emit", LIBRARY) == 0
    header = Path("tiny.tuned/tiny.h").read_text()
    assert "f32[batch:1|3..4, 3, 12, 12]" in header and "int64_t x_shape[4];" in header
    compile_example(Path("tiny.tuned"), "tiny")
    for batch in ("1", "3", "4"):
        assert f"y [{batch}, " in run(Path("tiny.tuned"), "./tiny_example", batch)
    with pytest.raises(AssertionError, match=r"built for batch=1; batch=3\.\.4"):
        run(Path("tiny.tuned"), "./tiny_example", "2")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--targets", "x86-64-v3,x86-64-v9"), "unknown target 'x86-64-v9' (did you mean"),
        (("--targets", "x86-64-v3,x86-64-v3"), "the target x86-64-v3 is given twice"),
        (("--targets", "x86-64-v3,,host"), "names of targets, separated by commas"),
        (("--targets", "x86-64-v2,x86-64-v3", "--emit", "llvm"), "llvm holds one program"),
        (("--targets", "x86-64-v2,armv8-neon", "--emit", LIBRARY), "one kind of machine, not for"),
        (("--cc", "missing-gcc", "--emit", LIBRARY), "there is no C compiler 'missing-gcc'"),
        (("--shape", "batch=1..4|3..9"), "the bounds in '1..4|3..9' overlap"),
        (("--shape", "x=1|2|3|4|5|6|7|8|9,1|2|3|4|5|6|7|8|9,12,12"), "81 programs, and 64 is"),
    ],
)
def test_what_cannot_be_built_is_one_line_and_nothing_written(
    options: tuple[str, ...], reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = () if "--shape" in options else ("--shape", "batch=1")
    assert build("--untuned", *options, *shape) != 0
    printed = capsys.readouterr()
    assert reason in printed.err and len(printed.err.splitlines()) == 1
    assert [path.name for path in folder.iterdir()] == ["tiny.onnx"]
