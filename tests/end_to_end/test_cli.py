"""The command line: the whole walk on a tiny model, and one readable line for every bad input."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import external_model, tiny_model, unsupported_model
from tests.onnxruntime_session import exact_session
from tests.processes import python
from tests.tuner.pages.parsed import details, parsed
from tunefarm import compiler
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.tuner.commands.bench import error_of
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.confirm.drawn_inputs import seeded_inputs
from tunefarm.tuner.records.model_latencies import measured_models, newest

ROOT = Path(__file__).resolve().parents[2]


class CommandLine:
    """Runs commands in this process and keeps what they print."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def __call__(self, *arguments: str | Path) -> SimpleNamespace:
        self._capsys.readouterr()
        code = run_command(app, [str(argument) for argument in arguments])
        printed = self._capsys.readouterr()
        return SimpleNamespace(code=code, out=printed.out, err=printed.err)

    def refuses(self, *arguments: str | Path, code: int = 1) -> str:
        """The one line that a command prints when it fails."""
        before = snapshot(self.folder)
        result = self(*arguments)
        assert result.code == code, result
        lines = result.err.splitlines()
        assert len(lines) == 1, result.err
        assert lines[0].startswith("error: ")
        assert "Traceback" not in result.err and "unexpected" not in result.err
        assert result.out == ""
        assert snapshot(self.folder) == before
        return str(lines[0])


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its contents."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def tune(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    return CommandLine(tmp_path, capsys)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The tiny model tuned once, by the local runner."""
    folder = tmp_path_factory.mktemp("tuned")
    model, db, result = folder / "tiny.onnx", folder / "tuning.db", folder / "result.json"
    onnx.save(tiny_model(), model)
    files = ["--model", str(model), "--db", str(db), "--json", str(result)]
    code = run_command(app, [*files, "--config", "ci", "--runner", "local"])
    assert code == 0
    return SimpleNamespace(model=model, db=db, result=json.loads(result.read_text()))


def sources(report: dict[str, Any]) -> dict[str, str]:
    """Where the schedule of each kernel is from, as a build reports it."""
    return {kernel["key"]: kernel["schedule_source"] for kernel in report["kernels"]}


def trials_in(db: Path) -> int:
    connection = sqlite3.connect(f"file:{db}?mode=ro", uri=True)
    try:
        return int(connection.execute("SELECT count(*) FROM trials").fetchone()[0])
    except sqlite3.OperationalError:  # not made yet, or being written
        return 0
    finally:
        connection.close()


def test_tune_measures_every_kernel_and_both_models(tuned: SimpleNamespace) -> None:
    result = tuned.result
    assert len(result["tasks"]) >= 3
    assert all(task["best_seconds"] > 0 for task in result["tasks"])
    assert result["latency"]["untuned"] > 0 and result["latency"]["tuned"] > 0
    # Where new schedules make the model slower, which noise may, the default ones stay.
    searched = {task["workload"] for task in result["tasks"] if task["trials"] > 1}
    tuned_keys = {key for key, source in sources(result["build"]).items() if source == "tuned"}
    assert (
        tuned_keys.isdisjoint(searched)
        if result["latency"]["is_slower"]
        else searched <= tuned_keys
    )
    assert trials_in(tuned.db) == result["measured"]


def test_figures_of_a_result_agree(tuned: SimpleNamespace) -> None:
    result = tuned.result
    claimed = confirmed = 0.0
    for task in result["tasks"]:
        assert task["best_seconds"] == task["expected_seconds"]
        assert task["low_seconds"] <= task["best_seconds"] <= task["high_seconds"]
        ratio = task["best_seconds"] / task["default_seconds"]
        assert ratio == pytest.approx(task["confirmed_ratio"])
        assert task["speed_up"] == pytest.approx(1 / ratio)
        default = task["occurrences"] * task["default_seconds"]
        claimed += default * task["claimed_ratio"]
        confirmed += default * task["confirmed_ratio"]
    search = result["search"]
    assert search["claimed_seconds"] == pytest.approx(claimed)
    assert search["confirmed_seconds"] == pytest.approx(confirmed)
    assert search["lost_to_noise"] == sum(task["scattered"] for task in result["tasks"])
    assert search["trials"] == sum(task["trials"] for task in result["tasks"])
    speed_up = [search[name] for name in ("speedup_low", "speedup", "speedup_high")]
    if search["unchanged"]:
        assert speed_up == [None] * 3
    else:
        assert speed_up == sorted(speed_up)


def test_a_second_run_repeats_no_measurement(tune: CommandLine, tuned: SimpleNamespace) -> None:
    """Its progress goes to stderr, and its JSON alone to stdout."""
    before = trials_in(tuned.db)
    again = tune("--model", tuned.model, "--db", tuned.db, "--config", "ci", "--json", "-")
    assert again.code == 0
    assert trials_in(tuned.db) == before
    assert json.loads(again.out)["measured"] == 0
    assert "distinct kernels" in again.err


def test_built_model_equals_onnxruntime(
    tune: CommandLine, tuned: SimpleNamespace, tmp_path: Path
) -> None:
    artefact = tmp_path / "tiny.tuned"
    assert tune("build", "--model", tuned.model, "--db", tuned.db, "--output", artefact).code == 0
    x = np.random.default_rng(3).standard_normal((1, 3, 12, 12)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    outputs = tmp_path / "out.npz"
    ran = tune("run", artefact, "--input", f"x={tmp_path}/x.npy", "--output", outputs)
    assert ran.code == 0
    assert "median" in ran.out
    (expected,) = exact_session(tuned.model).run(None, {"x": x})
    np.testing.assert_allclose(np.load(outputs)["y"], expected, rtol=1e-3, atol=1e-5)


def test_run_repeats_with_seeded_inputs(
    tune: CommandLine, tuned: SimpleNamespace, tmp_path: Path
) -> None:
    artefact = tmp_path / "tiny.tuned"
    tune("build", "--model", tuned.model, "--untuned", "--output", artefact)
    runs = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for path in runs:
        result = tune("run", artefact, "--repeat", "5", "--output", path, "--json", "-")
        assert len(json.loads(result.out)["samples"]) == 5
    np.testing.assert_array_equal(np.load(runs[0])["y"], np.load(runs[1])["y"])


def test_run_profiles_every_kernel(
    tune: CommandLine, tuned: SimpleNamespace, tmp_path: Path
) -> None:
    artefact, result = tmp_path / "tiny.tuned", tmp_path / "profile.json"
    tune("build", "--model", tuned.model, "--db", tuned.db, "--output", artefact)
    printed = tune("run", artefact, "--profile", "--repeat", "3", "--json", result).out
    profile = json.loads(result.read_text())["profile"]
    assert profile["repeat"] == 3
    kernels = profile["kernels"]
    assert sources(profile) == sources(tuned.result["build"])
    assert sum(kernel["share"] for kernel in kernels) == pytest.approx(1.0)
    assert sum(kernel["seconds"] for kernel in kernels) == pytest.approx(profile["sum_of_kernels"])
    for text in ("GFLOP/s", "sum of kernels: ", *(kernel["key"][:8] for kernel in kernels)):
        assert text in printed
    assert all(kernel["record_id"] in printed for kernel in kernels)


def test_build_reports_every_kernel(tune: CommandLine, tuned: SimpleNamespace) -> None:
    result = tune(
        "build", "--model", tuned.model, "--db", tuned.db, "--output", "t.tuned", "--json", "-"
    )
    report = json.loads(result.out)
    assert sources(report) == sources(tuned.result["build"])
    assert report["tuned_share"] == pytest.approx(tuned.result["build"]["tuned_share"], rel=0.1)
    assert sum(kernel["share"] for kernel in report["kernels"]) == pytest.approx(1.0)


def test_a_build_in_other_numerics_says_so_and_stays_near(
    tune: CommandLine, tuned: SimpleNamespace
) -> None:
    files = ["--model", tuned.model, "--db", tuned.db]
    result = tune("build", *files, "--output", "t.bf16", "--numerics", "bf16", "--json", "-")
    kernels = json.loads(result.out)["kernels"]
    own = [kernel for kernel in kernels if kernel["numerics"] == "bf16"]
    assert own and {kernel["schedule_source"] for kernel in own} == {"default"}
    notes = json.loads(result.out)["unapplied"]
    assert any(note["advice"].endswith("tune with --precision bf16") for note in notes)
    tune("build", *files, "--output", "t.f32")
    exact, rounded = compiler.load("t.f32"), compiler.load("t.bf16")
    assert (exact.spec.numerics, rounded.spec.numerics) == ("default", "bf16")
    inputs = seeded_inputs(exact.inputs)
    for name, expected in exact.run(inputs).items():
        assert 0 < error_of(rounded.run(inputs)[name], expected) < 0.02
    assert "bf16 =" in tune("inspect", *files, "--stage", "kernels", "--numerics", "bf16").out


def test_builds_that_keep_denormals_take_the_same_records(
    tune: CommandLine, tuned: SimpleNamespace
) -> None:
    files = ["--model", tuned.model, "--db", tuned.db, "--json", "-"]
    flushes = json.loads(tune("build", *files, "--output", "t.flush").out)
    keeps = json.loads(tune("build", *files, "--output", "t.keep", "--denormals", "keep").out)
    assert [kernel["record_id"] for kernel in keeps["kernels"]] == [
        kernel["record_id"] for kernel in flushes["kernels"]
    ]
    assert compiler.load("t.flush").spec.denormals == "flush"
    assert compiler.load("t.keep").spec.denormals == "keep"
    line = tune.refuses("build", *files, "--output", "t.else", "--denormals", "flash")
    assert "compile.denormals = 'flash'" in line and "did you mean flush?" in line


def test_unknown_numerics_name_the_nearest(tune: CommandLine, model: Path) -> None:
    for command in ([], ["build", "--output", "out"], ["bench"], ["inspect", "--stage", "graph"]):
        line = tune.refuses(*command, "--model", model, "--numerics", "bf61")
        assert "compile.precision = 'bf61'" in line and "did you mean bf16?" in line


def test_a_required_share_that_is_not_tuned_fails_the_build(
    tune: CommandLine, tuned: SimpleNamespace, tmp_path: Path
) -> None:
    shape = ["--threads", "2"]  # nothing was tuned for two threads
    files = ["--model", tuned.model, "--db", tuned.db, "--output", tmp_path / "t.tuned"]
    line = tune.refuses("build", *files, *shape, "--require-tuned", "0.95")
    assert "95.0 %" in line and "0.0 %" in line


def test_bench_compares_outputs_and_times_both(tune: CommandLine, tuned: SimpleNamespace) -> None:
    result = tune("bench", "--model", tuned.model, "--db", tuned.db, "--rounds", "3", "--json", "-")
    engines = json.loads(result.out)["engines"]
    assert [engine["engine"] for engine in engines] == ["tunefarm", "onnxruntime"]
    assert all(engine["seconds"] > 0 for engine in engines)
    with Store.open(tuned.db, read_only=True) as store:
        kept = newest(store, purpose="bench")
    assert kept is not None and kept.record.model_name == "tiny.onnx"
    assert [engine.seconds for engine in kept.times.engines] == [e["seconds"] for e in engines]
    assert len(kept.times.steps) >= 3


def test_a_job_keeps_how_long_the_model_takes(tuned: SimpleNamespace) -> None:
    with Store.open(tuned.db, read_only=True) as store:
        (kept,) = measured_models(store, job=tuned.result["job"])
        (job,) = (job for job in queries.jobs(store) if job.id == tuned.result["job"])
        hashes = {
            best.key.workload: best.schedule_hash
            for best in queries.iterate_bests(store)
            if best.job == job.id
        }
    told, times = tuned.result["latency"], kept.times
    applied = told["kept"] or told
    assert times.over_untuned is not None
    assert kept.record.purpose == "job" and kept.record.model_hash == job.model_hash
    assert times.untuned == told["untuned"]
    assert times.over_untuned.ratio == (applied["ratio"] or 1.0)
    assert times.confirmed == pytest.approx(tuned.result["search"]["confirmed_seconds"])
    assert all(step.seconds is not None for step in times.steps)
    schedules = {key: kernel.schedule for key, kernel in times.kernels.items()}
    assert hashes and hashes.keys() <= schedules.keys()
    assert told["is_slower"] or hashes.items() <= schedules.items()


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("graph", "conv("),
        ("kernels", "(anchor conv)"),
        ("space", "schedules"),
        ("loops", "for "),
        ("llvm", "define void @kernel"),
        ("asm", "kernel:"),
    ],
)
def test_inspect_prints_the_stage(
    tune: CommandLine, tuned: SimpleNamespace, stage: str, expected: str
) -> None:
    result = tune("inspect", "--model", tuned.model, "--db", tuned.db, "--stage", stage)
    assert result.code == 0
    assert expected in result.out


def test_dumps_go_to_stderr_and_change_nothing_else(
    tune: CommandLine, model: Path, tmp_path: Path
) -> None:
    build: list[str | Path] = ["build", "--model", model, "--untuned", "--output", tmp_path / "t"]
    plain = tune(*build)
    dumped = tune(*build, "--dump-after", "schedule")
    assert (dumped.code, dumped.out) == (0, plain.out)
    assert dumped.err.count("after schedule of ") == 4
    inspect: list[str | Path] = ["inspect", "--model", model, "--stage", "kernels"]
    shown = tune(*inspect, "--kernel", "softmax", "--dump-after", "loops")
    assert shown.out == tune(*inspect, "--kernel", "softmax").out
    assert shown.err.count("after loops of ") == 1


def test_inspect_prints_one_kernel(tune: CommandLine, tuned: SimpleNamespace) -> None:
    result = tune("inspect", "--model", tuned.model, "--stage", "kernels", "--kernel", "softmax")
    assert "kernel softmax" in result.out
    assert "conv" not in result.out


def test_database_commands(tune: CommandLine, tuned: SimpleNamespace, tmp_path: Path) -> None:
    listed = json.loads(tune("db", "list", "--db", tuned.db, "--json", "-").out)
    assert len(listed) == len(tuned.result["tasks"])
    assert listed[0]["workload"] in tune("db", "list", "--db", tuned.db).out
    shown = tune("db", "show", listed[0]["workload"], "--db", tuned.db)
    assert "a build uses record" in shown.out
    checked = tune("db", "check", "--db", tuned.db, "--replay", "5").out
    assert "no problems" in checked and "5 rebuilt, 5 run" in checked
    assert tune("db", "upgrade", "--db", tuned.db).code == 0
    exported, other = tmp_path / "records.jsonl", tmp_path / "other.db"
    assert tune("db", "export", "--db", tuned.db, "--output", exported).code == 0
    assert tune("db", "import", exported, "--db", other).code == 0
    assert trials_in(other) == trials_in(tuned.db)
    merged = tmp_path / "merged.db"
    count = trials_in(tuned.db)
    assert f"{count} new trials" in tune("db", "merge", tuned.db, "--db", merged).out
    assert "0 new trials" in tune("db", "merge", other, "--db", merged).out
    assert trials_in(merged) == count
    planned = tune("db", "prune", "--db", merged, "--keep", "2", "--dry-run").out
    assert "would be deleted" in planned and trials_in(merged) == count
    pruned = tune("db", "prune", "--db", merged, "--keep", "2")
    assert pruned.code == 0 and trials_in(merged) < count
    assert f"{count - trials_in(merged)} trials deleted" in pruned.out
    built = ("build", "--model", tuned.model, "--require-tuned", "1.0", "--accept-nominees")
    assert tune(*built, "--output", tmp_path / "pruned.tuned", "--db", merged).code == 0
    refused = tune("db", "merge", merged, "--db", merged)
    assert refused.code == 1 and "itself" in refused.err


def test_report_is_one_self_contained_page(
    tune: CommandLine, tuned: SimpleNamespace, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    assert tune("report", "--db", tuned.db, "--html", page, "--full").code == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert all(task["kernel"] in text for task in tuned.result["tasks"])
    found = parsed(text)  # which refuses scripts from elsewhere
    assert not {"link", "img", "iframe"} & set(found.tags)
    shown = details(text)
    assert len(shown) == len(tuned.result["tasks"])
    command = next(iter(shown.values()))["inspect"].replace("MODEL", str(tuned.model)).split()
    assert "kernel:" in tune(*command[1:]).out


def test_zoo_writes_a_model(tune: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    assert tune("zoo", "mlp", "--output", path).code == 0
    onnx.checker.check_model(str(path))
    assert tune("zoo", "mlp", "--output", path, "--quantised").code == 0
    operators = {node.op_type for node in onnx.load(path).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= operators
    given = ("--output", path, "--quantised", "--form")
    assert tune("zoo", "mlp", *given, "qoperator").code == 0
    assert "QGemm" in {node.op_type for node in onnx.load(path).graph.node}
    refused = tune("zoo", "mlp", *given, "qqd")
    assert refused.code == 2 and "no form 'qqd'" in refused.err


# Bad input: one line, a code other than 0, no traceback, nothing created or overwritten.


def test_unsupported_operators_are_listed_with_their_nodes(
    tune: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(unsupported_model().SerializeToString())
    line = tune.refuses("--model", path)
    for name in ("MysteryNorm", "mystery1", "OtherMystery", "mystery2"):
        assert name in line


def test_a_file_that_is_no_model_is_refused(tune: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "notes.onnx"
    path.write_text("these are notes, not a network\n" * 20)
    assert "notes.onnx" in tune.refuses("--model", path)


def test_a_truncated_model_is_refused(tune: CommandLine, model: Path) -> None:
    data = model.read_bytes()
    model.write_bytes(data[: len(data) // 2])
    assert "cut off" in tune.refuses("--model", model)


def test_a_missing_model_is_refused(tune: CommandLine) -> None:
    assert "nowhere.onnx" in tune.refuses("--model", "nowhere.onnx")


def test_missing_external_data_is_refused(tune: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    external_model(path, "weights.bin")
    assert "weights.bin" in tune.refuses("--model", path)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname"])
def test_external_data_outside_the_folder_is_refused(
    tune: CommandLine, tmp_path: Path, location: str
) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    folder = tmp_path / "model"
    folder.mkdir()
    external_model(folder / "model.onnx", location)
    assert location in tune.refuses("--model", folder / "model.onnx")


def test_an_unresolved_dimension_is_refused_and_shape_fixes_it(
    tune: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(tiny_model(batch="N").SerializeToString())
    line = tune.refuses("--model", path)
    assert "N" in line and "--shape" in line
    fixed = tune("inspect", "--model", path, "--stage", "graph", "--shape", "x=2,3,12,12")
    assert "f32[2, 3, 12, 12]" in fixed.out


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["--modle", "x.onnx"], "--model"),
        (["build", "--modl", "x.onnx"], "--model"),
        (["biuld", "--model", "x.onnx"], "build"),
    ],
)
def test_an_unknown_option_names_the_nearest(
    tune: CommandLine, arguments: list[str], nearest: str
) -> None:
    assert nearest in tune.refuses(*arguments, code=2)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--model", "x.onnx", "--trials", "none"],
        ["--model", "x.onnx", "--trials", "0"],
        ["--model", "x.onnx", "--shape", "x"],
        ["--model", "x.onnx", "--shape", "x=1,two:"],
        ["--model", "x.onnx", "--shape", "x=1,0"],
        ["--model", "x.onnx", "--shape", "x=1", "--shape", "x=2"],
        ["--db", "t.db", "build", "--model", "x.onnx", "--output", "x.tuned"],
        ["build", "--model", "x.onnx"],
        ["build", "--model", "x.onnx", "--output", "x.tuned", "--cc", "cc"],
        ["build", "--model", "x.onnx", "--output", "x", "--emit", "object", "--cc", ""],
        ["run", "x.tuned", "--input", "x"],
        ["run", "x.tuned", "--shape", f"x={'9' * 5000}"],
        ["--model", "x.onnx", "--shape", f"x={'9' * 5000}"],
        ["db", "nonsense"],
    ],
)
def test_senseless_options_are_refused(tune: CommandLine, arguments: list[str]) -> None:
    tune.refuses(*arguments, code=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[search]\ntrails_per_task = 3\n", "search.trials_per_task"),
        ("[search]\nbatch_size = 'many'\n", "search.batch_size"),
        ("[search\n", "TOML"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_key(
    tune: CommandLine, model: Path, tmp_path: Path, text: str, expected: str
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(text)
    assert expected in tune.refuses("--model", model, "--config", config)


def test_an_unknown_preset_names_the_nearest(tune: CommandLine, model: Path) -> None:
    assert "quick" in tune.refuses("--model", model, "--config", "quik")


def test_an_unknown_runner_is_refused(tune: CommandLine, model: Path) -> None:
    assert "local" in tune.refuses("--model", model, "--runner", "loacl")


@pytest.mark.parametrize(
    "contents",
    [b"a text file\n" * 100, b"SQLite format 3\0 but not really" + bytes(4096), b"\x7fELF"],
)
def test_a_foreign_database_file_is_refused_and_left_alone(
    tune: CommandLine, model: Path, tmp_path: Path, contents: bytes
) -> None:
    path = tmp_path / "foreign.db"
    path.write_bytes(contents)
    assert "foreign.db" in tune.refuses("--model", model, "--db", path)


def test_a_foreign_sqlite_database_is_refused(
    tune: CommandLine, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "music.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE albums (title TEXT)")
    connection.close()
    assert "music.db" in tune.refuses("--model", model, "--db", path)


def test_the_model_as_database_is_refused(tune: CommandLine, model: Path) -> None:
    tune.refuses("--model", model, "--db", model)


@pytest.mark.parametrize("path", ["no/such/folder/tuning.db", "/proc/tuning.db", "."])
def test_an_unwritable_database_is_refused(tune: CommandLine, model: Path, path: str) -> None:
    tune.refuses("--model", model, "--db", path)


@pytest.mark.parametrize("path", ["no/such/folder/x.tuned", "folder", "tiny.onnx"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    tune: CommandLine, model: Path, tmp_path: Path, path: str
) -> None:
    (tmp_path / "folder").mkdir()
    files: list[str | Path] = ["--model", model, "--untuned", "--output", path]
    assert path in tune.refuses("build", *files)


def test_building_from_a_database_that_does_not_exist_is_refused(
    tune: CommandLine, model: Path
) -> None:
    line = tune.refuses("build", "--model", model, "--db", "none.db", "--output", "x.tuned")
    assert "none.db" in line


@pytest.mark.parametrize("contents", [b"", b"no artefact", bytes(100_000)])
def test_a_file_that_is_no_artefact_is_refused(
    tune: CommandLine, tmp_path: Path, contents: bytes
) -> None:
    path = tmp_path / "x.tuned"
    path.write_bytes(contents)
    assert "x.tuned" in tune.refuses("run", path)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: np.save(path, np.zeros((1, 3, 12, 11), np.float32)), "shape"),
        (lambda path: np.save(path, np.zeros((1, 3, 12, 12), np.float64)), "f64"),
        (lambda path: path.write_text("numbers"), "x.npy"),
        (lambda path: None, "x.npy"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(
    tune: CommandLine, model: Path, tmp_path: Path, make: Callable[[Path], None], expected: str
) -> None:
    artefact = tmp_path / "x.tuned"
    assert tune("build", "--model", model, "--untuned", "--output", artefact).code == 0
    make(tmp_path / "x.npy")
    line = tune.refuses("run", artefact, "--input", f"x={tmp_path / 'x.npy'}")
    assert expected in line


def test_an_input_that_the_model_does_not_have_is_refused(
    tune: CommandLine, model: Path, tmp_path: Path
) -> None:
    artefact = tmp_path / "x.tuned"
    tune("build", "--model", model, "--untuned", "--output", artefact)
    np.save(tmp_path / "x.npy", np.zeros(3, np.float32))
    assert "image" in tune.refuses("run", artefact, "--input", f"image={tmp_path / 'x.npy'}")


def test_unknown_names_come_with_the_nearest(tune: CommandLine, model: Path) -> None:
    assert "kernels" in tune.refuses("inspect", "--model", model, "--stage", "kernel")
    stage: list[str | Path] = ["--model", model, "--stage", "kernels", "--kernel", "softmx"]
    assert "softmax" in tune.refuses("inspect", *stage)
    dump: list[str | Path] = ["--model", model, "--dump-after", "optimize"]
    assert "optimise" in tune.refuses("inspect", "--stage", "graph", *dump)
    assert "optimise" in tune.refuses("build", "--untuned", "--output", "x.tuned", *dump)
    engine: list[str | Path] = ["--model", model, "--untuned", "--against", "onnxruntim"]
    assert "onnxruntime" in tune.refuses("bench", *engine)
    assert "resnet18" in tune.refuses("zoo", "resnet81", "--output", "x.onnx")


def test_a_bug_gives_one_line_and_keeps_the_traceback(
    tune: CommandLine, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("of our own making")

    monkeypatch.setattr("tunefarm.tuner.tune_precisions.tune_model", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = tune("--model", model)
    assert result.code == 1
    assert len(result.err.splitlines()) == 1
    (log,) = tmp_path.glob("tune-*.log")
    assert str(log) in result.err
    assert "of our own making" in log.read_text()


ENTRY = """
import signal
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)  # ignored in a background job
from tunefarm.tuner.commands.entry import main
main()
"""


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", ENTRY, *map(str, arguments)]


def test_ctrl_c_keeps_what_was_measured_and_exits_with_130(model: Path, tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    arguments: list[str | Path] = [
        "--model",
        model,
        "--db",
        db,
        "--runner",
        "local",
        "--trials",
        "5000",
    ]
    with subprocess.Popen(
        command(*arguments),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while process.poll() is None and (not db.exists() or trials_in(db) < 4):
            time.sleep(0.05)  # polls the file that another process writes
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "To continue: tune --model" in errors
    assert "Traceback" not in errors
    kept = trials_in(db)
    assert kept >= 4
    with sqlite3.connect(db) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT state FROM jobs").fetchall() == [("interrupted",)]
        # An unstable measurement may be repeated once, nothing else.
        repeated = (
            "SELECT count(*) - count(DISTINCT task_id || schedule_hash) FROM trials"
            " WHERE status <> 'unstable'"
        )
        assert connection.execute(repeated).fetchone() == (0,)
    connection.close()


def test_a_closed_pipe_ends_quietly(model: Path) -> None:
    arguments: list[str | Path] = ["inspect", "--model", model, "--stage", "asm"]
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read().decode()
    assert errors == ""
    assert process.returncode != 0


def test_help_needs_no_heavy_library() -> None:
    script = (
        "import sys; from tunefarm.tuner.commands.cli import app; "
        "from tunefarm.tuner.commands.command_line import run_command; "
        "run_command(app, ['--help']); "
        "print([m for m in ('ray', 'xgboost', 'optuna', 'onnx', 'numpy') if m in sys.modules])"
    )
    ran = python("-c", script, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"
    assert "--model" in ran.stdout
