"""Jobs in notebooks: a table that is updated in place while one runs, and tables of results.

IPython is not needed: where it is, a notebook's kernel has loaded it.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from rich.console import RenderableType

from tunefarm.tuner.reports.progress import Progress, status_line
from tunefarm.tuner.reports.report import TaskStatus
from tunefarm.tuner.reports.task_table import TaskTable
from tunefarm.tuner.reports.terminal import console, printable

UPDATE_INTERVAL = 0.5  # seconds between two updates
_MESSAGES = 12  # lines that stay in sight
_TEXT = '<pre style="font-family:monospace;line-height:1.3">{code}</pre>'
"""The colours are the notebook's own, dark or light."""


class Page:
    """What a notebook shows at one place: HTML, and plain text where that cannot be shown."""

    def __init__(self, html: str, text: str) -> None:
        self._html, self._text = html, text

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return self._text


class NotebookProgress(Progress):
    """A table of the kernels, and the last messages, redrawn in one place of a notebook.

    `display` is IPython's: it shows an object and returns a handle that has `update`.
    """

    def __init__(
        self,
        display: Callable[..., Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if display is None:
            import IPython.display

            display = IPython.display.display
        self._display, self._clock = display, clock
        self._handle: Any = None
        self._messages: list[str] = []
        self._table, self._line = TaskTable(()), ""
        self._updated = -UPDATE_INTERVAL

    def start(self) -> None:
        self._show()

    def message(self, text: str) -> None:
        self._messages = [*self._messages, text][-_MESSAGES:]
        self._show()

    def update(self, tasks: Sequence[TaskStatus], elapsed: float, left: float | None) -> None:
        self._table, self._line = TaskTable(tasks), status_line(tasks, elapsed, left)
        if self._clock() - self._updated >= UPDATE_INTERVAL:
            self._show()

    def stop(self) -> None:
        self._show()

    def _show(self) -> None:
        """Draw what is known in the place where it was drawn before."""
        lines = [line for line in (*self._messages, self._line) if line]
        page = Page(notebook_html("Tuning", *lines, self._table), self._line or "tuning")
        self._updated = self._clock()
        if self._handle is None:
            self._handle = self._display(page, display_id=True)
        else:
            self._handle.update(page)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    kind = type(shell)
    return kind.__name__ == "ZMQInteractiveShell" or kind.__module__.startswith("google.colab")


def library_progress() -> Progress:
    """The library's: shown in a notebook, nothing elsewhere."""
    return NotebookProgress() if in_notebook() else Progress()


def notebook_html(title: str, *parts: RenderableType) -> str:
    """A block of a notebook: a title in larger letters, and below it what a terminal shows."""
    recorder = console(io.StringIO())
    recorder.record = True
    recorder.print(*parts, sep="\n")
    shown = recorder.export_html(inline_styles=True, code_format=_TEXT)
    heading = f'<div style="font-size:1.35em;font-weight:600">{escape(printable(title))}</div>'
    return f'<div style="padding:0.8em 1em">{heading}{shown}</div>'
