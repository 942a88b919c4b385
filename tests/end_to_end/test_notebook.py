"""`tunefarm.tune` in the kernel of a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

PROGRESS = """
from tunefarm.tuner.reports.notebook import library_progress
from tunefarm.tuner.reports.report import TaskStatus

progress = library_progress()
progress.start()
for trials in (1, 2, 3):
    progress.update([TaskStatus("conv", "0123", 1, trials, 0, 2e-3, 1e-3)], 1.0, None)
progress.stop()
"""
TUNE = """
import tunefarm

result = tunefarm.tune("tiny.onnx", db="tuning.db", trials=6, runner="local", seed=1)
"""
BUILD = """
import tunefarm

executable = tunefarm.build("tiny.onnx", db="tuning.db")
executable
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(tiny_model(), tmp_path / "tiny.onnx")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return tmp_path


def outputs_of(folder: Path, *cells: str) -> list[list[Any]]:
    """The outputs of each cell, once a kernel has run them all in the folder."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    return [cell["outputs"] for cell in notebook["cells"]]


def html_of(outputs: list[Any], form: str = "text/html") -> str:
    (shown,) = (item for item in outputs if item["output_type"] != "stream")
    return str(shown["data"][form])


def text_of(outputs: list[Any]) -> str:
    return html_of(outputs, "text/plain")


def test_progress_stays_in_one_place_of_a_notebook(folder: Path) -> None:
    progress, untuned = outputs_of(folder, PROGRESS, BUILD.replace(', db="tuning.db"', ""))
    assert [item["output_type"] for item in progress] == ["display_data"]
    assert "3 trials" in html_of(progress) and "1 trials" not in html_of(progress)
    assert "3 trials" in progress[0]["data"]["text/plain"]
    (warning,) = (item for item in untuned if item["output_type"] == "stream")
    assert warning["name"] == "stderr" and "UntunedWarning: tiny.onnx is built" in warning["text"]
    assert "f32[1, 3, 12, 12]" in text_of(untuned)


@pytest.mark.nightly
def test_a_job_shows_itself_in_a_notebook(folder: Path) -> None:
    """Half a minute: python -m pytest -m nightly tests/end_to_end/test_notebook.py"""
    tune, result, built, report = outputs_of(folder, TUNE, "result", BUILD, "result.build")
    assert [item["output_type"] for item in tune] == ["display_data"], tune
    assert "6 trials" in html_of(tune) and "┏" in html_of(tune)  # the last update's
    assert "whole model: " in html_of(result) and "next: tunefarm.build(" in html_of(result)
    assert "f32[1, 3, 12, 12]" in text_of(built)
    assert "of the estimated time runs tuned schedules" in html_of(report)
