"""A model that is replaced while a job reads it, during the job or after it is noticed and told."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tests.tuner.setting import Messages
from tunefarm import tuner
from tunefarm.compiler.errors import DatabaseError, ImportModelError, UntunedWarning
from tunefarm.compiler.graph.ir import Graph
from tunefarm.configs.settings import Settings, load_settings
from tunefarm.db.store import Store
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner import tune_model as module
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.request import BuildRequest, BuildResult
from tunefarm.tuner.commands.job_status import resuming
from tunefarm.tuner.job import Job
from tunefarm.tuner.job_request import JobRequest
from tunefarm.tuner.records.job_command import JobCommand
from tunefarm.tuner.result import TuneResult, summary_lines
from tunefarm.tuner.search.budget import End
from tunefarm.tuner.tune_model import read_model, tune_model

DIFFERENCE = "(SHA-256 "


class Tuner:
    """Begins jobs on a model's file that measure nothing, and builds from their records."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model, self.db = folder / "tiny.onnx", folder / "tuning.db"
        self.folder = folder
        self.save("first")
        monkeypatch.setattr(Job, "prepare", lambda job: None)
        monkeypatch.setattr(Job, "search", lambda job: End.INTERRUPTED)

    def save(self, producer: str) -> None:
        """Write the model anew, as another program would."""
        model = tiny_model()
        model.producer_name = producer
        onnx.save(model, self.model)

    @property
    def settings(self) -> Settings:
        values = {"database.url": str(self.db), "cache.folder": str(self.folder / "cache")}
        return load_settings("ci", values, environment={})

    def tune(self) -> tuple[TuneResult, list[str]]:
        told = Messages()
        command = JobCommand(("--model", str(self.model)), "/", 1.0)
        request = JobRequest(self.model, self.settings, progress=told, command=command)
        return tune_model(request), told.said

    def build(self) -> BuildResult:
        output = str(self.folder / "built.tuned")
        return build(BuildRequest(str(self.model), output, self.settings))


@pytest.fixture
def tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tuner:
    return Tuner(tmp_path, monkeypatch)


def test_a_file_that_changes_while_it_is_read_is_refused(
    tuning: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*arguments: object) -> Graph:
        graph = import_model(tuning.model)
        tuning.save("second")
        return graph

    monkeypatch.setattr(module, "import_model", slow)
    with pytest.raises(ImportModelError, match="changed while it was read"):
        read_model(JobRequest(tuning.model, tuning.settings))


def test_a_model_that_is_replaced_during_a_job_is_told_at_its_end(
    tuning: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Job, "prepare", lambda job: tuning.save("second"))
    result, _ = tuning.tune()
    note = summary_lines(result, "tune build --model tiny.onnx")[-2]
    assert "tiny.onnx is not the file any more that this job read (SHA-256 " in note
    assert result.to_json()["model_changed"] == result.changed


def test_the_same_command_says_that_it_goes_on_with_another_file(tuning: Tuner) -> None:
    first, lines = tuning.tune()
    assert first.changed == "" and first.to_json()["model_changed"] is None
    assert not [line for line in lines if DIFFERENCE in line]
    tuning.save("second")
    second, lines = tuning.tune()
    (line,) = [line for line in lines if DIFFERENCE in line]
    assert f"tiny.onnx is not the file that job {first.job[:8]} read (SHA-256 " in line
    tuning.save("second")  # touched
    _, lines = tuning.tune()
    assert not [line for line in lines if DIFFERENCE in line]
    assert second.changed == ""


def test_a_job_of_another_file_is_not_resumed(tuning: Tuner) -> None:
    job = tuning.tune()[0].job
    with Store.open(tuning.db) as store:
        assert resuming(store, job, "t.db", minutes=1.0, trials=None)
        tuning.save("second")
        with pytest.raises(DatabaseError, match=r"read another file: .*tiny\.onnx has") as caught:
            resuming(store, job, "t.db", minutes=1.0, trials=None)
        assert DIFFERENCE in str(caught.value) and "restore that file; or" in caught.value.hint
        tuning.save("first")
        assert resuming(store, job, "t.db", minutes=1.0, trials=None)
        tuning.model.unlink()
        with pytest.raises(DatabaseError, match="it is gone"):
            resuming(store, job, "t.db", minutes=1.0, trials=None)


def test_a_build_says_that_its_records_are_of_another_file(tuning: Tuner) -> None:
    job = tuning.tune()[0].job
    assert not [note for note in tuning.build().notes if DIFFERENCE in note]
    tuning.save("second")
    for _ in range(2):  # the second one is found in the cache
        (note,) = [note for note in tuning.build().notes if DIFFERENCE in note]
        assert f"tiny.onnx is not the file that job {job[:8]} read" in note
    with pytest.warns(UntunedWarning, match="is not the file that job"):
        tuner.build(tuning.model, db=tuning.db, config="ci")
    tuning.save("first")
    assert not [note for note in tuning.build().notes if DIFFERENCE in note]


def test_the_same_file_elsewhere_is_no_other_file(tuning: Tuner) -> None:
    tuning.tune()
    tuning.save("second")
    tuning.model = tuning.model.rename(tuning.folder / "copy.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not [note for note in tuning.build().notes if DIFFERENCE in note]
