"""The monitor writes down where a job stands, seldom, and never ends a job."""

from __future__ import annotations

from dataclasses import dataclass

from tests.tuner.commands.live_jobs import task
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.tuner.reports.job_state import JobState
from tunefarm.tuner.search.monitor import RECORD_SECONDS, Monitor


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def recorded(store: Store) -> JobState:
    return JobState.of(queries.jobs(store)[0].progress)


def test_states_are_recorded_seldom_and_phases_at_once(store: Store) -> None:
    clock = Clock()
    monitor = Monitor(clock=clock, now=lambda: 1000.0)
    monitor.begin(store, store.start_job("net", "h", {}).id)
    monitor.enter("searching", [task(0)], 60.0)
    for number in range(1, 10):
        clock.now += 0.9 * RECORD_SECONDS / 9
        monitor.count(["ok", "crashed"])
        monitor.update([task(number)], 50.0, workers=4, busy=3)
    assert recorded(store).trials == 0 and recorded(store).phase == "searching"
    clock.now += RECORD_SECONDS
    monitor.update([task(10)], 40.0, workers=4, busy=2)
    found = recorded(store)
    assert (found.trials, found.left, found.workers, found.busy) == (10, 40.0, 4, 2)
    assert found.measured == {"ok": 9, "crashed": 9} and found.at == 1000.0
    monitor.enter("comparing", [task(11)], None)
    assert recorded(store).phase == "comparing" and recorded(store).left is None


def test_a_job_after_another_begins_anew(store: Store) -> None:
    clock = Clock()
    monitor = Monitor(clock=clock)
    for model in ("first", "second"):
        monitor.begin(store, store.start_job(model, "h", {}).id)
        monitor.enter("searching", [task(3)], None)
        monitor.count(["ok"])
        clock.now += 7.0
        ended = monitor.end([task(4)])
        assert ended.measured == {"ok": 1} and ended.elapsed == 7.0 and ended.phase == ""


def test_the_history_has_every_better_expectation(store: Store) -> None:
    clock = Clock()
    monitor = Monitor(clock=clock, now=lambda: 1000.0)
    monitor.begin(store, store.start_job("net", "h", {}).id)
    for number, best in ((1, 4e-3), (2, 3e-3), (2, 3e-3), (5, 1e-3)):
        clock.now += 0.5
        monitor.update([task(number, best)], None, workers=1, busy=1)
    history = monitor.end([task(5, 1e-3)]).history
    assert [tuple(moment) for moment in history] == [
        (0.5, 1, 4e-3),
        (1.0, 2, 3e-3),
        (2.0, 5, 1e-3),
    ]
    monitor.begin(store, store.start_job("other", "h", {}).id)
    assert monitor.end([]).history == ()
