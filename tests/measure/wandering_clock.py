"""Simulated cores whose speed wanders as on shared hosts; seeded, and the same to the bit.

Four kinds: two recordings of real ones ("quiet", "building": tests/data/clock_traces.npz), a
random walk of the speed ("walk"), and one that changes suddenly and stays ("steps"). All have
interrupted slices besides. And "still": a core that is always the same.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.measure.clock_traces import KINDS, trace

SLICE = 0.0025
"""Seconds of work that a factor lasts for."""
MADE_UP = ("walk", "steps")
NOISY = (*KINDS, *MADE_UP)
STILL = "still"

_COUNT = 1 << 16  # slices of a made-up clock: almost three minutes, then it goes round
_JITTER = 0.02  # log-scatter from one slice to the next, as recorded
_INTERRUPTED = 0.05  # share of the slices
_NORMAL_95 = 1.645


@dataclass(frozen=True, slots=True)
class WanderingClock:
    """`done[k]`: when the work of the first k slices is done, seconds; after the last, again."""

    done: tuple[float, ...]

    @staticmethod
    def of(factors: npt.NDArray[np.float64]) -> WanderingClock:
        """A core on which the k-th slice of work takes `factors[k]` times as long as it should."""
        return WanderingClock((0.0, *np.cumsum(SLICE * factors).tolist()))

    @property
    def period(self) -> float:
        """Seconds until it repeats."""
        return self.done[-1]

    def after(self, start: float, work: float) -> float:
        """When work is done that takes `work` seconds on a still core and begins at `start`."""
        rounds, inside = divmod(start, self.period)
        index = bisect_right(self.done, inside) - 1
        begin, end = self.done[index], self.done[index + 1]
        position = index + (inside - begin) / (end - begin) + work / SLICE
        more, position = divmod(position, len(self.done) - 1)
        index = int(position)
        begin, end = self.done[index], self.done[index + 1]
        return (rounds + more) * self.period + begin + (position - index) * (end - begin)


def make_clock(kind: str, seed: int) -> WanderingClock:
    """The clock of this kind, one of NOISY or "still", that a seed draws."""
    rng = np.random.default_rng([seed, len(kind)])
    if kind == STILL:
        return WanderingClock.of(np.ones(2))
    if kind == "walk":
        return WanderingClock.of(np.exp(_walk(rng)) * _slices(rng))
    if kind == "steps":
        return WanderingClock.of(np.exp(_steps(rng)) * _slices(rng))
    logs = trace(kind).logs
    column = logs[:, rng.integers(logs.shape[1])]
    return WanderingClock.of(np.exp(np.roll(column, -rng.integers(len(column)))))


def _walk(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """An Ornstein-Uhlenbeck walk of the log, 5 to 95 % at 0.75 and 1.35.

    It forgets half within a time drawn from 0.2 to 5 s, logarithmically.
    """
    memory = np.exp(rng.uniform(np.log(0.2), np.log(5.0)))
    low, high = np.log(0.75), np.log(1.35)
    kept = 0.5 ** (SLICE / memory)
    pushes = rng.normal(size=_COUNT) * np.sqrt(1.0 - kept**2)
    state, values = float(rng.normal()), np.empty(_COUNT)
    for index, push in enumerate(pushes):
        values[index] = state = kept * state + push
    walk: npt.NDArray[np.float64] = (low + high) / 2.0 + values * (high - low) / (2.0 * _NORMAL_95)
    return walk


def _steps(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Levels of the log, held for 0.5 s and some more; each 10 to 40 % from the last."""
    levels = np.empty(_COUNT)
    begin, level = 0, 0.0
    while begin < _COUNT:
        end = begin + int((0.5 + rng.exponential(2.0)) / SLICE)
        levels[begin:end] = level
        change = np.log1p(rng.uniform(0.1, 0.4))
        # Back to the usual speed where it has strayed from it, so that it does not drift away.
        level += -np.sign(level) * change if abs(level) > 0.2 else change * rng.choice((-1.0, 1.0))
        begin = end
    return levels


def _slices(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """What is a slice's own: a little scatter, and now and then an interruption."""
    factors = np.exp(rng.normal(0.0, _JITTER, _COUNT))
    interrupted = rng.random(_COUNT) < _INTERRUPTED
    factors[interrupted] *= 1.1 + rng.exponential(0.6, int(interrupted.sum()))
    return factors
