"""The division of a night: within its time, nobody forgotten, more where more is to be gained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.configs.errors import SettingsError
from tunefarm.tuner.queues.division import (
    LONGEST_SECONDS,
    OpenEntry,
    least_seconds,
    moment_of,
    next_turn,
)


@dataclass(frozen=True)
class Model:
    """It is done once it was tuned for `work` seconds, of which a turn's first ones bring nothing;
    `limit` is that of its own."""

    work: float = math.inf
    kernels: int = 5
    weight: float = 1.0
    limit: float | None = None


def simulate(
    models: Mapping[str, Model], night: float | None, most: int = 500
) -> tuple[dict[str, list[float]], list[tuple[str, float]]]:
    """The seconds of each model's turns in a night, and all in order."""
    past: dict[str, list[float]] = {name: [] for name in models}
    order: list[tuple[str, float]] = []
    left = night
    while len(order) < most:
        open_entries = []
        for name, model in models.items():
            spent, least = math.fsum(past[name]), least_seconds(model.kernels)
            own = None if model.limit is None else model.limit - spent
            done = spent - least * len(past[name]) >= model.work
            if not done and (own is None or own > 1.0):
                open_entries.append(OpenEntry(name, least, spent, model.weight, own))
        chosen = next_turn(open_entries, left, night or 0.0)
        if chosen is None:
            break
        past[chosen[0]].append(chosen[1])
        order.append(chosen)
        left = None if left is None else left - chosen[1]
    return past, order


some_models = st.lists(
    st.builds(
        Model,
        work=st.one_of(st.floats(1.0, 5000.0), st.just(math.inf)),
        kernels=st.integers(1, 60),
    ),
    min_size=1,
    max_size=9,
).map(lambda models: {f"m{number}": model for number, model in enumerate(models)})


@given(some_models, st.floats(10.0, 40_000.0))
def test_no_turn_goes_beyond_the_night_and_none_is_idle(
    models: dict[str, Model], night: float
) -> None:
    _, order = simulate(models, night)
    used = math.fsum(seconds for _, seconds in order)
    assert used <= night + 1e-6
    assert all(seconds > 0 for _, seconds in order)
    open_ones = [name for name, model in models.items() if model.work == math.inf]
    if open_ones:
        assert night - used < min(least_seconds(models[name].kernels) for name in open_ones)


@given(some_models, st.floats(10.0, 40_000.0))
def test_every_entry_has_a_turn_if_all_fit(models: dict[str, Model], night: float) -> None:
    past, _ = simulate(models, night)
    if math.fsum(least_seconds(model.kernels) for model in models.values()) <= night:
        assert all(past.values())


@given(some_models, st.floats(600.0, 40_000.0))
def test_nobody_falls_far_behind_an_equal_share(models: dict[str, Model], night: float) -> None:
    endless = {name: replace(model, work=math.inf) for name, model in models.items()}
    past, order = simulate(endless, night)
    longest = max((seconds for _, seconds in order), default=0.0)
    equal = math.fsum(map(math.fsum, past.values())) / len(past)
    if all(len(turns) > 1 for turns in past.values()):
        assert min(map(math.fsum, past.values())) >= equal - longest


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=6))
def test_weights_divide_the_time(weights: list[float]) -> None:
    models = {str(i): Model(weight=weight) for i, weight in enumerate(weights)}
    past, order = simulate(models, 8 * 3600.0)
    longest = max(seconds for _, seconds in order)
    for number, weight in enumerate(weights):
        share = 8 * 3600.0 * weight / sum(weights)
        assert abs(math.fsum(past[str(number)]) - share) <= 2.0 * longest


def test_an_entry_that_is_done_gives_its_time_back() -> None:
    past, _ = simulate({"small": Model(20.0), "large": Model()}, 3600.0)
    assert math.fsum(past["small"]) < 500.0
    assert math.fsum(past["small"]) + math.fsum(past["large"]) > 3580.0


def test_entries_have_several_turns_and_late_ones_do_not_starve() -> None:
    models = {str(number): Model() for number in range(8)}
    past, order = simulate(models, 8 * 3600.0)
    assert [name for name, _ in order[:8]] == list(models)
    assert all(2 <= len(turns) <= 12 for turns in past.values())
    assert max(seconds for _, seconds in order) <= LONGEST_SECONDS


def test_a_limit_of_its_own_bounds_all_turns_of_an_entry() -> None:
    models = {"short": Model(limit=120.0), "long": Model()}
    past, _ = simulate(models, 3600.0)
    assert math.fsum(past["short"]) == pytest.approx(120.0)


def test_without_an_end_turns_go_round_until_all_is_done() -> None:
    models = {str(number): Model(2000.0) for number in range(3)}
    past, order = simulate(models, None)
    assert len(order) < 500
    assert all(len(turns) > 1 for turns in past.values())


@pytest.mark.parametrize("left", [0.0, 5.0])
def test_nothing_begins_that_does_not_fit(left: float) -> None:
    assert next_turn([OpenEntry("a", 20.0)], left) is None
    assert next_turn([], left) is None


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
