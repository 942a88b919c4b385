"""The timing loop: all schedules of a request in rounds of short slices, raw.

One core of a shared host changes its speed by a third within seconds, but two slices taken next to
each other see nearly the same machine: their ratio is what a measurement says. So the schedules
alternate in slices of some milliseconds, in an order that is drawn for each round, and a slow
neighbour or a leftover in the caches meets either side as often. (Duet benchmarking: Bulej et al.,
ICPE 2020; interleaved trials: Abedi and Brecht, ICPE 2017.)

The kernel is called through `tunefarm_repeat` (tunefarm.compiler.llvm.peak_loop), so a slice is one
call into machine code however short the kernel is.
"""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from time import perf_counter, thread_time
from typing import Any, TypeAlias

import numpy as np

from tunefarm.compiler.errors import MeasureError, with_count
from tunefarm.compiler.llvm.peak_loop import YARDSTICK_SYMBOL, yardstick_object
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.machine.slice_clock import SliceClock
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.measure.compare import BETWEEN_RUNS, LogRatio, log_ratio
from tunefarm.measure.cpus import CpuQuota, Throttling
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.measure.worker.stability import (
    UNSTABLE_SPREAD,
    relative_mad,
    scatters,
    spread_of_ratios,
)

# Slices that a CPU quota has stopped, or that hold page faults, are timed again.

_TRIES = 6
_AS_LONG = 2  # tries of the length that was asked for; then each is half as long


class UndisturbedSlices:
    """Times slices within a quota, with all memory there. `stopped` and `faulted` count those that
    were not, and were timed again.

    A process above its quota is stopped until the next period, for tens of milliseconds: a slice in
    which that happened says nothing about speed, although little of the wait is left in its time,
    since what others did meanwhile is in the caches. The kernel counts the periods in which it
    stopped a group, and it does so before the group goes on, so a slice whose end finds another
    count than its begin was stopped, or another process of the group was. The next slice has a
    fresh period to itself.

    A page fault takes from half a microsecond to milliseconds, and none is in a model's time that
    runs for the second time.
    """

    def __init__(
        self, quota: CpuQuota | None, threads: int | None, clock: SliceClock | None = None
    ) -> None:
        """`threads` of what is timed decide what counts where every try is stopped, as with calls
        that need more than the quota has in a period: of one thread its CPU time, of several
        nothing; None: what the last try took. `clock` is the one of the slices: without it page
        faults count."""
        self.stopped = 0
        self.faulted = 0
        self._quota = quota
        self._threads = threads
        self._clock = clock
        self._throttling = None if quota is None else Throttling(quota.stats)

    def seconds(self, run: Run, calls: int) -> float:
        """Seconds of `calls` calls; where that is too long for the quota, as many times those of
        fewer calls. Raises MeasureError if several threads are stopped in every try.

        What has page faults in every try makes them itself: the fastest try counts.
        """
        fastest = math.inf
        for _ in range(_TRIES):
            seconds = self._within_quota(run, calls)
            if self._clock is None or not self._clock.faults:
                return seconds
            self.faulted += 1
            fastest = min(fastest, seconds)
        return fastest

    def _within_quota(self, run: Run, calls: int) -> float:
        if self._throttling is None:
            return run(calls)
        tried, taken, used = calls, 0.0, 0.0
        for number in range(_TRIES):
            tried = calls if number < _AS_LONG else max(1, tried // 2)
            before, begin = self._throttling.count(), thread_time()
            taken, used = run(tried), thread_time() - begin
            if self._throttling.count() == before:
                return taken * calls / tried
            self.stopped += 1
        if self._threads is None:
            return taken * calls / tried
        if self._threads == 1:
            return used * calls / tried
        threads = with_count(self._threads, "thread")
        raise MeasureError(
            f"{self._quota} stops every timed run of {threads}",
            hint="tune for fewer threads, or give the container whole cores",
        )

    def close(self) -> None:
        """Idempotent."""
        if self._throttling is not None:
            self._throttling.close()


# Is a candidate clearly slower than its reference? Asked after each pair, to take few of them.

SLOWER = 0.10
ERROR = 0.01  # share of candidates as fast as the reference that are given up
FEWEST = 3  # pairs
FEWEST_TOLD = 6  # pairs

_DELTA = math.log1p(SLOWER)
_LIMIT = math.log(1.0 / ERROR)


def is_clearly_slower(pair: LogRatio) -> bool:
    """Whether the candidate may be given up; `pair`: candidate over reference."""
    if pair.pairs < FEWEST:
        return False
    variance = pair.pairs / (pair.pairs - 1.0) * pair.deviation**2
    return _DELTA * (pair.mean - _DELTA / 2.0) > _LIMIT * variance


def is_told(pair: LogRatio) -> bool:
    """Whether enough is known of a candidate that is slower by more than its error, and by more
    than two runs of it differ."""
    return pair.pairs >= FEWEST_TOLD and pair.mean > pair.deviation + BETWEEN_RUNS


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


# The yardstick, timed round every measurement: how fast the core was at that moment.

_SECONDS = 2e-4  # of one run, about
_RUNS = 3  # the fastest counts: an interrupted run says nothing about the clock


class Yardstick:
    """Times the same work again and again."""

    def __init__(self, target: Target, clock: Callable[[], float] = perf_counter) -> None:
        """`target`: this machine's."""
        self._clock = clock
        self._code = LoadedCode([yardstick_object(target)], [YARDSTICK_SYMBOL])
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        self._function = signature(self._code.address(YARDSTICK_SYMBOL))
        self._buffer = np.zeros(target.lanes(DType.F32), np.float32)
        self._rounds = 1000
        while self._time() < _SECONDS:
            self._rounds *= 2

    def seconds(self) -> float:
        """Seconds of one round of the work, now; comparable on one machine."""
        return min(self._time() for _ in range(_RUNS)) / self._rounds

    def _time(self) -> float:
        start = self._clock()
        self._function(self._buffer.ctypes.data, self._rounds)
        return self._clock() - start


# What the timing of schedules answers: their samples, and whether they can be believed.


def answer_of(timing: Timing, options: TimingOptions, facts: Mapping[str, Any]) -> MeasureResult:
    """OK, or `SCATTERED` where the first schedule is noisy against a quiet second one.

    `facts` are what is known of the machine meanwhile.
    """
    samples, *rivals = timing.samples
    scattered = (
        bool(rivals)
        and not timing.censored
        and scatters(samples, rivals[0], options.unstable_limit)
    )
    error = ""
    if rivals:
        spread = spread_of_ratios(samples, rivals[0])
        facts = {**facts, "spread": round(spread, 5)}
        if scattered:
            error = f"its ratios to a quiet reference spread by {spread:.0%}"
    return MeasureResult(
        "",
        Status.SCATTERED if scattered else Status.OK,
        samples,
        error,
        machine={**facts, "relative_mad": round(relative_mad(samples), 5)},
        censored=timing.censored,
        rivals=tuple(rivals),
    )
