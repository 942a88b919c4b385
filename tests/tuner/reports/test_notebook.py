"""What notebooks show: tables in one place, of names that are text and nothing else."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tuner.test_result import RESULT, status
from tunefarm.compiler.runtime.spec.kernel_report import DEFAULT, TUNED, KernelReport
from tunefarm.tuner.building.report import BuildReport, KernelUse
from tunefarm.tuner.reports.notebook import (
    NotebookProgress,
    in_notebook,
    library_progress,
)
from tunefarm.tuner.reports.progress import Progress
from tunefarm.tuner.search.budget import End

HOSTILE = "<script>alert(1)</script>\"'&\u202e\x1b[2J"
ELEMENTS = {"div", "pre", "span"}
KERNEL = KernelReport(
    HOSTILE, "0123456789", 2, TUNED, "r1", 1.5e-3, "", "direct", False, 0, 10, ("Conv",), ()
)


class Parsed(HTMLParser):
    """The elements of a page, and its text; what is opened is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.cells: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []
        assert self.elements <= ELEMENTS

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self._open.append(tag)
        assert {name for name, _ in attrs} <= {"style"}

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells.append(data)

    @property
    def text(self) -> str:
        return "|".join(self.cells)


class Display:
    """IPython's `display`, and the handle that it returns."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.updates: list[Any] = []

    def __call__(self, page: Any, *, display_id: bool) -> Display:
        assert display_id
        self.shown.append(page)
        return self

    def update(self, page: Any) -> None:
        self.updates.append(page)

    @property
    def last(self) -> Parsed:
        return Parsed((self.updates or self.shown)[-1]._repr_html_())


def test_a_job_is_drawn_in_one_place_at_most_twice_a_second() -> None:
    display, now = Display(), [0.0]
    progress = NotebookProgress(display, lambda: now[0])
    progress.start()
    progress.message("measuring on 2 cores")
    drawn = len(display.updates)
    tasks = [status(2e-3, math.nan, 0.5)]
    for moment in (0.1, 0.4, 0.6, 0.7):
        now[0] = moment
        progress.update([replace(tasks[0], trials=round(10 * moment))], moment, 60.0)
    assert len(display.shown) == 1 and len(display.updates) == drawn + 1
    assert "measuring on 2 cores" in display.last.text and "6 trials" in display.last.text
    progress.stop()  # what was left out is drawn now
    assert "7 trials" in display.last.text and "1:00 left" in display.last.text
    assert "7 trials" in repr(display.updates[-1])


def test_the_last_messages_stay_in_sight() -> None:
    display = Display()
    progress = NotebookProgress(display, lambda: 0.0)
    for number in range(40):
        progress.message(f"message {number}.")
    text = display.last.text
    assert "message 39." in text and "message 20." not in text


def test_a_result_is_shown_with_what_to_do_next() -> None:
    hostile = replace(status(1e-3, 0.5, 0.5), kernel=HOSTILE, ended=HOSTILE)
    result = replace(RESULT, model=HOSTILE, tasks=(*RESULT.tasks, hostile))
    text = Parsed(result._repr_html_()).text
    assert "whole model: 7 ms untuned, 4.9 ms tuned" in text
    assert "next: tunefarm.build(" in text
    assert "\u202e" not in text and "\x1b" not in text and r"\u202e" in text
    interrupted = replace(RESULT, end=End.INTERRUPTED, latency=None)
    assert "claimed" not in Parsed(interrupted._repr_html_()).text


def test_a_build_is_shown_kernel_by_kernel() -> None:
    other = replace(KERNEL, name="other", schedule_source=DEFAULT, record_id=None, latency=None)
    report = BuildReport((KernelUse(other, 0.25), KernelUse(KERNEL, 0.75)), (HOSTILE,))
    text = Parsed(report._repr_html_()).text
    assert text.index("1.5 ms") < text.index("other")
    assert "75.0 % of the estimated time runs tuned schedules" in text


@pytest.mark.parametrize(
    ("shell", "is_notebook"),
    [
        (type("ZMQInteractiveShell", (), {})(), True),
        (type("Shell", (), {"__module__": "google.colab._shell"})(), True),
        (type("TerminalInteractiveShell", (), {})(), False),
        (None, False),
    ],
)
def test_a_notebook_is_known_by_its_shell(
    monkeypatch: pytest.MonkeyPatch, shell: object, is_notebook: bool
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook() is is_notebook


def test_nothing_is_shown_where_there_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert type(library_progress()) is Progress
    assert "IPython" not in sys.modules


def test_a_result_begins_with_its_headline_and_has_padding() -> None:
    page = RESULT._repr_html_()
    assert page.startswith('<div style="padding:')
    places = [page.index(text) for text in ("1.43x as fast as untuned", "whole model", "┏")]
    assert places == sorted(places)
    hostile = replace(RESULT, model=HOSTILE)._repr_html_()
    assert HOSTILE not in hostile


def test_a_build_begins_with_the_tuned_share() -> None:
    page = BuildReport((KernelUse(KERNEL, 1.0),))._repr_html_()
    assert page.startswith('<div style="padding:')
    assert page.index("100.0 % of the estimated time") < page.index("┏")
