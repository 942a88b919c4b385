"""What a machine is like: its table, measured with loops of our own code.

Each loop is timed next to one whose steps take a cycle each (`tick_loop`), slice by slice, so that
rates are in cycles whatever the clock does meanwhile; the median of the pairs counts. Loops over
vectors have one with vectors next to them: some CPUs lower their clock for them. All is measured
several times, and the best counts: who shares a core of the host may take half of its multiply-adds
for seconds, and of its clock nothing. Numbers are rounded to two digits: what is learned on one
machine should not depend on the third.
"""

from __future__ import annotations

import ctypes
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.expr.nodes import binary, const
from tunefarm.compiler.kernels.kernel import KernelBuilder
from tunefarm.compiler.llvm import peak_loop as loops
from tunefarm.compiler.llvm.compile_kernel import compile_kernel
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.llvm.peak_loop import MeasuredLoop
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.machine.threads import make_runtime
from tunefarm.compiler.runtime.spec.buffers import aligned_empty
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Parallelize
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.configs.settings import CacheTable, Machine, MemoryTable
from tunefarm.measure.core_locks import CoreLocks
from tunefarm.measure.cpus import usable_cpus
from tunefarm.measure.machine import cpu_name, on_cores

PASSES = 4
"""Times that all is measured."""
PAIRS = 15
SLICE_SECONDS = 0.02
FAR_BYTES = 256 << 20
"""Of data beyond all caches, at most: half of it is what a shared last cache may hold."""
SHARED_ELEMENTS = 1 << 13
"""Of each of two threads whose meeting is measured, about a cycle each."""
SHORT_SLICES = 200
_CALLS = 20  # of a short slice
_DIGITS = 2

Call = Callable[[int], None]
"""Runs so many rounds of a loop."""


def calibrate(target: Target) -> Machine:
    """The table of this machine, which `target` describes; takes about a minute.

    Raises `ArtefactError` or `LoweringError` where the machine cannot run the target's code.
    """
    cpus = usable_cpus()
    cores = cpus.for_threads(len(cpus.timing))
    with CoreLocks(f"calibrate-{uuid.uuid4().hex}").held(cores), on_cores(cores[:1]):
        bench = _Bench(target, cores)
        measured = _best([bench.table() for _ in range(PASSES)])
    return Machine.model_validate({**measured, "source": f"measured on {cpu_name()}"})


class _Bench:
    """Measures a target's loops next to the one that counts cycles."""

    def __init__(self, target: Target, cores: Sequence[int]) -> None:
        self.target, self._cores = target, cores
        self._ticks = loops.tick_loop().steps
        self._tick, self._plain_tick = (
            self.call(loop, 0, _filled(64)) for loop in (loops.tick_loop(target), loops.tick_loop())
        )

    def table(self) -> dict[str, Any]:
        """The sections of a `Machine`, each with its numbers."""
        target, shipped = self.target, self.target.machine
        sizes = (target.l1_bytes, target.l2_bytes, target.l3_bytes)
        caches = {
            f"l{level + 1}": self._cache(_within(sizes, level), known)
            for level, known in enumerate((shipped.l1, shipped.l2, shipped.l3))
        }
        return {
            **caches,
            "memory": self._memory(_power(min(FAR_BYTES, 4 * sizes[2]))),
            "vectors": self._vectors(),
            "tiles": self._tiles() or shipped.tiles.model_dump(),
            "threads": {"hand_over": self._hand_over() or shipped.threads.hand_over},
        }

    def call(self, loop: MeasuredLoop, mask: int, data: npt.NDArray[Any]) -> Call:
        """The loop over these data, `mask` being of its rounds' numbers."""
        code = LoadedCode([object_code(loop.text, self.target)], [loop.symbol])
        arguments = ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
        function = ctypes.CFUNCTYPE(None, *arguments)(code.address(loop.symbol))
        results = _filled(loop.result_bytes)

        def run(rounds: int, _alive: object = code) -> None:
            function(rounds, mask, data.ctypes.data, results.ctypes.data)

        return run

    def cycles(self, run: Call, plain: bool = False) -> float:
        """Cycles of a round: the median over pairs of slices with `tick_loop`.

        A `plain` loop has no vectors.
        """
        tick = self._plain_tick if plain else self._tick
        sides = [(call, _rounds(call)) for call in (run, tick)]
        found = []
        for _ in range(PAIRS):
            taken, ticked = (_seconds(call, rounds) / rounds for call, rounds in sides)
            found.append(taken / ticked * self._ticks)
        return median(found)

    def _rate(self, loop: MeasuredLoop | None) -> float:
        """Steps a cycle, over a few lines of data at most."""
        assert loop is not None
        return loop.steps / self.cycles(self.call(loop, 0, _filled(1 << 12)))

    def _bytes(self, loop: MeasuredLoop, size: int) -> float:
        """Bytes a cycle over data of this size."""
        data = _filled(size)
        mask = size // loop.round_bytes - 1
        return loop.round_bytes / self.cycles(self.call(loop, mask, data))

    def _latency(self, size: int, line: int) -> float:
        """Cycles from a value to the next one that it points to, lines of so many bytes apart."""
        order = np.random.default_rng(0).permutation(size // line).astype(np.int64) * line
        data = _filled(size).view(np.int64)
        data[order // 8] = np.roll(order, -1)
        loop = loops.chase_loop()
        return self.cycles(self.call(loop, 0, data), plain=True) / loop.steps

    def _cache(self, size: int, known: CacheTable) -> dict[str, float | None]:
        read = _rounded(self._bytes(loops.read_loop(self.target), size))
        return {
            "line_bytes": known.line_bytes,
            "ways": known.ways,
            "stride": known.stride,
            "read": read,
            "write": _rounded(self._bytes(loops.write_loop(self.target), size)),
            "latency": _rounded(self._latency(size, known.line_bytes)),
            "interleaved": _interleaved(read, known),
            "crowded": known.crowded,
        }

    def _memory(self, size: int) -> dict[str, float | None]:
        read = _rounded(self._bytes(loops.read_loop(self.target), size))
        return {
            "read": read,
            "write": _rounded(self._bytes(loops.write_loop(self.target), size)),
            "latency": _rounded(self._latency(size, self.target.machine.l1.line_bytes)),
            "streams": _rounded(max(1.0, self._streams(size))),
            "interleaved": _interleaved(read, self.target.machine.memory),
            "ahead": self.target.machine.memory.ahead,
        }

    def _streams(self, size: int) -> float:
        """How many times as much all cores together read as one does, each its own data."""
        loop = loops.read_loop(self.target)
        reads = [self.call(loop, size // loop.round_bytes - 1, _filled(size)) for _ in self._cores]
        rounds, taken = _rounds(reads[0]), [0.0] * len(reads)
        barrier = threading.Barrier(len(reads))

        def work(number: int) -> None:
            with on_cores([self._cores[number]]):
                barrier.wait()
                taken[number] = _seconds(reads[number], rounds)

        found = []
        for _ in range(PAIRS):
            alone = _seconds(reads[0], rounds)
            workers = [threading.Thread(target=work, args=(k,)) for k in range(len(reads))]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            found.append(sum(alone / each for each in taken))
        return median(found)

    def _hand_over(self) -> float | None:
        """Cycles that two threads of a pool need beyond half of what one needs; None of one core.

        The clock on the wall counts here, so it is the median of many short slices.
        """
        if len(self._cores) < 2:
            return None
        builder = KernelBuilder()
        x = builder.input(TensorType(DType.F32, (2, SHARED_ELEMENTS)))
        one = const(1.0, DType.F32)
        shape = [("i", 2), ("j", SHARED_ELEMENTS)]
        builder.stage("y", shape, lambda i, j: binary("add", x[i, j], one))
        kernel = builder.kernel("shared", "y")
        compiled = compile_kernel(kernel, Schedule((Parallelize("y", "i"),)), self.target)
        code = LoadedCode([compiled.object_code], [compiled.symbol])
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(code.address(compiled.symbol))
        arrays = [np.zeros((2, SHARED_ELEMENTS), np.float32) for _ in range(2)]
        buffers = (ctypes.c_void_p * 2)(*(array.ctypes.data for array in arrays))
        with on_cores(self._cores):
            teams = [make_runtime(count)[0] for count in (1, 2)]
            found = []
            for _ in range(SHORT_SLICES):
                one_thread, two = (
                    _wall_seconds(lambda: function(buffers, None, ctypes.byref(team)))  # noqa: B023
                    for team in teams
                )
                ticked = _wall_seconds(lambda: self._tick(SHARED_ELEMENTS // self._ticks))
                found.append((two - one_thread / 2) / ticked * SHARED_ELEMENTS)
        return _rounded(max(1.0, median(found)))

    def _vectors(self) -> dict[str, float | bool]:
        target = self.target
        dot = loops.dot_loop(target)
        fma = self._rate(loops.peak_loop(target))
        return {
            "fma": _rounded(fma),
            "fma_latency": _rounded(1.0 / self._rate(loops.peak_loop(target, 1))),
            "dot": _rounded(fma if dot is None else self._rate(dot)),
            "convert": _rounded(1.0 / self._rate(loops.convert_loop(target))),
            "gather": _rounded(1.0 / self._rate(loops.gather_loop(target))),
            "short_functions": target.machine.vectors.short_functions,
        }

    def _tiles(self) -> Mapping[str, float] | None:
        if (one := loops.tile_loop(self.target, 1)) is None:
            return None
        return {
            "product": _rounded(1.0 / self._rate(loops.tile_loop(self.target))),
            "latency": _rounded(1.0 / self._rate(one)),
            "load": self.target.machine.tiles.load,
        }


def _interleaved(read: float, known: CacheTable | MemoryTable) -> float:
    """What the shipped table takes `interleaved` to be, of a level that reads at this rate.

    It follows no measured stream: a third of a slower one had defaults of a Skylake read weights
    too rarely, and take up to 1.19 times as long.
    """
    return _rounded(min(read, known.of_tiles))


_RATES = ("read", "write", "streams", "fma", "dot")
"""Numbers that are the better the larger they are; of the others the smallest is best."""


def _best(tables: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The best of each number in tables of the same CPU; None where it has none."""

    def best(section: str, name: str) -> Any:
        values = [table[section][name] for table in tables]
        return None if None in values else (max if name in _RATES else min)(values)

    return {
        section: {name: best(section, name) for name in numbers}
        for section, numbers in tables[0].items()
    }


def _filled(size: int) -> npt.NDArray[Any]:
    """So many bytes of zeros that begin with a cache line, in pages of their own."""
    data = aligned_empty((size,), np.dtype(np.uint8))
    data[...] = 0
    return data


def _within(sizes: tuple[int, ...], level: int) -> int:
    """Bytes that fit a level of cache, and the tables of pages, but not the level before it."""
    if not level:
        return _power(sizes[0] // 2)
    return _power(min(sizes[level] // 2, 4 * sizes[level - 1]))


def _power(size: int) -> int:
    """The largest power of two up to this."""
    return 1 << (max(1, size).bit_length() - 1)


def _rounds(run: Call) -> int:
    """Rounds that take about a slice."""
    rounds = 64
    while (taken := _seconds(run, rounds)) < SLICE_SECONDS / 2:
        rounds = int(rounds * min(64.0, max(2.0, SLICE_SECONDS / max(taken, 1e-7))))
    return rounds


def _seconds(run: Call, rounds: int) -> float:
    start = time.thread_time()
    run(rounds)
    return time.thread_time() - start


def _wall_seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    for _ in range(_CALLS):
        run()
    return time.perf_counter() - start


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
