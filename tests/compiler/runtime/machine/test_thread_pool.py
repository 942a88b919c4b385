"""The pool of threads: who takes part, who waits for whom, and what happens at the edges."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import python
from tunefarm.compiler.runtime.machine.thread_pool import ThreadPool, is_supported, thread_pool

pytestmark = pytest.mark.skipif(not is_supported(), reason="the pool is made of Linux futexes")

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PARALLEL = ctypes.CFUNCTYPE(None, _BODY, ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32)


class Loop:
    """A loop of `chunks` that threads draw from, as a kernel's parallel loop does."""

    def __init__(self, chunks: int, work: Callable[[], None]) -> None:
        self.left = chunks
        self.done = 0
        self.threads: set[int] = set()
        self._work = work
        self._lock = threading.Lock()
        self.body = _BODY(self._draw)

    def _draw(self, data: object) -> None:
        while True:
            with self._lock:
                if not self.left:
                    return
                self.left -= 1
            self._work()
            with self._lock:
                self.done += 1
                self.threads.add(threading.get_native_id())


@pytest.fixture(scope="module")
def pool() -> ThreadPool:
    shared = thread_pool(3)
    assert shared is not None
    return shared


def run(pool: ThreadPool, loop: Loop, threads: int) -> None:
    _PARALLEL(pool.parallel)(loop.body, None, threads, 0)


def nap() -> None:
    time.sleep(0.01)  # long enough for any thread to be there before the chunks are gone


def test_threads_share_a_loop_and_all_of_it_is_done(pool: ThreadPool) -> None:
    loop = Loop(30, nap)
    run(pool, loop, 3)
    assert loop.done == 30
    assert len(loop.threads) == 3
    assert threading.get_native_id() in loop.threads


def test_no_more_threads_join_than_are_asked_for(pool: ThreadPool) -> None:
    loop = Loop(10, nap)
    run(pool, loop, 2)
    assert loop.done == 10
    assert len(loop.threads) == 2


def test_threads_that_went_to_sleep_wake_up(pool: ThreadPool) -> None:
    for _ in range(3):
        nap()  # many times what they spin for
        loop = Loop(12, nap)
        run(pool, loop, 3)
        assert len(loop.threads) == 3


def test_woken_threads_start_off_their_callers_core_and_may_run_anywhere_after(
    pool: ThreadPool,
) -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("one core: there is nowhere else to run")
    own = min(cores)
    caller = threading.get_native_id()
    starts: list[bool] = []
    allowed: list[set[int]] = []

    def record() -> None:
        if threading.get_native_id() != caller:
            stat = Path("/proc/thread-self/stat").read_text()
            starts.append(int(stat.rpartition(")")[2].split()[36]) != own)
            allowed.append(os.sched_getaffinity(0))
        nap()

    os.sched_setaffinity(0, {own})
    try:
        for _ in range(20):
            nap()  # many times what they spin for
            run(pool, Loop(2, record), 2)
    finally:
        os.sched_setaffinity(0, cores)
    assert all(found == cores for found in allowed)
    assert len(starts) >= 10
    assert sum(starts) >= 0.75 * len(starts)


def test_a_process_on_one_core_keeps_to_it() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from tests.compiler.runtime.machine.test_thread_pool import Loop, nap, run\n"
        "from tunefarm.compiler.runtime.machine.thread_pool import thread_pool\n"
        "import threading\n"
        "pool = thread_pool(2)\n"
        "for _ in range(3): nap(); run(pool, Loop(6, nap), 2)\n"
        "ids = [thread.native_id for thread in threading.enumerate()]\n"
        "print(len(ids), {len(os.sched_getaffinity(id)) for id in ids})"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "2 {1}"), done.stderr


def test_many_short_loops_are_complete(pool: ThreadPool) -> None:
    for chunks in [1, 2, 5] * 300:
        loop = Loop(chunks, lambda: None)
        run(pool, loop, 3)
        assert loop.done == chunks


def test_a_loop_inside_a_loop_runs_on_its_caller(pool: ThreadPool) -> None:
    inner: list[Loop] = []

    def nested() -> None:
        loop = Loop(5, lambda: None)
        run(pool, loop, 3)
        inner.append(loop)

    outer = Loop(6, nested)
    run(pool, outer, 3)
    assert outer.done == 6
    assert [loop.done for loop in inner] == [5] * 6
    assert all(len(loop.threads) == 1 for loop in inner)


def test_callers_at_the_same_time_do_not_disturb_each_other(pool: ThreadPool) -> None:
    loops = [[Loop(7, lambda: None) for _ in range(50)] for _ in range(4)]

    def call(mine: list[Loop]) -> None:
        for loop in mine:
            run(pool, loop, 3)

    callers = [threading.Thread(target=call, args=(mine,)) for mine in loops]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(loop.done == 7 for mine in loops for loop in mine)


def test_a_stopped_pool_leaves_loops_to_their_caller() -> None:
    pool = ThreadPool()
    pool.grow(2)
    pool.stop()
    loop = Loop(5, nap)
    run(pool, loop, 2)
    assert loop.done == 5
    assert loop.threads == {threading.get_native_id()}


def test_a_forked_child_makes_its_own_pool(pool: ThreadPool) -> None:
    child = os.fork()
    if child == 0:
        own = thread_pool(2)
        loop = Loop(10, nap)
        if own is not None and own is not pool:
            run(own, loop, 2)
        os._exit(0 if loop.done == 10 and len(loop.threads) == 2 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("pause", ["0", "0.05"])
def test_a_process_with_a_pool_exits_cleanly(pause: str) -> None:
    script = (
        "import time; from tunefarm.compiler.runtime.machine.thread_pool import thread_pool; "
        f"pool = thread_pool(4); time.sleep({pause}); print(pool.parallel > 0)"
    )
    ended = python("-c", script)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")
