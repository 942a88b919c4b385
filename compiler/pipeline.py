"""THE MAP: how a model becomes an executable, stage by stage. Read `compile_model` first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from compiler.errors import LoweringError, ScheduleError, VerifyError
from compiler.graph.ir import Graph
from compiler.kernels.count_work import kernel_flops
from compiler.kernels.kernel import FusedKernel, KernelCall, KernelProgram
from compiler.limits import Allowance, Limits
from compiler.llvm import CompiledKernel, begin_kernel
from compiler.llvm.machine import object_code
from compiler.llvm.object_cache import ObjectCache
from compiler.plan.extract_kernels import extract_kernels
from compiler.plan.optimise import PASS_NAMES, optimise
from compiler.runtime.entry import entry_ir
from compiler.runtime.executable import Executable
from compiler.runtime.executable_spec import ExecutableSpec, ObjectPart
from compiler.runtime.kernel_report import DEFAULT, NAIVE, KernelReport
from compiler.runtime.memory_plan import plan_memory
from compiler.runtime.pack_constants import pack_constants
from compiler.runtime.run_steps import run_steps
from compiler.runtime.seal import part_digests, seal_of
from compiler.runtime.verify_spec import verify_spec
from compiler.schedule.choice import ChooseSchedule, ScheduleChoice
from compiler.schedule.spaces import default_schedule, naive_schedule
from compiler.stages import DumpAfter, Stages
from compiler.target import Target, host_target
from compiler.types.dtypes import DType
from compiler.types.numerics import DEFAULT_NUMERICS, Numerics

Model: TypeAlias = str | PathLike[str] | Graph
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

STAGES = (
    "import",
    *PASS_NAMES,
    "optimise",
    "extract_kernels",
    "choose_schedules",
    "compile_kernels",
    "pack_constants",
    "plan_memory",
    "run_steps",
    "entry",
    "entry_code",
)

_DOES_NOT_FIT = (ScheduleError, LoweringError, VerifyError)
"""What compiling a kernel raises with a schedule that is not for it."""


def build(
    model: Model,
    choose_schedule: ChooseSchedule | None = None,
    *,
    target: Target | None = None,
    threads: int = 1,
    shapes: Shapes | None = None,
    dump_after: DumpAfter = None,
    numerics: Numerics | str = DEFAULT_NUMERICS,
    limits: Limits | None = None,
) -> Executable:
    """Compile a model and load it into this process; the arguments are `compile_model`'s."""
    spec = compile_model(
        model,
        choose_schedule,
        target=target,
        threads=threads,
        shapes=shapes,
        dump_after=dump_after,
        numerics=numerics,
        limits=limits,
    )
    return Executable(spec)


def compile_model(
    model: Model,
    choose_schedule: ChooseSchedule | None = None,
    *,
    target: Target | None = None,
    threads: int = 1,
    shapes: Shapes | None = None,
    dump_after: DumpAfter = None,
    numerics: Numerics | str = DEFAULT_NUMERICS,
    cache: ObjectCache | None = None,
    limits: Limits | None = None,
    fallback: bool = False,
) -> ExecutableSpec:
    """Compile a model (an ONNX file or a Graph) to machine code for `target`, default this CPU.

    `choose_schedule` gives a kernel's schedule, None for the default one. `shapes` fixes symbolic
    dimensions by input name. `dump_after` names a stage (see `STAGES`, or "all") whose program is
    printed to stderr, or is a function of (stage, text). Default schedules have the algorithms that
    `numerics`, or those of that name, admit. `cache` has code that was made before. What the model
    needs is within `limits`, or refused; they are this machine's if None. `fallback` marks a
    variant for CPUs that cannot run another one. Raises `ImportModelError` and its kinds for
    models that cannot be compiled; a schedule that does not fit is reported, not raised.
    """
    target = host_target() if target is None else target
    admitted = Numerics.of(numerics)
    stages = Stages(STAGES, dump_after)
    allowance = Allowance(limits)
    graph, program = _to_kernels(model, target, shapes, stages, allowance)
    schedules = stages.run("choose_schedules", lambda: choose_schedules(program, choose_schedule))
    built = stages.run(
        "compile_kernels",
        lambda: compile_kernels(schedules, target, threads, admitted, cache, allowance),
    )
    compiled = {key: item.compiled for key, item in built.items()}
    constants = stages.run("pack_constants", lambda: pack_constants(program, compiled, allowance))
    plan = stages.run(
        "plan_memory", lambda: plan_memory(program, _workspaces(program, compiled), allowance)
    )
    steps = stages.run("run_steps", lambda: run_steps(program, compiled, constants, plan))
    objects = tuple(ObjectPart(item.symbol, item.object_code) for item in compiled.values())
    spec = ExecutableSpec(
        name=program.name,
        target=target,
        threads=threads,
        inputs=tuple((name, program.types[name]) for name in program.inputs),
        outputs=tuple((name, graph.types[name]) for name in graph.outputs),
        arena_bytes=plan.arena_bytes,
        arena_lower_bound=plan.lower_bound,
        steps=steps,
        constants=constants.arrays,
        kernels=_reports(program, built),
        objects=objects,
        digests=part_digests(objects, constants.arrays),
        entry=b"",
        fallback=fallback,
    )
    verify_spec(spec)
    entry = stages.run("entry", lambda: entry_ir(steps, seal_of(spec)))
    compile_entry = object_code if cache is None else cache.object_code
    entry_code = stages.run("entry_code", lambda: compile_entry(entry, target))
    return replace(spec, entry=entry_code)


def kernels_of(
    model: Model,
    target: Target | None = None,
    shapes: Shapes | None = None,
    dump_after: DumpAfter = None,
    limits: Limits | None = None,
) -> KernelProgram:
    """The fused kernels of a model, in order: what a tuner tunes."""
    target = host_target() if target is None else target
    stages = Stages(STAGES, dump_after)
    return _to_kernels(model, target, shapes, stages, Allowance(limits))[1]


def _to_kernels(
    model: Model, target: Target, shapes: Shapes | None, stages: Stages, allowance: Allowance
) -> tuple[Graph, KernelProgram]:
    """The part of the pipeline that tuning and building share: the optimised graph, its kernels.

    The program's outputs are the graph's in order; one that is an input too has a name of its own.
    """
    graph = stages.run("import", lambda: _imported(model, shapes, allowance))
    block = target.lanes(DType.F32)
    graph = stages.run("optimise", lambda: optimise(graph, block, stages.observe, allowance))
    return graph, stages.run("extract_kernels", lambda: extract_kernels(graph, allowance))


def _imported(model: Model, shapes: Shapes | None, allowance: Allowance) -> Graph:
    if isinstance(model, Graph):
        return model
    from compiler.frontend.import_onnx import import_onnx  # most callers have a graph

    return import_onnx(Path(model), shapes, limits=allowance.limits)


@dataclass(frozen=True, slots=True)
class ChosenSchedule:
    """A distinct kernel with the schedule to try first; `choice` is None for the default."""

    kernel: FusedKernel
    choice: ScheduleChoice | None

    def __str__(self) -> str:
        if self.choice is None:
            return f"{self.kernel.name}: default"
        steps = "; ".join(map(str, self.choice.schedule.steps))
        return f"{self.kernel.name}: {self.choice.source} {self.choice.record_id or ''}: {steps}"


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A distinct kernel's code; `choice` is None if it has the default schedule, `note` says why
    when another one had been chosen or that one does not fit."""

    compiled: CompiledKernel
    choice: ScheduleChoice | None
    note: str = ""

    @property
    def source(self) -> str:
        """Where its schedule came from, as in a `KernelReport`."""
        return DEFAULT if self.choice is None else self.choice.source

    def __str__(self) -> str:
        code = self.compiled
        text = (
            f"{code.symbol}: {self.source} schedule, {len(code.object_code)} bytes of object code"
        )
        if code.workspace_bytes:
            text += f", {code.workspace_bytes} bytes of workspace"
        return f"{text} ({self.note})" if self.note else text


def choose_schedules(
    program: KernelProgram, choose: ChooseSchedule | None
) -> dict[str, ChosenSchedule]:
    """Ask for the schedule of each distinct kernel; the result is by workload key."""
    chosen: dict[str, ChosenSchedule] = {}
    for call in program.calls:
        if isinstance(call, KernelCall) and call.key not in chosen:
            choice = None if choose is None else choose(call.kernel)
            chosen[call.key] = ChosenSchedule(call.kernel, choice)
    return chosen


def compile_kernels(
    chosen: Mapping[str, ChosenSchedule],
    target: Target,
    threads: int,
    numerics: Numerics,
    cache: ObjectCache | None = None,
    allowance: Allowance | None = None,
) -> dict[str, BuiltKernel]:
    """Lower each distinct kernel to loops, LLVM and object code; the result is by workload key.

    Where the chosen schedule does not fit the default one takes its place, and the naive one where
    that does not fit either; the note says so.

    One thread lowers a kernel while another has LLVM compile those before it. More would only wait:
    the former hold the interpreter's lock, the latter one that llvmlite has for all of LLVM.
    Raises `LimitError` before a kernel for which there is no time any more.
    """
    allowance = allowance or Allowance()
    begin = begin_kernel if cache is None else cache.begin_kernel
    with ThreadPoolExecutor(1) as llvm:

        def start(key: str, choice: ScheduleChoice | None) -> Future[CompiledKernel]:
            kernel = chosen[key].kernel
            allowance.check_time(f"compiling kernel {kernel.name}")
            try:
                if choice is None:
                    schedule = default_schedule(kernel, target, threads, numerics)
                else:
                    schedule = choice.schedule
                finish = begin(kernel, schedule, target, f"kernel_{key}")
                return llvm.submit(_in_time, finish, f"compiling kernel {kernel.name}", allowance)
            except _DOES_NOT_FIT as error:
                failed: Future[CompiledKernel] = Future()
                failed.set_exception(error)
                return failed

        started = {key: start(key, item.choice) for key, item in chosen.items()}
        return {
            key: _first_that_fits(item.choice, started[key], partial(start, key))
            for key, item in chosen.items()
        }


def _first_that_fits(
    choice: ScheduleChoice | None,
    code: Future[CompiledKernel],
    start: Callable[[ScheduleChoice | None], Future[CompiledKernel]],
) -> BuiltKernel:
    """The kernel's `code` with the schedule `choice`, or that with the next one that fits."""
    try:
        return BuiltKernel(code.result(), choice)
    except _DOES_NOT_FIT as error:
        source = DEFAULT if choice is None else choice.source
        if source == NAIVE:
            raise
        record = f" of record {choice.record_id}" if choice and choice.record_id else ""
        note = f"the {source} schedule{record} does not fit: {error}"
    following = ScheduleChoice(naive_schedule(), NAIVE) if source == DEFAULT else None
    built = _first_that_fits(following, start(following), start)
    return replace(built, note=f"{note}; {built.note}" if built.note else note)


def _in_time(
    finish: Callable[[], CompiledKernel], doing: str, allowance: Allowance
) -> CompiledKernel:
    allowance.check_time(doing)
    return finish()


def _workspaces(program: KernelProgram, compiled: Mapping[str, CompiledKernel]) -> list[int]:
    """Workspace bytes of every call of the program."""
    return [
        compiled[call.key].workspace_bytes if isinstance(call, KernelCall) else 0
        for call in program.calls
    ]


def _reports(program: KernelProgram, built: Mapping[str, BuiltKernel]) -> tuple[KernelReport, ...]:
    """One report per distinct kernel, in order of first use."""
    calls: dict[str, list[KernelCall]] = {}
    for call in program.calls:
        if isinstance(call, KernelCall):
            calls.setdefault(call.key, []).append(call)
    return tuple(_report(calls[key], item) for key, item in built.items())


def _report(calls: list[KernelCall], item: BuiltKernel) -> KernelReport:
    choice = item.choice
    return KernelReport(
        name=calls[0].kernel.name,
        key=calls[0].key,
        occurrences=len(calls),
        schedule_source=item.source,
        record_id=None if choice is None else choice.record_id,
        latency=None if choice is None else choice.latency,
        note=item.note,
        numerics=str(item.compiled.algorithm),
        parallel=item.compiled.parallel,
        workspace_bytes=item.compiled.workspace_bytes,
        flops=kernel_flops(calls[0].kernel),
        operators=calls[0].operators,
        sources=tuple(source for call in calls for source in call.sources),
    )
