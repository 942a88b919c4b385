"""How the time of a tuning session is divided over the entries of a queue, and when it ends: pure
functions.

Every entry gets several turns, each a job that goes on where the last one ended, with its finalists
and its whole model confirmed: whatever happens later, what a turn has won is there. The next turn
goes where the model's speed-up is expected to grow fastest. Each model counts the same, a second of
a slow one is worth no more than its share; `weight` says otherwise.

The speed-up expected of a minute is the larger of what the last turn showed and of what may still
be hoped for. Hope flattens like HOPE * untuned * t / (t + work), where `work` are the seconds that
the entry's kernels want, and `untuned` the share of that for kernels that have few trials, of
whatever job. (The idea of a gradient over tasks: Zheng et al., "Ansor", OSDI 2020, section 6;
`tunefarm.tuner.search.budget` does the same within a job.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo

from tunefarm.configs.errors import SettingsError

HOPE = 0.7  # log of the speed-up (two times) that tuning is hoped to bring to an untuned model
FADE = 0.5  # the next turn brings so much of the last one's gain per second
FLOOR = 0.5  # of an equal share of the time, which every entry gets whatever others promise
TURNS = 4  # of each entry in a tuning session, about
LONGEST_SECONDS = 1800.0  # of a turn
UNLIMITED_SECONDS = 900.0  # of a turn where nothing says when the night ends
START_SECONDS = 15.0  # of a turn: imports, the untuned build, the runner, the model's comparison
KERNEL_SECONDS = 1.0  # of a turn, for each kernel: its finalists meet
COMFORT = 2.5  # times as long as a turn must be, it should be, so that most of it is a search


@dataclass(frozen=True, slots=True)
class PastTurn:
    """What a turn took, and the log of the speed-up that it added."""

    seconds: float
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class OpenEntry:
    """An entry that has something to win, and where it stands.

    `work` are the seconds that its kernels are thought to want, of which a share is `untuned`;
    `least` those without which a turn is of no use. `left` are those of its own limit, None if it
    has none.
    """

    id: str
    work: float
    least: float
    past: tuple[PastTurn, ...] = ()
    weight: float | None = None
    left: float | None = None
    untuned: float = 1.0

    @property
    def seconds(self) -> float:
        """What its turns took."""
        return math.fsum(turn.seconds for turn in self.past)


def least_seconds(kernels: int) -> float:
    """What a turn of a model with so many distinct kernels takes if it measures next to nothing."""
    return START_SECONDS + KERNEL_SECONDS * kernels


def gain_rate(entry: OpenEntry) -> float:
    """The log of the speed-up expected of one more second; infinity before the first turn."""
    if not entry.past:
        return math.inf
    work, spent = entry.work, entry.seconds
    hope = HOPE * entry.untuned * work / (work + spent) ** 2 if work > 0 else 0.0
    last = entry.past[-1]
    shown = FADE * last.gain / last.seconds if last.seconds > 0 else 0.0
    return max(hope, shown)


def next_turn(
    open_entries: Sequence[OpenEntry], left: float | None, night: float = 0.0
) -> tuple[str, float] | None:
    """Whose turn is next and how many seconds it has; None if no turn fits into what is left.

    `open_entries` are the entries that have something to win, in the order of the queue, `left` the
    seconds until the session ends (None: it does not), `night` those of all of it.
    """
    fitting = [item for item in open_entries if left is None or _least(item) <= left]
    if not fitting:
        return None
    chosen = _whose(fitting)
    return chosen.id, _length(chosen, open_entries, left, night)


def _whose(open_entries: Sequence[OpenEntry]) -> OpenEntry:
    """New ones first; then by weights if any is given, else who is far behind, else who gains."""
    new = [item for item in open_entries if not item.past]
    if any(item.weight is not None for item in open_entries):
        candidates = new or open_entries
        return min(candidates, key=lambda item: item.seconds / (item.weight or 1.0))
    if new:
        return new[0]
    behind = min(open_entries, key=lambda item: item.seconds)
    equal = math.fsum(item.seconds for item in open_entries) / len(open_entries)
    if behind.seconds < FLOOR * equal:
        return behind
    return max(open_entries, key=gain_rate)


def _length(
    chosen: OpenEntry, open_entries: Sequence[OpenEntry], left: float | None, night: float
) -> float:
    wanted = COMFORT * _least(chosen)
    if left is None:
        return _within_limit(chosen, max(wanted, UNLIMITED_SECONDS))
    new = [item for item in open_entries if not item.past and item.id != chosen.id]
    kept = min(math.fsum(map(_least, new)), left - _least(chosen))  # for those that had none yet
    fair = left / (len(new) + 1) if new else left
    share = max(left, night) * _share(chosen, open_entries) / TURNS
    length = max(min(wanted, fair), min(share, LONGEST_SECONDS))
    length = _within_limit(chosen, min(max(length, _least(chosen)), left - kept))
    rest = left - length
    nothing_fits = all(rest < _least(item) for item in open_entries)
    return _within_limit(chosen, left) if nothing_fits else length


def _share(chosen: OpenEntry, open_entries: Sequence[OpenEntry]) -> float:
    """The share of the time that is left which the entry may count on: by weight if any is given,
    else half of it equally and half by the work that is left to do."""
    if any(item.weight is not None for item in open_entries):
        return (chosen.weight or 1.0) / math.fsum(item.weight or 1.0 for item in open_entries)
    work = math.fsum(item.work * item.untuned for item in open_entries)
    equal = 1.0 / len(open_entries)
    return equal if work <= 0 else 0.5 * equal + 0.5 * chosen.work * chosen.untuned / work


def _within_limit(chosen: OpenEntry, seconds: float) -> float:
    return seconds if chosen.left is None else min(seconds, chosen.left)


def _least(entry: OpenEntry) -> float:
    """What a turn of it takes at least; what its own limit leaves it may be less."""
    return _within_limit(entry, entry.least)


_FORMS = "as in 07:00, or 2026-01-31T07:00"


def moment_of(text: str, now: float, zone: tzinfo | None = None) -> float:
    """The next moment of this time of day, or date and time (`--until`), in seconds since the
    epoch; `now` is one too.

    `zone` is the local time if None. Where clocks are put back a time of day comes twice, and the
    next of both is meant; where they are put forward the one that is skipped is as long after
    midnight as it would have been. Raises SettingsError for what is no time, and for the past.
    """
    text = text.strip()
    day = _time_of_day(text)
    if day is not None:
        today = datetime.fromtimestamp(now, zone).date()
        dates = (today + timedelta(days=number) for number in (-1, 0, 1, 2))
        naive = [datetime.combine(date, day) for date in dates]
        moments = [_seconds(item.replace(fold=fold), zone) for item in naive for fold in (0, 1)]
        return min(moment for moment in moments if moment > now)
    try:
        given = datetime.fromisoformat(text)
        moment = given.timestamp() if given.tzinfo is not None else _seconds(given, zone)
    except (ValueError, OverflowError, OSError):
        raise SettingsError(f"--until {text!r} is no time", hint=f"give it {_FORMS}") from None
    if moment <= now:
        raise SettingsError(f"--until {text} has passed", hint="a time of day is the next such one")
    return moment


def _time_of_day(text: str) -> time | None:
    if len(text) > 8 or ":" not in text:
        return None
    hour, _, rest = text.partition(":")
    try:
        return time.fromisoformat(f"{hour:0>2}:{rest}")
    except ValueError:
        return None


def _seconds(naive: datetime, zone: tzinfo | None) -> float:
    """Of a moment without a zone; one that clocks skip is read as the time before them."""
    return naive.replace(tzinfo=zone).timestamp()
