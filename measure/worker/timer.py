"""The timing loop: all schedules of a request in rounds of short slices, raw.

One core of a shared host changes its speed by a third within seconds, but two slices taken next to
each other see nearly the same machine: their ratio is what a measurement says. So the schedules
alternate in slices of some milliseconds, in an order that is drawn for each round, and a slow
neighbour or a leftover in the caches meets either side as often. (Duet benchmarking: Bulej et al.,
ICPE 2020; interleaved trials: Abedi and Brecht, ICPE 2017.)

The kernel is called through `tunefarm_repeat` (tunefarm.compiler.llvm.repeat), so a slice is one
call into machine code however short the kernel is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from time import perf_counter
from typing import TypeAlias

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.compare import LogRatio, log_ratio
from tunefarm.measure.worker.early_stop import FEWEST, is_clearly_slower, is_told
from tunefarm.measure.worker.stability import UNSTABLE_SPREAD, scatters

WIDE = 0.025
"""Deviation of a log-ratio above which more rounds are taken."""
MORE_ROUNDS = 2  # times `samples` at most
_MOST_MORE_CALLS = 8  # times those planned, however fast a kernel turns out to be
_TIMEOUT_SHARE = 0.25  # of `run_timeout`, that the fewest rounds may take


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """How a request is timed; the keys of `MeasureRequest.options`.

    `samples` rounds are taken, each with a slice of every schedule that lasts about
    `min_sample_seconds`, one call at least; up to twice as many while the pair's interval is wide.
    `max_seconds` bounds what all slices together may take: slow kernels lose rounds, down to
    `min_samples`. Caches: calls alternate with copies of the constants (`cold_constants`), or all
    caches are flushed before each call (`flush_cache`), or stay warm. Constants are as cold as a
    model leaves them that touches `model_bytes` of memory in a run; 0: a large one. The output lies
    where the model has touched `idle_bytes` of other memory since that was used; 0: it is warm.
    """

    samples: int = 14
    min_samples: int = FEWEST
    min_sample_seconds: float = 0.002
    max_seconds: float = 0.250
    warmup_seconds: float = 0.002
    build_timeout: float = 60.0  # seconds for building, and for the reference of a new kernel
    run_timeout: float = 20.0  # seconds for checking and timing
    unstable_limit: float = UNSTABLE_SPREAD  # of the ratios, above which it is SCATTERED
    give_up: int = 0  # 1: end early when the schedule is clearly slower than its first rival
    fresh_process: int = 0  # 1: run in a process that has run nothing before
    cold_constants: int = 1  # 1: calls alternate with copies of the constants
    model_bytes: int = 0  # between two calls of the kernel, in a run of its model
    idle_bytes: int = 0  # between the last use of the output's memory and the call
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
        for name in ("min_sample_seconds", "max_seconds", "build_timeout", "run_timeout"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise MeasureError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("unstable_limit", "warmup_seconds", "model_bytes", "idle_bytes"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise MeasureError(f"{name} must be 0 or more, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """How many rounds to take, at most how many, and the calls in a slice of each schedule."""

    rounds: int
    most: int
    calls: tuple[int, ...]


def plan_rounds(call_seconds: Sequence[float], options: TimingOptions) -> RoundPlan:
    """The plan for kernels that take about so long per call."""
    calls = [_calls(seconds, options) for seconds in call_seconds]
    round_seconds = sum(n * max(s, 1e-9) for n, s in zip(calls, call_seconds, strict=True))
    fewest = int(_TIMEOUT_SHARE * options.run_timeout / round_seconds)
    fewest = max(1, min(options.min_samples, fewest))
    affordable = int(options.max_seconds / round_seconds)
    rounds = min(options.samples, max(fewest, affordable))
    most = rounds
    if len(calls) > 1:
        most = max(rounds, min(MORE_ROUNDS * options.samples, affordable))
    return RoundPlan(rounds, most, tuple(calls))


def _calls(seconds: float, options: TimingOptions) -> int:
    """Calls in a slice of a kernel that takes so long per call."""
    if options.flush_cache:
        return 1
    return max(1, round(options.min_sample_seconds / max(seconds, 1e-9)))


@dataclass(frozen=True, slots=True)
class Timing:
    """Raw slices of each schedule in seconds per call, in the order taken.

    The i-th slices of all were neighbours in time: pairs for `tunefarm.measure.compare`.
    `censored`: it was ended early, because the first schedule is clearly slower than the second.
    """

    samples: tuple[tuple[float, ...], ...]
    calls: tuple[int, ...]  # in a slice
    censored: bool = False


Run: TypeAlias = Callable[[int], float]
"""Runs a kernel so many times in a row; returns the seconds that took."""


def time_in_turn(
    runs: Sequence[Run],
    options: TimingOptions,
    call_seconds: Sequence[float],
    seed: int = 0,
    clock: Callable[[], float] = perf_counter,
) -> Timing:
    """Time kernels that take about `call_seconds` per call, in rounds whose order `seed` draws.

    A kernel that turns out to be faster gets more calls: slices of one length are disturbed alike.
    """
    plan = plan_rounds(call_seconds, options)
    fastest = list(call_seconds)
    taken: list[list[float]] = [[] for _ in runs]
    order = list(range(len(runs)))
    rng = random.Random(seed)
    start = clock()
    censored = False
    for number in range(1, plan.most + 1):
        rng.shuffle(order)
        for index in order:
            wanted = _calls(fastest[index], options)
            calls = max(plan.calls[index], min(wanted, _MOST_MORE_CALLS * plan.calls[index]))
            taken[index].append(runs[index](calls) / calls)
            fastest[index] = min(fastest[index], taken[index][-1])
        if len(runs) < 2:
            if number >= plan.rounds:
                break
            continue
        if not _looks(number, plan.rounds):
            continue
        pair = log_ratio(taken[0], taken[1])
        late = clock() - start > options.max_seconds
        if options.give_up and (is_clearly_slower(pair) or (late and _is_hopeless(pair))):
            censored = number < plan.rounds
            break
        if options.give_up and is_told(pair):
            break
        if number >= plan.rounds and (
            late or pair.low > 1.0 or not _is_unclear(taken, pair, options)
        ):
            break
    return Timing(tuple(map(tuple, taken)), plan.calls, censored)


def _looks(number: int, rounds: int) -> bool:
    """Whether to look at the pairs after this round: often at first, where most is decided."""
    return number <= 6 or number % 2 == 0 or number == rounds


def _is_unclear(taken: Sequence[Sequence[float]], pair: LogRatio, options: TimingOptions) -> bool:
    """Whether more rounds may say more: of a noisy host, or of a kernel that scatters."""
    return pair.deviation > WIDE or scatters(taken[0], taken[1], options.unstable_limit)


def _is_hopeless(pair: LogRatio) -> bool:
    """Whether no interruption explains the ratio, in slices so long that few can be taken."""
    return pair.mean > math.log(2.0)


def calibrate(run: Run, options: TimingOptions, estimate: float) -> float:
    """Seconds per call, warm: of the fastest of several batches.

    `estimate`: of one call, as from the check; a kernel that is slow enough is warm already and is
    not run again.
    """
    if estimate >= options.min_sample_seconds or options.flush_cache:
        return estimate
    total, calls, best = 0.0, 1, math.inf
    while True:
        seconds = run(calls)
        total += seconds
        best = min(best, seconds / calls)
        if total >= options.warmup_seconds:
            return best
        calls *= 2
