"""Whole-model latencies: interleaved runs on pinned cores, at one placement after the other."""

from __future__ import annotations

import math
import os
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.machine.slice_clock import SliceClock
from tunefarm.compiler.runtime.spec.buffers import aligned_empty
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT
from tunefarm.compiler.types.dtypes import WIDE_FLOATS, DType
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure.compare import Comparison
from tunefarm.measure.core_locks import CoreLocks
from tunefarm.measure.cpus import read_quota, usable_cpus
from tunefarm.measure.machine import check_none_lost, on_cores
from tunefarm.measure.worker.stability import relative_mad
from tunefarm.measure.worker.timer import UndisturbedSlices
from tunefarm.tuner.confirm.drawn_inputs import drawn_inputs
from tunefarm.tuner.confirm.verdict import LEAST_PAIRS, Meeting, compare, standing
from tunefarm.tuner.interrupt import asked_to_stop

SLOWER = 0.01  # by how much a model must lose to be refused
LEAST_ROUNDS = 3
LEAST_PLACEMENTS = 3  # so that there are pairs enough for a verdict, unless that takes long
PATIENCE = 5.0  # seconds
PAGE = 4096
MOVED_BYTES = 1 << 28
"""Constants of at most so many bytes in all are copied to other addresses: larger ones are streamed
from memory, and copies of them may not fit it."""
NEAR_SHARE = 0.05  # of the largest output
LONGEST_SPIN = 0.2  # seconds for which idle threads of an engine may keep a core
IDLE_CHECK = 0.002  # seconds between two looks at them
THREADS = Path("/proc/self/task")
Program = Callable[[], object]


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """`rounds` samples of each program at each placement, each of at least `min_sample_seconds`.

    `max_seconds` bounds all of it: with slow programs there are fewer rounds and placements. There
    are `placements` at least, and more until the intervals are known to `precise`, the standard
    error of a log-ratio; no more of them where that is None.
    """

    rounds: int = 15
    min_sample_seconds: float = 0.03
    max_seconds: float = 20.0
    placements: int = 1
    precise: float | None = None
    idle: float = 0.0  # seconds to wait at most before each program, see `wait_until_idle`
    settle: bool = True  # run a program once before its sample: caches and threads are its own
    serial: bool = False  # programs have one thread: what it waits for its core does not count
    seed: int = 0  # of the order within rounds


COMPARISON = LatencyOptions(
    rounds=20,
    min_sample_seconds=0.0025,
    max_seconds=4.0,
    placements=8,
    precise=0.005,
    settle=False,
)
"""Of whole models: short rounds at many placements, until the interval is 2 % wide."""


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Keep this process on `threads` of its cores, which nobody else builds or times on meanwhile;
    threads that it starts inherit them.

    Raises MeasureError if one may not be used any more, also after the block: what was timed there
    was timed elsewhere. Raises KeyboardInterrupt where a stop is asked for while it waits.
    """
    cores = usable_cpus().for_threads(threads)
    locks = CoreLocks(f"models-{uuid.uuid4().hex}", stop=asked_to_stop, notify=_note)
    with ExitStack() as stack:
        try:
            stack.enter_context(locks.held(cores))
        except MeasureError:
            if asked_to_stop():
                raise KeyboardInterrupt from None
            raise
        stack.enter_context(on_cores(cores))
        yield
        check_none_lost(set(cores) - os.sched_getaffinity(0))


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)


def interleaved_latencies(
    programs: Sequence[Program], options: LatencyOptions, clock: Callable[[], float] | None = None
) -> list[list[float]]:
    """Seconds per call of each program, one sample a round; the i-th samples are neighbours.

    The order of a round is drawn, so that neither a drift of the machine nor what a program leaves
    behind meets one more than another. `clock` is for tests; nothing waits by it.
    """
    now = clock or time.perf_counter
    rng = random.Random(options.seed)
    begin = now()
    calls = [calls_per_sample(program, options, now) for program in programs]
    samples: list[list[float]] = [[] for _ in programs]
    undisturbed = UndisturbedSlices(read_quota(), None)
    slices = SliceClock(waits=options.serial and clock is None, now=now)
    with closing(undisturbed), closing(slices):
        for number in range(options.rounds):
            if number >= LEAST_ROUNDS and now() - begin > options.max_seconds:
                break
            for i in rng.sample(range(len(programs)), len(programs)):
                if options.idle:
                    wait_until_idle(options.idle)
                if options.settle or calls[i] > 1:
                    programs[i]()
                run = partial(_seconds, programs[i], slices)
                samples[i].append(undisturbed.seconds(run, calls[i]) / calls[i])
    return samples


def _seconds(program: Program, slices: SliceClock, calls: int) -> float:
    """Seconds of so many calls."""
    slices.start()
    for _ in range(calls):
        program()
    return slices.seconds()


def latencies_at_placements(
    place: Callable[[], Sequence[Program]],
    options: LatencyOptions,
    clock: Callable[[], float] | None = None,
    decides: Callable[[Sequence[Meeting]], bool] = lambda _: False,
) -> list[Meeting]:
    """`interleaved_latencies` of programs at one placement after the other, until they are as
    precise as asked for, or what was met `decides`.

    `place` makes the programs anew, the same ones each time: their code and their memory
    lie elsewhere then. Where they lie changes a program by some per cent for as long as they lie
    there, as another process does, so what one placement says is no more than one run of a pair.
    """
    now = clock or time.perf_counter
    meetings: list[Meeting] = []
    begin = now()
    took = 0.0
    while True:
        start, number = now(), len(meetings)
        left = begin + options.max_seconds - start
        few = number < LEAST_PLACEMENTS <= options.placements and start - begin <= PATIENCE
        if number and left < took / 2.0 and not few:  # slow programs, or little time
            break
        if number >= options.placements and (
            _is_precise(meetings, options.precise) or decides(meetings)
        ):
            break
        part = replace(
            options,
            max_seconds=max(0.0, left) / max(1, options.placements - number),
            seed=options.seed + number,
        )
        programs = place()  # while the former ones still have their addresses
        meetings.append(dict(enumerate(interleaved_latencies(programs, part, clock))))
        took = now() - start
    return meetings


def _is_precise(meetings: Sequence[Meeting], precise: float | None) -> bool:
    """Whether the ratio of each program to the first one is known as well as asked for."""
    if precise is None:
        return True
    found = [standing(meetings, number, 0) for number in meetings[0] if number != 0]
    return all(item is not None and item.deviation <= precise for item in found)


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


def calls_per_sample(
    program: Program, options: LatencyOptions, now: Callable[[], float] = time.perf_counter
) -> int:
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
    return bool((np.abs(found[finite] - wanted[finite]) <= NEAR_SHARE * scale).all())


Agree: TypeAlias = Callable[[Array, Array], bool]


@dataclass(frozen=True, slots=True)
class ModelLatency:
    """The whole model without and with tuning, from interleaved runs; seconds per run.

    `ratio` is tuned over untuned, `low` and `high` bound it with 95 % confidence, and `tuned` is
    `untuned` times the ratio: figures of one kind, from the same pairs. Where both are one build
    only one was measured: it `is_unchanged`, and all three are 1.

    `former` is the model with the schedules of earlier jobs, told by its ratio to the tuned one;
    None if it is the untuned or the tuned one. `is_slower` says that the tuned one lost to it
    beyond doubt, or without one to the untuned model; `kept` is then how the one that stays
    compares with the untuned one.
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
    def compared(self) -> Comparison:
        """Time of the tuned model over the untuned one's."""
        return Comparison(self.ratio, self.low, self.high, 0)

    @property
    def applied(self) -> Comparison:
        """Time of the model that is applied from now on over the untuned one's."""
        return self.kept or self.compared

    @property
    def is_unchanged(self) -> bool:
        """The tuned model and the untuned one are one build."""
        return self.compared.is_unchanged

    def to_json(self) -> dict[str, Any]:
        """The latencies as JSON values; there is no ratio where nothing has changed."""
        ratios = dict.fromkeys(("ratio", "low", "high")) if self.is_unchanged else {}
        return {**asdict(self), "unchanged": self.is_unchanged, **ratios}


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

    Models that are one build are measured once. At each placement all models have their code and
    constants at other addresses, and run in one arena, from the same inputs to the same outputs.
    Raises MeasureError when their outputs do not `agree`.
    """
    models = [untuned, tuned] if former is None else [untuned, tuned, former]
    digests = [model.code_digest for model in models]
    builds = list(dict(zip(digests, models, strict=True)).values())
    numbers = list(dict.fromkeys(digests))
    meetings = meetings_of(builds, options, agree, sizes)
    return latency_of_meetings(meetings, *map(numbers.index, digests))


def meetings_of(
    models: Sequence[Executable],
    options: LatencyOptions = COMPARISON,
    agree: Agree = outputs_agree,
    sizes: Mapping[str, int] | None = None,
) -> list[Meeting]:
    """The models in interleaved runs on pinned cores, whether or not some are one build.

    Raises MeasureError when their outputs do not `agree`.
    """
    threads = models[0].threads

    def place() -> Sequence[Program]:
        return agreeing(placed_programs(models, sizes), agree)

    with pinned(threads):
        return latencies_at_placements(place, replace(options, serial=threads == 1))


def latency_of_meetings(
    meetings: Sequence[Meeting], untuned: int = 0, tuned: int = 1, former: int | None = None
) -> ModelLatency:
    """What came of the models with these numbers; those with one number are one build."""
    compared = compare(meetings, tuned, untuned)
    stays = untuned if former is None else former
    third = None if stays in (untuned, tuned) else compare(meetings, tuned, stays)
    against = third or compared
    is_slower = against.pairs >= LEAST_PAIRS and against.b_is_faster(SLOWER) and stays != tuned
    first, second = ([s for m in meetings for s in m[number]] for number in (untuned, tuned))
    seconds = median(first) * compared.ratio
    return ModelLatency(
        untuned=median(first),
        tuned=seconds,
        untuned_spread=relative_mad(first),
        tuned_spread=relative_mad(second),
        ratio=compared.ratio,
        low=compared.low,
        high=compared.high,
        former=None if third is None else seconds / third.ratio,
        is_slower=is_slower,
        kept=compare(meetings, stays, untuned) if is_slower else None,
    )


def agreeing(
    programs: Sequence[Callable[[], Mapping[str, Array]]], agree: Agree
) -> Sequence[Program]:
    """The programs, each of which was run once: their outputs `agree` with those of the first.

    Raises MeasureError where they do not.
    """
    expected: dict[str, Array] = {}
    for program in programs:
        for name, array in program().items():
            if not agree(array, expected.setdefault(name, array.copy())):
                raise MeasureError(
                    f"the tuned model's output {name!r} differs from the untuned one's"
                )
    return programs


def repeats_itself(model: Executable, sizes: Mapping[str, int], agree: Agree) -> bool:
    """Whether two runs of the model at these sizes agree.

    They do not where sizes contradict each other, such as a total length beyond what the past and
    the new tokens come to: memory that nobody wrote decides there.
    """
    try:
        agreeing(placed_programs([model, model], sizes), agree)
    except MeasureError:
        return False
    return True


def placed_programs(
    models: Sequence[Executable],
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    inputs: Mapping[str, Array] | None = None,
    entered: Callable[[Executable], Executable] = lambda model: model,
) -> list[Callable[[], Mapping[str, Array]]]:
    """Runs of models at a placement, in one arena, from the same inputs to the same outputs.

    `seed` is that of random inputs, where none are given; outputs of given ones are new arrays in
    models with dynamic shapes. `entered` gives a placed model another entry. Nothing repeats the
    addresses, as nothing repeats a process's.
    """
    models = [entered(placed_anew(model)) for model in models]
    outputs = None
    if inputs is None or models[0].signature.is_fixed:
        outputs = {
            name: _elsewhere(type.shape, type.dtype.numpy)
            for name, type in models[0].outputs_at(sizes).items()
        }
    if inputs is None:
        inputs = placed_inputs(models[0], sizes, seed)
    else:
        inputs = {name: _moved(array) for name, array in inputs.items()}
    arena = _elsewhere((max(m.arena_bytes for m in models),), np.dtype(np.uint8))
    return [partial(m.run_in, m.new_frame(arena), inputs, outputs) for m in models]


def placed_inputs(
    model: Executable, sizes: Mapping[str, int] | None = None, seed: int = 0
) -> dict[str, Array]:
    """`drawn_inputs` at addresses that are drawn."""
    return {name: _moved(array) for name, array in drawn_inputs(model, seed, sizes).items()}


def placed_anew(model: Executable) -> Executable:
    """The model with its code and constants at other addresses."""
    is_small = model.constant_bytes <= MOVED_BYTES
    return model.placed_anew(lambda array: _moved(array) if is_small else array)


def _moved(array: Array) -> Array:
    """A copy that lies elsewhere."""
    copy = _elsewhere(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def _elsewhere(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """An uninitialised array at a cache line of a page that is drawn."""
    size = math.prod(shape) * dtype.itemsize
    begin = ALIGNMENT * secrets.randbelow(PAGE // ALIGNMENT)
    memory = aligned_empty((size + PAGE,), np.dtype(np.uint8))
    return np.ndarray(shape, dtype, memory, begin)


def aligned_inputs(
    executable: Executable, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """`drawn_inputs` in memory that starts at cache lines."""
    inputs = executable.empty_inputs(sizes)
    for name, array in drawn_inputs(executable, seed, sizes).items():
        np.copyto(inputs[name], array)
    return inputs
