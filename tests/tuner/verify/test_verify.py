"""Models that are built and measured again, from databases in every state."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tests.tuner.fleet import record_kernel
from tunefarm import compiler
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target, llvm_version
from tunefarm.configs.settings import load_settings
from tunefarm.db.records import JobTask, LatencyRecord, TrialRecord
from tunefarm.db.store import Store
from tunefarm.measure.machine import fingerprint
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.request import BuildRequest, BuildResult
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.records.model_latencies import (
    AppliedKernel,
    Conditions,
    ModelTimes,
    Ratio,
    measured_models,
    record_latency,
)
from tunefarm.tuner.verify import verify as verifying

MINUTES = "0.01"
FAST, SLOW = 10.0, 0.1  # times over the untuned model that nothing here comes near to


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The tiny model with a record of each kernel, of a job of 30 seconds, and no latency."""
    folder = tmp_path_factory.mktemp("verify")
    model, db = folder / "tiny.onnx", folder / "tuning.db"
    onnx.save(tiny_model(), model)
    target = host_target()
    graph = import_model(str(model), {})
    kernels = compile_model(graph, None, target=target).kernels.values()
    keys = {workload_key(kernel): kernel for kernel in kernels}
    with Store.open(db) as store:
        tasks = {key: record_kernel(store, kernel, target) for key, kernel in keys.items()}
        digest = _hash(model)
        job = store.start_job(
            "tiny.onnx", digest, {}, [JobTask(task, 1) for task in tasks.values()]
        )
        for key, kernel in keys.items():
            space = schedule_space(kernel, target)
            schedule = space.schedule(space.default()).to_json()
            store.add([TrialRecord(tasks[key], "r", "s", {}, schedule, "ok", 1e-5, job=job.id)])
            store.add([TrialRecord(tasks[key], "r", "s", {}, ["slower"], "ok", 1.0, job=job.id)])
        store.finish_job(job.id, "finished")
    return SimpleNamespace(model=model, db=db, hash=digest, keys=list(keys), job=job.id)


def _hash(model: Path) -> str:
    """The model's, as builds name it."""
    output = model.with_suffix(".artefact")
    settings = load_settings(None, {}, environment={})
    return build(BuildRequest(str(model), str(output), settings, untuned=True)).model_hash


class Case:
    """A copy of the database, and the command."""

    def __init__(self, folder: Path, made: SimpleNamespace) -> None:
        self.folder, self.made = folder, made
        self.model, self.db = made.model, folder / "tuning.db"
        shutil.copy(made.db, self.db)

    def record(self, ratio: float, **changes: Any) -> LatencyRecord:
        """What a job says it has measured."""
        known = {key: AppliedKernel(key, 1, "tuned", "s", 1e-5, 1) for key in self.made.keys}
        times = ModelTimes(
            1e-4,
            llvm_version(),
            untuned=1e-4 / ratio,
            over_untuned=Ratio(ratio, 0.99 * ratio, 1.01 * ratio),
            kernels=known,
        )
        settings = load_settings(None, {}, environment={})
        conditions = Conditions.of(settings, self.made.hash, host_target())
        conditions = replace(conditions, **changes)
        with Store.open(self.db) as store:
            return record_latency(store, times, "tiny.onnx", conditions, "job", fingerprint())

    def verify(self, *options: str) -> SimpleNamespace:
        """The exit code and the JSON of the command."""
        result = self.folder / "result.json"
        files = ["--model", str(self.model), "--db", str(self.db), "--json", str(result)]
        code = run_command(app, ["verify", *files, "--minutes", MINUTES, *options])
        value = json.loads(result.read_text()) if result.exists() else {}
        return SimpleNamespace(code=code, **value)


@pytest.fixture
def case(tmp_path: Path, tuned: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.chdir(tmp_path)
    yield Case(tmp_path, tuned)


def test_a_model_that_is_faster_than_recorded_holds_and_is_recorded(case: Case) -> None:
    baseline = case.record(FAST)
    found = case.verify("--require", "0.97")
    assert (found.code, found.verdict, found.applied_share) == (0, "holds", 1.0)
    assert found.recorded["created"] == baseline.created and found.causes == []
    with Store.open(case.db) as store:
        (kept,) = measured_models(store, purpose="verify")
    assert kept.times.over_untuned is not None and len(kept.times.kernels) == len(case.made.keys)
    assert {kernel.source for kernel in kept.times.kernels.values()} == {"tuned"}


def test_a_model_that_is_slower_than_recorded_has_drifted(case: Case) -> None:
    case.record(SLOW)
    found = case.verify("--require", "0.97")
    assert (found.code, found.verdict) == (1, "drifted")
    assert found.slowdown["ratio"] > 2.0
    assert case.verify().code == 0  # nothing is required


def test_another_compiler_has_drifted_however_fast(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.record(FAST)
    monkeypatch.setattr(compiler, "VERSION", "of tomorrow")
    found = case.verify("--require", "0.97")
    assert (found.code, found.verdict, found.applied_share) == (1, "drifted", 0.0)
    assert any("version of the compiler" in cause for cause in found.causes)
    assert {kernel["now"]["source"] for kernel in found.kernels} == {"default"}


def test_nothing_to_compare_with_cannot_be_judged_until_it_was_verified(case: Case) -> None:
    found = case.verify("--require", "0.5")
    assert (found.code, found.verdict, found.recorded) == (3, "cannot be judged", None)
    again = case.verify("--require", "0.5")
    assert again.recorded["purpose"] == "verify"
    assert (again.code, again.verdict) == (0, "holds")


def test_a_model_that_keeps_its_default_schedules_is_unchanged(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        found = case.verify()
    assert found.unchanged and found.slowdown is None
    assert found.now["over_untuned"] is None and found.recorded["unchanged"]
    assert found.verdict == "holds"
    assert "it is the untuned build, unchanged, as it was recorded" in found.why
    printed = capsys.readouterr().out.splitlines()
    told = [line for line in printed if line.startswith(("tiny.onnx:", "now:", "recorded:"))]
    assert sum(", unchanged: the tuned build is the untuned one" in line for line in told) == 3
    assert not re.search(r"\d\.\d\dx", " ".join(told))


def test_a_database_that_can_only_be_read_serves_and_says_so(
    case: Case,
    unwritable_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Root may write anywhere, so that another user records here."""
    user, me = os.geteuid(), os.getuid()
    os.seteuid(me)
    case.record(FAST)
    unwritable_folder.chmod(0o755)
    case.db = Path(shutil.copy(case.db, unwritable_folder / "t.db"))
    case.db.chmod(0o444)
    unwritable_folder.chmod(0o555)
    before = case.db.read_bytes()

    record = verifying.record_verification

    def record_as_user(*arguments: Any) -> str:
        os.seteuid(user)
        try:
            return record(*arguments)
        finally:
            os.seteuid(me)

    monkeypatch.setattr(verifying, "record_verification", record_as_user)
    assert case.verify("--require", "0.97").code == 0
    assert "nothing was recorded" in capsys.readouterr().err
    assert case.db.read_bytes() == before


def test_other_outputs_than_the_untuned_build_are_an_error(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a record whose code is wrong: here the untuned build is of other weights."""
    other = tiny_model()
    for tensor in other.graph.initializer:
        tensor.raw_data = bytes(len(tensor.raw_data))
    onnx.save(other, "other.onnx")

    def of_others(request: BuildRequest) -> BuildResult:
        return build(replace(request, model="other.onnx") if request.untuned else request)

    monkeypatch.setattr(verifying, "build", of_others)
    assert case.verify("--require", "0.97").code == 1
    assert "differs from the untuned one's" in capsys.readouterr().err


def test_open_sizes_are_verified_at_the_recorded_ones(case: Case) -> None:
    onnx.save(tiny_model(batch="N"), "sized.onnx")
    case.model = Path("sized.onnx")
    settings = load_settings(None, {}, environment={})
    request = BuildRequest("sized.onnx", "s", settings, {"N": ("1..8",)}, untuned=True)
    conditions = Conditions.of(settings, build(request).model_hash, host_target())
    times = ModelTimes(1e-4, "22", 0.0, 1e-4, Ratio(1.0, 0.99, 1.01), sizes={"N": 7})
    with Store.open(case.db) as store:
        record_latency(store, times, "sized.onnx", conditions, "job", fingerprint())
    found = case.verify("--shape", "N=1..8")
    assert found.now["sizes"] == {"N": 7} and found.slowdown is not None


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        (["--require", "1.5"], 2, "require"),
        (["--minutes", "0"], 2, "minutes"),
        (["--shape", "x=batch:1|4,3,12,12"], 1, "one"),
        (["--db", "none.db"], 1, "none.db"),
    ],
)
def test_what_makes_no_sense_is_refused(
    case: Case,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    code: int,
    word: str,
) -> None:
    assert case.verify(*options).code == code
    assert word in capsys.readouterr().err
