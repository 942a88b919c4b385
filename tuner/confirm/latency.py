"""Whole-model latencies: seeded inputs, and runs of several programs in turn on pinned cores."""

from __future__ import annotations

import math
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.buffers import aligned_empty
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT
from tunefarm.compiler.types.dtypes import WIDE_FLOATS, DType
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure.compare import Comparison
from tunefarm.measure.core_locks import CoreLocks
from tunefarm.measure.cpu_quota import read_quota
from tunefarm.measure.cpus import usable_cpus
from tunefarm.measure.machine import check_none_lost, on_cores
from tunefarm.measure.worker.quota_share import QuotaShare
from tunefarm.measure.worker.stability import relative_mad
from tunefarm.tuner.confirm.drawn_inputs import drawn_inputs
from tunefarm.tuner.confirm.verdict import LEAST_PAIRS, Meeting, compare

SLOWER = 0.01  # by how much a model must lose to be refused
LEAST_ROUNDS = 3
PATIENCE = 5.0  # seconds
PLACEMENTS = 4  # of the models' memory, one after the other, if there is time
PAGE = 4096
NEAR = 0.05  # of the largest output
LONGEST_SPIN = 0.2  # seconds for which idle threads of an engine may keep a core
IDLE_CHECK = 0.002  # seconds between two looks at them
THREADS = Path("/proc/self/task")
Program = Callable[[], object]


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """`rounds` samples of each program, each of at least `min_sample_seconds`.

    `max_seconds` bounds all of it: with slow programs there are fewer rounds, but `least` of them,
    or 3 if those take longer than `PATIENCE` seconds.
    """

    rounds: int = 15
    min_sample_seconds: float = 0.03
    max_seconds: float = 20.0
    idle: float = 0.0  # seconds to wait at most before each program, see `wait_until_idle`
    settle: bool = True  # run a program once before its sample: caches and threads are its own
    seed: int = 0  # of the order within rounds
    least: int = 3


COMPARISON = LatencyOptions(
    rounds=240, min_sample_seconds=0.0025, max_seconds=4.0, settle=False, least=LEAST_PAIRS + 3
)
"""Of whole models: as many short rounds as there is time for."""


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Keep this process on `threads` of its cores, which nobody else builds or times on meanwhile;
    threads that it starts inherit them.

    Raises MeasureError if one may not be used any more, also after the block: what was timed there
    was timed elsewhere.
    """
    cores = usable_cpus().for_threads(threads)
    with CoreLocks(f"models-{uuid.uuid4().hex}", tell=_note).held(cores), on_cores(cores):
        yield
        check_none_lost(set(cores) - os.sched_getaffinity(0))


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)


def interleaved_latencies(
    programs: Sequence[Program], options: LatencyOptions, clock: Callable[[], float] | None = None
) -> list[list[float]]:
    """Seconds per call of each program, one sample a round; the i-th samples are neighbours.

    The order of a round is drawn, so that neither a drift of the machine nor what a program leaves
    behind meets one more than another.
    """
    now = clock or time.perf_counter
    rng = random.Random(options.seed)
    begin = now()
    calls = [_calls_per_sample(program, options, now) for program in programs]
    samples: list[list[float]] = [[] for _ in programs]
    share = QuotaShare(read_quota(), None)
    for number in range(options.rounds):
        passed = now() - begin
        enough = number >= options.least or passed > PATIENCE
        if number >= LEAST_ROUNDS and enough and passed > options.max_seconds:
            break
        for i in rng.sample(range(len(programs)), len(programs)):
            if options.idle:
                wait_until_idle(options.idle)
            if options.settle or calls[i] > 1:
                programs[i]()
            samples[i].append(
                share.seconds(partial(_seconds, programs[i], now), calls[i]) / calls[i]
            )
    share.close()
    return samples


def _seconds(program: Program, now: Callable[[], float], calls: int) -> float:
    """Seconds of so many calls."""
    start = now()
    for _ in range(calls):
        program()
    return now() - start


def wait_until_idle(limit: float) -> None:
    """Sleep until no other thread of this process runs or wants to, for at most so many seconds.

    The threads of other engines wait for more work in loops, onnxruntime's for 30 ms on some CPUs,
    and take a core from whoever comes next. Where threads cannot be told apart all of it passes.
    """
    end = time.perf_counter() + limit
    while (left := end - time.perf_counter()) > 0:
        time.sleep(min(left, IDLE_CHECK if THREADS.exists() else left))
        if not _others_run():
            return


def _others_run() -> bool:
    """Whether the kernel says so of one of this process's threads, but for the one that asks."""
    own = str(threading.get_native_id())
    for thread in THREADS.glob("[0-9]*"):
        try:
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has ended
            continue
        if thread.name != own and state == "R":
            return True
    return False


def _calls_per_sample(program: Program, options: LatencyOptions, now: Callable[[], float]) -> int:
    """How often to call for one sample; the first call is a warm-up."""
    program()
    start = now()
    program()
    seconds = max(now() - start, 1e-7)
    return max(1, math.ceil(options.min_sample_seconds / seconds))


def outputs_agree(actual: Array, expected: Array) -> bool:
    """Within rtol 1e-3 and atol 1e-4 x max|expected|; equal for integers and bools.

    Floats of 16 bits and fewer may differ by a few roundings of their type.
    """
    dtype = DType.from_numpy(expected.dtype)
    if not dtype.is_float:
        return bool(np.array_equal(actual, expected))
    if dtype not in WIDE_FLOATS:
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max()) if finite.size else 0.0
    relative, absolute = max(1e-3, 8 * dtype.epsilon), scale * max(1e-4, dtype.epsilon)
    return bool(np.allclose(actual, expected, rtol=relative, atol=absolute, equal_nan=True))


def outputs_near(actual: Array, expected: Array) -> bool:
    """Of models that round to narrow types inside: within NEAR x max|expected|.

    Two right orders of a sum may round to neighbours there, which later layers carry on. Integers
    that such numbers decide, an index of the largest for one, say nothing.
    """
    if not DType.from_numpy(expected.dtype).is_float:
        return True
    found, wanted = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(found)):
        return False
    scale = float(np.abs(wanted[finite]).max(initial=0.0))
    return bool((np.abs(found[finite] - wanted[finite]) <= NEAR * scale).all())


Agree: TypeAlias = Callable[[Array, Array], bool]


@dataclass(frozen=True, slots=True)
class ModelLatency:
    """The whole model without and with tuning, from interleaved runs; seconds per run.

    `ratio` is tuned over untuned, `low` and `high` bound it with 95 % confidence, and `tuned` is
    `untuned` times the ratio: figures of one kind, from the same pairs. `former` is the model with
    the schedules of earlier jobs, told by its ratio to the tuned one; None if it is the untuned or
    the tuned one. `is_slower` says that the tuned one lost to it, or else to the untuned one,
    beyond doubt; `kept` is then how the one that stays compares with the untuned one.
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
    kept: Comparison | None = None

    @property
    def applied(self) -> Comparison:
        """Time of the model that is applied from now on over the untuned one's."""
        return self.kept or Comparison(self.ratio, self.low, self.high, 0)


def compare_models(
    untuned: Executable,
    tuned: Executable,
    former: Executable | None = None,
    options: LatencyOptions = COMPARISON,
    agree: Agree = outputs_agree,
    sizes: Mapping[str, int] | None = None,
) -> ModelLatency:
    """Latencies of all in interleaved runs on pinned cores, over the same memory.

    Symbols have these `sizes`, those that are not named one in the middle of their bounds.

    Where buffers lie changes a model by some per cent for as long as they lie there: so all models
    run in one arena, from the same inputs to the same outputs, and a few of these have their turns.
    Raises MeasureError when their outputs do not `agree`.
    """
    models = [untuned, tuned] if former is None else [untuned, tuned, former]
    meetings: list[Meeting] = []
    end, took = time.perf_counter() + options.max_seconds, 0.0
    with pinned(tuned.threads):
        for number in range(PLACEMENTS):
            begin = time.perf_counter()
            if meetings and end - begin < took / 2.0:  # slow models, or little time
                break
            part = replace(
                options,
                rounds=math.ceil(options.rounds / PLACEMENTS),
                max_seconds=(end - begin) / (PLACEMENTS - number),
                seed=options.seed + number,
            )
            meetings.append(dict(enumerate(_latencies(models, part, agree, sizes))))
            took = time.perf_counter() - begin
    return latency_of_meetings(meetings)


def latency_of_meetings(meetings: Sequence[Meeting]) -> ModelLatency:
    """What came of the untuned model (0), the tuned one (1) and the former one (2, if it met)."""
    compared = compare(meetings, 1, 0)
    third = compare(meetings, 1, 2) if any(2 in meeting for meeting in meetings) else None
    against = third or compared
    is_slower = against.pairs >= LEAST_PAIRS and against.b_is_faster(SLOWER)
    first, second = ([s for meeting in meetings for s in meeting[number]] for number in (0, 1))
    tuned = median(first) * compared.ratio
    return ModelLatency(
        untuned=median(first),
        tuned=tuned,
        untuned_spread=relative_mad(first),
        tuned_spread=relative_mad(second),
        ratio=compared.ratio,
        low=compared.low,
        high=compared.high,
        former=None if third is None else tuned / third.ratio,
        is_slower=is_slower,
        kept=compare(meetings, 0 if third is None else 2, 0) if is_slower else None,
    )


def _latencies(
    models: Sequence[Executable],
    options: LatencyOptions,
    agree: Agree,
    sizes: Mapping[str, int] | None,
) -> list[list[float]]:
    """`interleaved_latencies` of models in one piece of memory."""
    inputs = aligned_inputs(models[0], sizes=sizes)
    arena = _arena(max(model.arena_bytes for model in models), options.seed)
    outputs = {
        name: aligned_empty(type.shape, type.dtype.numpy)
        for name, type in models[0].outputs_at(sizes).items()
    }
    expected: dict[str, Array] = {}
    programs: list[Program] = []
    for model in models:
        program = partial(model.run_in, model.new_frame(arena), inputs, outputs)
        programs.append(program)
        for name, array in program().items():
            if not agree(array, expected.setdefault(name, array.copy())):
                raise MeasureError(
                    f"the tuned model's output {name!r} differs from the untuned one's"
                )
    return interleaved_latencies(programs, options)


def _arena(size: int, number: int) -> Array:
    """Memory for an arena; each number has it begin at another cache line of a page."""
    memory = aligned_empty((size + PAGE,), np.dtype(np.uint8))
    begin = random.Random(number).randrange(0, PAGE, ALIGNMENT)
    return memory[begin : begin + size]


def aligned_inputs(
    executable: Executable, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """`drawn_inputs` in memory that starts at cache lines."""
    inputs = executable.empty_inputs(sizes)
    for name, array in drawn_inputs(executable, seed, sizes).items():
        np.copyto(inputs[name], array)
    return inputs
