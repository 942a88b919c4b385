"""The clock of timed slices: what a thread waits for its core does not count."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

from tunefarm.compiler.runtime.machine.slice_clock import SliceClock
from tunefarm.measure.machine import on_cores


class Hands:
    """A clock on the wall and a file of waits, set by hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 10.0
        self.wait(0.0)

    def wait(self, seconds: float) -> None:
        self.path.write_text(f"123 {round(1e9 * seconds)} 7\n")

    def clock(self, *, waits: bool = True) -> SliceClock:
        return SliceClock(waits=waits, now=lambda: self.now, path=str(self.path))


def test_what_was_waited_does_not_count(tmp_path: Path) -> None:
    hands = Hands(tmp_path / "schedstat")
    hands.wait(5.0)
    clock = hands.clock()
    clock.start()
    hands.now += 3.0
    hands.wait(7.0)
    assert clock.waited() == pytest.approx(2.0)
    assert clock.seconds() == pytest.approx(1.0)
    clock.close()


def test_without_waits_all_counts(tmp_path: Path) -> None:
    hands = Hands(tmp_path / "schedstat")
    missing = SliceClock(now=lambda: hands.now, path=str(tmp_path / "none"))
    for clock in (hands.clock(waits=False), missing):
        clock.start()
        hands.now += 3.0
        hands.wait(2.0)
        assert clock.seconds() == pytest.approx(3.0)


def test_a_time_is_above_zero(tmp_path: Path) -> None:
    hands = Hands(tmp_path / "schedstat")
    clock = hands.clock()
    clock.start()
    hands.wait(1.0)
    assert clock.seconds() > 0.0
    clock.close()


@pytest.mark.parametrize("waits", [True, False])
def test_page_faults_of_a_piece_show(waits: bool) -> None:
    pages = 64
    clock = SliceClock(waits=waits)
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)

        def write_all() -> int:
            clock.start()
            for page in range(pages):
                memory[page * mmap.PAGESIZE] = 1
            clock.seconds()
            return clock.faults

        assert write_all() >= pages
        assert min(write_all() for _ in range(5)) == 0
    clock.close()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="waits are not kept")
def test_beside_a_busy_process_on_the_same_core_a_slice_keeps_its_length() -> None:
    core = max(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile True: pass"
    with (
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as busy,
        on_cores([core]),
    ):
        try:
            assert busy.stdout is not None
            busy.stdout.readline()
            clock = SliceClock()
            wall, own = perf_counter(), 0.0
            while perf_counter() - wall < 0.3:
                clock.start()
                sum(range(20_000))
                own += clock.seconds()
            wall = perf_counter() - wall
        finally:
            busy.kill()
    assert 0.0 < own < 0.9 * wall  # about half: the other process had the core as well
