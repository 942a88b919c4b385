"""A model's file that is replaced is noticed: during a job, before another, and by a resume."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.configs.errors import DatabaseError
from tunefarm.db.store import Store
from tunefarm.tuner.commands.job_status import resuming
from tunefarm.tuner.records.job_command import JobCommand
from tunefarm.tuner.records.model_file import ModelFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(tiny_model(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def known(path: Path) -> ModelFile:
    found = ModelFile.of(path)
    assert found is not None
    return found


def test_a_file_is_the_same_until_its_content_changes(path: Path) -> None:
    file = known(path)
    os.utime(path, (1, 1))
    path.write_bytes(path.read_bytes())
    assert file.is_unchanged
    onnx.save(tiny_model("batch"), path)
    assert not file.is_unchanged
    path.unlink()
    assert not file.is_unchanged and ModelFile.of(path) is None


def test_external_data_that_is_replaced_is_noticed(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [value("x", 1, [4, 64])],
        [value("y", 1, [4, 64])],
        [weights],
    )
    path = tmp_path / "m.onnx"
    onnx.save(
        helper.make_model(graph),
        path,
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    file = known(path)
    assert file.is_unchanged
    (tmp_path / "m.data").write_bytes(bytes(64 * 64 * 4 + 1))
    assert not file.is_unchanged
    (tmp_path / "m.data").unlink()
    assert not file.is_unchanged


@pytest.mark.parametrize("change", ["none", "replaced", "removed"])
def test_a_job_is_not_resumed_on_another_model(change: str, path: Path) -> None:
    command = JobCommand(("--model", str(path)), str(path.parent), 0.0)
    settings: dict[str, Any] = known(path).kept_in(command.kept_in({}))
    with Store.open(":memory:") as store:
        job = store.start_job("m.onnx", "abc", settings)
        store.finish_job(job.id, "interrupted", {})
        if change == "none":
            resuming(store, job.id, "t.db", minutes=None, trials=None)
            return
        path.unlink()
        if change == "replaced":
            onnx.save(tiny_model("batch"), path)
        with pytest.raises(DatabaseError, match=r"m\.onnx is not the model that job .* was tuning"):
            resuming(store, job.id, "t.db", minutes=None, trials=None)
