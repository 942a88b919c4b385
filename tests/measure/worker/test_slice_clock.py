"""The clock of timed slices: what a thread waits for its core does not count."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import pytest

from tests.measure.fake_machine import add_group2
from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.cpu_quota import CpuQuota
from tunefarm.measure.machine import on_cores
from tunefarm.measure.worker.slice_clock import QuotaShare, SliceClock


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


class Machine:
    """Runs calls of 1 ms; those slices are stopped that `stops` names, by their numbers, or that
    are longer than `most` calls."""

    def __init__(self, folder: Path, stops: tuple[int, ...] = (), most: int = 1000) -> None:
        self.slices: list[int] = []
        self._folder = folder
        self._stops = stops
        self._most = most
        self._count = 0
        self._write()

    def share(self, threads: int | None) -> QuotaShare:
        quota = CpuQuota(0.5, self._folder, (self._folder / "cpu.stat",))
        return QuotaShare(quota, threads)

    def run(self, calls: int) -> float:
        stopped = len(self.slices) in self._stops or calls > self._most
        self.slices.append(calls)
        self._count += stopped
        self._write()
        return 0.001 * calls + 0.05 * stopped

    def _write(self) -> None:
        add_group2(self._folder.parents[3], self._folder.name, "50000 100000", self._count)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sys/fs/cgroup"


def test_without_a_quota_each_slice_is_taken_once() -> None:
    share = QuotaShare(None, 1)
    assert share.seconds(lambda calls: 2.0 * calls, 3) == 6.0
    assert share.repeated == 0


def test_a_slice_that_was_stopped_is_taken_again(folder: Path) -> None:
    machine = Machine(folder / "job", stops=(1,))
    share = machine.share(1)
    assert share.seconds(machine.run, 4) == pytest.approx(0.004)
    assert share.seconds(machine.run, 4) == pytest.approx(0.004)
    assert (machine.slices, share.repeated) == ([4, 4, 4], 1)


def test_slices_too_long_for_the_quota_become_shorter(folder: Path) -> None:
    machine = Machine(folder / "job", most=3)
    share = machine.share(4)
    assert share.seconds(machine.run, 8) == pytest.approx(0.008)
    assert machine.slices == [8, 8, 4, 2]


def test_of_one_thread_that_is_always_stopped_cpu_time_counts(folder: Path) -> None:
    machine = Machine(folder / "job", most=0)
    assert machine.share(1).seconds(machine.run, 2) < 0.05  # it did not wait, but was said to


def test_several_threads_that_are_always_stopped_are_not_timed(folder: Path) -> None:
    machine = Machine(folder / "job", most=0)
    with pytest.raises(MeasureError, match=r"quota of 0\.5 stops every timed run of 4 threads"):
        machine.share(4).seconds(machine.run, 2)


def test_a_whole_model_that_is_always_stopped_has_its_last_time(folder: Path) -> None:
    machine = Machine(folder / "job", most=0)
    assert machine.share(None).seconds(machine.run, 1) == pytest.approx(0.051)


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with a quota of a twentieth of a CPU: what computes is above it on a busy
    machine too."""
    made: Path | None = None
    for parent in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        folder = parent / f"tunefarm-test-{os.getpid()}"
        with suppress(OSError):
            folder.mkdir()
            made = folder
            if (folder / "cpu.cfs_quota_us").exists():
                (folder / "cpu.cfs_quota_us").write_text("5000")
                break
            (folder / "cpu.max").write_text("5000 100000")
            break
        if made is not None:
            made.rmdir()
            made = None
    if made is None:
        pytest.skip("control groups cannot be written here")
    yield made
    made.rmdir()


_IN_GROUP = """
import os, sys, time
from pathlib import Path
from tunefarm.measure.cpu_quota import read_quota
from tunefarm.measure.worker.slice_clock import QuotaShare
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
quota = read_quota()
assert quota is not None and quota.cpus == 0.05, quota
share = QuotaShare(quota, 1)

def work(calls):
    begin, cpu = time.perf_counter(), time.thread_time()
    while time.thread_time() - cpu < 0.001 * calls:
        pass
    return time.perf_counter() - begin

for _ in range(40):
    share.seconds(work, 1)
print(share.repeated)
"""


def test_a_real_quota_is_found_and_its_stops_are_recognised(group: Path) -> None:
    arguments = [sys.executable, "-c", _IN_GROUP, str(group)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1  # 40 ms of work in shares of 5 ms
