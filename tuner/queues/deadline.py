"""`--until`: a time of day, or a date and a time, as a moment."""

from __future__ import annotations

from datetime import datetime, time, timedelta, tzinfo

from tunefarm.configs.errors import SettingsError

_FORMS = "as in 07:00, or 2026-01-31T07:00"


def moment_of(text: str, now: float, zone: tzinfo | None = None) -> float:
    """The next such moment, in seconds since the epoch; `now` is one too.

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
