"""How much of a difference a machine lets one see: a fixed kernel measured against itself.

It is measured as candidates are, by the same runner, in pairs of slices: so the true ratio is 1,
and a deviation from 1 is the machine's. How far the ratios scatter says how many pairs a
difference needs to show, whatever the core's own speed does meanwhile.

A machine is quiet if what a search asks of it shows within the pairs that a candidate gets: 2 %,
the smallest gain that is worth a change. It is too busy if not even 5 % do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from time import monotonic
from typing import Any

import numpy as np

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.expr.nodes import binary
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.measure.compare import pair_of
from tunefarm.measure.farm.runner import Runner
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.worker.timer import MORE_ROUNDS, TimingOptions

# A kernel that is always the same: what loads a core, and what a machine is tried with.


def fixed_kernel() -> FusedKernel:
    """y[m, n] = sum over k of a[m, k] * b[k, n]."""
    builder = KernelBuilder()
    a = builder.input(TensorType(DType.F32, (96, 256)))
    b = builder.input(TensorType(DType.F32, (256, 128)), constant=True)
    builder.stage(
        "matmul",
        [("m", 96), ("n", 128)],
        lambda m, n, k: binary("mul", a[m, k], b[k, n]),
        reduce=[("k", 256)],
        combiner="sum",
    )
    return builder.kernel("matmul", "matmul")


FEWEST = 8
"""Measurements that are judged; of fewer their scatter is not known."""
FINE, COARSE = 0.02, 0.05
"""Differences: of a gain that is worth a change, and of one that any search must see."""
_SURE = 1.96  # standard deviations of a 95 % interval
_ONE_SIGMA = 0.683  # share of normal values within a standard deviation
_NO_ANSWER = 120.0  # seconds without a result: the runner's own limits come first


class Verdict(StrEnum):
    """What can be seen on the machine."""

    QUIET = "quiet"
    NOISY = "noisy"
    BUSY = "too busy"


@dataclass(frozen=True, slots=True)
class Noise:
    """What the measurements of a kernel against itself came to.

    `scatter` is the standard deviation of the log-ratio of one pair of slices, from how far the
    ratios of whole measurements deviate from 1. `interval` is half the width of their 95 %
    intervals, `covered` the share of these that hold 1. `wander`: the core's own speed, from its 5
    % to its 95 % quantile, over its median. `steal` and `queued` are the shares of the timed
    seconds that a hypervisor took, and that other processes had the core for. `pairs` are those of
    a measurement (median), of `most` at most, and `pair_seconds` what one takes.
    """

    measurements: int
    scatter: float
    interval: float
    covered: float
    wander: float
    steal: float
    queued: float
    pairs: int
    most: int
    pair_seconds: float

    def pairs_for(self, difference: float) -> int:
        """Pairs after which a difference (0.01: 1 %) shows with 95 % confidence."""
        return max(1, math.ceil((_SURE * self.scatter / math.log1p(difference)) ** 2))

    @property
    def verdict(self) -> Verdict:
        """Whether differences of 2 %, of 5 %, or not even those show."""
        if self.pairs_for(FINE) <= self.most:
            return Verdict.QUIET
        return Verdict.NOISY if self.pairs_for(COARSE) <= self.most else Verdict.BUSY

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {
            "verdict": self.verdict.value,
            "measurements": self.measurements,
            "scatter_of_a_pair": self.scatter,
            "interval": self.interval,
            "covered": self.covered,
            "wander": self.wander,
            "steal": self.steal,
            "queued": self.queued,
            "pairs_for_1_percent": self.pairs_for(0.01),
            "pairs_for_2_percent": self.pairs_for(FINE),
            "pairs_for_5_percent": self.pairs_for(COARSE),
            "pair_seconds": self.pair_seconds,
        }


def measure_itself(
    runner: Runner,
    target: Target,
    threads: int,
    options: Mapping[str, float | int],
    seconds: float,
) -> list[MeasureResult]:
    """Measure the fixed kernel against itself, one after the other, for so many seconds; at least
    once. Raises MeasureError where the runner does, or does not answer."""
    kernel = fixed_kernel()
    schedule = default_schedule(kernel, target, threads).to_json()
    value, key = kernel_to_json(kernel), workload_key(kernel)
    results: list[MeasureResult] = []
    end = monotonic() + seconds
    while not results or monotonic() < end:
        number = len(results)
        runner.submit(
            MeasureRequest(
                f"itself-{number}", value, key, schedule, threads, options, (schedule,), number
            )
        )
        found = runner.results(_NO_ANSWER)
        if not found:
            raise MeasureError(f"the runner has not answered within {_NO_ANSWER:g} s")
        results += found
        if found[0].status is Status.INFRASTRUCTURE:
            break
    return results


def noise_of(results: Sequence[MeasureResult], options: Mapping[str, float | int]) -> Noise | None:
    """What measurements of a kernel against itself say; None of fewer than FEWEST."""
    measured = [(result, pair) for result in results if (pair := pair_of(result)) is not None]
    if len(measured) < FEWEST:
        return None
    timing = TimingOptions.of(options)
    pairs = [pair for _, pair in measured]
    beside = np.array([abs(pair.mean) * math.sqrt(pair.pairs) for pair in pairs])
    speeds = np.array([median(result.samples) for result, _ in measured])
    low, high = np.quantile(speeds, (0.05, 0.95))
    seconds = sum(result.run_seconds for result, _ in measured) or math.inf
    shares = {
        name: sum(float(result.machine.get(name, 0.0)) for result, _ in measured) / seconds
        for name in ("steal_seconds", "queued_seconds")
    }
    count = median(pair.pairs for pair in pairs)
    return Noise(
        measurements=len(measured),
        scatter=float(np.quantile(beside, _ONE_SIGMA)),
        interval=_SURE * median(pair.deviation for pair in pairs),
        covered=sum(pair.low <= 1.0 <= pair.high for pair in pairs) / len(pairs),
        wander=float((high - low) / np.median(speeds)),
        steal=min(1.0, max(0.0, shares["steal_seconds"])),
        queued=min(1.0, max(0.0, shares["queued_seconds"])),
        pairs=round(count),
        most=MORE_ROUNDS * timing.samples,
        pair_seconds=2.0 * timing.min_sample_seconds,
    )
