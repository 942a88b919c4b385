"""Libraries that the package asks for, and whose command is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tunefarm.tuner.doctor.checks import is_ours, judge_libraries
from tunefarm.tuner.doctor.checkup import Finding, Grade

ASKED = ("numpy>=2.4", "ray>=2.60", "xgboost-cpu>=3.2", 'pytest>=9; extra == "test"')
VERSIONS = {"numpy": "2.4.1", "ray": "2.60.0", "xgboost-cpu": "3.10"}
MODULES = {
    "numpy": ["numpy"],
    "ray": ["ray"],
    "xgboost": ["XGBoost_CPU"],
    "_boost": ["xgboost-cpu"],
}


def judged(
    versions: Mapping[str, str], broken: Mapping[str, str] | None = None
) -> tuple[list[Finding], list[str]]:
    """What is found, and the modules that were imported."""
    imported: list[str] = []

    def failures(names: Sequence[str]) -> Mapping[str, str]:
        imported.extend(names)
        return broken or {}

    return judge_libraries(ASKED, lambda name: versions.get(name, ""), MODULES, failures), imported


def test_what_is_there_is_one_line_and_extras_are_left_out() -> None:
    (finding,), imported = judged(VERSIONS)
    assert finding.grade is Grade.OK and finding.facts["versions"] == VERSIONS
    assert imported == ["numpy", "ray", "xgboost"]  # a private module is within another


def test_what_is_missing_or_broken_has_a_line() -> None:
    (missing, _), imported = judged({**VERSIONS, "numpy": ""})
    assert (missing.grade, missing.text) == (Grade.PROBLEM, "numpy is not installed")
    assert imported == ["ray", "xgboost"]
    (broken, rest), _ = judged(VERSIONS, {"xgboost": "SIGILL"})
    assert broken.text == "xgboost-cpu 3.10 cannot be imported: SIGILL"
    assert broken.advice == "pip install --force-reinstall xgboost-cpu"
    assert sorted(rest.facts["versions"]) == ["numpy", "ray"]


def test_scripts_of_others_are_told_from_ours(tmp_path: Path) -> None:
    ours, other = tmp_path / "tune", tmp_path / "other"
    ours.write_text("from tunefarm.tuner.commands.entry import main\n")
    other.write_text("from ray.tune.scripts import main\n")
    assert is_ours(ours) and not is_ours(other) and not is_ours(tmp_path / "none")
