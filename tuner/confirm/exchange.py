"""Exchange: which schedule of each kernel is faster inside the running model.

A kernel that wins alone may lose in its model: there its inputs are as its producer leaves them in
the caches, its weights as cold as the rest of the model makes them. So builds of one model exchange
kernels while it runs. In each placement programs are drawn that take every kernel from one build or
another, each kernel from each build once:

    program 1   conv1: tuned      pool: default    conv2: tuned
    program 2   conv1: default    pool: tuned      conv2: default

They run interleaved with a clock between their steps, and each kernel is compared with itself. What
its neighbours are is drawn anew in the next placement, so that they favour nobody.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.runtime.execution.exchangeable import ExchangeableBuilds
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.execution.profile import Clocked, without_waits
from tunefarm.compiler.runtime.machine.slice_clock import SliceClock
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.measure.compare import Comparison
from tunefarm.tuner.confirm.latency import (
    Agree,
    LatencyOptions,
    agreeing,
    calls_per_sample,
    pinned,
    placed_programs,
)
from tunefarm.tuner.confirm.verdict import Meeting, compare, standing

BUILD_NAMES = ("default", "tuned", "former")
DEFAULT, TUNED, FORMER = range(len(BUILD_NAMES))
"""The numbers of the builds: the default schedules, what the finalists settled, and what was
applied before the job, if that is another build. A kernel whose code several of them have is the
first one's."""
LEAST_PLACEMENTS = 3  # before anything is clear
MOST_PLACEMENTS = 12
PATIENCE = 2.0
ROUNDS = 8  # of all programs at a placement
SAMPLE_SECONDS = 0.0025  # of a program in a round, one run at least

Takes: TypeAlias = Mapping[str, int]
"""The build that each kernel is taken from, by workload key."""
Measure: TypeAlias = Callable[[Sequence[Takes], int], Sequence[Mapping[str, Sequence[float]]]]
"""Runs programs at a placement, which has a number: for each the seconds of its kernels per run,
the i-th ones taken side by side."""


@dataclass(frozen=True, slots=True)
class InModel:
    """How the schedules of a kernel compare in the running model: the build that has the `fastest`
    one, and the time of each over the default one's, by build."""

    fastest: int
    over_default: Mapping[int, Comparison]

    @property
    def compared(self) -> Comparison:
        """Time of the fastest over the default one's."""
        return self.over_default[self.fastest]

    @property
    def surely(self) -> InModel:
        """The same where nothing but what is faster beyond doubt is taken."""
        return self if self.compared.high < 1.0 else replace(self, fastest=DEFAULT)


def exchange_kernels(
    builds: Sequence[ExecutableSpec], seconds: float, agree: Agree
) -> dict[str, InModel]:
    """Compare the schedules of each kernel of which the builds (`DEFAULT`, `TUNED`, ...) have
    several, in runs of the model for about so many seconds, or up to `PATIENCE` times as long for
    the fewest placements; nothing where that does not suffice.

    Raises VerifyError for builds that exchange nothing, MeasureError when outputs do not `agree`.
    """
    if seconds <= 0.0:
        return {}
    exchangeable = ExchangeableBuilds(builds)
    found = {key: exchangeable.alternatives(key) for key in exchangeable.kernels}
    choices = {key: numbers for key, numbers in found.items() if len(numbers) > 1}
    begin = time.monotonic()  # compiling the entries included

    def is_late(placements: int) -> bool:
        spent = time.monotonic() - begin
        if placements < LEAST_PLACEMENTS:
            return spent > PATIENCE * seconds
        return spent + spent / placements / 2.0 > seconds

    with pinned(builds[0].threads):
        placement = partial(_samples, exchangeable, agree)
        return verdicts(meet(choices, placement, is_late))


def meet(
    choices: Mapping[str, Sequence[int]], measure: Measure, is_late: Callable[[int], bool]
) -> dict[str, list[Meeting]]:
    """What each kernel took with the code of each build that it has the choice of, placement by
    placement, until all are clear or it `is_late` after so many placements.

    A kernel of which one is clearly the fastest is taken from that one in all later programs.
    """
    meetings: dict[str, list[Meeting]] = {key: [] for key in choices}
    clear: dict[str, int] = {}
    for number in range(MOST_PLACEMENTS):
        still = [key for key in choices if key not in clear]
        if not still or (number and is_late(number)):
            break
        takes = _drawn({key: choices[key] for key in still}, clear, number)
        samples = measure(takes, number)
        for key in still:
            meeting: dict[int, Sequence[float]] = {}
            for taken, times in zip(takes, samples, strict=True):
                meeting.setdefault(taken[key], times[key])
            meetings[key].append(meeting)
            if number + 1 >= LEAST_PLACEMENTS and _is_clear(meetings[key]):
                clear[key] = _fastest(meetings[key])
    return meetings


def verdicts(meetings: Mapping[str, Sequence[Meeting]]) -> dict[str, InModel]:
    """The fastest of each kernel; none of one that met at fewer than `LEAST_PLACEMENTS`."""
    return {
        key: InModel(_fastest(own), {n: compare(own, n, DEFAULT) for n in sorted(own[0])})
        for key, own in meetings.items()
        if len(own) >= LEAST_PLACEMENTS
    }


def _drawn(choices: Mapping[str, Sequence[int]], clear: Takes, number: int) -> list[dict[str, int]]:
    """Programs that take each kernel from each build that it has the choice of."""
    rng = random.Random(number)
    first = {key: rng.randrange(len(numbers)) for key, numbers in choices.items()}
    return [
        {**clear, **{k: own[(first[k] + program) % len(own)] for k, own in choices.items()}}
        for program in range(max(map(len, choices.values())))
    ]


def _fastest(meetings: Sequence[Meeting]) -> int:
    """Who takes the least time; of equals the default schedule."""

    def mean(number: int) -> float:
        found = None if number == DEFAULT else standing(meetings, number, DEFAULT)
        return 0.0 if found is None else found.mean

    return min(sorted(meetings[0]), key=mean)


def _is_clear(meetings: Sequence[Meeting]) -> bool:
    """Whether one is faster than each other one beyond doubt."""
    fastest = _fastest(meetings)
    others = [number for number in meetings[0] if number != fastest]
    return all(compare(meetings, fastest, other).a_is_faster() for other in others)


def _samples(
    exchangeable: ExchangeableBuilds, agree: Agree, takes: Sequence[Takes], number: int
) -> list[dict[str, list[float]]]:
    """Seconds that each kernel takes in a run of each program, all its calls together."""
    clocks: list[Clocked] = []

    def clocked(model: Executable) -> Executable:
        clocks.append(exchangeable.clocked(model))
        return clocks[-1].executable

    models = [Executable(exchangeable.taking(each).of_tensors()) for each in takes]
    programs = agreeing(placed_programs(models, entered=clocked), agree)
    options = LatencyOptions(min_sample_seconds=SAMPLE_SECONDS)
    calls = [calls_per_sample(program, options) for program in programs]
    rng = random.Random(number)
    rounds: list[list[npt.NDArray[np.float64]]] = [[] for _ in programs]
    waits: list[list[float]] = [[] for _ in programs]
    with closing(SliceClock(waits=models[0].threads == 1)) as slices:
        for _ in range(ROUNDS):
            for place in rng.sample(range(len(programs)), len(programs)):
                clock, count = clocks[place], calls[place]
                clock.ticks[:] = 0
                begin, began = clock.now(), time.perf_counter()
                slices.start()
                for _ in range(count):
                    programs[place]()
                waits[place].append(slices.waited() / count)
                tick = (time.perf_counter() - began) / max(1, clock.now() - begin)
                rounds[place].append(np.maximum(1, clock.ticks) * tick / count)
    steps = exchangeable.steps_of_kernels
    seconds = [without_waits(np.array(r), w) for r, w in zip(rounds, waits, strict=True)]
    return [
        {key: found[:, own].sum(axis=1).tolist() for key, own in steps.items()} for found in seconds
    ]
