"""The timing loop: warm up, calibrate, take raw samples.

The kernel is called through `tunefarm_repeat` (compiler.llvm.repeat), so a sample is one call into
machine code however short the kernel is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

from compiler.errors import MeasureError
from measure.worker.early_stop import SequentialTest
from measure.worker.stability import UNSTABLE_MAD
from measure.worker.watch import NoWatch, Watch

RETAKES = 2  # of a disturbed sample


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """How a candidate is timed; the keys of `MeasureRequest.options`.

    A sample lasts at least `min_sample_seconds` and has at least `min_calls` calls. `max_seconds`
    bounds what all samples together may take: a slow kernel first loses the extra calls, then
    samples, down to `min_samples`. Caches: calls take turns with copies of the constants
    (`cold_constants`), or all caches are flushed before each call (`flush_cache`), or stay warm.
    """

    samples: int = 7
    min_samples: int = 2
    min_sample_seconds: float = 0.010
    min_calls: int = 3
    max_seconds: float = 0.250
    warmup_seconds: float = 0.003
    build_timeout: float = 60.0  # seconds for building, and for the reference of a new kernel
    run_timeout: float = 20.0  # seconds for checking and timing
    unstable_limit: float = UNSTABLE_MAD  # relative MAD above which the status is UNSTABLE
    incumbent_seconds: float = 0.0  # above 0: give a kernel up that is clearly slower than this
    fresh_process: int = 0  # 1: run in a process that has run nothing before
    cold_constants: int = 1  # 1: calls take turns with copies of the constants
    flush_cache: int = 0  # 1: every call finds the caches empty of what it reads

    @staticmethod
    def of(options: Mapping[str, float | int]) -> TimingOptions:
        """Options from a mapping; raises MeasureError on an unknown name or a senseless value."""
        known = {field.name: field.type for field in fields(TimingOptions)}
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise MeasureError(
                f"unknown timing option {', '.join(unknown)}", hint=f"known: {', '.join(known)}"
            )
        result = TimingOptions(
            **{
                name: int(value) if known[name] == "int" else float(value)
                for name, value in options.items()
            }  # type: ignore[arg-type]
        )
        result._verify()
        return result

    def _verify(self) -> None:
        if not 1 <= self.min_samples <= self.samples:
            raise MeasureError(f"min_samples {self.min_samples} is not in 1..{self.samples}")
        if self.min_calls < 1:
            raise MeasureError(f"min_calls must be at least 1, not {self.min_calls}")
        for name in ("min_sample_seconds", "max_seconds", "build_timeout", "run_timeout"):
            if not getattr(self, name) > 0:
                raise MeasureError(f"{name} must be positive, not {getattr(self, name)}")
        if not 0.0 <= self.incumbent_seconds < math.inf:
            raise MeasureError(f"incumbent_seconds must be 0 or more, not {self.incumbent_seconds}")


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """How many samples to take, and how many calls each has."""

    samples: int
    calls: int


def plan_samples(call_seconds: float, options: TimingOptions) -> SamplePlan:
    """The plan for a kernel that takes about `call_seconds` per call."""
    needed = max(1, math.ceil(options.min_sample_seconds / max(call_seconds, 1e-9)))
    affordable = int(options.max_seconds / (options.samples * max(call_seconds, 1e-9)))
    calls = max(needed, min(options.min_calls, affordable))
    sample_seconds = calls * call_seconds
    samples = options.samples
    if samples * sample_seconds > options.max_seconds:
        samples = int(options.max_seconds / sample_seconds)
    if call_seconds > options.max_seconds:
        return SamplePlan(1, 1)
    return SamplePlan(min(options.samples, max(options.min_samples, samples)), calls)


@dataclass(frozen=True, slots=True)
class Timing:
    """Raw samples in seconds per call, in the order taken, and how the taking went."""

    samples: tuple[float, ...]
    calls: int  # per sample
    retaken: int = 0  # disturbed samples that were thrown away
    tainted: int = 0  # samples that are kept although every attempt was disturbed
    censored: bool = False  # given up early: clearly slower than the incumbent


Run: TypeAlias = Callable[[int], float]
"""Runs a kernel so many times in a row; returns the seconds that took."""


class Samples:
    """Takes the samples of one kernel, those that are disturbed again up to `RETAKES` times."""

    def __init__(self, run: Run, calls: int, watch: Watch) -> None:
        """`calls`: per sample."""
        self.calls = calls
        self.seconds: list[float] = []  # per call
        self.retaken = 0
        self.tainted = 0
        self._run = run
        self._watch = watch

    def take(self) -> float | None:
        """Take a sample; its seconds per call, None if every attempt was disturbed (it is kept)."""
        for attempt in range(1 + RETAKES):
            self._watch.begin()
            seconds = self._run(self.calls) / self.calls
            if not self._watch.disturbed():
                self.seconds.append(seconds)
                return seconds
            self.retaken += attempt < RETAKES
        self.tainted += 1
        self.seconds.append(seconds)
        return None

    def timing(self, *, censored: bool = False) -> Timing:
        """What was taken so far."""
        return Timing(tuple(self.seconds), self.calls, self.retaken, self.tainted, censored)


def time_calls(
    run: Run,
    options: TimingOptions,
    *,
    estimate: float | None = None,
    watch: Watch | None = None,
) -> Timing:
    """Time a kernel. Ends early when it is clearly slower than `options.incumbent_seconds`.

    `estimate` is the seconds of one call if known, as from the correctness check: a kernel that is
    slow enough is then warm already and is not run again to calibrate.
    """
    plan = _calibrate(run, options, estimate)
    taken = Samples(run, plan.calls, watch or NoWatch())
    test = SequentialTest(options.incumbent_seconds) if options.incumbent_seconds else None
    for number in range(plan.samples):
        sample = taken.take()
        slower = test is not None and sample is not None and test.is_slower(sample)
        if slower and number + 1 < plan.samples:
            return taken.timing(censored=True)
    return taken.timing()


def time_in_turn(
    runs: Sequence[Run],
    options: TimingOptions,
    *,
    estimates: Sequence[float],
    watch: Watch | None = None,
    seed: int = 0,
) -> list[Timing]:
    """Time several kernels in `options.samples` rounds, each kernel once a round, in random order.

    The i-th samples of all are neighbours in time: pairs for `measure.compare`.
    """
    watch = watch or NoWatch()
    taken = [
        Samples(run, _calibrate(run, options, estimate).calls, watch)
        for run, estimate in zip(runs, estimates, strict=True)
    ]
    rng = random.Random(seed)
    for _ in range(options.samples):
        for samples in rng.sample(taken, len(taken)):
            samples.take()
    return [samples.timing() for samples in taken]


def _calibrate(run: Run, options: TimingOptions, estimate: float | None) -> SamplePlan:
    if estimate is None or estimate < options.min_sample_seconds:
        estimate = _warm_up(run, options)
    plan = plan_samples(estimate, options)
    # With flushed caches every call is timed alone, and flushing takes longer than most kernels.
    return SamplePlan(plan.samples, options.min_calls) if options.flush_cache else plan


def _warm_up(run: Run, options: TimingOptions) -> float:
    """Run for `warmup_seconds`, in batches that double; seconds per call of the last batch."""
    total, calls = 0.0, 1
    while True:
        seconds = run(calls)
        total += seconds
        if total >= options.warmup_seconds or options.flush_cache:
            return seconds / calls
        calls *= 2
