"""Libraries against what the package asks for, and whose command is found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tunefarm.tuner.doctor.checks import is_ours
from tunefarm.tuner.doctor.checkup import Grade
from tunefarm.tuner.doctor.libraries import judge_libraries, libraries

ASKED = (
    "numpy>=2.4",
    "ray>=2.60",
    "psycopg[binary]>=3.3; extra == 'postgresql'",
    'pytest>=9; extra == "test"',
    'xgboost-cpu>=3.2; extra == "tuning"',
)
FITTING = {"numpy": "2.4.1", "ray": "2.60.0", "psycopg": "3.3", "xgboost-cpu": "3.10"}


MODULES = {"numpy": ["numpy"], "ray": ["ray"], "psycopg": ["psycopg"], "xgboost": ["xgboost-cpu"]}


def judged(
    versions: dict[str, str],
    broken: dict[str, str] | None = None,
    modules: dict[str, list[str]] = MODULES,
) -> dict[str, Grade]:
    found = judge_libraries(libraries(ASKED, versions, modules), lambda names: broken or {})
    return {str(f.facts.get("library", "all")): f.grade for f in found}


def test_what_fits_is_one_line_and_what_developers_need_is_left_out() -> None:
    (finding,) = judge_libraries(libraries(ASKED, FITTING, MODULES), lambda names: {})
    assert finding.grade is Grade.OK
    assert finding.facts["versions"] == FITTING


def test_what_is_missing_too_old_or_broken_has_a_line() -> None:
    assert judged({**FITTING, "numpy": ""}) == {"numpy": Grade.PROBLEM, "all": Grade.OK}
    assert judged({**FITTING, "numpy": "1.26"}) == {"numpy": Grade.WARNING, "all": Grade.OK}
    broken = judged(FITTING, {"ray": "SIGILL"})
    assert broken == {"ray": Grade.PROBLEM, "all": Grade.OK}


def test_extras_are_missed_by_those_who_may_not_know_them_alone() -> None:
    without = judged({**FITTING, "psycopg": "", "xgboost-cpu": ""})
    assert without == {"xgboost-cpu": Grade.WARNING, "all": Grade.OK}


def test_a_library_is_imported_by_the_name_of_its_module() -> None:
    asked: list[str] = []

    def nothing_fails(names: Sequence[str]) -> dict[str, str]:
        asked.extend(names)
        return {}

    modules = {"_boost": ["xgboost-cpu"], **MODULES}  # a private one is within another
    judge_libraries(libraries(ASKED, FITTING, modules), nothing_fails)
    assert asked == ["numpy", "ray", "psycopg", "xgboost"]


def test_two_distributions_of_one_module_are_a_warning_that_says_how_to_keep_one() -> None:
    modules = {**MODULES, "xgboost": ["xgboost", "XGBoost_CPU"]}
    found = judge_libraries(libraries(ASKED, FITTING, modules), lambda names: {})
    (clash,) = [finding for finding in found if finding.grade is Grade.WARNING]
    assert "xgboost is installed as well as xgboost-cpu" in clash.text
    assert clash.advice.startswith("pip uninstall --yes xgboost xgboost-cpu && pip install")


def test_a_development_version_counts() -> None:
    assert judged({**FITTING, "numpy": "2.5.0.dev1"}) == {"all": Grade.OK}


def test_scripts_of_others_are_told_from_ours(tmp_path: Path) -> None:
    ours, other = tmp_path / "tune", tmp_path / "other"
    ours.write_text("from tunefarm.tuner.commands.entry import main\n")
    other.write_text("from ray.tune.scripts import main\n")
    assert is_ours(ours) and not is_ours(other) and not is_ours(tmp_path / "none")
