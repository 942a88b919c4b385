"""What a shared virtual core does to slices of 2.5 ms: two recordings of 150 s.

`tests/data/clock_traces.npz` has, of a quiet machine and of one that builds on its other core,
`…_slices`: rows of three neighbouring slices (a 3x3 convolution, a 1x1 convolution, a copy of 16
MiB), each as thousandths of the logarithm of its time over its median; and `…_steps`: hundredths
of a millisecond from row to row. 95 % of the slices are below 1.5 medians, 99 % below 2.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

FILE = Path(__file__).resolve().parents[1] / "data" / "clock_traces.npz"
KINDS = ("quiet", "building")


@dataclass(frozen=True, slots=True)
class ClockTrace:
    """Rows of three neighbouring slices [n, 3], log of time over median, and when [n], seconds."""

    logs: npt.NDArray[np.float64]
    seconds: npt.NDArray[np.float64]


@cache
def trace(kind: str) -> ClockTrace:
    """The recording of this kind of machine, one of KINDS."""
    with np.load(FILE, allow_pickle=False) as file:
        logs = file[f"{kind}_slices"].astype(np.float64) / 1000.0
        return ClockTrace(logs, np.cumsum(file[f"{kind}_steps"].astype(np.float64)) / 1e5)


def against_itself(
    kind: str, pairs: int, count: int, seed: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """`count` draws of a kernel timed against itself: the slices of both sides [count, pairs].

    A pair is two neighbouring rows of one column, in an order that is drawn.
    """
    rng = np.random.default_rng(seed)
    logs = trace(kind).logs
    starts = rng.integers(0, len(logs) - 2 * pairs, count)
    columns = rng.integers(0, logs.shape[1], count)
    rows = starts[:, None] + np.arange(2 * pairs)
    slices = np.exp(logs[rows, columns[:, None]]).reshape(count, pairs, 2)
    turned = rng.random((count, pairs)) < 0.5
    first, second = slices[..., 0], slices[..., 1]
    return np.where(turned, second, first), np.where(turned, first, second)
