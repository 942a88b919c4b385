"""A loaded candidate bound to the buffers of its workload: run it, and see what it did."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.llvm.repeat import REPEAT_SYMBOL
from compiler.runtime.loaded_code import LoadedCode
from compiler.target import host_target
from measure.sandbox.guarded import GuardedBuffer
from measure.worker.build_candidate import BuiltCandidate
from measure.worker.check_output import compare_output
from measure.worker.workload import Workload

_NAN_BYTE = 0xFF
_POISON_BYTES = (0xA5, 0x5A)  # for integers and bools: another value for each seed
_Repeat = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 4)
_LEAST_FLUSHED_BYTES = 16 * 1024 * 1024
_MOST_FLUSHED_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Problem:
    """What a kernel did wrong. `retire`: the process's memory may be damaged."""

    error: str
    retire: bool


class BoundCall:
    """A loaded candidate bound to its buffers."""

    def __init__(
        self,
        workload: Workload,
        candidate: BuiltCandidate,
        code: LoadedCode,
        workspace: GuardedBuffer,
        runtime: int,
    ) -> None:
        self.workload = workload
        self._layouts = dict(candidate.constant_layouts)
        self._buffers = workload.arguments(self._layouts)
        self._workspace = workspace
        self._first = [(name, buffer.address) for name, buffer in self._buffers]
        self._turn = 0
        self._set_tables([])
        self._code = code
        self._function = _Repeat(code.address(REPEAT_SYMBOL))
        self._arguments = (
            code.address(candidate.symbol),
            workspace.address,
            runtime,
        )

    def _set_tables(self, copies: Sequence[Mapping[str, int]]) -> None:
        """Pointer tables: the guarded buffers, then the same with each copy of the constants."""
        rows = [[address for _, address in self._first]]
        rows += [[copy.get(name, address) for name, address in self._first] for copy in copies]
        self._count, self._stride = len(rows), 8 * len(self._first)
        self._tables = (ctypes.c_void_p * (len(rows) * len(self._first)))(
            *(address for row in rows for address in row)
        )

    def use_copies(self) -> int:
        """From now on calls take turns with copies of the constants; returns how many there are."""
        copies = self.workload.copied_constants(self._layouts)
        self._set_tables(copies)
        return len(copies)

    def prepare(self, case: int) -> None:
        """Fill the inputs, poison output and workspace."""
        self.workload.fill(case)
        is_float = self.workload.kernel.output.dtype.is_float
        self.workload.output.poison(_NAN_BYTE if is_float else _POISON_BYTES[case % 2])
        self._workspace.poison(_NAN_BYTE)

    def run(self, calls: int) -> float:
        """Run the kernel `calls` times; the seconds that took."""
        kernel, workspace, runtime = self._arguments
        tables = ctypes.addressof(self._tables)
        turn, count, stride = self._turn, self._count, self._stride
        start = perf_counter()
        self._function(kernel, tables, workspace, runtime, calls, turn, count, stride)
        seconds = perf_counter() - start
        self._turn = (turn + calls) % count
        return seconds

    def run_flushed(self, calls: int) -> float:
        """As `run`, with the caches filled with something else before each call."""
        seconds = 0.0
        for _ in range(calls):
            flush_caches()
            seconds += self.run(1)
        return seconds

    def problem(self, case: int) -> Problem | None:
        """What the runs since `prepare(case)` did wrong, if anything."""
        for name, buffer in (*self._buffers, ("workspace", self._workspace)):
            damage = buffer.damage()
            if damage:
                return Problem(f"out of bounds: {damage} of {name}", retire=True)
        changed = self.workload.changed_input(case, self._layouts)
        if changed:
            return Problem(f"input {changed} was modified", retire=True)
        reference = self.workload.reference
        mismatch = compare_output(
            self.workload.output_array,
            reference.cases[case].expected,
            reference.length,
            self.workload.numerics,
        )
        return Problem(f"seed {case}: {mismatch}", retire=False) if mismatch else None


def flush_caches() -> None:
    """Walk over twice the last cache's size, so that nothing else is left in it."""
    _flushing_buffer().__iadd__(1)


@cache
def _flushing_buffer() -> npt.NDArray[Any]:
    target = host_target()
    size = 2 * max(target.l2_bytes, target.l3_bytes)
    return np.zeros(min(max(size, _LEAST_FLUSHED_BYTES), _MOST_FLUSHED_BYTES) // 8, np.int64)
