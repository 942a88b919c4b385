"""Inside the disposable process: load a built candidate, check it, time it."""

from __future__ import annotations

import ctypes
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from compiler.errors import ArtefactError
from compiler.graph.ir import Array
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.serialize import kernel_from_json
from compiler.llvm.repeat import REPEAT_SYMBOL, repeat_call_object
from compiler.loops.pack import pack_constant
from compiler.runtime.buffers import address_of, aligned_empty
from compiler.runtime.loaded_code import LoadedCode
from compiler.runtime.threads import make_runtime
from compiler.schedule.steps import PackLayout
from compiler.target import host_target
from measure import machine
from measure.build_candidate import BuiltCandidate
from measure.check_output import compare_output
from measure.guarded import GuardedBuffer
from measure.job import Status
from measure.reference import Reference, ensure_reference
from measure.stability import is_unstable, relative_mad
from measure.timer import TimingOptions, time_calls

_CACHE_BYTES = 512 * 1024 * 1024
_NAN_BYTE = 0xFF
_POISON_BYTES = (0xA5, 0x5A)  # for integers and bools: another value for each seed
_Repeat = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 4)
_MOST_COPIES = 16  # of a kernel's constants
_MOST_COPIED_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How checking and timing ended. `retire`: the process's memory may be damaged, replace it."""

    status: Status
    samples: tuple[float, ...] = ()
    error: str = ""
    check_seconds: float = 0.0
    run_seconds: float = 0.0
    machine: Mapping[str, Any] = field(default_factory=dict)
    retire: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "status": str(self.status),
            "samples": list(self.samples),
            "error": self.error,
            "check_seconds": self.check_seconds,
            "run_seconds": self.run_seconds,
            "machine": dict(self.machine),
            "retire": self.retire,
        }


class Workload:
    """A kernel's reference, and guarded buffers for its inputs and output, kept between candidates.

    Constants are packed once for each layout that candidates ask for.
    """

    def __init__(self, kernel: FusedKernel, reference: Reference) -> None:
        self.kernel = kernel
        self.reference = reference
        self._activations = {
            buffer.name: GuardedBuffer(buffer.type.bytes)
            for buffer in kernel.inputs
            if not buffer.constant
        }
        self._constants: dict[tuple[str, PackLayout | None], tuple[Array, GuardedBuffer]] = {}
        self._copies: dict[tuple[str, PackLayout | None], list[Array]] = {}
        output = kernel.output
        self.output = GuardedBuffer(output.dtype.bytes * int(np.prod(output.shape, dtype=np.int64)))
        self.output_array = self.output.array(output.dtype, output.shape)

    @property
    def nbytes(self) -> int:
        """Memory held, including the unguarded copies that packed constants are compared with."""
        buffers = [*self._activations.values(), self.output]
        constants = sum(2 * b.nbytes for _, b in self._constants.values())
        copies = sum(copy.nbytes for copies in self._copies.values() for copy in copies)
        return sum(b.nbytes for b in buffers) + constants + copies

    def fill(self, case: int) -> None:
        """Write the inputs of one case into the buffers."""
        for name, buffer in self._activations.items():
            buffer.fill(self.reference.cases[case].inputs[name])

    def arguments(self, layouts: Mapping[str, PackLayout]) -> list[tuple[str, GuardedBuffer]]:
        """Every buffer of the kernel ABI in order, named."""
        inputs = [
            (b.name, self._constant(b.name, layouts.get(b.name))[1])
            if b.constant
            else (b.name, self._activations[b.name])
            for b in self.kernel.inputs
        ]
        return [*inputs, ("output", self.output)]

    def copied_constants(self, layouts: Mapping[str, PackLayout]) -> list[dict[str, int]]:
        """Addresses of further copies of all constants, by name: together they exceed the caches.

        A model's weights are seldom in the caches when their kernel starts, and how much that
        costs depends on the schedule. Empty for a kernel without constants.
        """
        names = [buffer.name for buffer in self.kernel.inputs if buffer.constant]
        packed = {name: self._constant(name, layouts.get(name))[0] for name in names}
        size = sum(array.nbytes for array in packed.values())
        if size == 0:
            return []
        limit = min(host_target().l3_bytes, _MOST_COPIED_BYTES)
        count = min(_MOST_COPIES, -(-limit // size))
        for name, array in packed.items():
            copies = self._copies.setdefault((name, layouts.get(name)), [])
            while len(copies) < count:
                copy = aligned_empty(array.shape, array.dtype, array.nbytes)
                copy[...] = array
                copies.append(copy)
        return [
            {name: address_of(self._copies[name, layouts.get(name)][i]) for name in names}
            for i in range(count)
        ]

    def changed_input(self, case: int, layouts: Mapping[str, PackLayout]) -> str:
        """The name of an input that differs from what was written into it; empty if none does."""
        for buffer in self.kernel.inputs:
            if buffer.constant:
                pristine, guarded = self._constant(buffer.name, layouts.get(buffer.name))
            else:
                pristine = self.reference.cases[case].inputs[buffer.name]
                guarded = self._activations[buffer.name]
            if not guarded.equals(pristine):
                return buffer.name
        return ""

    def _constant(self, name: str, layout: PackLayout | None) -> tuple[Array, GuardedBuffer]:
        found = self._constants.get((name, layout))
        if found is None:
            logical = self.reference.cases[0].inputs[name]
            packed = logical if layout is None else pack_constant(logical, layout)
            guarded = GuardedBuffer(packed.nbytes)
            guarded.fill(packed)
            found = self._constants[name, layout] = (packed, guarded)
        return found

    def drop_constants(self) -> None:
        """Forget all packed constants."""
        for _, guarded in self._constants.values():
            guarded.close()
        self._constants.clear()
        self._copies.clear()

    def close(self) -> None:
        self.drop_constants()
        self.output.close()
        for buffer in self._activations.values():
            buffer.close()


class CandidateRunner:
    """Runs candidates one after the other; lives as long as its process behaves."""

    def __init__(self, scratch: Path, threads: int, cores: Sequence[int]) -> None:
        self._scratch = scratch
        self._cores = tuple(cores)
        self._runtime, threading = make_runtime(threads)
        self._repeat = repeat_call_object(host_target())
        self._workloads: OrderedDict[str, Workload] = OrderedDict()
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
        self, kernel: Any, key: str, candidate: BuiltCandidate, options: TimingOptions
    ) -> RunOutcome:
        """Check the candidate with every reference case, time it, and check its last output."""
        workload = self._workload(kernel, key)
        try:
            code = LoadedCode(
                (candidate.object_code, self._repeat), (candidate.symbol, REPEAT_SYMBOL)
            )
        except ArtefactError as error:
            return RunOutcome(Status.BUILD_ERROR, error=str(error))
        with GuardedBuffer(candidate.workspace_bytes) as workspace:
            call = _Call(workload, candidate, code, workspace, ctypes.addressof(self._runtime))
            outcome = self._check_and_time(call, options)
        if workload.nbytes > _CACHE_BYTES:
            workload.drop_constants()
        return outcome

    def _check_and_time(self, call: _Call, options: TimingOptions) -> RunOutcome:
        start = perf_counter()
        seconds = 0.0
        for case in range(len(call.workload.reference.cases)):
            call.prepare(case)
            begin = perf_counter()
            call.repeat(1)
            seconds = perf_counter() - begin
            problem = call.problem(case)
            if problem:
                return problem.at(perf_counter() - start)
        last = len(call.workload.reference.cases) - 1
        call.prepare(last)
        checked = perf_counter()
        before = machine.activity(self._cores)
        copies = call.use_copies() if options.cold_constants else 0
        timing = time_calls(call.repeat, options, estimate=seconds)
        noise = machine.activity(self._cores).since(before)
        timed = perf_counter()
        problem = call.problem(last)
        if problem:
            return problem.at(perf_counter() - start)
        mad = relative_mad(timing.samples)
        status = Status.UNSTABLE if mad > options.unstable_limit else Status.OK
        return RunOutcome(
            status,
            timing.samples,
            f"relative MAD of the samples is {mad:.0%}" if status is Status.UNSTABLE else "",
            check_seconds=checked - start + perf_counter() - timed,
            run_seconds=timed - checked,
            machine={
                **self._machine,
                **noise,
                "load": machine.load_average(),
                "calls": timing.calls,
                "constant_copies": copies,
                "relative_mad": round(mad, 5),
                "unstable": is_unstable(timing.samples),
            },
        )

    def _workload(self, kernel: Any, key: str) -> Workload:
        """The workload of this key, from the cache of the most recent ones."""
        workload = self._workloads.pop(key, None)
        if workload is None:
            while sum(kept.nbytes for kept in self._workloads.values()) > _CACHE_BYTES:
                self._workloads.popitem(last=False)[1].close()
            built = kernel_from_json(kernel)
            workload = Workload(built, ensure_reference(built, key, self._scratch))
        self._workloads[key] = workload
        return workload


@dataclass(frozen=True, slots=True)
class _Problem:
    error: str
    retire: bool

    def at(self, check_seconds: float) -> RunOutcome:
        return RunOutcome(
            Status.WRONG_RESULT,
            error=self.error,
            check_seconds=check_seconds,
            retire=self.retire,
        )


class _Call:
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

    def repeat(self, calls: int) -> None:
        """Run the kernel `calls` times."""
        kernel, workspace, runtime = self._arguments
        tables = ctypes.addressof(self._tables)
        turn, count, stride = self._turn, self._count, self._stride
        self._function(kernel, tables, workspace, runtime, calls, turn, count, stride)
        self._turn = (turn + calls) % count

    def problem(self, case: int) -> _Problem | None:
        """What the runs since `prepare(case)` did wrong, if anything."""
        for name, buffer in (*self._buffers, ("workspace", self._workspace)):
            damage = buffer.damage()
            if damage:
                return _Problem(f"out of bounds: {damage} of {name}", retire=True)
        changed = self.workload.changed_input(case, self._layouts)
        if changed:
            return _Problem(f"input {changed} was modified", retire=True)
        reference = self.workload.reference
        mismatch = compare_output(
            self.workload.output_array, reference.cases[case].expected, reference.length
        )
        return _Problem(f"seed {case}: {mismatch}", retire=False) if mismatch else None
