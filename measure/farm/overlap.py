"""May some cores build while others time? Asked once when a runner starts, by trying it.

Two different pieces of work, arithmetic in registers and a copy within the caches, alternate in
short slices on a measuring slot's cores, with the other cores idle and with all of them compiling.
A load that slows both down alike does not matter: a measurement is a ratio of neighbouring slices.
But where it moves the ratio of the two by more than `LIMIT` beyond doubt, it moves those of
schedules that compute or copy more than others as well, and building and timing alternate. Cores
that share a cache, a memory bus or an execution unit do so, and no flag tells which do.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from tunefarm.compiler.runtime.machine.slice_clock import SliceClock
from tunefarm.compiler.target import host_target
from tunefarm.measure.compare import LogRatio, log_ratio
from tunefarm.measure.core_locks import CoreLocks
from tunefarm.measure.farm.slots import SlotPlan
from tunefarm.measure.machine import on_cores
from tunefarm.measure.sandbox.by_name import module_command
from tunefarm.measure.worker.timer import Yardstick

LIMIT = 0.05
"""The most by which a load may move a ratio of different work; differences in kind of schedules of
one kernel are a fraction of that between these two."""
_ROUNDS = 9
_PAIRS = 3  # of slices in a round, with and without load
_SLICE_SECONDS = 0.0025
_SETTLE_SECONDS = 0.003
_COPIED_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Overlap:
    """What builds on the other cores do to timed work.

    `arithmetic`: its time during builds over its time without. `copying`: the same of the ratio of
    copying to arithmetic.
    """

    arithmetic: LogRatio
    copying: LogRatio

    @property
    def is_clean(self) -> bool:
        """No ratio of different work is moved by more than `LIMIT` beyond doubt."""
        return abs(self.copying.mean) - 1.96 * self.copying.deviation <= math.log1p(LIMIT)

    def __str__(self) -> str:
        verdict = "building goes on during timing" if self.is_clean else "the two alternate"
        return (
            f"during builds, arithmetic takes {self.arithmetic.ratio:.2f} of its time alone, and "
            f"copying {self.copying.ratio:.2f} times that: {verdict}"
        )


def measure_overlap(
    timed: Sequence[int], loaded: Sequence[int], notify: Callable[[str], None] | None = None
) -> Overlap:
    """Measure on the cores `timed` next to a load on each of the cores `loaded`, as soon as nobody
    else uses any of them; `tell` is called with a sentence on whom it waits for."""
    with ExitStack() as stack:
        locks = CoreLocks(f"overlap-{uuid.uuid4().hex}", notify=notify)
        stack.enter_context(locks.held((*timed, *loaded)))
        loads = [_start_load(core, stack) for core in loaded]
        stack.enter_context(on_cores(timed))
        yardstick = Yardstick(host_target())
        source = np.zeros(_COPIED_BYTES, np.uint8)
        copy = np.empty_like(source)
        probes: list[Callable[[], object]] = [yardstick.seconds, lambda: np.copyto(copy, source)]
        clock = SliceClock()
        stack.callback(clock.close)
        times: dict[tuple[int, bool], list[float]] = {}
        for number in range(_ROUNDS):
            for busy in (False, True) if number % 2 else (True, False):
                for load in loads:
                    load.send_signal(signal.SIGCONT if busy else signal.SIGSTOP)
                time.sleep(_SETTLE_SECONDS)
                for pair in range(_PAIRS):
                    for i in (0, 1) if pair % 2 else (1, 0):
                        times.setdefault((i, busy), []).append(_slice(probes[i], clock))
    beside, alone = (log_ratio(times[1, busy], times[0, busy]) for busy in (True, False))
    shift = math.hypot(beside.deviation, alone.deviation)
    return Overlap(
        log_ratio(times[0, True], times[0, False]),
        LogRatio(beside.mean - alone.mean, shift, beside.pairs),
    )


def resolve_overlap(
    plan: SlotPlan, overlap: str, notify: Callable[[str], None] | None = None
) -> SlotPlan:
    """The plan, or one that alternates if `overlap` is "never", or "auto" and a try says so."""
    if overlap == "always" or plan.alternates:
        return plan
    if overlap == "auto":
        found = measure_overlap(plan.slots[0], plan.spare, notify)
        if notify is not None:
            notify(str(found))
        if found.is_clean:
            return plan
    return take_turns(plan)


def take_turns(plan: SlotPlan) -> SlotPlan:
    """The plan with builders on all of its cores: building and timing alternate."""
    cores = {*plan.build_cores, *(core for slot in plan.slots for core in slot)}
    return SlotPlan(tuple(sorted(cores)), plan.slots, alternates=True)


def _slice(work: Callable[[], object], clock: SliceClock) -> float:
    """Seconds per call of `work`, over about `_SLICE_SECONDS`."""
    calls = 0
    end = time.perf_counter() + _SLICE_SECONDS
    clock.start()
    while not calls or time.perf_counter() < end:
        work()
        calls += 1
    return clock.seconds() / calls


def _start_load(core: int, stack: ExitStack) -> subprocess.Popen[bytes]:
    """A stopped process that compiles on `core` when it is continued; it ends with the stack."""
    process = subprocess.Popen(
        module_command("tunefarm.measure.farm.build_load", str(os.getpid()), str(core)),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    assert process.stdout is not None
    process.stdout.readline()  # it compiles from now on
    return process
