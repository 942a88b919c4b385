"""`tune build`: the same bytes every time, variants for other CPUs, named targets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.frontend.onnx_models import tensor
from tests.end_to_end.tiny_model import tiny_model
from tests.processes import python
from tests.targets import target_named
from tests.tuner.fleet import record_kernel, trial_of
from tunefarm import compiler
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.db.store import Store
from tunefarm.tuner.building.request import ARTEFACT, FORMS, LIBRARY
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.from_settings import fallback_targets
from tunefarm.tuner.search.make_tasks import distinct_kernels

HOST = host_target()
RECORDED = 96
"""Schedules of a kernel that are recorded: enough to predict those of its relatives."""
x86_64 = pytest.mark.skipif(
    not HOST.triple.startswith("x86_64"), reason="the named targets are of x86-64"
)
without_avx512 = pytest.mark.skipif(
    "avx512f" in HOST.features, reason="this CPU has AVX-512: there is nothing to refuse"
)

without_fp16 = pytest.mark.skipif(
    "avx512fp16" in HOST.features, reason="this CPU computes in f16: there is nothing to refuse"
)
newer_targets = pytest.mark.parametrize(
    ("newer", "lacking"),
    [
        pytest.param(
            "x86-64-v4",
            ["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"],
            marks=without_avx512,
        ),
        # A model in f32 needs no matrix tiles.
        pytest.param(
            "sapphirerapids",
            [name for name in ("avx512fp16", "avxvnni") if name not in HOST.features],
            marks=without_fp16,
        ),
    ],
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the model tiny.onnx and settings for each named target."""
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_model(), tmp_path / "tiny.onnx")
    for name in ("x86-64-v2", "x86-64-v3", "x86-64-v4", "sapphirerapids", "armv8-neon"):
        (tmp_path / f"{name}.toml").write_text(f'[compile]\ntarget = "{name}"\n')
    return tmp_path


def two_convolutions() -> onnx.ModelProto:
    """Two convolutions that are relatives, each with a ReLU, and a sum."""
    rng = np.random.default_rng(0)
    weights = {
        name: 0.1 * rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("v", (16, 16, 3, 3)), ("w", (32, 16, 3, 3)))
    }
    nodes = (
        "a = Conv x v pads=[1,1,1,1]; b = Relu a; c = Conv b w pads=[1,1,1,1]; d = Relu c; "
        "ReduceSum d keepdims=0"
    )
    return model_of(nodes, [tensor("x", [1, 16, 12, 12])], constants=weights)


def write_database(path: Path, model: Path) -> None:
    """Records with made-up latencies of the first convolution; the default is the slowest."""
    kernels = distinct_kernels(kernels_of(str(model), HOST))
    convolutions = [item for item, _ in kernels.values() if item.anchor == "conv"]
    with Store.open(path) as store:
        for kernel in convolutions[:1]:
            key, space = record_kernel(store, kernel, HOST), schedule_space(kernel, HOST)
            step = max(1, space.size // RECORDED)
            candidates = [space.default(), *map(space.candidate, range(0, space.size, step))]
            trials = {}
            for number, candidate in enumerate(candidates):
                latency = 1e-4 * (1 + number % 5) if number else 1e-2
                made = {"request_id": f"r{number}", "created": 1.0 + number}
                trial = trial_of(key, space, candidate, latency, **made)
                trials[str(trial.schedule)] = trial
            store.add(trials.values())


def tune(*arguments: str) -> int:
    return run_command(app, list(arguments))


def build(*options: str) -> int:
    arguments = ["build", "--model", "tiny.onnx", "--untuned", "--output", "tiny.tuned"]
    return tune(*arguments, *options)


def tune_process(
    folder: Path, *arguments: str, hash_seed: int = 0
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with an empty cache."""
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        "XDG_CACHE_HOME": str(folder / "caches"),
    }
    return python(
        "-m", "tunefarm.tuner.commands.entry", *arguments, cwd=folder, env=environment, timeout=600
    )


def files_of(path: Path) -> dict[str, bytes]:
    """The file itself, or all below a folder."""
    paths = sorted(path.iterdir()) if path.is_dir() else [path]
    return {file.name if path.is_dir() else "": file.read_bytes() for file in paths}


@pytest.mark.parametrize("form", [ARTEFACT, pytest.param(LIBRARY, marks=pytest.mark.nightly)])
def test_the_same_model_and_records_give_the_same_bytes(
    form: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process with a cache, and in another one without."""
    onnx.save(two_convolutions(), folder / "two.onnx")
    write_database(folder / "tuning.db", folder / "two.onnx")
    arguments = ["build", "--model", "two.onnx", "--db", "tuning.db", "--emit", form]
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "caches"))
    assert tune(*arguments, "--output", "out0") == 0
    printed = capsys.readouterr().out
    assert " tuned " in printed
    assert (folder / "caches").is_dir()  # it did use it
    done = tune_process(folder, *arguments, "--output", "out1", "--no-cache", hash_seed=1)
    assert done.returncode == 0, done.stderr
    assert files_of(folder / "out0") == files_of(folder / "out1")
    assert printed.replace("out0", "out") == done.stdout.replace("out1", "out")


def assembly_of(spec: ExecutableSpec, folder: Path) -> str:
    """The disassembled code of all of a model's functions."""
    if shutil.which("objdump") is None:
        pytest.skip("needs objdump")
    texts = []
    for code in (spec.entry, *(part.code for part in spec.objects)):
        (folder / "code.o").write_bytes(code)
        command = ["objdump", "-d", "--no-show-raw-insn", "code.o"]
        texts.append(subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout)
    return b"\n".join(texts).decode()


def instructions(text: str, names: str) -> set[str]:
    """The instructions of an assembly listing whose names match."""
    return set(re.findall(rf"(?m)^[^#\n]*?\s({names})\s", text))


def test_the_fallback_gives_the_same_outputs(folder: Path) -> None:
    assert build("--fallback") == 0
    assert tune("run", "tiny.tuned", "--output", "first.npz") == 0
    assert tune("run", "tiny.tuned", "--fallback", "--output", "second.npz") == 0
    first, second = np.load("first.npz")["y"], np.load("second.npz")["y"]
    assert first.shape == (1, 10) and first.any()
    np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-6)


@x86_64
def test_the_fallback_has_no_instructions_that_a_cpu_may_lack(folder: Path) -> None:
    assert build("--fallback") == 0
    portable = compiler.load("tiny.tuned", fallback=True).spec
    assert set(portable.target.features) == {"cmov", "cx8", "fxsr", "mmx", "sse", "sse2"}
    text = assembly_of(portable, folder)
    assert instructions(text, "mulps")
    assert instructions(text, "v[a-z0-9]+") == set()
    assert "%ymm" not in text and "%zmm" not in text
    first = compiler.load("tiny.tuned").spec
    assert first.target == HOST
    if "avx" in HOST.features:
        assert instructions(assembly_of(first, folder), "v[a-z0-9]+")


@pytest.mark.parametrize("form", [form for form in FORMS if form != ARTEFACT])
def test_a_fallback_of_another_form_is_refused_in_one_line(
    form: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    assert build("--fallback", "--emit", form) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"error: --fallback is for artifacts, not for {form}\n"
    assert sorted(folder.iterdir()) == before


def registers_and_products(text: str) -> tuple[Iterable[str], bool]:
    """Which kinds of vector registers assembly mentions, and whether it has fused products."""
    kinds = sorted(set(re.findall(r"%([xyz]mm)\d", text)))
    return kinds, bool(instructions(text, "vfn?m(?:add|sub)[0-9]+[ps][sd]"))


@x86_64
@pytest.mark.parametrize(
    ("target", "widest", "fused"),
    [("x86-64-v2", "xmm", False), ("x86-64-v3", "ymm", True), ("x86-64-v4", "zmm", True)],
)
def test_code_for_a_named_target_uses_what_it_has(
    target: str, widest: str, fused: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = f"{target}.toml"
    assert tune("inspect", "--model", "tiny.onnx", "--stage", "asm", "--config", config) == 0
    kinds, has_fused = registers_and_products(capsys.readouterr().out)
    assert max(kinds) == widest
    assert has_fused == fused


@pytest.mark.parametrize("refusal", ["", "the kernel does not permit them"])
def test_a_build_says_once_that_it_goes_without_tiles(
    refusal: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tunefarm.compiler.target.host_tile_refusal", lambda: refusal)
    said = f"note: the code does not use matrix tiles (AMX): {refusal}\n"
    assert build() == 0
    assert capsys.readouterr().err.count(said) == bool(refusal)
    assert build("--config", "armv8-neon.toml") == 0
    assert said not in capsys.readouterr().err


@x86_64
@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
def test_a_model_for_a_target_that_this_cpu_contains_runs(target: str, folder: Path) -> None:
    assert build() == 0
    assert tune("run", "tiny.tuned", "--output", "here.npz") == 0
    assert build("--config", f"{target}.toml") == 0
    built = compiler.load("tiny.tuned").spec.target
    assert built.cpu == target
    if not set(built.features) <= set(HOST.features):
        pytest.skip(f"this CPU is older than {target}")
    assert tune("run", "tiny.tuned", "--output", "there.npz") == 0
    here, there = np.load("here.npz")["y"], np.load("there.npz")["y"]
    np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-6)


@x86_64
@newer_targets
def test_a_model_for_a_newer_cpu_is_refused_before_it_runs(
    newer: str, lacking: list[str], folder: Path
) -> None:
    assert build("--config", f"{newer}.toml") == 0
    done = tune_process(folder, "run", "tiny.tuned")
    assert done.returncode == 1  # not -SIGILL
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"error: the model was built for {newer} and needs CPU features")
    for feature in {*lacking} - {*HOST.features}:
        assert feature in done.stderr
    assert "--fallback" in done.stderr


@x86_64
@newer_targets
def test_a_model_for_a_newer_cpu_runs_its_fallback(
    newer: str, lacking: list[str], folder: Path
) -> None:
    assert build() == 0
    assert tune("run", "tiny.tuned", "--output", "here.npz") == 0
    assert build("--config", f"{newer}.toml", "--fallback") == 0
    assert tune("run", "tiny.tuned", "--output", "there.npz") == 0
    fallback = compiler.load("tiny.tuned").spec.target
    named = target_named(newer)
    able = [other for other in fallback_targets(named) if set(other.features) <= set(HOST.features)]
    assert fallback == able[0] and not set(lacking) & set(fallback.features)
    here, there = np.load("here.npz")["y"], np.load("there.npz")["y"]
    np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-6)


@x86_64
@newer_targets
def test_a_c_library_for_a_newer_cpu_returns_an_error(
    newer: str, lacking: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build("--config", f"{newer}.toml", "--emit", LIBRARY, "--output", "c") == 0
    (command,) = re.findall(r"(?m)^next: (.*)$", capsys.readouterr().out)
    done = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 1, done.stderr
    assert b"CPU" in done.stderr and lacking[0].encode() in done.stderr


@x86_64
def test_a_model_for_another_architecture_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build("--config", "armv8-neon.toml") == 0
    capsys.readouterr()
    assert tune("run", "tiny.tuned") == 1
    printed = capsys.readouterr().err
    assert printed.startswith(
        "error: the model was built for aarch64 linux, this machine is x86_64"
    )
