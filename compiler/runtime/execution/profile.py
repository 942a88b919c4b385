"""Profile: what each kernel of a model costs, from runs of the model one step at a time, loops
included.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from tunefarm.compiler.runtime.execution.frame import Frame
from tunefarm.compiler.runtime.machine.kernel_session import KernelSession
from tunefarm.compiler.runtime.spec.buffers import Tables, pointer_table
from tunefarm.compiler.runtime.spec.executable_spec import (
    AgainStep,
    Condition,
    CopyStep,
    ExecutableSpec,
    FunctionStep,
    Location,
    LoopStep,
    RunStep,
)
from tunefarm.compiler.runtime.spec.kernel_report import KernelReport
from tunefarm.compiler.runtime.spec.ports import AnyArray
from tunefarm.compiler.types.signature import Signature

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.execution.executable import Executable

COPY = "copy"  # the name of steps that copy memory, and of the row that sums them up
_KernelFunction = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)

_Function: TypeAlias = Callable[..., object]


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step of the model in order: its kernel's name and key (`COPY` and ""), median seconds.

    In a loop these are those of all rounds; where it begins and ends nothing is measured. Of a
    function that the model calls both are its name.
    """

    name: str
    key: str
    seconds: float


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

    @property
    def gflops(self) -> float:
        """Billions of operations a second; 0 where nothing was computed or no time passed."""
        return self.flops / self.seconds / 1e9 if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """The times of one model, medians in seconds.

    `steps` are in the model's order, `kernels` the costliest first. `run_seconds` is the time of
    `Executable.run` and `stepwise_seconds` that of all steps one by one in the rounds between: the
    two are to be compared. Where other work disturbs some steps of every round, the `seconds` of
    all steps together are less than either. `outputs` is what the steps left there, as `run` does.
    """

    repeat: int
    steps: tuple[StepTime, ...]
    kernels: tuple[KernelTime, ...]
    run_seconds: float
    stepwise_seconds: float
    outputs: Mapping[str, AnyArray]

    @property
    def seconds(self) -> float:
        """The sum of the steps' medians."""
        return sum(step.seconds for step in self.steps)

    def _repr_html_(self) -> str:
        """What notebooks show of it."""
        from tunefarm.compiler.runtime.execution.executable_html import profile_html

        return profile_html(self)


def profile(executable: Executable, inputs: Mapping[str, object], repeat: int) -> Profile:
    """Run a model step by step, `repeat` times after a warm-up, interleaved with whole runs.

    Each kernel is called by itself, on its place in the memory plan, after what comes before it in
    the model. What such a call costs with nothing to do is taken off. Raises `InputError` as
    `Executable.run` does, `ValueError` for less than one repetition.
    """
    if repeat < 1:
        raise ValueError(f"repeat must be at least 1, not {repeat}")
    frame = executable.new_frame()
    arrays = frame.bind_inputs(inputs)  # kept until the last step has run
    outputs = frame.bind_outputs(None, arrays)
    executable.enter(frame, arrays, outputs)  # steps find their inputs where they are copied to
    order = _Stepwise.of(executable.spec.steps, frame)
    session = KernelSession(executable.spec.target, executable.spec.denormals)
    calls, tables = _calls(executable, frame, order, session)
    empty, clock = _empty_call(frame), time.perf_counter
    runs: list[float] = []
    rounds: list[list[float]] = []
    for _ in range(1 + repeat):
        start = clock()
        executable.run(inputs)
        runs.append(clock() - start)
        samples, made = [0.0] * (len(calls) + 1), [0] * len(calls)
        with session:
            number = 0
            while number < len(calls):
                function, arguments = calls[number]
                start = clock()
                function(*arguments)
                if number not in order.loops:  # what Python does there is not what the entry does
                    samples[number] += clock() - start
                    made[number] += 1
                number = order.following(number)
            function, arguments = empty
            start = clock()
            function(*arguments)
            samples[-1] = clock() - start
        rounds.append(samples)
    del tables  # the kernels' pointers, until here
    *medians, nothing = (median(samples) for samples in zip(*rounds[1:], strict=True))
    seconds = [
        max(0.0, spent - nothing * times) for spent, times in zip(medians, made, strict=True)
    ]
    stepwise = median(sum(samples[:-1]) for samples in rounds[1:])
    steps = _step_times(executable.spec, seconds)
    reports = {report.key: report for report in executable.kernels}
    if not _are_greatest(executable.signature, arrays):
        reports = {key: replace(report, flops=0) for key, report in reports.items()}
    return Profile(
        repeat,
        steps,
        _kernel_times(steps, reports),
        run_seconds=median(runs[1:]),
        stepwise_seconds=max(0.0, stepwise - nothing * sum(made)),
        outputs=outputs,
    )


def _calls(
    executable: Executable, frame: Frame, order: _Stepwise, session: KernelSession
) -> tuple[list[_StepCall], list[Tables]]:
    """Every step as a call on the frame's memory, and the pointers that must be kept for it."""
    runtime = frame.arguments[4]
    calls: list[_StepCall] = []
    tables: list[Tables] = []
    for number, step in enumerate(executable.spec.steps):
        if isinstance(step, LoopStep | AgainStep):
            calls.append(order.call(number))
            continue
        if isinstance(step, CopyStep):
            places = frame.address(step.destination), frame.address(step.source)
            calls.append((ctypes.memmove, (*places, step.bytes)))
            continue
        if isinstance(step, FunctionStep):
            call: _Function = session.outside(executable.function_call(step, frame))
            calls.append((_guarded(call, step.guards, frame) if step.guards else call, ()))
            continue
        tables.append(pointer_table([frame.address(location) for location in step.buffers]))
        workspace = None if step.workspace is None else frame.arena_address(step.workspace)
        function: _Function = _KernelFunction(executable.kernel_address(step.symbol))
        if step.guards:
            function = _guarded(function, step.guards, frame)
        calls.append((function, (ctypes.addressof(tables[-1]), workspace, runtime)))
    return calls, tables


def _are_greatest(signature: Signature, arrays: Sequence[AnyArray]) -> bool:
    """Whether arguments are of the maximum sizes of a program, which its kernels are made for."""
    return [array.shape for array in arrays] == [port.greatest.shape for port in signature.inputs]


def _guarded(function: _Function, guards: Sequence[Condition], frame: Frame) -> _Function:
    """The function where all guards hold, nothing otherwise."""
    places = [(frame.address(guard.place), guard.taken) for guard in guards]

    def call(*arguments: object) -> None:
        for address, taken in places:
            if bool(ctypes.c_uint8.from_address(address).value) != taken:
                return
        function(*arguments)

    return call


def _empty_call(frame: Frame) -> _StepCall:
    """A call like those of kernels that does nothing: it moves no bytes."""
    function = _KernelFunction(ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0)
    arena = frame.arena_address(0)
    return function, (arena, arena, 0)


def _step_times(spec: ExecutableSpec, seconds: Sequence[float]) -> tuple[StepTime, ...]:
    symbols = [part.symbol for part in spec.objects]
    reports = dict(zip(symbols, spec.kernels, strict=True))

    def step_time(step: RunStep, spent: float) -> StepTime:
        if isinstance(step, CopyStep | LoopStep | AgainStep):
            return StepTime(COPY, "", spent)
        if isinstance(step, FunctionStep):
            name = spec.functions[step.function].name
            return StepTime(name, name, spent)
        report = reports[step.symbol]
        return StepTime(report.name, report.key, spent)

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
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.seconds))


# A step ready to be made: a function and its arguments.
_StepCall: TypeAlias = tuple[Callable[..., object], tuple[object, ...]]


@dataclass(slots=True)
class _StepwiseLoop:
    """One loop while its steps are made one by one."""

    begin: LoopStep
    end: AgainStep
    frame: Frame
    round: int = 0
    limit: int = 0
    asked: int = 0
    on: bool = True

    def start(self) -> None:
        """What comes before the first round; nothing where the loop is left out."""
        self.limit = 0
        if not all(self._flag(guard.place) == guard.taken for guard in self.begin.guards):
            return
        self.copy(self.begin.initial)
        limit, first = self.begin.limit, self.begin.first
        self.asked = self.begin.most if limit is None else self._integer(limit).value
        self.limit = min(self.asked, self.begin.most)
        self.round, self.on = 0, first is None or self._flag(first)
        self._next()

    def finish(self) -> None:
        """What comes behind each round."""
        for row in self.end.rows:
            number = self.limit - 1 - self.round if row.backward else self.round
            source, first = self.frame.address(row.source), self.frame.address(row.destination)
            ctypes.memmove(first + number * row.bytes, source, row.bytes)
        self.on = self.end.again is None or self._flag(self.end.again)
        self.copy(self.end.following)
        self.round += 1
        self._next()

    @property
    def goes_on(self) -> bool:
        """Whether there is one more round."""
        return self.on and self.round < self.limit

    def _next(self) -> None:
        """Say which round begins, or what is known behind the last one."""
        if self.goes_on:
            if self.begin.index is not None:
                self._integer(self.begin.index).value = self.round
            return
        if self.end.count is not None:
            self._integer(self.end.count).value = self.round
        if self.end.going is not None:
            going = self.on and self.round < self.asked
            ctypes.c_uint8.from_address(self.frame.address(self.end.going)).value = going

    def copy(self, copies: Sequence[CopyStep]) -> None:
        """Copy memory from place to place."""
        for item in copies:
            places = self.frame.address(item.destination), self.frame.address(item.source)
            ctypes.memmove(*places, item.bytes)

    def _integer(self, place: Location) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self.frame.address(place))

    def _flag(self, place: Location) -> bool:
        return bool(ctypes.c_uint8.from_address(self.frame.address(place)).value)


@dataclass(slots=True)
class _Stepwise:
    """The loops of a program, and which step follows which."""

    loops: dict[int, _StepwiseLoop] = field(default_factory=dict)  # by both of its steps
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)  # of a loop by both, too

    @staticmethod
    def of(steps: Sequence[RunStep], frame: Frame) -> _Stepwise:
        """Those of the steps of a program."""
        found = _Stepwise()
        begins = {step.loop: i for i, step in enumerate(steps) if isinstance(step, LoopStep)}
        for last, end in enumerate(steps):
            if isinstance(end, AgainStep):
                first = begins[end.loop]
                begin = steps[first]
                assert isinstance(begin, LoopStep)
                loop = _StepwiseLoop(begin, end, frame)
                found.loops |= {first: loop, last: loop}
                found.bounds |= {first: (first, last), last: (first, last)}
        return found

    def call(self, number: int) -> _StepCall:
        """The call that a loop's own step is."""
        loop = self.loops[number]
        return (loop.start if self.bounds[number][0] == number else loop.finish), ()

    def following(self, number: int) -> int:
        """The number of the step after this one."""
        if number not in self.bounds:
            return number + 1
        first, last = self.bounds[number]
        loop = self.loops[number]
        return first + 1 if loop.goes_on else last + 1
