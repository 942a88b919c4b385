"""Inside the disposable process: load built candidates, check them, time them. References stay
loaded from request to request.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import ArtefactError, MeasureError
from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.compiler.llvm.peak_loop import REPEAT_SYMBOL, repeat_call_object
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.machine.slice_clock import SliceClock
from tunefarm.compiler.runtime.machine.threads import make_runtime
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure import machine
from tunefarm.measure.cpus import read_quota
from tunefarm.measure.machine import Activity, activity
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.measure.placement import buffer_sizes, placements_of
from tunefarm.measure.sandbox.guarded import GuardedBuffer, holds
from tunefarm.measure.sandbox.messages import InFlight
from tunefarm.measure.worker.build_candidate import BuiltCandidate
from tunefarm.measure.worker.reference import ensure_reference
from tunefarm.measure.worker.timer import (
    Run,
    Timing,
    TimingOptions,
    UndisturbedSlices,
    Yardstick,
    answer_of,
    calibrate,
    time_in_turn,
)
from tunefarm.measure.worker.timing_arena import TimingArena
from tunefarm.measure.worker.workload import ConstantCopies, Workload, copies_needed, outputs_needed

# --- A loaded candidate bound to the buffers of its workload: run it, and see what it did --------
#
# It begins in the tight guarded buffers, to be checked; to be timed, it enters an arena.


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


_CACHE_BYTES = 512 * 1024 * 1024


class RunOutcome(NamedTuple):
    """How checking and timing ended; `culprit` is the number of the candidate that failed.

    `retire`: the process's memory may be damaged, replace it.
    """

    result: MeasureResult
    retire: bool = False


class CandidateRunner:
    """Runs candidates one after the other; lives as long as its process behaves."""

    def __init__(
        self,
        scratch: Path,
        threads: int,
        cores: Sequence[int],
        in_flight: InFlight,
    ) -> None:
        """`in_flight` is where the number of the candidate is noted that loads or runs next."""
        self._in_flight = in_flight
        self._scratch = scratch
        self._cores = tuple(cores)
        self._runtime, threading = make_runtime(threads)
        self._repeat = repeat_call_object(host_target())
        self._yardstick = Yardstick(host_target())
        self._clock = SliceClock(waits=threads == 1)  # of several threads one wait says little
        self._slices = UndisturbedSlices(read_quota(), threads, self._clock)
        self._workloads: OrderedDict[str, Workload] = OrderedDict()
        self._kept = _KeptCalls()
        facts = machine.fingerprint()
        self._machine: dict[str, Any] = {
            "fingerprint": facts["fingerprint"],
            "cpu": facts["cpu"],
            "cores": list(cores),
            "threads": int(self._runtime.threads),
            "threading": threading,
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
        }

    def run(
        self,
        kernel: Any,
        key: str,
        candidates: Sequence[BuiltCandidate],
        options: TimingOptions,
        seed: int = 0,
        placements: Sequence[object] = (),
        sizes: tuple[int, ...] = (),
    ) -> RunOutcome:
        """Check every candidate with every reference case, time them, and check them once more.

        They are timed in turn, in random order (`seed`), with their buffers where `placements` say.
        All but the first stay loaded for the next requests, which need not check them in full.
        """
        rounds = any(candidate.rounds_data for candidate in candidates)
        workload = self._workload(kernel, key, sizes, rounded=rounds)
        key = "-".join((key, *map(str, sizes)))  # by which what was checked is kept
        calls: list[BoundCall] = []
        try:
            for number, candidate in enumerate(candidates):
                self._in_flight.note(number)
                kept = self._kept.find((key, candidate)) if number else None
                if kept is None or kept in calls:  # one call is in one place at a time
                    kept = self._load(workload, candidate)
                calls.append(kept)
            workspace_bytes = max(candidate.workspace_bytes for candidate in candidates)
            arenas = workload.arenas(placements_of(placements, len(calls)), workspace_bytes)
            outcome = self._check_and_time(workload, calls, arenas, options, seed)
        except ArtefactError as error:
            return RunOutcome(
                MeasureResult("", Status.BUILD_ERROR, error=str(error), culprit=len(calls))
            )
        except MeasureError as error:
            return RunOutcome(MeasureResult("", Status.INFRASTRUCTURE, error=str(error)))
        finally:
            self._settle(workload, key, candidates, calls)
        if outcome.result.culprit:
            self._kept.drop((key, candidates[outcome.result.culprit]))
        return outcome

    def _load(self, workload: Workload, candidate: BuiltCandidate) -> BoundCall:
        code = LoadedCode((candidate.object_code, self._repeat), (candidate.symbol, REPEAT_SYMBOL))
        workspace = GuardedBuffer(candidate.workspace_bytes)
        runtime = ctypes.addressof(self._runtime)
        return BoundCall(workload, candidate, code, workspace, runtime, self._clock)

    def _settle(
        self,
        workload: Workload,
        key: str,
        candidates: Sequence[BuiltCandidate],
        calls: Sequence[BoundCall],
    ) -> None:
        """Keep the references that were right, and let go of all else that takes room."""
        for number, (candidate, call) in enumerate(zip(candidates, calls, strict=False)):
            if number and call.checked:
                self._kept.keep((key, candidate), call)
            else:
                call.close()
        workload.trim(_CACHE_BYTES, [call.layouts for call in self._kept.of_workload(key)])

    def _check_and_time(
        self,
        workload: Workload,
        calls: Sequence[BoundCall],
        arenas: Sequence[TimingArena],
        options: TimingOptions,
        seed: int,
    ) -> RunOutcome:
        start = perf_counter()
        last = len(workload.reference.cases) - 1
        known = [call.checked for call in calls]
        wrong = self._check_all(calls, last)
        if wrong is not None:
            return wrong
        copies = enter_arenas(
            calls,
            arenas,
            last,
            cold=bool(options.cold_constants),
            model_bytes=options.model_bytes,
            idle_bytes=options.idle_bytes,
        )
        checked = perf_counter()
        watch = CoreWatch(self._cores)
        stopped, faulted = self._slices.stopped, self._slices.faulted
        yardstick = self._yardstick.seconds()
        timing = self._time(calls, options, seed)
        drift = self._yardstick.seconds() / yardstick - 1.0
        timed = perf_counter()
        noise = watch.activity()
        new = [call.constants for call, was in zip(calls, known, strict=True) if not was]
        damage = mended_damage(arenas, last, new)
        for number, call in enumerate(calls):
            self._in_flight.note(number)
            call.prepare(last)
            call.run_checked(call.turns if damage else 1)
            problem = call.problem(last, constants=damage is not None)
            if problem:
                return _wrong(problem, number, perf_counter() - start)
        if damage:
            return _wrong(damage, 0 if len(calls) == 1 else None, perf_counter() - start)
        facts = {
            **self._machine,
            **noise.to_json(),
            "load": machine.load_average(),
            "calls": timing.calls[0],
            "constant_copies": copies,
            "throttled_slices": self._slices.stopped - stopped,
            "faulted_slices": self._slices.faulted - faulted,
            "anchor_seconds": yardstick,
            "anchor_drift": round(drift, 5),
        }
        result = answer_of(timing, options, facts)
        seconds = checked - start + perf_counter() - timed
        return RunOutcome(replace(result, check_seconds=seconds, run_seconds=timed - checked))

    def _check_all(self, calls: Sequence[BoundCall], last: int) -> RunOutcome | None:
        """Check with every case up to the `last` what was not checked before; the first failure."""
        start = perf_counter()
        for number, call in enumerate(calls):
            if call.checked:
                continue
            self._in_flight.note(number)
            for case in range(last + 1):
                call.prepare(case)
                call.seconds = call.run(1)
                problem = call.problem(case, constants=case == last)
                if problem:
                    return _wrong(problem, number, perf_counter() - start)
            call.remember_output(last)
            call.checked = True
        return None

    def _time(self, calls: Sequence[BoundCall], options: TimingOptions, seed: int) -> Timing:
        """Time the calls in turn; a kept one needs no warming up to be calibrated."""
        runs = [
            self._noted(number, call.run_flushed if options.flush_cache else call.run)
            for number, call in enumerate(calls)
        ]
        seconds = []
        for call, run in zip(calls, runs, strict=True):
            if call.calibrated:
                run(1)
            else:
                call.seconds = calibrate(run, options, call.seconds)
                call.calibrated = not options.flush_cache
            seconds.append(call.seconds)
        timing = time_in_turn(runs, options, seconds, seed)
        for call, samples in zip(calls, timing.samples, strict=True):
            call.seconds = median(samples)
        return timing

    def _noted(self, number: int, run: Run) -> Run:
        """`run`, which notes that it is the turn of this number, and is undisturbed."""

        def run_noted(calls: int) -> float:
            self._in_flight.note(number)
            return self._slices.seconds(run, calls)

        return run_noted

    def _workload(
        self, kernel: Any, name: str, sizes: tuple[int, ...], *, rounded: bool
    ) -> Workload:
        """The workload of this key at these sizes, from the cache of the most recent ones.

        `rounded`: with a reference for candidates that round data to 8 bits.
        """
        key = "-".join((name, *map(str, sizes)))
        workload = self._workloads.pop(key, None)
        if workload is None:
            while sum(kept.nbytes for kept in self._workloads.values()) > _CACHE_BYTES:
                old, gone = self._workloads.popitem(last=False)
                self._kept.drop_workload(old)
                gone.close()
            built = kernel_from_json(kernel)
            reference = ensure_reference(built, name, self._scratch, sizes)
            workload = Workload(built, reference)
        if rounded and workload.reference.cases[0].rounded is None:
            workload.reference = ensure_reference(
                workload.kernel, name, self._scratch, sizes, rounded=True
            )
        self._workloads[key] = workload
        return workload


def _wrong(problem: Problem, number: int | None, seconds: float) -> RunOutcome:
    result = MeasureResult(
        "", Status.WRONG_RESULT, error=problem.error, check_seconds=seconds, culprit=number
    )
    return RunOutcome(result, problem.retire)


class CoreWatch:
    """Watches this process on its cores from now on."""

    def __init__(
        self, cores: Sequence[int], *, read: Callable[[Sequence[int]], Activity] = activity
    ) -> None:
        self._cores = cores
        self._read = read
        self._before = read(cores)

    def activity(self) -> Activity:
        """What has happened since it began to watch."""
        return self._read(self._cores).since(self._before)


_MOST_KEPT = 64
_MOST_OF_WORKLOAD = 3  # their constants stay packed
_MOST_BYTES = 128 * 1024 * 1024  # that they hold besides their workloads

_Key: TypeAlias = tuple[str, BuiltCandidate]  # workload key, and the very object code


class _KeptCalls:
    """Loaded candidates by workload and object code; the latest stay."""

    def __init__(self) -> None:
        self._calls: OrderedDict[_Key, BoundCall] = OrderedDict()

    def find(self, key: _Key) -> BoundCall | None:
        """The loaded candidate, if it is kept."""
        if key in self._calls:
            self._calls.move_to_end(key)
        return self._calls.get(key)

    def keep(self, key: _Key, call: BoundCall) -> None:
        """Keep it, and let go of others, the longest unused first, until there is room."""
        before = self._calls.pop(key, None)
        if before is not None and before is not call:
            before.close()
        self._calls[key] = call
        of_workload = [other for other in self._calls if other[0] == key[0]]
        for other in of_workload[:-_MOST_OF_WORKLOAD]:
            self.drop(other)
        while len(self._calls) > 1 and (
            len(self._calls) > _MOST_KEPT
            or sum(kept.nbytes for kept in self._calls.values()) > _MOST_BYTES
        ):
            self._calls.popitem(last=False)[1].close()

    def of_workload(self, workload_key: str) -> list[BoundCall]:
        """What is kept of a workload."""
        return [call for (kept, _), call in self._calls.items() if kept == workload_key]

    def drop(self, key: _Key) -> None:
        """Keep this one no longer."""
        call = self._calls.pop(key, None)
        if call is not None:
            call.close()

    def drop_workload(self, workload_key: str) -> None:
        """Keep none of a workload whose memory goes."""
        for key in [key for key in self._calls if key[0] == workload_key]:
            self.drop(key)
