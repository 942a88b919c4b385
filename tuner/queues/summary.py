"""What a queue has come to, entry by entry: as values, as JSON, as a table, and its exit status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from rich.table import Table

from tunefarm.db.queue import QueueEntry, trials_of_jobs
from tunefarm.db.store import Store
from tunefarm.measure.measurement import is_unchanged
from tunefarm.tuner.queues.entry_options import name_of, options_of, with_lost_turn
from tunefarm.tuner.reports.gains import UNCHANGED
from tunefarm.tuner.reports.report import (
    format_duration,
    format_ratio,
    format_seconds,
    format_speed_up,
)

State: TypeAlias = Literal["waiting", "running", "finished", "failed"]
ALL_FINISHED, SOME_FAILED, SOME_WAIT = 0, 1, 3
"""Exit status of a tuning session; one that was interrupted has that of its signal."""
ID_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class EntrySummary:
    """An entry: what it has cost, and what it has gained.

    Latencies are seconds of a run of the whole model, without tuning and as it was last confirmed;
    `speed_up` is their ratio, bounded by `low` and `high`; there is none where both are one build,
    which is `unchanged`. `ends` is when its turn, `night_ends`
    when the session is expected to end (seconds since the epoch). None: not known.
    """

    id: str
    name: str
    model: str
    threads: int
    targets: str
    state: State
    why: str
    seconds: float
    turns: int
    trials: int
    untuned: float | None
    tuned: float | None
    unchanged: bool
    speed_up: float | None
    low: float | None
    high: float | None
    jobs: tuple[str, ...]
    ends: float | None
    night_ends: float | None

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON values."""
        return asdict(self)


def summary_of(store: Store, entry: QueueEntry) -> EntrySummary:
    """Where an entry stands now."""
    options = options_of(entry)
    current = options.turn if entry.is_held else None
    if not entry.is_held:
        options = with_lost_turn(entry, options)
    found = options.confirmed
    state: State = "waiting" if entry.state == "running" and not entry.is_held else entry.state
    ratio, low, high = (None,) * 3 if found is None else (found.ratio, found.low, found.high)
    unchanged = low is not None and high is not None and is_unchanged(low, high)
    jobs = tuple(dict.fromkeys((*options.jobs, *filter(None, [entry.job]))))
    return EntrySummary(
        id=entry.id,
        name=name_of(entry, options),
        model=_model_of(entry),
        threads=options.threads,
        targets=options.targets,
        state=state,
        why=entry.error or options.ended,
        seconds=entry.seconds,
        turns=len(options.turns) + (current is not None),
        trials=trials_of_jobs(store, jobs),
        untuned=None if found is None else found.untuned,
        tuned=None if found is None else found.tuned,
        unchanged=unchanged,
        speed_up=None if unchanged else _inverse(ratio),
        low=None if unchanged else _inverse(high),
        high=None if unchanged else _inverse(low),
        jobs=jobs,
        ends=None if current is None else current.ends,
        night_ends=None if current is None else current.until,
    )


def _model_of(entry: QueueEntry) -> str:
    words = list(entry.arguments)
    return words[words.index("--model") + 1] if "--model" in words[:-1] else entry.model_name


def _inverse(value: float | None) -> float | None:
    return None if not value else 1.0 / value


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """One run of a queue: its entries as they are at its end; moments are since the epoch."""

    database: str
    began: float
    ended: float
    deadline: float | None
    status: int
    interrupted: bool
    entries: tuple[EntrySummary, ...]

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON values."""
        return asdict(self)


def status_of(entries: Sequence[EntrySummary]) -> int:
    """The exit status of a tuning session that left the queue so."""
    states = {entry.state for entry in entries}
    if "failed" in states:
        return SOME_FAILED
    return ALL_FINISHED if states <= {"finished"} else SOME_WAIT


def entries_table(entries: Sequence[EntrySummary]) -> Table:
    """The queue in its order."""
    table = Table()
    for column in ("id", "job", "state", "time", "trials", "before", "after", "faster", "ends"):
        table.add_column(column, justify="left" if column in ("id", "job", "state") else "right")
    table.add_column("why")
    session_ends = next(
        (entry.night_ends for entry in entries if entry.night_ends is not None), None
    )
    for entry in entries:
        table.add_row(*cells(entry, session_ends))
    return table


def cells(entry: EntrySummary, session_ends: float | None = None) -> list[str]:
    """What a row says of an entry; `session_ends` is when the one that is under way ends."""
    by_state = {"running": entry.ends, "waiting": session_ends}
    ends = by_state.get(entry.state)
    return [
        entry.id[:ID_CHARACTERS],
        entry.name,
        entry.state,
        format_duration(entry.seconds),
        str(entry.trials),
        "-" if entry.untuned is None else format_seconds(entry.untuned),
        "-" if entry.tuned is None else format_seconds(entry.tuned),
        faster(entry),
        "-" if ends is None else _local_time(ends),
        entry.why,
    ]


def _local_time(moment: float) -> str:
    """As `--until` takes it, with the day."""
    return datetime.fromtimestamp(moment).strftime("%a %H:%M")


def faster(entry: EntrySummary) -> str:
    """The speed-up with its interval."""
    if entry.unchanged:
        return UNCHANGED
    if entry.untuned is None or entry.tuned is None or entry.low is None or entry.high is None:
        return "-"
    gain = format_speed_up(entry.untuned, entry.tuned)
    return f"{gain} ({format_ratio(entry.low)} to {format_ratio(entry.high)})"


def session_lines(summary: QueueSummary) -> list[str]:
    """The session in a few lines."""
    counts = {
        state: sum(entry.state == state for entry in summary.entries)
        for state in ("finished", "failed", "running", "waiting")
    }
    text = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    lines = [f"{text or 'nothing'} in {format_duration(summary.ended - summary.began)}"]
    if summary.deadline is not None:
        off = summary.ended - summary.deadline
        if summary.interrupted:
            lines[0] += f", {format_duration(-off)} before the deadline"
        elif abs(off) < 60.0 or off > 0:
            lines[0] += f", {abs(off):.1f} s {'after' if off > 0 else 'before'} the deadline"
        else:
            lines[0] += f", {format_duration(-off)} before the deadline: nothing was left to do"
    if summary.interrupted:
        lines.append("interrupted; what was under way waits for the next tune jobs run")
    return lines
