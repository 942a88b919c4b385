"""A loaded candidate bound to the buffers of its workload: run it, and see what it did.

It begins in the tight guarded buffers, to be checked; to be timed, it enters an arena.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.llvm.repeat import REPEAT_SYMBOL, repeat_call_object
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.machine.slice_clock import SliceClock
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure.placement import buffer_sizes
from tunefarm.measure.sandbox.guarded import GuardedBuffer, holds
from tunefarm.measure.worker.build_candidate import BuiltCandidate
from tunefarm.measure.worker.constant_copies import ConstantCopies
from tunefarm.measure.worker.timing_arena import TimingArena
from tunefarm.measure.worker.workload import Workload, copies_needed, outputs_needed

_NAN_BYTE = 0xFF
_POISON_BYTES = (0xA5, 0x5A)  # for integers and bools: another value for each seed
_Repeat = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 4)
LOADS = 5
"""Loads of a candidate's code that timed slices alternate with. One in five is 1.5 % to 4.7 %
slower than the others for as long as it lives (a 1x1 convolution on Zen 5): its code lies in other
pages."""
_LEAST_FLUSHED_BYTES = 16 * 1024 * 1024
_MOST_FLUSHED_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Problem:
    """What a kernel did wrong. `retire`: the process's memory may be damaged."""

    error: str
    retire: bool


@dataclass(frozen=True, slots=True)
class _Load:
    """One load of a candidate's code: the loop that calls it, and the kernel's address."""

    code: LoadedCode
    repeat: Callable[..., None]
    kernel: int

    @staticmethod
    def of(code: LoadedCode, symbol: str) -> _Load:
        return _Load(code, _Repeat(code.address(REPEAT_SYMBOL)), code.address(symbol))


@dataclass(frozen=True, slots=True)
class _Tables:
    """Pointer tables that calls alternate with: each row has the addresses of all buffers."""

    memory: npt.NDArray[np.int64]

    @staticmethod
    def of(names: Sequence[str], places: Mapping[str, Sequence[int]]) -> _Tables:
        """Of buffers in the order of these names, each of which alternates between its places."""
        rows = math.lcm(*(len(places[name]) for name in names))
        columns = [np.resize(np.array(places[name], np.int64), rows) for name in names]
        return _Tables(np.ascontiguousarray(np.stack(columns, axis=1)))

    @property
    def rows(self) -> int:
        """Calls until the first row comes again."""
        return len(self.memory)


class BoundCall:
    """A loaded candidate bound to its buffers.

    `checked`: it was right in all cases when it was loaded. `seconds` per call: of the check, or of
    more and warm calls once it is `calibrated`.
    """

    def __init__(
        self,
        workload: Workload,
        candidate: BuiltCandidate,
        code: LoadedCode,
        workspace: GuardedBuffer,
        runtime: int,
        clock: SliceClock,
    ) -> None:
        self.workload = workload
        self._clock = clock
        self.checked = False
        self.seconds = 0.0
        self.calibrated = False
        self.layouts = dict(candidate.constant_layouts)
        self._buffers = workload.arguments(self.layouts)
        self._workspace = workspace
        self._arena: TimingArena | None = None
        self._copies: ConstantCopies | None = None
        self._right: dict[int, Array] = {}  # outputs that were found right, by case
        self._timed = self._tables({name: [buffer.address] for name, buffer in self._buffers})
        self._checked = self._timed
        self._candidate = candidate
        self._loads = [_Load.of(code, candidate.symbol)]
        self._slices = 0
        self._runtime = runtime
        self._workspace_address = workspace.address

    def _tables(self, places: Mapping[str, Sequence[int]]) -> _Tables:
        return _Tables.of([name for name, _ in self._buffers], places)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the workspace."""
        return self._workspace.nbytes

    @property
    def constants(self) -> ConstantCopies:
        """The constants that timed runs read."""
        assert self._copies is not None, "enter comes first"
        return self._copies

    @property
    def turns(self) -> int:
        """Calls of `run_checked` until each copy of the constants was read."""
        return self._checked.rows

    @property
    def nbytes(self) -> int:
        """Memory held besides the workload's."""
        return self._workspace.nbytes + sum(array.nbytes for array in self._right.values())

    def enter(
        self, arena: TimingArena, copies: ConstantCopies, count: int, outputs: int = 1
    ) -> None:
        """From now on run in the arena, alternating with `count` copies of the constants, and with
        so many places for the output."""
        addresses = arena.addresses
        self._arena, self._copies = arena, copies
        self._workspace_address = addresses["workspace"]
        constants = copies.addresses(max(1, count))
        buffers = {name: [address] for name, address in addresses.items()}
        buffers |= {name: [copy[name] for copy in constants] for name in constants[0]}
        self._checked = self._tables(buffers)
        if outputs > len(constants):  # so that no two calls in a row share a copy
            outputs = -(-outputs // len(constants)) * len(constants)
        self._timed = self._tables({**buffers, "output": arena.outputs(outputs)})
        objects = (self._candidate.object_code, repeat_call_object(host_target()))
        symbol = self._candidate.symbol
        while len(self._loads) < LOADS:
            code = LoadedCode(objects, (symbol, REPEAT_SYMBOL))
            self._loads.append(_Load.of(code, symbol))

    def prepare(self, case: int) -> None:
        """Fill the inputs, poison the output, and the workspace where it is not shared."""
        is_float = self.workload.kernel.output.dtype.is_float
        poison = _NAN_BYTE if is_float else _POISON_BYTES[case % 2]
        if self._arena is not None:
            self._arena.prepare(case, poison)
            return
        self.workload.fill(case)
        self.workload.output.poison(poison)
        self._workspace.poison(_NAN_BYTE)

    def run(self, calls: int) -> float:
        """Run the kernel `calls` times; the seconds that took.

        All calls of a workload go on where the last one was, so that nobody finds in the caches
        what another has just read or written. In an arena each slice is another load's; after one
        with page faults all memory is there.
        """
        if self._arena is None:
            return self._run(self._timed, calls, 0)
        seconds = self._run(self._timed, calls, self.workload.turn % self._timed.rows)
        self.workload.turn += calls
        if self._clock.faults:
            self._arena.touch()
            self.constants.touch()
        return seconds

    def run_checked(self, calls: int) -> None:
        """Run the kernel `calls` times, all of which write to the output that `problem` looks at,
        and read each copy of the constants from the first one on."""
        self._run(self._checked, calls, 0)

    def _run(self, tables: _Tables, calls: int, turn: int) -> float:
        load = self._loads[self._slices % len(self._loads)]
        self._slices += 1
        workspace, runtime = self._workspace_address, self._runtime
        begin, count, stride = tables.memory.ctypes.data, tables.rows, tables.memory.strides[0]
        clock = self._clock
        clock.start()
        load.repeat(load.kernel, begin, workspace, runtime, calls, turn, count, stride)
        return clock.seconds()

    def run_flushed(self, calls: int) -> float:
        """As `run`, with the caches filled with something else before each call."""
        seconds = 0.0
        for _ in range(calls):
            flush_caches()
            seconds += self.run(1)
        return seconds

    def problem(self, case: int, *, constants: bool = True) -> Problem | None:
        """What the runs since `prepare(case)` did wrong, if anything.

        `constants`: look at those too; what was written into them stays there.
        """
        damage = self._damage(case) or (self._changed_constant() if constants else None)
        if damage is not None:
            return damage
        output = self.workload.output_array if self._arena is None else self._arena.output
        right = self._right.get(case)
        if right is not None and holds(output.ctypes.data, right):
            return None
        mismatch = self.workload.mismatch(case, output, rounded=self._candidate.rounds_data)
        if mismatch is None:
            return None
        return self._changed_constant() or Problem(f"seed {case}: {mismatch}", retire=False)

    def remember_output(self, case: int) -> None:
        """Take the output, which was found right, as what it is to be from now on."""
        self._right[case] = self.workload.output_array.copy()

    def _damage(self, case: int) -> Problem | None:
        """What was written that is neither output nor constant, if anything."""
        if self._arena is not None:
            return arena_damage(self._arena, case)
        for name, buffer in (*self._buffers, ("workspace", self._workspace)):
            damage = buffer.damage()
            if damage:
                return Problem(f"out of bounds: {damage} of {name}", retire=True)
        return _modified(self.workload.changed_input(case))

    def _changed_constant(self) -> Problem | None:
        if self._copies is not None:
            return _modified(self._copies.changed())
        return _modified(self.workload.changed_constant(self.layouts))

    def close(self) -> None:
        """Unmap the workspace. Idempotent."""
        self._workspace.close()


def arena_damage(arena: TimingArena, case: int) -> Problem | None:
    """What was written in an arena that is no output, if anything."""
    damage = arena.damage()
    if damage:
        return Problem(f"out of bounds: {damage}", retire=True)
    return _modified(arena.changed_input(case))


def _modified(name: str) -> Problem | None:
    return Problem(f"input {name} was modified", retire=True) if name else None


def enter_arenas(
    calls: Sequence[BoundCall],
    arenas: Sequence[TimingArena],
    case: int,
    *,
    cold: bool,
    model_bytes: int = 0,
    idle_bytes: int = 0,
) -> int:
    """Have each call run in its arena from now on, ready to run with the inputs of `case`.

    `cold`: they alternate with copies of the constants, each with as many, and with places of the
    output; returns how many copies. The bytes are as in `TimingOptions`.
    """
    workload = calls[0].workload
    copies = workload.copies([call.layouts for call in calls])
    count = copies_needed([one.bytes for one in copies], model_bytes) if cold else 0
    constant_bytes = min(one.bytes for one in copies) if count > 1 else 0
    buffers = buffer_sizes(workload.kernel)
    outputs = outputs_needed(buffers, constant_bytes, idle_bytes) if cold else 1
    for call, arena, constants in zip(calls, arenas, copies, strict=True):
        call.enter(arena, constants, count, outputs)
        call.prepare(case)
    return count


def mended_damage(
    arenas: Sequence[TimingArena], case: int, copies: Sequence[ConstantCopies]
) -> Problem | None:
    """What timed runs of several calls wrote that is no output; it is put right again.

    Each call then has to be run alone, to find which is to blame.
    """
    found = None
    for constants in dict.fromkeys(copies):
        changed = _modified(constants.changed())
        if changed is not None:
            found = changed
            constants.mend()
    for arena in dict.fromkeys(arenas):
        damage = arena_damage(arena, case)
        if damage is not None:
            found = damage
            arena.mend()
    return found


def flush_caches() -> None:
    """Walk over twice the last cache's size, so that nothing else is left in it."""
    _flushing_buffer().__iadd__(1)


@cache
def _flushing_buffer() -> npt.NDArray[Any]:
    target = host_target()
    size = 2 * max(target.l2_bytes, target.l3_bytes)
    return np.zeros(min(max(size, _LEAST_FLUSHED_BYTES), _MOST_FLUSHED_BYTES) // 8, np.int64)
