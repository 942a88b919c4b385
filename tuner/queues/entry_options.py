"""What the queue keeps of an entry in addition to its arguments: as values, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tunefarm.configs.errors import DatabaseError
from tunefarm.configs.json_values import from_json, to_json
from tunefarm.configs.settings import Settings, shown_precision
from tunefarm.db.queue import QueueEntry

GOOD = "good"
"""How a turn ended whose job came to its end. Others were `interrupted` with the whole session,
`stopped` by somebody, or `lost` with the process that ran the session."""
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn of an entry: a job, or several for several sizes.

    `asked` seconds were given to it and it took `seconds`. Latencies are those of the whole model,
    seconds a run, confirmed at its end; `ratio` is tuned over untuned, bounded by `low` and `high`.
    None: not known.
    """

    began: float
    seconds: float
    asked: float
    end: str
    measured: int = 0
    untuned: float | None = None
    tuned: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class CurrentTurn:
    """The turn that is being worked on; `until` is when the session ends, None if nothing says."""

    began: float
    ends: float
    until: float | None = None


@dataclass(frozen=True, slots=True)
class EntryOptions:
    """The queue's own of an entry.

    `kernel_count` is how many distinct kernels the model has (0 in entries of earlier versions).
    `minutes` is what all its turns may take, `weight` its share of the time; None: not given.
    `failures` are those since its last good turn, `ended` says why a finished one is.
    """

    threads: int = 1
    targets: str = ""
    numerics: str = "default"
    weight: float | None = None
    minutes: float | None = None
    kernel_count: int = 0
    jobs: tuple[str, ...] = ()
    turns: tuple[TurnRecord, ...] = ()
    failures: int = 0
    ended: str = ""
    turn: CurrentTurn | None = None

    @staticmethod
    def of(settings: Settings, kernel_count: int, weight: float | None) -> EntryOptions:
        """Those of a new entry, whose job has no more than the minutes of its settings."""
        compile = settings.compile
        return EntryOptions(
            threads=compile.threads,
            targets=",".join(compile.targets),
            numerics=compile.numerics,
            weight=weight,
            minutes=settings.search.minutes,
            kernel_count=kernel_count,
        )

    @property
    def confirmed(self) -> TurnRecord | None:
        """The last turn that measured the whole model."""
        return next((turn for turn in reversed(self.turns) if turn.ratio is not None), None)

    @property
    def good_turns(self) -> int:
        """Turns that ended well."""
        return sum(turn.end == GOOD for turn in self.turns)

    def to_json(self) -> dict[str, Any]:
        """The options as JSON values."""
        return to_json(self)


def options_of(entry: QueueEntry) -> EntryOptions:
    """The options of an entry. Raises DatabaseError for what this version cannot read."""
    try:
        return from_json(EntryOptions, entry.options)
    except ValueError as error:
        raise DatabaseError(
            f"the options of {entry.id} in the queue cannot be read: {error}",
            hint=f"tune jobs remove {entry.id}, and add it again",
        ) from error


def with_lost_turn(entry: QueueEntry, options: EntryOptions) -> EntryOptions:
    """With the turn at which its runner was killed, if that is how it ended, and its jobs."""
    jobs = options.jobs
    if entry.job and entry.job not in jobs:
        jobs = (*jobs, entry.job)
    if options.turn is None:
        return replace(options, jobs=jobs)
    known = math.fsum(turn.seconds for turn in options.turns)
    began, asked = options.turn.began, options.turn.ends - options.turn.began
    lost = TurnRecord(began, max(0.0, entry.seconds - known), asked, "lost")
    return replace(options, jobs=jobs, turns=(*options.turns, lost), turn=None)


def name_of(entry: QueueEntry, options: EntryOptions) -> str:
    """An entry for people: what tells it from its neighbours."""
    count = "1 thread" if options.threads == 1 else f"{options.threads} threads"
    parts = [entry.model_name, count, *filter(None, [options.targets])]
    if options.numerics != "default":
        parts.append(shown_precision(options.numerics))
    return ", ".join(parts)


def turn_of_result(
    result: Mapping[str, Any], began: float, seconds: float, asked: float
) -> TurnRecord:
    """What the JSON of `tune` says of a turn that came to its end."""
    turn = TurnRecord(began, seconds, asked, GOOD, int(result.get("measured") or 0))
    latency = result.get("latency")
    if not isinstance(latency, Mapping):
        return turn
    untuned = float(latency["untuned"])
    kept = latency.get("kept") or latency
    ratio, low, high = 1.0, 1.0, 1.0
    if not latency.get("unchanged"):
        ratio, low, high = (float(kept[name]) for name in ("ratio", "low", "high"))
    return replace(
        turn,
        untuned=untuned,
        tuned=untuned * ratio,
        ratio=ratio,
        low=low,
        high=high,
    )


def why_finished(result: Mapping[str, Any], turn: TurnRecord) -> str:
    """Why an entry has nothing left to win after this turn, by the JSON of `tune`; "" if it has.

    A job that chooses precisions says nothing of its kernels: it is done when it ends before its
    time.
    """
    tasks = result.get("tasks")
    if not isinstance(tasks, list):
        return "its job was done" if turn.seconds < 0.9 * turn.asked else ""
    ends = [str(task.get("ended") or "") for task in tasks]
    if any(end in ("", "time used up", "interrupted") for end in ends):
        return ""
    return str(result.get("end") or "nothing more to win")
