"""Pages: found by name, by a command's words, or refused with what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.benchmarks.readme import CHART, MARKS, PAGE, page_part, readme_part
from tunefarm.configs.errors import SettingsError
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.docs.pages import PAGES, REFERENCES, Pages, find_page, title_of


@pytest.fixture(scope="module")
def pages() -> Pages:
    return Pages()


def _names(group: Any, name: str) -> Iterator[str]:
    for word, command in getattr(group, "commands", {}).items():
        yield from (
            () if command.hidden else (f"{name} {word}", *_names(command, f"{name} {word}"))
        )


def test_every_command_has_an_example(pages: Pages) -> None:
    for name in _names(typer.main.get_command(app), "tune"):
        if name not in ("tune db", "tune jobs", "tune farm"):
            assert f"\n{name} " in pages["commands"] or f"\n{name}\n" in pages["commands"], name


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("sizes", "sizes"),
        ("sizes.md", "sizes"),
        ("configuration", "configuration"),
        ("api", "api"),
        ("operators.md", "operators"),
    ],
)
def test_a_page_is_found(name: str, path: str, pages: Pages) -> None:
    assert find_page(pages, name) == path


def test_an_unknown_page_is_refused_with_what_to_do(pages: Pages) -> None:
    with pytest.raises(SettingsError, match="tune docs lists"):
        find_page(pages, "nothing")


def test_every_page_has_a_title(pages: Pages) -> None:
    for name, text in pages.items():
        assert title_of(text), name


def test_titles_are_known_before_a_page_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages()
    for path, reference in REFERENCES.items():
        assert title_of(pages[path]) == reference.title

    def fail() -> str:
        raise AssertionError("listing the pages makes a reference")

    for path in REFERENCES:
        monkeypatch.setitem(REFERENCES, path, replace(REFERENCES[path], make=fail))
    assert {pages.title(path) for path in pages} >= {"Supported operators", "Commands"}


def test_lines_of_pages_are_short() -> None:
    """Prose that can be read in a terminal and in a diff; tables may be wide."""
    for path in PAGES.rglob("*.md"):
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        for line in text.splitlines():
            assert len(line) <= 140 or line.startswith(("|", "- ")), f"{path.name}: {line}"


def test_links_of_the_readme_lead_somewhere(repository: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    readme = re.sub(r"^```.*?^```$|`[^`\n]*`", "", readme, flags=re.M | re.S)
    for where in re.findall(r"\]\(([^)#\s]+)", readme):
        if "://" not in where:
            assert (repository / where).exists(), where


def test_docs_shows_pages_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["docs"]) == 0
    assert "tutorial" in capsys.readouterr().out
    assert run_command(app, ["docs", "sizes"]) == 0
    assert "Dynamic shapes" in capsys.readouterr().out
    assert run_command(app, ["docs", "nothing"]) == 1
    assert capsys.readouterr().err == (
        "error: there is no page 'nothing' (tune docs lists the pages)\n"
    )
    assert run_command(app, ["docs", "sizes", "--json", "-"]) == 2


def test_a_page_that_there_is_not_names_the_nearest(pages: Pages) -> None:
    with pytest.raises(SettingsError, match="no page 'sises'") as caught:
        find_page(pages, "sises")
    assert caught.value.hint == "did you mean sizes? tune docs lists the pages"


def test_the_readme_shows_the_figures_that_were_measured(repository: Path) -> None:
    """Tables are of tests/benchmarks/readme.json, and the chart has the same speed-ups."""
    benchmarks = repository / "tests" / "benchmarks"
    machines = json.loads((benchmarks / "readme.json").read_text(encoding="utf-8"))
    begin, end = MARKS
    readme = repository / "README.md"
    for path, part in ((readme, readme_part(machines[0])), (PAGE, page_part(machines))):
        assert path.read_text(encoding="utf-8").split(begin)[1].split(end)[0] == part
    drawn = CHART.read_text(encoding="utf-8")
    for row in machines[0]["rows"]:
        assert row["label"] in drawn
        assert f"{row['over']['onnxruntime']['median']:.2f}<" in drawn
