"""What a machine can do at most: arithmetic in registers, and bytes from and to its memory.

Arithmetic is that of one core times the threads; memory is measured by all of them at once. The
best of a few rounds counts: other work on the machine only takes away. (The roofline model:
Williams, Waterman, Patterson, CACM 52, 2009.)
"""

from __future__ import annotations

import ctypes
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.llvm.peak_loop import MeasuredLoop, peak_loop, read_loop
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.measure.core_locks import CoreLocks
from tunefarm.measure.cpus import usable_cpus
from tunefarm.measure.machine import on_cores

ROUNDS = 5
ROUND_SECONDS = 0.02
LEAST_BYTES = 32 << 20
"""That a thread copies in a round, or as many as the caches hold twice."""
_FIRST_TURNS = 10_000
_READ_CACHES, _READ_ROUNDS = 4, 20
_EVERY_ROUND = -1  # the mask with which each round reads its own data


@dataclass(frozen=True, slots=True)
class Roof:
    """f32 operations a second of so many threads together, and bytes a second read and written."""

    flops: float
    bytes: float


def measure_roof(target: Target, threads: int) -> Roof:
    """Of this machine, which `target` describes; takes a few tenths of a second.

    Raises `ArtefactError` or `LoweringError` where the machine cannot run the target's code.
    """
    loop = peak_loop(target)
    run = _linked(loop, target)
    operations = 2 * loop.steps * target.lanes(DType.F32)

    def compute(turns: int) -> Callable[[], None]:
        results = np.zeros(loop.result_bytes, np.uint8)
        return lambda: run(turns, 0, None, results.ctypes.data)

    turns = _FIRST_TURNS
    while (seconds := _best(compute, turns, 1, rounds=1)) < ROUND_SECONDS / 2:
        turns = int(turns * min(100.0, max(2.0, ROUND_SECONDS / max(seconds, 1e-6))))
    peak = threads * turns * operations / _best(compute, turns, 1)
    size = max(LEAST_BYTES, 2 * target.l3_bytes // threads)

    def copy(size: int) -> Callable[[], None]:
        source, destination = np.ones(size, np.uint8), np.zeros(size, np.uint8)
        return lambda: np.copyto(destination, source)

    return Roof(peak, 2.0 * threads * size / _best(copy, size, threads))


def measure_read(target: Target, threads: int) -> float:
    """Bytes a second that so many threads of this machine read together, and do not write.

    Each sums its share of 4 times the last cache; the best of 20 rounds counts. Raises as
    `measure_roof` does.
    """
    loop = read_loop(target)
    run = _linked(loop, target)
    turns = max(1, _READ_CACHES * target.l3_bytes // (threads * loop.round_bytes))

    def read(turns: int) -> Callable[[], None]:
        data = np.ones(turns * loop.round_bytes, np.uint8)
        results = np.zeros(loop.result_bytes, np.uint8)
        return lambda: run(turns, _EVERY_ROUND, data.ctypes.data, results.ctypes.data)

    seconds = _best(read, turns, threads, _READ_ROUNDS)
    return threads * turns * loop.round_bytes / seconds


def _linked(loop: MeasuredLoop, target: Target) -> Callable[..., None]:
    """The loop as a function that keeps its code alive."""
    code = LoadedCode([object_code(loop.text, target)], [loop.symbol])
    arguments = ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
    function = ctypes.CFUNCTYPE(None, *arguments)(code.address(loop.symbol))

    def run(*given: int | None, _alive: object = code) -> None:
        function(*given)

    return run


def _best(
    make: Callable[[int], Callable[[], None]], amount: int, threads: int, rounds: int = ROUNDS
) -> float:
    """Seconds of the fastest round in which every thread has done its part once."""
    cores = usable_cpus().for_threads(threads)
    barrier = threading.Barrier(threads + 1)
    spans: list[list[float]] = [[] for _ in range(rounds)]

    def work(number: int) -> None:
        with on_cores([cores[number % len(cores)]]):
            part = make(amount)
            part()
            for taken in spans:
                barrier.wait()
                begin = time.perf_counter()
                part()
                taken += [begin, time.perf_counter()]

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    with CoreLocks(f"roof-{uuid.uuid4().hex}").held(cores):
        for worker in workers:
            worker.start()
        for _ in spans:
            barrier.wait()
        for worker in workers:
            worker.join()
    return min(max(taken) - min(taken) for taken in spans)
