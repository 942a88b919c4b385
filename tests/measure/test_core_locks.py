"""Drivers that share a core: one at a time, equal time, and nothing left by who was killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from heapq import heappop, heappush
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tunefarm.measure.farm.core_locks import QUANTUM_SECONDS, Accounts, CoreLocks, Turn

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tunefarm.measure.farm.core_locks"])


def simulate(seconds: dict[str, float], until: float, gap: float = 0.01) -> dict[str, float]:
    """What drivers have had of one core whose runs take so long; each asks again after a `gap`."""
    accounts = Accounts(alive=lambda _: True)
    had = dict.fromkeys(seconds, 0.0)
    waiting: list[str] = []
    coming = [(0.0, name) for name in seconds]
    now = 0.0
    while now < until:
        while coming and coming[0][0] <= now:
            name = heappop(coming)[1]
            accounts.arrive(name, 1, now)
            waiting.append(name)
        able = [name for name in waiting if accounts.may_go(name, now)]
        if not able:
            now += 0.002
            continue
        name = able[0]
        waiting.remove(name)
        while coming and coming[0][0] <= now + seconds[name]:
            moment, other = heappop(coming)
            accounts.arrive(other, 1, moment)
            waiting.append(other)
        now += seconds[name]
        had[name] += seconds[name]
        accounts.leave(name, 1, now, seconds[name])
        heappush(coming, (now + gap, name))
    return had


@pytest.mark.parametrize(
    "seconds",
    [{"a": 0.1, "b": 0.1}, {"a": 5.0, "b": 0.1}, {"a": 0.1, "b": 2.0}, {"a": 1, "b": 0.1, "c": 7}],
)
def test_every_driver_has_the_same_time_whatever_its_runs_take(seconds: dict[str, float]) -> None:
    had = simulate(seconds, 400.0)
    fair = sum(had.values()) / len(had)
    assert sum(had.values()) > 0.85 * 400.0  # little is lost by waiting for each other
    for name in had:
        assert abs(had[name] - fair) <= max(seconds.values()) + QUANTUM_SECONDS, had


def test_who_comes_late_is_not_owed_what_it_had_no_use_for() -> None:
    accounts = Accounts(alive=lambda _: True)
    for moment in range(100):
        accounts.arrive("a", 1, float(moment))
        accounts.leave("a", 1, moment + 1.0, 1.0)
    accounts.arrive("b", 2, 100.0)
    accounts.leave("b", 2, 101.0, 1.0)
    accounts.arrive("a", 1, 101.0)
    accounts.arrive("b", 2, 101.01)
    assert accounts.may_go("a", 101.02)
    assert not accounts.may_go("b", 101.02)


def test_nobody_waits_for_a_driver_whose_process_is_gone() -> None:
    alive = {1, 2}
    accounts = Accounts(alive=alive.__contains__)
    accounts.arrive("a", 1, 0.0)
    accounts.leave("a", 1, 9.0, 9.0)
    accounts.arrive("b", 2, 9.0)
    accounts.of["b"].used = 0.0
    accounts.arrive("a", 1, 9.5)
    assert not accounts.may_go("a", 9.6)
    alive.remove(2)
    assert accounts.may_go("a", 9.6)


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_core_has_one_user_at_a_time(tmp_path: Path) -> None:
    users, most, total = 0, 0, 0
    guard = threading.Lock()

    def use(driver: str) -> None:
        nonlocal users, most, total
        locks = CoreLocks(tmp_path / "node", driver)
        for number in range(20):
            with locks.held((1,) if number % 2 else (1, 2)):
                with guard:
                    users, total = users + 1, total + 1
                    most = max(most, users)
                with guard:
                    users -= 1

    threads = [in_thread(lambda name=name: use(name)) for name in "abc"]  # type: ignore[misc]
    for thread in threads:
        thread.join(60.0)
    assert (most, total) == (1, 60)


def hold(folder: Path, connection: Connection) -> None:
    with CoreLocks(folder, "killed").held((3,), "build"):
        connection.send("held")
        connection.recv()


def test_what_a_killed_process_held_is_free(tmp_path: Path) -> None:
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=hold, args=(tmp_path / "node", theirs), daemon=True)
    process.start()
    assert ours.poll(60.0) and ours.recv() == "held"
    taken = threading.Event()

    def take() -> None:
        with CoreLocks(tmp_path / "node", "other").held((3,), "time"):
            taken.set()

    thread = in_thread(take)
    assert process.pid is not None and not taken.is_set()
    os.kill(process.pid, signal.SIGKILL)
    thread.join(60.0)
    assert taken.is_set()


def test_builds_and_timed_runs_of_different_drivers_take_turns(tmp_path: Path) -> None:
    at_work: dict[Turn, int] = {"build": 0, "time": 0}
    together = 0
    guard = threading.Lock()

    def use(driver: str, core: int, turn: Turn) -> None:
        nonlocal together
        locks = CoreLocks(tmp_path / "node", driver)
        for _ in range(15):
            with locks.held((core,), turn):
                with guard:
                    at_work[turn] += 1
                    together += at_work["build"] > 0 and at_work["time"] > 0
                with guard:
                    at_work[turn] -= 1

    users: list[tuple[str, int, Turn]] = [("a", 0, "build"), ("a", 1, "time"), ("b", 2, "build")]
    threads = [in_thread(lambda user=user: use(*user)) for user in users]  # type: ignore[misc]
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    assert together == 0
