"""How the time of a tuning session is divided over the entries of a queue, and when it ends: pure
functions.

Every entry gets several turns, each a job that goes on where the last one ended, with its finalists
and its whole model confirmed: whatever happens later, what a turn has won is there. The next turn
is of the entry that has had the shortest time for its weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo

from tunefarm.configs.errors import SettingsError

TURNS = 4  # of each entry in a tuning session, about
LONGEST_SECONDS = 1800.0  # of a turn
UNLIMITED_SECONDS = 900.0  # of a turn where nothing says when the session ends
START_SECONDS = 15.0  # of a turn: imports, the untuned build, the runner, the model's comparison
KERNEL_SECONDS = 1.0  # of a turn, for each kernel: its finalists meet
COMFORT = 2.5  # times as long as a turn must be, it should be, so that most of it is a search


@dataclass(frozen=True, slots=True)
class OpenEntry:
    """An entry that has something to win, and where it stands.

    `least` are the seconds without which a turn is of no use, `seconds` those of its turns so far.
    `left` are those of its own limit, None if it has none.
    """

    id: str
    least: float
    seconds: float = 0.0
    weight: float = 1.0
    left: float | None = None


def least_seconds(kernels: int) -> float:
    """What a turn of a model with so many distinct kernels takes if it measures next to nothing."""
    return START_SECONDS + KERNEL_SECONDS * kernels


def next_turn(
    open_entries: Sequence[OpenEntry], left: float | None, session: float = 0.0
) -> tuple[str, float] | None:
    """Whose turn is next and how many seconds it has; None if no turn fits into what is left.

    `open_entries` are the entries that have something to win, in the order of the queue, `left` the
    seconds until the session ends (None: it does not), `session` those of all of it.
    """
    fitting = [item for item in open_entries if left is None or _least(item) <= left]
    if not fitting:
        return None
    chosen = min(fitting, key=lambda item: item.seconds / item.weight)
    return chosen.id, _length(chosen, open_entries, left, session)


def _length(
    chosen: OpenEntry, open_entries: Sequence[OpenEntry], left: float | None, session: float
) -> float:
    wanted = COMFORT * _least(chosen)
    if left is None:
        return _within_limit(chosen, max(wanted, UNLIMITED_SECONDS))
    new = [item for item in open_entries if not item.seconds and item.id != chosen.id]
    kept = min(math.fsum(map(_least, new)), left - _least(chosen))  # for those that had none yet
    fair = left / (len(new) + 1) if new else left
    weights = math.fsum(item.weight for item in open_entries)
    share = max(left, session) * chosen.weight / weights / TURNS
    length = max(min(wanted, fair), min(share, LONGEST_SECONDS))
    length = _within_limit(chosen, min(max(length, _least(chosen)), left - kept))
    rest = left - length
    nothing_fits = all(rest < _least(item) for item in open_entries)
    return _within_limit(chosen, left) if nothing_fits else length


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
