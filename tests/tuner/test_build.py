"""`tunefarm.build` where there is no database, or none that helps."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm import compiler, tuner
from tunefarm.compiler.errors import SettingsError, TunefarmError
from tunefarm.db.store import Store
from tunefarm.tuner import UntunedWarning

PIXELS = np.linspace(-1, 1, 432, dtype=np.float32).reshape(1, 3, 12, 12)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_model(), "tiny.onnx")
    return tmp_path


def test_a_model_is_built_untuned_without_a_database_and_that_is_said(folder: Path) -> None:
    message = r"tiny.onnx is built untuned: there is no database tuning.db; tunefarm.tune"
    with pytest.warns(UntunedWarning, match=message) as caught:
        executable = tuner.build(Path("tiny.onnx"))
    assert caught[0].filename == __file__
    assert not (folder / "tuning.db").exists()
    expected = compiler.build("tiny.onnx").run({"x": PIXELS})["y"]
    np.testing.assert_array_equal(executable.run({"x": PIXELS})["y"], expected)


def test_a_database_without_records_of_the_model_is_told_from_none(folder: Path) -> None:
    Store.open("tuning.db").close()
    with pytest.warns(UntunedWarning, match="no record of the database applies"):
        tuner.build("tiny.onnx")


@pytest.mark.parametrize("named_by", ["argument", "environment", "file"])
def test_a_database_that_was_named_must_be_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    name, config = "tuning.db", None  # the default's name: whoever gives it means it
    if named_by == "environment":
        monkeypatch.setenv("TUNEFARM_DATABASE__URL", name)
    if named_by == "file":
        config = "own.toml"
        Path(config).write_text(f'[database]\nurl = "{name}"\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SettingsError, match=r"no such database: tuning.db .*in Python no db="):
            tuner.build("tiny.onnx", db=name if named_by == "argument" else None, config=config)


def test_a_share_that_must_be_tuned_is_refused_without_a_database(folder: Path) -> None:
    with pytest.raises(TunefarmError, match="is required"):
        tuner.build("tiny.onnx", require_tuned=0.5)
