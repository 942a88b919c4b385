"""tune jobs: what is added is checked at once, listed, run by nobody here, and removed."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model, unsupported_model
from tunefarm.db.queue import add_entry, change_entry, entries, take_entry
from tunefarm.db.store import Store
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.queues.entry_options import EntryOptions


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With two models and no database."""
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_model(), tmp_path / "tiny.onnx")
    onnx.save(unsupported_model(), tmp_path / "strange.onnx")
    return tmp_path


def jobs(*arguments: str) -> int:
    return run_command(app, ["jobs", *arguments])


def test_an_entry_for_each_model_and_thread_count(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["--model", "tiny.onnx", "--threads", "1", "--threads", "2"]
    assert jobs("add", *models, "--weight", "2", "--trials", "7", "--config", "ci") == 0
    out = capsys.readouterr().out
    assert "tiny.onnx, 2 threads" in out and "next: tune jobs run" in out
    with Store.open("tuning.db") as store:
        found = entries(store)
    words = [entry.arguments for entry in found]
    typed = [dict(zip(each[::2], each[1::2], strict=True)) for each in words]
    same = {"--model": str(folder / "tiny.onnx"), "--trials": "7", "--config": "ci"}
    assert typed == [same | {"--threads": count} for count in ("1", "2")]
    assert {entry.folder for entry in found} == {str(folder)}
    options = found[1].options
    assert (options["threads"], options["weight"], options["minutes"]) == (2, 2.0, 2.0)
    assert options["kernel_count"] >= 3

    assert jobs("add", *models, "--trials", "7", "--config", "ci", "--json", "-") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == [] and "already in the queue" in printed.err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--model", "gone.onnx"), 1, "gone.onnx"),
        (("--model", "strange.onnx"), 1, "MysteryNorm"),
        (("--model", "tiny.onnx", "--numerics", "bf61"), 1, "bf16"),
        (("--model", "tiny.onnx", "--trial", "7"), 2, "--trial"),
        (("--model", "tiny.onnx", "--trials", "many"), 2, "'--trials'"),
        (("--model", "tiny.onnx", "loose"), 2, "loose and --model are both given"),
        (("tiny.onnx", "--calibration", "none.npz", "loose"), 2, "'loose' is not an option"),
        (("--model", "tiny.onnx", "--runner", "nobody"), 1, "nobody"),
        (("--model", "tiny.onnx", "--threads", "0"), 2, "--threads"),
        (("--threads", "1"), 2, "tune jobs add MODEL"),
    ],
)
def test_what_no_job_can_be_made_of_is_refused_when_it_is_added(
    arguments: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs("add", *arguments) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and told in line
    assert not Path("tuning.db").exists()


def test_entries_are_listed_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open("tuning.db") as store:
        own = EntryOptions().to_json()
        for name in "abc":
            add_entry(store, name, ("--model", f"/{name}"), "/", own)
        first, second, third = (entry.id for entry in entries(store))
        change_entry(store, first, state="finished", seconds=75.0)
        change_entry(store, second, state="failed", error="no \x1b[31mreason")
        capsys.readouterr()
        assert jobs("list") == 0
        out = capsys.readouterr().out
        assert "1:15" in out and "no \\x1b[31mreason" in out and first[:8] in out
        assert jobs("list", "--json", "-") == 0
        listed = json.loads(capsys.readouterr().out)
        assert [entry["state"] for entry in listed] == ["finished", "failed", "waiting"]

        assert take_entry(store, third)
        assert jobs("remove", third[:8]) == 1
        assert "is being worked on" in capsys.readouterr().err
        assert jobs("remove", "--finished") == 0
        assert jobs("remove", second) == 0
        assert [entry.id for entry in entries(store)] == [third]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("remove",), 2, "no entries are given"),
        (("remove", "--finished", "ab"), 2, "no entries are given"),
        (("remove", "zz"), 1, "tune jobs list"),
        (("run", "--until", "07:00", "--minutes", "5"), 2, "give one of them"),
        (("run", "--until", "soon"), 1, "no time"),
        (("run", "--until", "2020-01-01"), 1, "has passed"),
        (("run",), 1, "tune jobs add MODEL"),
        (("run", "--db", ":memory:"), 1, "name a file"),
        (("run", "--db", "gone.db"), 1, "gone.db"),
        (("run", "--json", "tuning.db"), 1, "overwritten"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    arguments: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Store.open("tuning.db").close()
    assert jobs(*arguments) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and told in line


def test_a_queue_that_is_done_is_summed_up(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open("tuning.db") as store:
        add_entry(store, "<b>tiny", ("--model", "/a"), "/", EntryOptions().to_json())
        turn = {"began": 1.0, "seconds": 60.0, "asked": 60.0, "end": "good", "untuned": 0.004}
        turn |= {"tuned": 0.002, "ratio": 0.5, "low": 0.4, "high": 0.6, "gain": 0.7}
        (entry,) = entries(store)
        options = {**entry.options, "turns": [turn]}
        change_entry(store, entry.id, state="finished", seconds=60.0, options=options)
    capsys.readouterr()
    assert jobs("run", "--json", "summary.json") == 0
    printed = capsys.readouterr()
    assert "2.00x (1.67x to 2.50x)" in printed.out and "1 finished" in printed.out
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["entries"][0]["speed_up"]) == (0, 2.0)
