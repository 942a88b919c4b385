"""Jobs in notebooks: a table that is updated in place while one runs, and tables of results.

IPython is not needed: where it is, a notebook's kernel has loaded it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tunefarm.compiler.runtime.execution.html_text import html_lines, html_table, html_text
from tunefarm.tuner.reports.gains import UNCHANGED
from tunefarm.tuner.reports.progress import Progress, status_line
from tunefarm.tuner.reports.report import (
    KEY_CHARACTERS,
    TaskStatus,
    format_latency,
    format_seconds,
    format_share,
    format_speed_up,
    shares,
)
from tunefarm.tuner.reports.task_table import claimed_and_confirmed, costliest_first

UPDATE_INTERVAL = 0.5  # seconds between two updates
_MESSAGES = 12  # lines that stay in sight


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
        self._table, self._line = "", ""
        self._updated = -UPDATE_INTERVAL

    def start(self) -> None:
        self._show()

    def message(self, text: str) -> None:
        self._messages = [*self._messages, text][-_MESSAGES:]
        self._show()

    def update(self, tasks: Sequence[TaskStatus], elapsed: float, left: float | None) -> None:
        self._table, self._line = task_table(tasks), status_line(tasks, elapsed, left)
        if self._clock() - self._updated >= UPDATE_INTERVAL:
            self._show()

    def stop(self) -> None:
        self._show()

    def _show(self) -> None:
        """Draw what is known in the place where it was drawn before."""
        lines = [line for line in (*self._messages, self._line) if line]
        content = f"{html_lines(lines)}{self._table}"
        page = Page(headline_html("Tuning", content), self._line or "tuning")
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


def task_table(tasks: Sequence[TaskStatus], *, confirmed: bool = False) -> str:
    """A row per kernel, the costliest first: before and after, and what that is a gain of.

    `confirmed`: the finalists have met; before that latencies are those that are expected.
    """
    rows = sorted(zip(tasks, shares(tasks), strict=True), key=costliest_first)
    columns = ["kernel", "key", "times", "trials", "failed", "too noisy", "default"]
    columns += ["best" if confirmed else "expected", "share"]
    columns += ["claimed", "confirmed", ""] if confirmed else ["speed-up", ""]
    return html_table(columns, [_task_row(*row, confirmed) for row in rows], texts=2)


def _task_row(task: TaskStatus, share: float, confirmed: bool) -> list[str]:
    gains = [format_speed_up(task.default, task.latency.value)]
    if confirmed:
        gains = [*claimed_and_confirmed(task)]
    name = " ".join(filter(None, (task.title, task.target)))
    return [
        name,
        task.key[:KEY_CHARACTERS],
        str(task.occurrences),
        str(task.trials),
        str(task.failures),
        str(task.scattered),
        format_seconds(task.default),
        format_latency(task.latency),
        format_share(share),
        *gains,
        task.ended,
    ]


def headline_html(title: str, parts: str) -> str:
    """A block of a notebook: a title in larger letters and what follows, with padding."""
    heading = f'<div style="font-size:1.35em;font-weight:600">{html_text(title)}</div>'
    return f'<div style="padding:0.8em 1em">{heading}{parts}</div>'


def before_after(before: float, after: float, *, unchanged: bool = False) -> str:
    """Two latencies in seconds as bars, one below the other; "" where one is not known.

    Of a model that is `unchanged` there is one bar.
    """
    if not (math.isfinite(before) and math.isfinite(after) and max(before, after) > 0):
        return ""
    longest = max(before, after)
    rows = []
    both = (("untuned", before), ("tuned", after))
    for name, seconds in ((UNCHANGED, after),) if unchanged else both:
        width = f"{40 * seconds / longest:.1f}%"
        style = f"display:inline-block;height:0.8em;width:{width};background:currentColor"
        opacity = "opacity:0.8" if name == "tuned" else "opacity:0.35"
        text = html_text(f"{name} {format_seconds(seconds)}")
        rows.append(f'<div><span style="{style};{opacity}"></span> {text}</div>')
    return "".join(rows)
