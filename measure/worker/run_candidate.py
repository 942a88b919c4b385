"""Inside the disposable process: load built candidates, check them, time them. References stay
loaded from request to request.
"""

from __future__ import annotations

import ctypes
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

from tunefarm.compiler.errors import ArtefactError, MeasureError
from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.compiler.llvm.repeat import REPEAT_SYMBOL, repeat_call_object
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.machine.slice_clock import SliceClock
from tunefarm.compiler.runtime.machine.threads import make_runtime
from tunefarm.compiler.target import host_target
from tunefarm.measure import machine
from tunefarm.measure.cpu_quota import read_quota
from tunefarm.measure.machine import Activity, activity
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.measure.placement import placements_of
from tunefarm.measure.sandbox.guarded import GuardedBuffer
from tunefarm.measure.sandbox.in_flight import InFlight
from tunefarm.measure.worker.answer import answer_of
from tunefarm.measure.worker.bound_call import BoundCall, Problem, enter_arenas, mended_damage
from tunefarm.measure.worker.build_candidate import BuiltCandidate
from tunefarm.measure.worker.reference import ensure_reference
from tunefarm.measure.worker.timer import Run, Timing, TimingOptions, calibrate, time_in_turn
from tunefarm.measure.worker.timing_arena import TimingArena
from tunefarm.measure.worker.undisturbed import UndisturbedSlices
from tunefarm.measure.worker.workload import Workload
from tunefarm.measure.worker.yardstick import Yardstick

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
