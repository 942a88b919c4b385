"""The checkup as a whole: whatever breaks, every check has its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunefarm.measure.sandbox.isolated import Answer
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.doctor.checks import CHECK_FUNCTIONS
from tunefarm.tuner.doctor.checkup import (
    CHECKS,
    Finding,
    Grade,
    Question,
    checkup,
    ok,
    problem,
    report_json,
    summary,
    warning,
    worst,
)

NAMES = [check.name for check in CHECKS]


def answer(*findings: Finding) -> Answer:
    return Answer(json.dumps([finding.to_json() for finding in findings]).encode(), "")


def test_every_check_has_a_function() -> None:
    assert list(CHECK_FUNCTIONS) == NAMES


@pytest.mark.parametrize(
    "broken",
    [
        Answer(b"", "it ended with SIGILL"),
        Answer(b"no JSON", ""),
        Answer(b"[]", ""),
        Answer(b'[{"name": "x"}]', ""),
        Answer(b'{"a": 1}', ""),
        Answer(b"[1]", ""),
        Answer(b'[{"name": "x", "grade": "fine", "text": "", "advice": "", "facts": {}}]', ""),
    ],
)
def test_a_broken_check_is_a_finding_and_the_others_go_on(broken: Answer) -> None:
    def ask(name: str, question: Question, seconds: float) -> Answer:
        return broken if name == "cpu" else answer(ok(name, "well"))

    found = list(checkup(Question(), ask))
    assert [finding.name for finding in found] == NAMES
    grades = {finding.name: finding.grade for finding in found}
    assert grades.pop("cpu") is Grade.PROBLEM
    assert set(grades.values()) == {Grade.OK}


def test_noise_is_measured_last_and_only_if_there_are_seconds_for_it() -> None:
    asked: list[tuple[str, float]] = []

    def ask(name: str, question: Question, seconds: float) -> Answer:
        asked.append((name, seconds))
        return answer(ok(name, "well"))

    list(checkup(Question(seconds=0.0), ask))
    assert "noise" not in [name for name, _ in asked]
    asked.clear()
    list(checkup(Question(seconds=1000.0), ask))
    name, seconds = asked[-1]
    assert name == "noise" and seconds > 1000.0


def test_findings_as_lines_and_as_json() -> None:
    found = [ok("a", "well"), warning("b", "so so", "do this"), problem("c", "bad", "do that")]
    assert found[1].lines() == ["warning  b: so so", "         -> do this"]
    assert worst(found) is Grade.PROBLEM and worst(found[:2]) is Grade.WARNING
    assert summary(found) == "1 problem and 1 warning" and summary(found[:1]) == "all is well"
    value = json.loads(json.dumps(report_json(found)))
    assert value["grades"] == {"ok": 1, "warning": 1, "problem": 1}
    assert [Finding.from_json(item) for item in value["findings"]] == found


def test_without_ray_xgboost_and_settings_the_doctor_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One cannot be imported, the other ends the process that imports it."""
    (tmp_path / "ray.py").write_text("raise ImportError('no such library')")
    (tmp_path / "xgboost.py").write_text("import os\nos.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TUNEFARM_MEASURE__SLOTS", "many")
    monkeypatch.chdir(tmp_path)
    arguments = ["doctor", "--seconds", "0", "--db", "none.db", "--json", "-"]
    assert run_command(app, arguments) == 1
    value = json.loads(capfd.readouterr().out)
    problems = [f for f in value["findings"] if f["grade"] == "problem"]
    told = {(finding["name"], finding["facts"].get("library")) for finding in problems}
    assert {("libraries", "ray"), ("libraries", "xgboost-cpu"), ("Ray", None)} <= told
    assert {("settings", None), ("database", None)} <= told
    text = " ".join(finding["text"] for finding in problems)
    assert "no such library" in text and "SIGABRT" in text and "TUNEFARM_MEASURE__SLOTS" in text
    assert all(finding["advice"] for finding in problems)
    assert {f["name"] for f in value["findings"]} >= {*NAMES} - {"noise"}
    assert not (tmp_path / "none.db").exists()
