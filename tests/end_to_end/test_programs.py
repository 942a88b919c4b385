"""Several programs of one model: `tune build --targets`, and `--shape` with values."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.compiler.runtime.c_models import compile_example, run
from tests.end_to_end.tiny_model import tiny_model
from tests.onnxruntime_session import exact_session
from tests.targets import target_named
from tests.tuner.fleet import record_kernel, trial_of
from tunefarm import compiler
from tunefarm.compiler.errors import InputError
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.runtime.artefact import artefact
from tunefarm.compiler.runtime.artefact.file_header import digest_of, lineage_of
from tunefarm.compiler.runtime.artefact.seal import code_digest
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.ports import AnyArray
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import load_target
from tunefarm.db import model_queries
from tunefarm.db.store import Store
from tunefarm.tuner.building.request import LIBRARY
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
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
    target = target_named(target_name)
    kernels = distinct_kernels(kernels_of("tiny.onnx", target, {"batch": (1,)}))
    kernel = next(kernel for kernel, _ in kernels.values() if kernel.anchor == "conv")
    space = schedule_space(kernel, target)
    with Store.open(path) as store:
        key = record_kernel(store, kernel, target)
        found, rng = {space.default(): 2e-4}, random.Random(0)
        while len(found) < 2:  # a record of the default alone is no choice
            found.setdefault(space.sample(rng), 1e-4)
        for candidate, latency in found.items():
            store.add([trial_of(key, space, candidate, latency, request_id=target_name)])
    return key.workload


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


FLEET = ("x86-64-v3", "x86-64-v4", "sapphirerapids", "znver4", "znver5")


def fleet_sizes(model: str, shape: Sequence[str] = ()) -> tuple[int, int]:
    """The bytes of an artifact for a fleet, and of the largest for one of its CPUs."""
    singles = []
    command = ("build", model, "--untuned", *shape, "--output")
    for name in FLEET:
        Path("one.toml").write_text(f'[compile]\ntarget = "{name}"\n')
        assert tune(*command, "one.tuned", "--config", "one.toml") == 0
        singles.append(Path("one.tuned").stat().st_size)
        Path("one.tuned").unlink()
    assert tune(*command, "fleet.tuned", "--targets", ",".join(FLEET)) == 0
    return Path("fleet.tuned").stat().st_size, max(singles)


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v2", "vit_tiny", "mlp"])
def test_a_fleet_shares_its_weights(model: str, folder: Path) -> None:
    assert tune("zoo", model, "--output", f"{model}.onnx") == 0
    together, largest = fleet_sizes(f"{model}.onnx")
    assert together <= 1.5 * largest


def test_each_variant_runs_the_code_of_its_own_build(folder: Path) -> None:
    shape = ("--shape", "batch=1")
    assert build("--untuned", "--targets", ",".join(FLEET), *shape) == 0
    variants = artefact.read_contents("tiny.tuned").variants
    assert {variant.target.cpu for variant in variants} == set(FLEET)
    for variant in variants:
        name = variant.target.cpu
        Path("one.toml").write_text(f'[compile]\ntarget = "{name}"\n')
        command = ("build", "tiny.onnx", "--untuned", *shape, "--config", "one.toml")
        assert tune(*command, "--output", f"{name}.tuned") == 0
        (alone,) = artefact.read_contents(f"{name}.tuned").variants
        assert code_digest(variant.programs) == code_digest(alone.programs)


def test_variants_are_listed_and_those_that_run_here_are_rehearsed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = (*ABLE, "armv8-neon")
    assert build("--untuned", "--targets", ",".join(named), "--shape", "batch=1|2..3") == 0
    capsys.readouterr()
    command = ("inspect", "tiny.tuned", "--stage", "variants")
    assert tune(*command, "--json", "variants.json") == 0
    told = " ".join(capsys.readouterr().out.split())
    found = json.loads(Path("variants.json").read_text())
    variants = {item["cpu"]: item for item in found["variants"]}
    assert (found["chosen"], found["parents"]) == ("x86-64-v3", [])
    status = {name: item["rehearsal"]["status"] for name, item in variants.items()}
    assert status == {
        "x86-64-v3": "ran",
        "x86-64-v2": "same outputs",
        "generic": "not rehearsed",
    }
    assert variants["generic"]["lacking"] == ["aarch64 linux"]
    assert variants["x86-64-v2"]["sizes"] == ["batch=1", "batch=2..3"]
    loaded = found["loaded_by"]
    assert (loaded["znver5"], loaded["neoverse-v1"]) == ("x86-64-v3", "generic")
    assert "not rehearsed" in told and f"digest: {found['digest']}" in told


def test_a_variant_that_computes_something_else_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build("--untuned", "--targets", ",".join(ABLE), "--shape", "batch=1") == 0
    run = Executable.run

    def wrong(executable: Executable, *arguments: Any, **options: Any) -> dict[str, AnyArray]:
        outputs = run(executable, *arguments, **options)
        lesser = executable.spec.target.cpu == "x86-64-v2"
        return {name: array + 1 if lesser else array for name, array in outputs.items()}

    monkeypatch.setattr(Executable, "run", wrong)
    assert tune("inspect", "tiny.tuned", "--stage", "variants") == 1
    assert "x86-64-v2: outputs differ: 'y' by" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("tiny.onnx", "--stage", "variants"), "is an ONNX model"),
        (("tiny.onnx", "--stage", "graph", "--json", "-"), "--json is for --stage variants"),
        (("tiny.onnx", "--stage", "variants", "--kernel", "k"), "takes an artifact"),
        (("tiny.onnx", "--stage", "variant"), "did you mean variants?"),
    ],
)
def test_what_has_no_variants_is_one_line(
    arguments: tuple[str, ...], reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune("inspect", *arguments) != 0
    error = capsys.readouterr().err
    assert reason in error and len(error.splitlines()) == 1


def test_targets_that_are_not_tuned_enough_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(folder / "tuning.db", "x86-64-v3")
    options = ("--targets", ",".join((*ABLE, "x86-64-v4")), "--shape", "batch=1")
    assert build(*options, "--require-tuned", "0.01") == 1
    error = capsys.readouterr().err
    assert "for x86-64-v4: only 0" in error and "for x86-64-v2: only 0" in error
    assert "for x86-64-v3" not in error and not Path("tiny.tuned").exists()


def test_a_cpu_without_a_variant_is_told_what_it_lacks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build("--untuned", "--targets", "neoverse-v1,armv8-neon", "--shape", "batch=1") == 0
    capsys.readouterr()
    assert tune("run", "tiny.tuned") == 1
    error = capsys.readouterr().err
    assert "that for neoverse-v1 needs aarch64 linux" in error and "x86_64 linux" in error


@pytest.mark.parametrize("targets", [(), ("--targets", ",".join(ABLE))])
def test_a_build_names_what_it_replaces(
    targets: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(folder / "tuning.db", "x86-64-v2")
    shape = ("--shape", "batch=1", *targets)
    assert build(*shape) == 0
    first, contents = lineage_of("tiny.tuned"), Path("tiny.tuned").read_bytes()
    assert first.parents == () and build(*shape) == 0
    assert Path("tiny.tuned").read_bytes() == contents  # the same build replaces nothing
    for size, parents in (("2", 1), ("3", 2)):
        assert build("--shape", f"batch={size}", *targets) == 0
        found = lineage_of("tiny.tuned")
        assert len(found.parents) == parents and found.parents[-1] == first.digest
        assert build("--shape", f"batch={size}", *targets) == 0
        assert lineage_of("tiny.tuned") == found
    capsys.readouterr()
    assert tune("db", "builds", "--db", "tuning.db", "--json", "-") == 0
    listed = json.loads(capsys.readouterr().out)
    listed_as = {(item["artefact_sha256"], item["parent"]) for item in listed}
    second, _ = found.parents
    assert listed_as >= {(found.digest, second), (second, first.digest), (first.digest, None)}
    assert tune("inspect", "tiny.tuned", "--stage", "variants") == 0
    assert f"parent: {second}" in capsys.readouterr().out
    assert tune("run", "tiny.tuned") == 0
    assert build(*shape) == 0  # as after a rollback, by several builds
    assert Path("tiny.tuned").read_bytes() == contents


def test_a_parent_that_is_given_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build("--untuned", "--shape", "batch=1") == 0
    command = ("build", "tiny.onnx", "--untuned", "--shape", "batch=2", "--output", "new.tuned")
    assert tune(*command, "--parent", "tiny.tuned") == 0
    assert lineage_of("new.tuned").parents == (digest_of("tiny.tuned"),)
    assert tune(*command, "--parent", "none.tuned") == 1
    assert tune(*command, "--parent", "tiny.onnx") == 1
    assert tune(*command, "--parent", "tiny.tuned", "--emit", "asm") == 1
    errors = capsys.readouterr().err
    assert "none.tuned" in errors and "is an ONNX model" in errors
    assert "--parent is for artifacts" in errors
