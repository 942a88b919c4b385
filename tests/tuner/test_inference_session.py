"""Sessions that build ONNX files from a database, or say that there is none."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm import tuner
from tunefarm.compiler import SessionOptions
from tunefarm.compiler.errors import ArtefactError, ImportModelError, SettingsError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.extents import Shapes
from tunefarm.db.store import Store
from tunefarm.tuner.building import flow
from tunefarm.tuner.building.request import BuildRequest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_model("batch"), "tiny.onnx")
    return tmp_path


def test_an_onnx_file_is_built_as_tuner_builds_it(folder: Path) -> None:
    Store.open("tuning.db").close()
    options = SessionOptions(intra_op_num_threads=2)
    with pytest.warns(tuner.UntunedWarning, match="no record of the database applies") as caught:
        session = tuner.InferenceSession(
            "tiny.onnx", options, db="tuning.db", numerics="strict", shapes={"batch": (2,)}
        )
    assert caught[0].filename == __file__
    executable = session.executable
    assert (executable.threads, executable.spec.numerics) == (2, "strict")
    pixels = np.ones((2, 3, 12, 12), np.float32)
    (scores,) = session.run(["y"], {"x": pixels})
    np.testing.assert_array_equal(scores, executable.run({"x": pixels})["y"])
    executable.save("tiny.tuned")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = tuner.InferenceSession(folder / "tiny.tuned")
    np.testing.assert_array_equal(again.run(None, {"x": pixels})[0], scores)


def test_bytes_of_a_model_are_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    runs: list[str] = []
    read = flow._read

    def counted(request: BuildRequest, shapes: Shapes) -> Graph:
        runs.append(request.model)
        return read(request, shapes)

    monkeypatch.setattr(flow, "_read", counted)
    for _ in range(2):
        with pytest.warns(tuner.UntunedWarning, match="^the model is built untuned"):
            tuner.InferenceSession(Path("tiny.onnx").read_bytes(), shapes={"batch": (1,)})
    assert len(runs) == 1


def test_a_database_that_was_named_must_be_there(folder: Path) -> None:
    with pytest.raises(SettingsError, match="no such database"):
        tuner.InferenceSession("tiny.onnx", db="tuning.db", shapes={"batch": (2,)})


def test_a_file_is_told_by_its_contents_and_not_by_its_name(folder: Path) -> None:
    (folder / "tiny.onnx").rename("model.bin")
    (folder / "weights.onnx").write_bytes(b"PK\x05\x06")
    with pytest.warns(tuner.UntunedWarning):
        session = tuner.InferenceSession("model.bin", shapes={"batch": (1,)})
    assert [port.name for port in session.get_inputs()] == ["x"]
    with pytest.raises(ImportModelError, match="an empty zip archive, not an ONNX model"):
        tuner.InferenceSession("weights.onnx")
    with pytest.raises(ArtefactError, match="a text file that begins with 'notes'"):
        (folder / "notes").write_text("notes")
        tuner.InferenceSession("notes", shapes={"batch": (1,)})
