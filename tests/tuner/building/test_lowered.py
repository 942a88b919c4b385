"""Builds under numerics that are chosen for the model: from data, from records, refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tests.tuner.calibration.sized_rows import expected as rows_of
from tests.tuner.calibration.sized_rows import sized_rows, sized_run
from tunefarm import compiler, tuner
from tunefarm.compiler.errors import InputError, SettingsError
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.apply_precisions import prepare
from tunefarm.compiler.plan.precision.contractions import contractions
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.precision import Precision
from tunefarm.configs.settings import Settings, load_settings
from tunefarm.db import model_queries
from tunefarm.db.store import Store
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.lowered import record_choice, wider_note
from tunefarm.tuner.building.request import BuildRequest
from tunefarm.tuner.calibration.choice import ChoicePoint, PrecisionChoice
from tunefarm.tuner.calibration.options import PrecisionOptions
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command

HOST = host_target()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, calibration data and an empty database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    onnx.save(tiny_model(), tmp_path / "tiny.onnx")
    x = np.random.default_rng(0).standard_normal((6, 3, 12, 12)).astype(np.float32)
    np.savez(tmp_path / "inputs.npz", x=x)
    Store.open(tmp_path / "tuning.db").close()
    return tmp_path


def settings(numerics: str) -> Settings:
    return load_settings(None, {"compile.numerics": numerics})


def graph() -> Graph:
    return import_onnx(Path("tiny.onnx"))


def built(name: str, numerics: str, **options: object) -> bytes:
    precision = PrecisionOptions(**options)  # type: ignore[arg-type]
    build(BuildRequest("tiny.onnx", name, settings(numerics), precision=precision))
    return Path(name).read_bytes()


def outputs(name: str) -> np.ndarray:
    x = np.load("inputs.npz")["x"][:1]
    return np.asarray(compiler.load(name).run({"x": x})["y"])


def test_int8_is_built_again_from_the_record_without_the_data(folder: Path) -> None:
    first = built("first.tuned", "int8", calibration="inputs.npz")
    built("f32.tuned", "default")
    Path("inputs.npz").rename("moved.npz")
    assert built("second.tuned", "int8") == first
    Path("moved.npz").rename("inputs.npz")
    error = np.abs(outputs("second.tuned") - outputs("f32.tuned")).max()
    assert 0 < error < 0.03
    with Store.open("tuning.db", read_only=True) as store:
        (record,) = model_queries.plans(store)
    assert (record.numerics, record.model_name) == ("int8", "tiny")


@pytest.mark.nightly
def test_auto_builds_the_chosen_point_or_another(folder: Path) -> None:
    first, second = (item.identity for item in contractions(prepare(graph())))
    points = (
        ChoicePoint({}, 1.0, 0.0),
        ChoicePoint({first: Precision.BF16}, 0.8, 0.01),
        ChoicePoint({first: Precision.BF16, second: Precision.BF16}, 0.5, 0.02),
    )
    choice = PrecisionChoice("relative error", 0.01, 1, points)
    with Store.open("tuning.db") as store:
        record_choice(store, choice, "tiny", graph(), settings("auto"), HOST)
    chosen = built("chosen.tuned", "auto")
    assert built("again.tuned", "auto") == chosen
    assert built("by_number.tuned", "auto", point=1) == chosen
    assert built("by_error.tuned", "auto", max_error=0.015) == chosen
    fastest = built("fastest.tuned", "auto", max_error=0.5)
    assert fastest != chosen
    built("f32.tuned", "default")
    built("point_0.tuned", "auto", point=0)
    assert np.array_equal(outputs("point_0.tuned"), outputs("f32.tuned"))
    assert not np.array_equal(outputs("fastest.tuned"), outputs("f32.tuned"))
    with pytest.raises(SettingsError, match="there is no point 3"):
        built("none.tuned", "auto", point=3)


@pytest.mark.nightly
def test_a_recorded_plan_is_inspected_and_compared_like_any_build(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    built("first.tuned", "int8", calibration="inputs.npz")
    assert compiler.load("first.tuned").spec.numerics == "int8"
    of = "--model tiny.onnx --db tuning.db --numerics int8"
    assert run_command(app, f"inspect {of} --stage graph".split()) == 0
    assert "u8[" in capfd.readouterr().out
    assert run_command(app, f"inspect {of} --stage kernels".split()) == 0
    capfd.readouterr()
    assert run_command(app, f"bench {of} --rounds 3".split()) == 0
    assert "int8" in capfd.readouterr().out


def test_python_has_the_same(folder: Path) -> None:
    inputs = {"x": np.load("inputs.npz")["x"][:1]}
    exact = tuner.build("tiny.onnx", db="tuning.db").run(inputs)["y"]
    near = tuner.build("tiny.onnx", db="tuning.db", numerics="int8", calibration="inputs.npz")
    again = tuner.build("tiny.onnx", db="tuning.db", numerics="int8")
    assert np.array_equal(near.run(inputs)["y"], again.run(inputs)["y"])
    assert not np.array_equal(near.run(inputs)["y"], exact)
    with pytest.raises(SettingsError, match=r"tunefarm\.choose makes it"):
        tuner.tune("tiny.onnx", db="tuning.db", numerics="auto")


def test_contractions_that_8_bits_are_too_few_for_are_named(folder: Path) -> None:
    items = contractions(prepare(graph()))
    kinds = [Precision.BF16, *[Precision.INT8] * (len(items) - 1)]
    precisions = dict(zip((item.identity for item in items), kinds, strict=True))
    choice = PrecisionChoice("", 0.0, 0, (ChoicePoint(precisions, 1.0, 0.0),))
    told = f"1 of {len(items)} contractions are too sensitive for int8: {items[0].label}"
    assert wider_note(graph(), choice) == told
    every = ChoicePoint(dict.fromkeys(precisions, Precision.INT8), 1.0, 0.0)
    assert wider_note(graph(), replace(choice, points=(every,))) == ""


@pytest.mark.parametrize("rows", ["1..12", "1..3|4..12"])
def test_ranges_of_open_sizes_are_those_of_samples_of_any(folder: Path, rows: str) -> None:
    onnx.save(sized_rows(), "rows.onnx")
    (folder / "samples").mkdir()
    sizes = [(1, 1), (3, 5), (2, 3), (3, 8), (1, 4)]
    for number, size in enumerate(sizes):
        np.savez(f"samples/{number}.npz", **sized_run(*size))  # type: ignore[arg-type]
    shapes = {"b": ("1..3",), "s": (rows,)}
    precision = PrecisionOptions(calibration="samples")
    request = BuildRequest(
        "rows.onnx", "rows.tuned", settings("int8"), precision=precision, shapes=shapes
    )
    build(request)
    build(replace(request, output="again.tuned", precision=PrecisionOptions()))
    assert Path("again.tuned").read_bytes() == Path("rows.tuned").read_bytes()
    model = compiler.load("rows.tuned")
    for size in sizes:
        run = sized_run(*size)
        found, wanted = model.run(run)["y"], rows_of(run)
        assert 0 < np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()


def test_what_was_not_chosen_is_refused(folder: Path) -> None:
    with pytest.raises(SettingsError, match="int8 needs --calibration"):
        built("a.tuned", "int8")
    with pytest.raises(SettingsError, match="nothing was chosen for this model yet"):
        built("a.tuned", "auto")
    np.savez("wrong.npz", y=np.zeros(3))
    with pytest.raises(InputError, match="it has y; the model's inputs are x"):
        built("a.tuned", "int8", calibration="wrong.npz")
    assert not Path("a.tuned").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--numerics int8", "int8 needs --calibration"),
        ("--numerics auto", "nothing was chosen"),
        ("--numerics default --calibration inputs.npz", "--calibration is for"),
        ("--numerics auto --point 1 --max-error 0.1", "give one"),
        ("--numerics int8 --calibration nowhere.npz", "cannot read nowhere.npz"),
        ("--numerics int8 --calibration inputs.npz --calibration-method x", "no method 'x'"),
        ("--numerics int8 --calibration old.tuned", "it would be overwritten"),
    ],
)
def test_a_bad_build_is_one_line_and_overwrites_nothing(
    arguments: str, reason: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("old.tuned").write_text("old")
    line = f"build --model tiny.onnx --db tuning.db --output old.tuned {arguments}"
    assert run_command(app, line.split()) == 1
    error = capfd.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert reason in error
    assert Path("old.tuned").read_text() == "old"
