"""May some cores build while others time? Asked once when a runner starts, by trying it.

An A/A check: the same two pieces of work, arithmetic in registers and a copy within the caches, are
timed on a measuring slot's cores with the other cores idle and with all of them compiling, in
turn. Where the load moves one of the medians by more than `LIMIT`, building and timing take turns.
Cores that share a cache, a memory bus or an execution unit fail this, and no flag tells which do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from compiler.target import host_target
from measure.compare import Comparison, compare_paired
from measure.farm.slots import SlotPlan
from measure.machine import on_cores
from measure.sandbox.python_path import python_path
from measure.worker.yardstick import Yardstick

LIMIT = 0.05  # as much scatter makes a single measurement unstable
_ROUNDS = 9
_SAMPLE_SECONDS = 0.008
_SETTLE_SECONDS = 0.003
_COPIED_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Overlap:
    """How much longer work takes beside builds: ratios of paired medians."""

    arithmetic: Comparison
    caches: Comparison

    @property
    def is_clean(self) -> bool:
        return max(self.arithmetic.ratio, self.caches.ratio) <= 1.0 + LIMIT

    def __str__(self) -> str:
        verdict = "building goes on beside timing" if self.is_clean else "they take turns"
        return (
            f"beside builds, arithmetic takes {self.arithmetic.ratio - 1:+.1%} and copying"
            f" {self.caches.ratio - 1:+.1%} longer: {verdict}"
        )


def measure_overlap(timed: Sequence[int], loaded: Sequence[int]) -> Overlap:
    """Measure on the cores `timed` beside a load on each of the cores `loaded`."""
    with ExitStack() as stack:
        loads = [_start_load(core, stack) for core in loaded]
        stack.enter_context(on_cores(timed))
        yardstick = Yardstick(host_target())
        source = np.zeros(_COPIED_BYTES, np.uint8)
        copy = np.empty_like(source)
        probes: list[Callable[[], object]] = [yardstick.seconds, lambda: np.copyto(copy, source)]
        times: dict[tuple[int, bool], list[float]] = {}
        for number in range(_ROUNDS):
            for busy in (False, True) if number % 2 else (True, False):
                for load in loads:
                    load.send_signal(signal.SIGCONT if busy else signal.SIGSTOP)
                time.sleep(_SETTLE_SECONDS)
                for i, probe in enumerate(probes):
                    times.setdefault((i, busy), []).append(_sample(probe))
    return Overlap(*(compare_paired(times[i, True], times[i, False]) for i in range(2)))


def settle_overlap(
    plan: SlotPlan, overlap: str, tell: Callable[[str], None] | None = None
) -> SlotPlan:
    """The plan, or one that takes turns if `overlap` is "never", or "auto" and a try says so."""
    if overlap == "always" or plan.alternates:
        return plan
    if overlap == "auto":
        found = measure_overlap(plan.slots[0], plan.spare)
        if tell is not None:
            tell(str(found))
        if found.is_clean:
            return plan
    return take_turns(plan)


def take_turns(plan: SlotPlan) -> SlotPlan:
    """The plan with builders on all of its cores: building and timing alternate."""
    cores = {*plan.build_cores, *(core for slot in plan.slots for core in slot)}
    return SlotPlan(tuple(sorted(cores)), plan.slots, alternates=True)


def _sample(work: Callable[[], object]) -> float:
    """Seconds per call of `work`, over at least `_SAMPLE_SECONDS`."""
    calls = 0
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < _SAMPLE_SECONDS:
        work()
        calls += 1
    return spent / calls


def _start_load(core: int, stack: ExitStack) -> subprocess.Popen[bytes]:
    """A stopped process that compiles on `core` when it is continued; it ends with the stack."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "measure.farm.build_load", str(os.getpid()), str(core)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path()},
        start_new_session=True,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    assert process.stdout is not None
    process.stdout.readline()  # it compiles from now on
    return process
