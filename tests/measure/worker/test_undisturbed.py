"""Slices that a CPU quota has stopped are timed again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.measure.fake_machine import add_group2
from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.runtime.machine.slice_clock import SliceClock
from tunefarm.measure.cpus import CpuQuota
from tunefarm.measure.worker.timer import UndisturbedSlices


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

    def share(self, threads: int | None) -> UndisturbedSlices:
        quota = CpuQuota(0.5, self._folder, (self._folder / "cpu.stat",))
        return UndisturbedSlices(quota, threads)

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
    share = UndisturbedSlices(None, 1)
    assert share.seconds(lambda calls: 2.0 * calls, 3) == 6.0
    assert share.stopped == 0


def test_a_slice_that_was_stopped_is_taken_again(folder: Path) -> None:
    machine = Machine(folder / "job", stops=(1,))
    share = machine.share(1)
    assert share.seconds(machine.run, 4) == pytest.approx(0.004)
    assert share.seconds(machine.run, 4) == pytest.approx(0.004)
    assert (machine.slices, share.stopped) == ([4, 4, 4], 1)


def test_a_slice_with_page_faults_is_taken_again_unless_all_have_them() -> None:
    clock = SliceClock(waits=False)
    taken = iter([(3.0, 2), (4.0, 0), (8.0, 1), (7.0, 1), (6.0, 3), (7.5, 1), (9.5, 1), (9.0, 1)])

    def run(_: int) -> float:
        seconds, clock.faults = next(taken)
        return seconds

    slices = UndisturbedSlices(None, 1, clock)
    assert slices.seconds(run, 1) == 4.0
    assert slices.faulted == 1
    assert slices.seconds(run, 1) == 6.0
    assert slices.faulted == 7


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
from tunefarm.measure.cpus import read_quota
from tunefarm.measure.worker.timer import UndisturbedSlices
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
quota = read_quota()
assert quota is not None and quota.cpus == 0.05, quota
share = UndisturbedSlices(quota, 1)

def work(calls):
    begin, cpu = time.perf_counter(), time.thread_time()
    while time.thread_time() - cpu < 0.001 * calls:
        pass
    return time.perf_counter() - begin

for _ in range(40):
    share.seconds(work, 1)
print(share.stopped)
"""


def test_a_real_quota_is_found_and_its_stops_are_recognised(group: Path) -> None:
    arguments = [sys.executable, "-c", _IN_GROUP, str(group)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1  # 40 ms of work in shares of 5 ms
