"""Profile: what each kernel of a model costs, from runs of the model with a clock inside its entry,
loops included.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import SettingsError, system_errors_as
from tunefarm.compiler.runtime.entry.entry import (
    CLOCK_SYMBOL,
    CLOCKED_ENTRY_SYMBOL,
    TICKS_SYMBOL,
    clocked_entry_of,
)
from tunefarm.compiler.runtime.execution.loaded_program import LoadedProgram
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.machine.slice_clock import SliceClock
from tunefarm.compiler.runtime.spec.executable_spec import (
    AgainStep,
    CopyStep,
    ExecutableSpec,
    FunctionStep,
    LoopStep,
    RunStep,
)
from tunefarm.compiler.runtime.spec.guards import Shape
from tunefarm.compiler.runtime.spec.kernel_report import KernelReport
from tunefarm.compiler.runtime.spec.ports import AnyArray

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.execution.executable import Executable

_MICROSECONDS = 1e6
TIME_SLICE = 0.004
"""Seconds for which Linux lets a thread run, about, before another one has its core."""
COPY = "copy"  # the name of steps that copy memory, and of the row that sums them up


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step of the model in order: its kernel's name and key (`COPY` and ""), seconds in one run.

    In a loop these are those of all rounds. Of a function that the model calls name and key are
    both its name. `nodes` names the ONNX nodes that the step computes, "" where none is known.
    """

    name: str
    key: str
    seconds: float
    nodes: str = ""

    @property
    def title(self) -> str:
        """What the step is called, for people."""
        return self.nodes or self.name


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One distinct kernel, or all copies of memory.

    `seconds` and `flops` are of all its `occurrences` in one run of the model, `share` is its part
    of the seconds of all kernels. The rest is as in the kernel's `KernelReport`. How many `flops`
    there are is known of the maximum sizes alone: at others that are open they are 0.
    """

    name: str
    key: str
    occurrences: int
    seconds: float
    share: float
    flops: int
    schedule_source: str
    record_id: str | None
    nodes: str = ""

    @property
    def title(self) -> str:
        """What the kernel is called, for people."""
        return self.nodes or self.name

    @property
    def gflops(self) -> float:
        """Billions of operations a second; 0 where nothing was computed or no time passed."""
        return self.flops / self.seconds / 1e9 if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """The times of one model in seconds.

    `samples` are the times of whole runs, as `Executable.run` takes them. Runs with a clock inside
    the entry are interleaved with them: `steps` are in the model's order, `kernels` the costliest
    first, `entry_seconds` is what the entry takes outside of all steps, setting up and copying rows
    of dynamic inputs and outputs, `call_seconds` what Python takes to call it. These add up to the
    median of such runs. With one thread the time that it waited for its core does not count.
    `outputs` is what `run` returns.
    """

    samples: tuple[float, ...]
    steps: tuple[StepTime, ...]
    kernels: tuple[KernelTime, ...]
    entry_seconds: float
    call_seconds: float
    outputs: Mapping[str, AnyArray]

    @property
    def repeat(self) -> int:
        """The number of runs of either kind."""
        return len(self.samples)

    @property
    def run_seconds(self) -> float:
        """The time of the whole model: the median of its runs."""
        return median(self.samples)

    @property
    def seconds(self) -> float:
        """The sum of the kernels, copies of memory included."""
        return sum(step.seconds for step in self.steps)

    @property
    def stepwise_seconds(self) -> float:
        """A former name of `seconds`."""
        return self.seconds

    def write_trace(self, prefix: str) -> str:
        """Write one run, step by step, to `PREFIX_TIME.json` in the form of onnxruntime's traces
        (for Perfetto or chrome://tracing); the file's name. Raises `SettingsError` where that
        cannot be written."""
        common = {"pid": os.getpid(), "tid": threading.get_native_id(), "ph": "X"}
        whole = sum(step.seconds for step in self.steps) * _MICROSECONDS
        run = {"cat": "Session", "name": "model_run", "ts": 0.0, "dur": whole, "args": {}}
        events, begin = [{**run, **common}], 0.0
        for step in self.steps:
            name, duration = f"{step.title}_kernel_time", step.seconds * _MICROSECONDS
            node = {"cat": "Node", "name": name, "ts": begin, "dur": duration}
            events.append({**node, "args": {"op_name": step.name}, **common})
            begin += duration
        path = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        advice = "profile_file_prefix of the session's options names another folder"
        with system_errors_as(SettingsError, f"write {path}", advice):
            Path(path).write_text(json.dumps(events, indent=0), encoding="utf-8")
        return path

    def __repr__(self) -> str:
        rows = [f"{row.seconds:.3e} s {row.share:6.1%}  {row.title}" for row in self.kernels]
        return "\n".join([f"{self.run_seconds:.3e} s a run, of {self.repeat}", *rows])


def profile(
    executable: Executable,
    program: LoadedProgram,
    inputs: Mapping[str, object],
    shapes: Mapping[str, Shape],
    repeat: int,
) -> Profile:
    """Time a model and its steps in `repeat` runs each after a warm-up, interleaved.

    The steps' times come from an entry that is compiled for this, with a clock between the steps of
    the `program` that runs these inputs, which have these `shapes`: the kernels, their order,
    memory and threads are those of the model's own run. Raises `InputError` as `Executable.run`
    does, `ValueError` for less than one repetition.
    """
    if repeat < 1:
        raise ValueError(f"repeat must be at least 1, not {repeat}")
    clocked = Clocked(executable, program)
    arena = executable.new_frame().arena
    plain, timed = executable.new_frame(arena), clocked.executable.new_frame(arena)
    samples: list[float] = []
    rounds: list[npt.NDArray[np.float64]] = []
    waits: list[float] = []
    calls: list[float] = []
    before, began = clocked.now(), time.perf_counter()
    with closing(SliceClock(waits=executable.threads == 1)) as slices:
        for _ in range(1 + repeat):
            slices.start()
            executable.run_in(plain, inputs)
            samples.append(slices.seconds())
            clocked.ticks[:] = 0
            slices.start()
            outputs = clocked.executable.run_in(timed, inputs)
            waits.append(slices.waited())
            calls.append(slices.seconds())
            rounds.append(clocked.ticks.astype(np.float64))
    tick = (time.perf_counter() - began) / max(1, clocked.now() - before)
    *seconds, entry_seconds = step_seconds(tick * np.array(rounds[1:]), waits[1:]).tolist()
    call_seconds = max(0.0, median(calls[1:]) - sum(seconds) - entry_seconds)
    steps = _step_times(program.spec, seconds)
    reports = {report.key: report for report in program.spec.kernels}
    ports = program.spec.signature.inputs
    if any(shapes[port.name] != port.greatest.shape for port in ports):
        reports = {key: replace(report, flops=0) for key, report in reports.items()}
    kernels = _kernel_times(steps, reports)
    return Profile(tuple(samples[1:]), steps, kernels, entry_seconds, call_seconds, outputs)


class Clocked:
    """A model with a clock inside the entry of a program; `ticks` are the counts of `step_clock`.

    The model's own code, constants and threads are used, which must live as long.
    """

    def __init__(
        self, executable: Executable, program: LoadedProgram, entry: bytes | None = None
    ) -> None:
        """`entry` is the object code of `clocked_entry_of` the program, which is compiled if it is
        None."""
        spec = program.spec
        symbols = {part.symbol: program.kernel_address(part.symbol) for part in spec.objects}
        names = (CLOCKED_ENTRY_SYMBOL, CLOCK_SYMBOL, TICKS_SYMBOL)
        text = clocked_entry_of(spec) if entry is None else ""
        code = LoadedCode(() if entry is None else (entry,), names, text, symbols)
        self.executable = executable.entered_by(program, code, CLOCKED_ENTRY_SYMBOL)
        self.now = ctypes.CFUNCTYPE(ctypes.c_int64)(code.address(CLOCK_SYMBOL))
        counts = (ctypes.c_int64 * (len(spec.steps) + 1)).from_address(code.address(TICKS_SYMBOL))
        self.ticks = np.ctypeslib.as_array(counts)


def step_seconds(
    rounds: npt.NDArray[np.float64], waits: Sequence[float]
) -> npt.NDArray[np.float64]:
    """What each step takes, from its seconds in each round and those that each round has waited.

    Together they are a run: the median of the rounds without their waits. Where their medians are
    more, steps have waited in all rounds; those shorter than a time slice have some round in which
    they did not, so the others share what is too much, by their time beyond one. Without such steps
    each has its median's part of the run.
    """
    run = max(0.0, float(np.median(rounds.sum(axis=1) - np.asarray(waits))))
    steps: npt.NDArray[np.float64] = np.median(without_waits(rounds, waits), axis=0)
    total = steps.sum()
    surplus, beyond = total - run, np.maximum(0.0, steps - TIME_SLICE)
    if 0.0 < surplus < beyond.sum():
        steps = steps - beyond * (surplus / beyond.sum())
    elif total > 0:
        steps = steps * (run / total)
    return steps


def without_waits(
    rounds: npt.NDArray[np.float64], waits: Sequence[float]
) -> npt.NDArray[np.float64]:
    """The seconds of each step in each round without what the round has waited for its core.

    Nobody knows in which steps that was: it is taken from those that took longest against their
    quickest round. On a busy machine the same step may wait in most rounds, the first one after a
    call of the system for instance, and its median would hold that.
    """
    found = rounds.copy()
    quickest = rounds.min(axis=0)
    for row, wait in zip(found, waits, strict=True):
        excess = row - quickest
        for place in np.argsort(-excess, kind="stable"):
            if wait <= 0.0:
                break
            taken = min(wait, float(excess[place]))
            row[place] -= taken
            wait -= taken
    return found


def _step_times(spec: ExecutableSpec, seconds: Sequence[float]) -> tuple[StepTime, ...]:
    symbols = [part.symbol for part in spec.objects]
    reports = dict(zip(symbols, spec.kernels, strict=True))
    made: Counter[str] = Counter()  # calls of each kernel

    def step_time(step: RunStep, spent: float) -> StepTime:
        if isinstance(step, CopyStep | LoopStep | AgainStep):
            return StepTime(COPY, "", spent)
        if isinstance(step, FunctionStep):
            name = spec.functions[step.function].name
            return StepTime(name, name, spent)
        report = reports[step.symbol]
        made[report.key] += 1
        return StepTime(report.name, report.key, spent, report.nodes_of(made[report.key] - 1))

    return tuple(map(step_time, spec.steps, seconds))


def _kernel_times(
    steps: Sequence[StepTime], reports: Mapping[str, KernelReport]
) -> tuple[KernelTime, ...]:
    """A row per distinct kernel and one for the copies, the costliest first."""
    total = sum(step.seconds for step in steps)
    spent: dict[str, list[StepTime]] = {}
    for step in steps:
        spent.setdefault(step.key, []).append(step)
    rows = []
    for key, own in spent.items():
        report, cost = reports.get(key), sum(step.seconds for step in own)
        rows.append(
            KernelTime(
                name=own[0].name,
                key=key,
                occurrences=len(own),
                seconds=cost,
                share=cost / total if total > 0 else 0.0,
                flops=report.flops * len(own) if report else 0,
                schedule_source=report.schedule_source if report else "",
                record_id=report.record_id if report else None,
                nodes=report.nodes if report else "",
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.seconds))
