"""Whole-model latencies: seeded inputs, and runs of several programs in turn on pinned cores."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

from compiler.errors import MeasureError
from compiler.runtime.executable import Executable
from compiler.types.tensor_type import Array, TensorType
from measure.compare import compare_paired
from measure.machine import available_cores, on_cores
from measure.worker.stability import relative_mad

SLOWER = 0.01  # by how much a model must lose to be refused
Program = Callable[[], object]


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """`rounds` samples of each program, each of at least `min_sample_seconds`.

    `max_seconds` bounds all of it: with slow programs there are fewer rounds, but 3 at least.
    """

    rounds: int = 15
    min_sample_seconds: float = 0.03
    max_seconds: float = 20.0
    pause: float = 0.0  # seconds before each program, until the threads of the last one sleep


def seeded_inputs(types: Mapping[str, TensorType], seed: int = 0) -> dict[str, Array]:
    """Random inputs: normal floats, integers 0 and 1 (valid as indices), random bools."""
    rng = np.random.default_rng(seed)
    inputs: dict[str, Array] = {}
    for name, type in types.items():
        if type.dtype.is_float:
            drawn: Array = rng.standard_normal(type.shape)
        else:
            drawn = rng.integers(0, 2, type.shape)
        inputs[name] = drawn.astype(type.dtype.numpy)
    return inputs


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Keep this process on `threads` of its cores; threads that it starts inherit them."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    with on_cores(available_cores()[-threads:]):
        yield


def interleaved_latencies(
    programs: Sequence[Program], options: LatencyOptions, clock: Callable[[], float] | None = None
) -> list[list[float]]:
    """Seconds per call of each program, one sample a round; the i-th samples are neighbours.

    Programs take turns, every other round in reverse, so that a drift of the machine meets all.
    """
    now = clock or time.perf_counter
    calls = [_calls_per_sample(program, options, now) for program in programs]
    samples: list[list[float]] = [[] for _ in programs]
    begin = now()
    for number in range(options.rounds):
        if number >= 3 and now() - begin > options.max_seconds:
            break
        order = range(len(programs)) if number % 2 == 0 else reversed(range(len(programs)))
        for i in order:
            if options.pause:
                time.sleep(options.pause)
            programs[i]()  # caches and threads are this program's again
            start = now()
            for _ in range(calls[i]):
                programs[i]()
            samples[i].append((now() - start) / calls[i])
    return samples


def _calls_per_sample(program: Program, options: LatencyOptions, now: Callable[[], float]) -> int:
    """How often to call for one sample; the first call is a warm-up."""
    program()
    start = now()
    program()
    seconds = max(now() - start, 1e-7)
    return max(1, math.ceil(options.min_sample_seconds / seconds))


def outputs_agree(actual: Array, expected: Array) -> bool:
    """Within rtol 1e-3 and atol 1e-4 x max|expected|; equal for integers and bools."""
    if expected.dtype.kind != "f":
        return bool(np.array_equal(actual, expected))
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max()) if finite.size else 0.0
    return bool(np.allclose(actual, expected, rtol=1e-3, atol=1e-4 * scale, equal_nan=True))


@dataclass(frozen=True, slots=True)
class ModelLatency:
    """The whole model without and with tuning, from interleaved runs; seconds per run.

    `ratio` is tuned over untuned, `low` and `high` bound it with 95 % confidence. `former` is the
    model with the schedules of earlier jobs, None if that is the untuned or the tuned one;
    `is_slower` says that the tuned one lost to it, or else to the untuned one, beyond doubt.
    """

    untuned: float
    tuned: float
    untuned_spread: float
    tuned_spread: float
    ratio: float
    low: float
    high: float
    former: float | None = None
    is_slower: bool = False


def compare_models(
    untuned: Executable,
    tuned: Executable,
    former: Executable | None = None,
    options: LatencyOptions | None = None,
) -> ModelLatency:
    """Latencies of all in interleaved runs on pinned cores.

    Raises MeasureError when their outputs differ.
    """
    inputs = aligned_inputs(untuned)
    expected, actual = untuned.run(inputs), tuned.run(inputs)
    for name, array in expected.items():
        if not outputs_agree(actual[name], array):
            raise MeasureError(f"the tuned model's output {name!r} differs from the untuned one's")
    models = [untuned, tuned] if former is None else [untuned, tuned, former]
    programs: list[Program] = [partial(model.run, inputs) for model in models]
    with pinned(tuned.threads):
        first, second, *third = interleaved_latencies(programs, options or LatencyOptions())
    paired = compare_paired(second, first)
    against = compare_paired(second, third[0]) if third else paired
    return ModelLatency(
        untuned=median(first),
        tuned=median(second),
        untuned_spread=relative_mad(first),
        tuned_spread=relative_mad(second),
        ratio=paired.ratio,
        low=paired.low,
        high=paired.high,
        former=median(third[0]) if third else None,
        is_slower=against.b_is_faster(SLOWER),
    )


def aligned_inputs(executable: Executable, seed: int = 0) -> dict[str, Array]:
    """`seeded_inputs` in memory that starts at cache lines."""
    inputs = executable.empty_inputs()
    for name, array in seeded_inputs(executable.inputs, seed).items():
        np.copyto(inputs[name], array)
    return inputs
