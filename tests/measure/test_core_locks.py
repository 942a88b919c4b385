"""Drivers that share a core: one at a time, equal time, and nothing left by who was killed."""

from __future__ import annotations

import multiprocessing
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.measure.fake_machine import desktop_amd
from tunefarm.compiler.errors import CoresBusyError, MeasureError
from tunefarm.measure import core_locks
from tunefarm.measure.core_locks import (
    QUANTUM_SECONDS,
    Accounts,
    CoreLocks,
    CoreUse,
    patient_until,
)
from tunefarm.measure.cpus import physical_cores, usable_cpus
from tunefarm.measure.farm.pipeline_runner import lock_reports
from tunefarm.tuner.confirm.latency import pinned

_NOBODY = 65534
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tunefarm.measure.core_locks"])


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
            accounts.arrive(name, "1", now)
            waiting.append(name)
        able = [name for name in waiting if accounts.may_go(name, now)]
        if not able:
            now += 0.002
            continue
        name = able[0]
        waiting.remove(name)
        while coming and coming[0][0] <= now + seconds[name]:
            moment, other = heappop(coming)
            accounts.arrive(other, "1", moment)
            waiting.append(other)
        now += seconds[name]
        had[name] += seconds[name]
        accounts.leave(name, "1", now, seconds[name])
        heappush(coming, (now + gap, name))
    return had


def test_nobody_waits_for_drivers_of_before_a_reboot() -> None:
    accounts = Accounts(alive=lambda _: False)
    for name in "ab":
        accounts.arrive(name, "p", 1e6)
    accounts.leave("b", "p", 1e6, 9.0)
    accounts.arrive("b", "p", 5.0)  # the clock begins anew with the machine
    assert accounts.may_go("b", 5.0)


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
        accounts.arrive("a", "1", float(moment))
        accounts.leave("a", "1", moment + 1.0, 1.0)
    accounts.arrive("b", "2", 100.0)
    accounts.leave("b", "2", 101.0, 1.0)
    accounts.arrive("a", "1", 101.0)
    accounts.arrive("b", "2", 101.01)
    assert accounts.may_go("a", 101.02)
    assert not accounts.may_go("b", 101.02)


def test_nobody_waits_for_a_driver_whose_process_is_gone() -> None:
    alive = {"1", "2"}
    accounts = Accounts(alive=alive.__contains__)
    accounts.arrive("a", "1", 0.0)
    accounts.leave("a", "1", 9.0, 9.0)
    accounts.arrive("b", "2", 9.0)
    accounts.of["b"].used = 0.0
    accounts.arrive("a", "1", 9.5)
    assert not accounts.may_go("a", 9.6)
    alive.remove("2")
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
        locks = CoreLocks(driver, tmp_path)
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
    with CoreLocks("killed", folder).held((3,), "build"):
        connection.send("held")
        connection.recv()


def test_what_a_killed_process_held_is_free(tmp_path: Path) -> None:
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=hold, args=(tmp_path, theirs), daemon=True)
    process.start()
    assert ours.poll(60.0) and ours.recv() == "held"
    taken = threading.Event()

    def take() -> None:
        with CoreLocks("other", tmp_path).held((3,), "time"):
            taken.set()

    thread = in_thread(take)
    assert process.pid is not None and not taken.is_set()
    os.kill(process.pid, signal.SIGKILL)
    thread.join(60.0)
    assert taken.is_set()


def test_builds_and_timed_runs_of_different_drivers_take_turns(tmp_path: Path) -> None:
    at_work: dict[CoreUse, int] = {"build": 0, "time": 0}
    together = 0
    guard = threading.Lock()

    def use(driver: str, core: int, turn: CoreUse) -> None:
        nonlocal together
        locks = CoreLocks(driver, tmp_path)
        for _ in range(15):
            with locks.held((core,), turn, alone=True):
                with guard:
                    at_work[turn] += 1
                    together += at_work["build"] > 0 and at_work["time"] > 0
                with guard:
                    at_work[turn] -= 1

    users: list[tuple[str, int, CoreUse]] = [("a", 0, "build"), ("a", 1, "time"), ("b", 2, "build")]
    threads = [in_thread(lambda user=user: use(*user)) for user in users]  # type: ignore[misc]
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    assert together == 0


def refused(folder: Path, cores: tuple[int, ...] = (3,)) -> bool:
    """Whether the cores are held by another, for whom nobody waits here."""
    try:
        with CoreLocks("asks", folder, stop=lambda: True).held(cores):
            return False
    except MeasureError:
        return True


def test_two_threads_of_one_core_have_one_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desktop_amd(tmp_path)
    monkeypatch.setattr(core_locks, "physical_cores", partial(physical_cores, root=tmp_path))
    with CoreLocks("holds", tmp_path).held((11,)):
        assert refused_in_thread(tmp_path, (3,)) and refused_in_thread(tmp_path, (11,))
        assert not refused_in_thread(tmp_path, (2, 10))


def test_who_holds_a_core_need_not_wait_for_it_again(tmp_path: Path) -> None:
    locks = CoreLocks("holds", tmp_path, stop=lambda: True)
    with locks.held((1, 2)), CoreLocks("again", tmp_path, stop=lambda: True).held((2,)):
        assert refused_in_thread(tmp_path, (2,))
    assert not refused_in_thread(tmp_path, (2,))


def refused_in_thread(folder: Path, cores: tuple[int, ...]) -> bool:
    found: list[bool] = []
    thread = in_thread(lambda: found.append(refused(folder, cores)))
    thread.join(60.0)
    return found[0]


def test_who_waits_says_for_whom_and_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_locks, "TOLD_SECONDS", 0.0)
    told: list[str] = []
    waiting = CoreLocks("waits", tmp_path, notify=told.append, stop=lambda: bool(told))
    user = pwd.getpwuid(os.geteuid()).pw_name
    failed: list[str] = []

    def wait() -> None:
        try:
            with waiting.held((3,)):
                raise AssertionError("it is held")
        except MeasureError as error:
            failed.append(error.message)

    with CoreLocks("holds", tmp_path).held((3,), "build"):
        in_thread(wait).join(60.0)
    assert failed == ["it was stopped while it waited for a core"]
    assert told == [f"waiting for 0 s for core 3: process {os.getpid()} of {user} builds there"]
    assert not refused(tmp_path)


def test_who_has_no_more_time_gives_up_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_locks, "PATIENCE_SECONDS", 0.0)
    failed: list[str] = []

    def wait() -> None:
        locks = CoreLocks("waits", tmp_path)
        with patient_until(time.monotonic()):
            try:
                with locks.held((3, 4)):
                    raise AssertionError("it is held")
            except CoresBusyError as error:
                failed.append(error.message)
            with locks.held((3,)):
                pass

    with CoreLocks("holds", tmp_path).held((4,), "build"):
        in_thread(wait).join(60.0)
    (text,) = failed
    assert text.startswith("core 4 was not free: process") and text.endswith("builds there")


def test_waits_of_a_driver_are_seen_by_its_other_processes(tmp_path: Path) -> None:
    done = threading.Event()
    waiting = CoreLocks("waits", tmp_path, stop=done.is_set)

    def wait() -> None:
        with suppress(MeasureError), waiting.held((3, 4)):
            pass

    other = CoreLocks("waits", tmp_path)
    assert other.waits((3, 4)) == {}
    with CoreLocks("holds", tmp_path).held((3,)):
        thread = in_thread(wait)
        end = time.monotonic() + 60.0
        while not (waits := other.waits((3, 4))) and time.monotonic() < end:
            thread.join(0.01)
        done.set()
        thread.join(60.0)
    ((whom, seconds),) = waits.items()
    assert whom.startswith(f"core 3: process {os.getpid()} of ") and 0.0 <= seconds < 60.0
    assert other.waits((3, 4)) == {}


def test_signal_ends_a_wait(tmp_path: Path) -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys; from pathlib import Path; from tunefarm.measure.core_locks import CoreLocks\n"
        "notify = lambda text: print(text, flush=True)\n"
        "from tunefarm.measure import core_locks; core_locks.TOLD_SECONDS = 0.0\n"
        "with CoreLocks('waits', Path(sys.argv[1]), notify=notify).held((3,)): print('had')"
    )
    with CoreLocks("holds", tmp_path).held((3,)):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("waiting for 0 s for core 3")
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=60.0)
    assert "KeyboardInterrupt" in error


def test_files_may_be_locked_by_every_user_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with CoreLocks("holds", tmp_path).held((3,)):
            pass
    finally:
        os.umask(before)
    files = list(tmp_path.iterdir())
    assert files and {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o666}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_locks_the_same_files(tmp_path: Path) -> None:
    shared = Path(tempfile.mkdtemp(prefix="tunefarm-", dir="/tmp"))
    shared.chmod(0o1777)
    try:
        with CoreLocks("holds", shared).held((3,)):
            os.seteuid(_NOBODY)
            try:
                assert refused_in_thread(shared, (3,))
                assert not refused_in_thread(shared, (4,))
            finally:
                os.seteuid(0)
        assert not refused(shared, (4,))
    finally:
        shutil.rmtree(shared)


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
def test_what_is_no_plain_file_is_never_written(tmp_path: Path, kind: str) -> None:
    precious, lock = tmp_path / "precious", tmp_path / "tunefarm-core-3"
    precious.write_text("precious")
    if kind == "link":
        lock.symlink_to(precious)
    elif kind == "hard link":
        lock.hardlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    with (
        pytest.raises(MeasureError, match="tunefarm-core-3 cannot be locked: it is no plain file"),
        CoreLocks("asks", tmp_path).held((3,)),
    ):
        raise AssertionError("it cannot be held")
    assert precious.read_text() == "precious"


def test_a_lock_whose_file_was_removed_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    locks = CoreLocks("holds", tmp_path)
    with locks.held((3,)):
        (tmp_path / "tunefarm-core-3").unlink()
        assert not refused(tmp_path)  # nothing can be done for the one that lost its file
    with locks.held((3,)):
        assert refused_in_thread(tmp_path, (3,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"a": 3}',
        '{"a": {"used": "x", "seen": 1, "since": 0, "waiting": []}}',
        '{"a": {"used": 0, "seen": 1e300, "since": 0, "waiting": ["0:1"]}}',
        '{"a": {"used": 0, "seen": 0, "since": 0, "waiting": 7}}',
        "\0" * 70000,
    ],
)
def test_accounts_that_are_damaged_or_of_before_a_reboot_begin_anew(
    tmp_path: Path, text: str
) -> None:
    with CoreLocks("other", tmp_path).held((3,)):
        pass
    (tmp_path / "tunefarm-core-3-accounts").write_text(text)
    assert not refused(tmp_path)


def test_processes_of_another_container_count_as_long_as_they_say_that_they_wait() -> None:
    accounts = Accounts(alive=lambda process: None if process == "there" else True)
    accounts.arrive("a", "here", 0.0)
    accounts.leave("a", "here", 9.0, 9.0)
    accounts.arrive("b", "there", 9.0)
    accounts.of["b"].used = 0.0
    accounts.arrive("a", "here", 9.5)
    assert not accounts.may_go("a", 11.0)
    accounts.stay("b", 11.5)
    assert not accounts.may_go("a", 14.0)
    assert accounts.may_go("a", 15.0)


def test_folder_is_the_first_that_may_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    monkeypatch.setattr(core_locks, "FOLDERS", (str(tmp_path / "none"), str(shared)))
    assert core_locks.lock_folder() == Path(tempfile.gettempdir())
    shared.mkdir()
    assert core_locks.lock_folder() == shared


def test_long_waits_are_told_of_again_when_they_have_taken_twice_as_long() -> None:
    told: list[str] = []
    locks = Waits()
    look = lock_reports(locks, (3,), told.append)
    for seconds in (1.0, 6.0, 7.0, 11.0, 13.0):
        locks.seconds = seconds
        look()
    assert told == [f"waiting for {seconds} s for core 3: somebody" for seconds in (6, 13)]


class Waits(CoreLocks):
    """Locks whose driver waits for somebody, for so many seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def waits(self, cores: Sequence[int]) -> dict[str, float]:
        return {"core 3: somebody": self.seconds}


def test_whole_models_are_timed_on_cores_that_nobody_else_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_locks, "FOLDERS", (str(tmp_path),))
    (core,) = usable_cpus().for_threads(1)
    with pinned(1):
        assert refused_in_thread(tmp_path, (core,))
    assert not refused_in_thread(tmp_path, (core,))


def test_who_waits_for_builds_to_end_goes_before_builds_that_come_later(tmp_path: Path) -> None:
    timed = threading.Event()

    def run() -> None:
        with CoreLocks("times", tmp_path).held((1,), "time", alone=True):
            timed.set()

    def may_build() -> bool:
        locks = CoreLocks("builds more", tmp_path, stop=lambda: True)
        with suppress(MeasureError), locks.held((2,), "build", alone=True):
            return True
        return False

    with CoreLocks("builds", tmp_path).held((0,), "build", alone=True):
        thread = in_thread(run)
        end = time.monotonic() + 60.0
        while may_build():
            assert time.monotonic() < end, "builds go on for as long as there are some"
            thread.join(0.01)
        assert not timed.is_set()
    thread.join(60.0)
    assert timed.is_set() and may_build()
