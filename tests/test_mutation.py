"""Mutation testing plants what it says, and knows who found it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutation import (
    AREAS,
    EQUIVALENT,
    ROOT,
    Mutant,
    Outcome,
    Trials,
    draw,
    main,
    mutants_of,
    planted,
    stages_of,
    summary,
)

pytestmark = pytest.mark.nightly  # of a tool of the night

SOURCE = '''
def limit(size: int, most: int = 8) -> int:
    """At least 1, at most 8."""
    if size < 1 and not most:
        raise ValueError(f"{size + 1}")
    return min(size // 2, most, *zip(strict=True))
'''
TESTED = "def test_it():\n    from compiler.limits import limit\n    assert limit(4) == 2\n"


FEW = {"limits": ("compiler/types/sizes.py",), "layouts": ("compiler/plan/layouts/",)}


def changes(source: str) -> set[tuple[str, str]]:
    return {(each.before, each.after) for each in mutants_of("limits", "a.py", source)}


def test_expressions_are_changed_and_texts_of_errors_and_types_are_not() -> None:
    assert changes(SOURCE) == {
        ("8", "9"),
        ("size < 1 and not most", "(size < 1 or not most)"),
        ("size < 1 and not most", "(not (size < 1 and (not most)))"),
        ("size < 1", "(size <= 1)"),
        ("not most", "(most)"),
        ("1", "2"),
        ("min", "max"),
        ("size // 2", "(size * 2)"),
        ("2", "3"),
    }


def test_a_fault_is_planted_where_it_is_said_to_be() -> None:
    (mutant,) = (each for each in mutants_of("limits", "a.py", SOURCE) if each.before == "min")
    assert planted(SOURCE, mutant) == SOURCE.replace("min(", "max(")
    assert str(mutant) == "a.py:limit: min -> max"
    assert mutant.place == "a.py:6:11"


def test_a_draw_is_the_seeds_of_all_areas_and_begins_that_of_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.mutation.AREAS", FEW)
    few, more = draw(8, seed=3), draw(12, seed=3)
    assert more[:8] == few != draw(8, seed=4)
    assert {mutant.area for mutant in few} == set(FEW)
    for mutant in more:
        source = (ROOT / mutant.file).read_text()
        ast.parse(planted(source, mutant))


def test_every_area_has_sources() -> None:
    for places in AREAS.values():
        for place in places:
            assert (ROOT / place).is_file() or any((ROOT / place).rglob("*.py")), place


def test_the_nearest_tests_run_first() -> None:
    golden = ("tests/compiler/test_emitted_code.py",)
    own, folder, importing, *last = stages_of("compiler/types/sizes.py", near=True)
    assert own == ("tests/compiler/types/test_sizes.py",)
    assert folder == ("tests/compiler/types",)
    assert {*own, "tests/compiler/types/test_dims.py"} < {*importing}
    assert last == [golden]
    assert stages_of("compiler/types/sizes.py")[3:] == [golden, ("tests/compiler",)]
    assert stages_of("compiler/limits.py", near=True)[0] == ("tests/compiler/test_limits.py",)
    assert ("tests/compiler",) not in stages_of("compiler/limits.py", near=True)


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    """Of a project of one function and one test."""
    for name, text in {
        "compiler/limits.py": SOURCE,
        "tests/compiler/test_limits.py": TESTED,
        "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.']\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Trials(tmp_path, {}, "not nightly", True, 60.0)


def test_a_fault_that_a_test_sees_is_killed_and_taken_out_again(trials: Trials) -> None:
    mutants = mutants_of("limits", "compiler/limits.py", SOURCE)
    halved = next(each for each in mutants if each.before == "size // 2")
    unseen = next(each for each in mutants if each.before == "8")
    loops = replace(halved, after="[0 for _ in iter(int, 1)]")
    outcomes = [trials.outcome(each) for each in (halved, unseen)]
    outcomes.append(replace(trials, seconds=2.0).outcome(loops))
    assert [each.killed_by for each in outcomes] == [
        "tests/compiler/test_limits.py::test_it",
        None,
        "tests/compiler/test_limits.py (more than 2 s)",
    ]
    assert (trials.folder / "compiler/limits.py").read_text() == SOURCE
    text = summary(outcomes)
    assert "limits: 2 of 3 killed" in text
    assert "survived: compiler/limits.py:2:33: compiler/limits.py:limit: 8 -> 9" in text


def test_too_many_survivors_fail_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def outcome(trials: Trials, mutant: Mutant) -> Outcome:
        return Outcome(mutant, None if mutant.area == "limits" else "a test", 0.0)

    monkeypatch.setattr("tests.mutation.AREAS", FEW)
    monkeypatch.setattr("tests.mutation.copy_sources", lambda folder: {})
    monkeypatch.setattr(Trials, "outcome", outcome)
    assert main(["--mutants", "4", "--at-least", "0.6"]) == 1
    assert "all: 2 of 4 killed" in capsys.readouterr().out
    assert main(["--mutants", "4", "--at-least", "0.5"]) == 0


def test_what_is_called_equivalent_is_a_mutant_of_today() -> None:
    files = {name.partition(":")[0] for name in EQUIVALENT}
    there = {str(m) for file in files for m in mutants_of("", file, (ROOT / file).read_text())}
    assert EQUIVALENT.keys() <= there
    assert all(EQUIVALENT.values())
