"""How earlier versions measured: each schedule alone, in seconds. Kept to be compared with pairs.

Seven samples of 10 ms, their median; given up by a sequential test against the seconds of the best
so far; "unstable", and lost, when the samples' relative MAD exceeds 5 %. A yardstick beside each
measurement said how fast the core was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from tunefarm.measure.farm.replay_runner import PREPARE_SECONDS, Clock, SimulatedCore
from tunefarm.measure.worker.stability import relative_mad

SAMPLES = 7
MIN_SAMPLES = 2
SAMPLE_SECONDS = 0.010
MIN_CALLS = 3
MAX_SECONDS = 0.250
WARMUP_SECONDS = 0.003
UNSTABLE_MAD = 0.05
_YARDSTICK_SECONDS = 2e-4
_YARDSTICK_RUNS = 3  # the fastest counts

SLOWER = 0.10
SIGMA = 0.05
ERROR = 0.01
_DELTA = math.log1p(SLOWER)
_LIMIT = math.log(1.0 / ERROR)


@dataclass(frozen=True, slots=True)
class Absolute:
    """What a measurement of one schedule alone came to."""

    samples: tuple[float, ...]
    yardstick: float  # how many times as slow as a still core, just before
    censored: bool = False

    @property
    def unstable(self) -> bool:
        """Whether it is lost, because its samples scatter."""
        return relative_mad(self.samples) > UNSTABLE_MAD

    @property
    def median(self) -> float:
        """Seconds per call."""
        return median(self.samples)


class AbsoluteMachine:
    """Measures one schedule after the other on a simulated core."""

    def __init__(self, clock: Clock) -> None:
        self._core = SimulatedCore(clock)

    def measure(self, seconds: float, incumbent: float) -> Absolute:
        """Measure a schedule that takes so many seconds on a still core.

        `incumbent`: the best measured so far, infinity before there is one.
        """
        self._core.now += PREPARE_SECONDS
        run = partial(self._core.run, seconds)
        estimate = run(1)
        yardstick = min(self._core.run(_YARDSTICK_SECONDS, 1) for _ in range(_YARDSTICK_RUNS))
        samples, censored = time_alone(run, estimate, incumbent)
        return Absolute(samples, yardstick / _YARDSTICK_SECONDS, censored)


def time_alone(
    run: Callable[[int], float], estimate: float, incumbent: float
) -> tuple[tuple[float, ...], bool]:
    """The samples of a kernel, seconds per call, and whether it was given up early."""
    if estimate < SAMPLE_SECONDS:
        estimate = _warm_up(run)
    count, calls = plan_samples(estimate)
    samples: list[float] = []
    sum = 0.0
    for _ in range(count):
        samples.append(run(calls) / calls)
        x = math.log(samples[-1] / incumbent) if math.isfinite(incumbent) else 0.0
        step = _DELTA / SIGMA**2 * (x - _DELTA / 2.0)
        sum += max(-_LIMIT / 2.0, min(_LIMIT / 2.0, step))
        if sum >= _LIMIT and len(samples) < count:
            return tuple(samples), True
    return tuple(samples), False


def plan_samples(call_seconds: float) -> tuple[int, int]:
    """How many samples a kernel gets that takes so long per call, and the calls of each."""
    needed = max(1, math.ceil(SAMPLE_SECONDS / call_seconds))
    affordable = int(MAX_SECONDS / (SAMPLES * call_seconds))
    calls = max(needed, min(MIN_CALLS, affordable))
    if call_seconds > MAX_SECONDS:
        return 1, 1
    samples = min(SAMPLES, int(MAX_SECONDS / (calls * call_seconds)))
    return max(MIN_SAMPLES, samples), calls


def _warm_up(run: Callable[[int], float]) -> float:
    total, calls = 0.0, 1
    while True:
        seconds = run(calls)
        total += seconds
        if total >= WARMUP_SECONDS:
            return seconds / calls
        calls *= 2
