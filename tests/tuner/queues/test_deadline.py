"""--until: the next such time of day in local time, also where clocks change, or a date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.configs.errors import SettingsError
from tunefarm.tuner.queues.deadline import moment_of

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()


@pytest.mark.parametrize(
    ("until", "now", "expected"),
    [
        ("07:00", "2026-11-23T23:30", "2026-11-24T07:00"),
        ("07:00", "2026-11-23T06:59", "2026-11-23T07:00"),
        ("07:00", "2026-11-23T07:00", "2026-11-24T07:00"),
        ("7:00", "2026-11-23T01:00", "2026-11-23T07:00"),
        ("07:00:30", "2026-11-23T07:00", "2026-11-23T07:00:30"),
        ("07:00", "2026-03-28T22:00", "2026-03-29T07:00"),  # clocks go forward: nine hours less one
        ("07:00", "2026-10-24T22:00", "2026-10-25T07:00"),  # and back
        ("2026-12-24T06:00", "2026-11-23T23:00", "2026-12-24T06:00"),
        ("2026-12-24 06:00", "2026-11-23T23:00", "2026-12-24T06:00"),
    ],
)
def test_moment_of_the_next_such_time(until: str, now: str, expected: str) -> None:
    assert moment_of(until, at(now), BERLIN) == at(expected)


def test_hours_of_the_night_in_which_clocks_change() -> None:
    spring = moment_of("07:00", at("2026-03-28T22:00"), BERLIN) - at("2026-03-28T22:00")
    autumn = moment_of("07:00", at("2026-10-24T22:00"), BERLIN) - at("2026-10-24T22:00")
    assert (spring, autumn) == (8 * 3600.0, 10 * 3600.0)


def test_an_hour_that_comes_twice_is_the_next_of_both() -> None:
    first, second = at("2026-10-25T02:30"), at("2026-10-25T02:30", fold=1)
    assert second - first == 3600.0
    assert moment_of("02:30", at("2026-10-25T01:00"), BERLIN) == first
    assert moment_of("02:30", first + 60.0, BERLIN) == second


def test_an_hour_that_is_skipped_is_soon_after() -> None:
    now = at("2026-03-29T01:00")
    assert 0 < moment_of("02:30", now, BERLIN) - now <= 5400.0


def test_a_moment_with_an_offset_is_that_moment() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert moment_of("2026-01-01T07:00+02:00", now, BERLIN) == now + 5 * 3600.0


@given(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)), st.integers(0, 1439))
def test_a_time_of_day_is_always_ahead_and_within_a_day(now: datetime, minute: int) -> None:
    moment = now.replace(tzinfo=UTC).timestamp()
    found = moment_of(f"{minute // 60:02}:{minute % 60:02}", moment, BERLIN)
    assert 0 < found - moment <= timedelta(hours=25).total_seconds()


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "07:61", "2026-13-01T07:00", "7", "07:00 pm"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is no time"):
        moment_of(text, 0.0, BERLIN)


def test_the_past_is_refused() -> None:
    with pytest.raises(SettingsError, match="has passed"):
        moment_of("2026-01-31T07:00", at("2026-02-01T07:00"), BERLIN)
