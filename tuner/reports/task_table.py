"""The table of a job's kernels; a narrow terminal gets fewer columns, and those can be read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, JustifyMethod
from rich.table import Table

from tunefarm.tuner.reports.gains import UNCHANGED
from tunefarm.tuner.reports.report import (
    KEY_CHARACTERS,
    TaskStatus,
    format_latency,
    format_ratio,
    format_seconds,
    format_share,
    format_speed_up,
    shares,
    short_titles,
)

_LEAST_NAME = 12  # columns of the terminal for a kernel's name
_LEAST_REASON = 12  # for why a kernel gets no more trials
_FRAME = 3  # for the border of a column


class _Column(NamedTuple):
    """`rank`: the columns of the highest are the first that are left out where space is short."""

    name: str
    cells: list[str]
    rank: int

    @property
    def width(self) -> int:
        return max(len(self.name), *map(len, self.cells), 0)


@dataclass(frozen=True, slots=True)
class TaskTable:
    """A row per kernel, the costliest first; at most `limit` of them.

    `confirmed`: the finalists have met, and what was claimed stands next to what was confirmed.
    Before that there are only latencies and speed-ups that are expected to be confirmed.
    """

    tasks: Sequence[TaskStatus]
    limit: int | None = None
    confirmed: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """The table as wide as the terminal allows."""
        rows = sorted(zip(self.tasks, shares(self.tasks), strict=True), key=costliest_first)
        shown = rows[: self.limit]
        tasks = [task for task, _ in shown]
        columns, room = _fitting(self._columns(shown), options.max_width)
        reason = max((len(task.ended) for task in tasks), default=0)
        titles = short_titles([task.title for task in tasks])
        name = max(len("kernel"), *map(len, titles), 0)
        name = min(name, max(_LEAST_NAME, room - reason))
        table = Table(header_style="bold")
        table.add_column("kernel", overflow="ellipsis", no_wrap=True, max_width=name)
        for column in columns:
            justify: JustifyMethod = "left" if column.name in ("key", "target") else "right"
            table.add_column(column.name, justify=justify, no_wrap=True, min_width=column.width)
        lines = self.confirmed  # what is printed once may take several
        table.add_column("", no_wrap=not lines, overflow="ellipsis", max_width=max(1, room - name))
        cells = zip(*(column.cells for column in columns), strict=True)
        for title, task, figures in zip(titles, tasks, cells, strict=True):
            table.add_row(title, *figures, task.ended)
        if len(rows) > len(shown):
            table.caption = f"and {len(rows) - len(shown)} more kernels"
        yield table

    def _columns(self, rows: Sequence[tuple[TaskStatus, float]]) -> list[_Column]:
        """All columns of figures."""
        tasks = [task for task, _ in rows]
        several = any(task.target for task in self.tasks)
        target = [_Column("target", [task.target for task in tasks], 0)] if several else []
        columns = [
            *target,
            _Column("key", [task.key[:KEY_CHARACTERS] for task in tasks], 7),
            _Column("times", [str(task.occurrences) for task in tasks], 6),
            _Column("trials", [str(task.trials) for task in tasks], 1),
            _Column("failed", [str(task.failures) for task in tasks], 4),
            _Column("too noisy", [str(task.scattered) for task in tasks], 5),
            _Column("default", [format_seconds(task.default) for task in tasks], 2),
            _Column(
                "best" if self.confirmed else "expected",
                [format_latency(task.latency) for task in tasks],
                0,
            ),
            _Column("share", [format_share(share) for _, share in rows], 3),
        ]
        if not self.confirmed:
            gains = [format_speed_up(task.default, task.latency.value) for task in tasks]
            return [*columns, _Column("speed-up", gains, 0)]
        both = [claimed_and_confirmed(task) for task in tasks]
        claimed, held = ([cells[number] for cells in both] for number in (0, 1))
        return [*columns, _Column("claimed", claimed, 0), _Column("confirmed", held, 0)]


def claimed_and_confirmed(task: TaskStatus) -> tuple[str, str]:
    """What the search claimed of a kernel's schedule and what was confirmed, as speed-ups.

    A kernel that keeps its default schedule is unchanged; a claim of that schedule is none.
    """
    claimed = "-" if task.claimed == 1.0 else format_ratio(1.0 / task.claimed)
    if task.is_unchanged:
        return claimed, UNCHANGED
    is_confirmed = math.isfinite(task.confirmed)
    return claimed, format_speed_up(task.default, task.latency.value) if is_confirmed else "-"


def _fitting(columns: Sequence[_Column], width: int) -> tuple[list[_Column], int]:
    """The columns for which there is space next to a kernel's name and the reason of its end.

    Also returned is what is left for those two.
    """
    kept = list(columns)
    room = width - 1 - 2 * _FRAME - sum(column.width + _FRAME for column in kept)
    while room < _LEAST_NAME + _LEAST_REASON and any(column.rank for column in kept):
        least = max(kept, key=lambda column: column.rank)
        kept.remove(least)
        room += least.width + _FRAME
    return kept, room


def costliest_first(row: tuple[TaskStatus, float]) -> tuple[float, str]:
    """The order of kernels with their shares of the model's time; those without one come last."""
    task, share = row
    return (-share if math.isfinite(share) else 0.0, task.key)
