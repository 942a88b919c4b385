"""The timing loop: warm up, calibrate, take raw samples.

The kernel is called through `tunefarm_repeat` (compiler.llvm.repeat), so a sample is one call into
machine code however short the kernel is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from time import perf_counter

from compiler.errors import MeasureError


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """How a candidate is timed; the keys of `MeasureRequest.options`.

    A sample lasts at least `min_sample_seconds` and has at least `min_calls` calls. `max_seconds`
    bounds what all samples together may take: a slow kernel first loses the extra calls, then
    samples, down to `min_samples`.
    """

    samples: int = 7
    min_samples: int = 2
    min_sample_seconds: float = 0.010
    min_calls: int = 3
    max_seconds: float = 0.250
    warmup_seconds: float = 0.003
    build_timeout: float = 60.0  # seconds for building, and for the reference of a new kernel
    run_timeout: float = 20.0  # seconds for checking and timing
    unstable_limit: float = 0.5  # relative MAD above which the status is UNSTABLE
    fresh_process: int = 0  # 1: run in a process that has run nothing before
    cold_constants: int = 1  # 1: calls take turns with copies of the constants, 0: caches stay warm

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
    """Raw samples in seconds per call, in the order taken."""

    samples: tuple[float, ...]
    calls: int  # per sample


def time_calls(
    call: Callable[[int], None],
    options: TimingOptions,
    *,
    estimate: float | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Timing:
    """Time `call(n)`, which runs the kernel n times in a row.

    `estimate` is the seconds of one call if known, as from the correctness check: a kernel that is
    slow enough is then warm already and is not run again to calibrate.
    """
    if estimate is None or estimate < options.min_sample_seconds:
        estimate = _warm_up(call, options, clock)
    plan = plan_samples(estimate, options)
    samples = []
    for _ in range(plan.samples):
        start = clock()
        call(plan.calls)
        samples.append((clock() - start) / plan.calls)
    return Timing(tuple(samples), plan.calls)


def _warm_up(
    call: Callable[[int], None], options: TimingOptions, clock: Callable[[], float]
) -> float:
    """Run for `warmup_seconds`, in batches that double; seconds per call of the last batch."""
    begin, calls = clock(), 1
    while True:
        start = clock()
        call(calls)
        now = clock()
        if now - begin >= options.warmup_seconds or now - start >= options.warmup_seconds / 2:
            return (now - start) / calls
        calls *= 2
