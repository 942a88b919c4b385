"""THE MAP: how a model becomes an executable, stage by stage. Read `compile_model` first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from compiler.errors import LoweringError, ScheduleError, TunefarmError, VerifyError
from compiler.graph.ir import Graph
from compiler.kernels.calls_in_run import calls_in_run
from compiler.kernels.count_work import kernel_flops
from compiler.kernels.kernel import FusedKernel, KernelCall, KernelProgram
from compiler.kernels.narrow_factors import narrow_factors
from compiler.limits import Allowance, Limits
from compiler.llvm.compile_kernel import CompiledKernel, emit_loops
from compiler.llvm.machine import object_code
from compiler.llvm.object_cache import ObjectCache
from compiler.llvm.scalar_work import scalar_work
from compiler.plan.end_sums import end_sums
from compiler.plan.estimated_chains import estimated_chains
from compiler.plan.estimated_merges import estimated_merges
from compiler.plan.extract_kernels import extract_kernels
from compiler.plan.graph_plan import RULES, GraphPlan
from compiler.plan.group_kernels import GroupKernels, MadeKernels
from compiler.plan.live_extents import limit_kernels
from compiler.plan.optimise import PASS_NAMES, optimise_for
from compiler.runtime.entry import entry_of
from compiler.runtime.executable_spec import REPORT_BYTES, ExecutableSpec, ObjectPart
from compiler.runtime.guards import SizeGuard
from compiler.runtime.kernel_report import DEFAULT, NAIVE, KernelReport
from compiler.runtime.memory_plan import plan_memory
from compiler.runtime.pack_constants import pack_constants
from compiler.runtime.run_steps import function_links, run_steps
from compiler.runtime.seal import part_digests, seal_of
from compiler.runtime.verify_spec import verify_spec
from compiler.schedule.apply_schedule import lower
from compiler.schedule.choice import ChooseSchedule, ScheduleChoice
from compiler.schedule.spaces import Spaces, naive_schedule
from compiler.stages import DumpAfter, Stages
from compiler.target import Target, host_target
from compiler.types.extents import Shapes
from compiler.types.numerics import DEFAULT_NUMERICS, Algorithm, Numerics
from compiler.types.tensor_type import TensorType

Model: TypeAlias = str | PathLike[str] | Graph

STAGES = (
    "import",
    *PASS_NAMES,
    "optimise",
    "extract_kernels",
    "live_extents",
    "choose_schedules",
    # each kernel by itself, see `KernelStages`:
    "schedule",
    "loops",
    "llvm",
    "object_code",
    # the model again:
    "pack_constants",
    "plan_memory",
    "run_steps",
    "entry",
    "entry_code",
)

_BEFORE_CODE = ("loops", "llvm")
"""What is skipped for a kernel whose object code a cache has, unless it is asked for."""

_DOES_NOT_FIT = (ScheduleError, LoweringError, VerifyError)
"""What compiling a kernel raises with a schedule that is not for it."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """All that the compiler came to know of a model.

    `program` has its kernels, `schedules` by workload key what each of them was built with, `spec`
    is what an executable is made of, and `graph` the optimised one that the kernels are from.
    `llvm` is each kernel's text by workload key, if it was to be kept.
    """

    program: KernelProgram
    schedules: Mapping[str, KernelSchedule]
    spec: ExecutableSpec
    graph: Graph
    llvm: Mapping[str, str]

    @property
    def kernels(self) -> dict[str, FusedKernel]:
        """The distinct kernels by workload key, in order of first use."""
        return {key: item.kernel for key, item in self.schedules.items()}

    @property
    def chosen(self) -> dict[str, ScheduleChoice | None]:
        """What had been chosen for each kernel, by workload key, whether it fits or not."""
        return {key: item.chosen for key, item in self.schedules.items()}


def compile_model(
    model: Model,
    choose_schedule: ChooseSchedule | None = None,
    *,
    target: Target | None = None,
    threads: int = 1,
    shapes: Shapes | None = None,
    dump_after: DumpAfter = None,
    dump_kernels: Collection[str] | None = None,
    numerics: Numerics | str = DEFAULT_NUMERICS,
    cache: ObjectCache | None = None,
    limits: Limits | None = None,
    fallback: bool = False,
    keep_llvm: bool = False,
    guards: Sequence[SizeGuard] = (),
    plan: GraphPlan | None = RULES,
) -> Compiled:
    """Compile a model (an ONNX file or a Graph) to machine code for `target`, default this CPU.

    `choose_schedule` gives a kernel's schedule, None for the default one. `shapes` fixes symbolic
    dimensions by input name. `dump_after` names a stage (see `STAGES`, or "all") whose program is
    printed to stderr, or is a function of (stage, text); of the stages of single kernels those of
    `dump_kernels`, if given, are dumped, by workload key. `numerics`, or those of that name, say
    what is stored in narrower types, and the algorithms that default schedules may have. `cache`
    has code that was made before. What the model needs is within `limits`, or refused; they are
    this machine's if None. `fallback` marks a variant for CPUs that cannot run another one,
    `keep_llvm` asks for `Compiled.llvm`, `guards` say for which sizes it is one of several programs
    of a model. What `plan` says of the graph goes before the rules; None has it decided by
    estimates, as far as that is quick. Raises
    `ImportModelError` and its kinds for models that cannot be compiled, and `PlanError` for a plan
    that does not fit; a schedule that does not fit is reported, not raised.
    """
    target = host_target() if target is None else target
    admitted = Numerics.of(numerics)
    stages = Stages(STAGES, dump_after, dump_kernels, keep=("llvm",) if keep_llvm else ())
    allowance = Allowance(limits)
    spaces = Spaces(target, threads, admitted)
    graph, program = _to_kernels(model, spaces, shapes, stages, allowance, plan)
    chosen = stages.run("choose_schedules", lambda: choose_schedules(program, choose_schedule))
    kernel_stages = KernelStages(stages, spaces, allowance, cache)
    schedules, compiled = kernel_stages.run(chosen)
    constants = stages.run("pack_constants", lambda: pack_constants(program, compiled, allowance))
    memory = stages.run(
        "plan_memory", lambda: plan_memory(program, _workspaces(program, compiled), allowance)
    )
    steps = stages.run("run_steps", lambda: run_steps(program, compiled, constants, memory))
    objects = tuple(ObjectPart(item.symbol, item.object_code) for item in compiled.values())
    functions = function_links(program)
    spec = ExecutableSpec(
        name=program.name,
        target=target,
        threads=threads,
        inputs=tuple((name, program.types[name]) for name in program.inputs),
        outputs=tuple((name, graph.types[name]) for name in graph.outputs),
        arena_bytes=memory.arena_bytes + (REPORT_BYTES if functions else 0),
        arena_lower_bound=memory.lower_bound,
        steps=steps,
        constants=constants.arrays,
        kernels=_reports(program, schedules, compiled),
        objects=objects,
        digests=part_digests(objects, constants.arrays),
        entry=b"",
        fallback=fallback,
        numerics=admitted.name,
        structure=graph.structure,
        guards=tuple(guards),
        signature=graph.signature,
        functions=functions,
        operands=tuple(_operands(calls[0]) for calls in program.kernel_calls().values()),
    )
    verify_spec(spec)
    tiled = any(item.used.schedule.uses_tiles for item in schedules.values())
    tiles = target.matrix_tiles if tiled else None
    entry = stages.run("entry", lambda: entry_of(spec, seal_of(spec), tiles))
    compile_entry = object_code if cache is None else cache.object_code
    entry_code = stages.run("entry_code", lambda: compile_entry(entry, target))
    llvm = {key: str(emitted) for key, emitted in stages.kept.get("llvm", {}).items()}
    return Compiled(program, schedules, replace(spec, entry=entry_code), graph, llvm)


def kernels_of(
    model: Model,
    target: Target | None = None,
    shapes: Shapes | None = None,
    dump_after: DumpAfter = None,
    limits: Limits | None = None,
    numerics: Numerics | str = DEFAULT_NUMERICS,
    plan: GraphPlan = RULES,
    made: MadeKernels | None = None,
) -> KernelProgram:
    """The fused kernels of a model, in order: what a tuner tunes. `plan` as in `compile_model`.

    `made` are kernels of other plans of models, under these numerics; it comes to have this one's.
    """
    spaces = Spaces(host_target() if target is None else target, numerics=numerics)
    stages, allowance = Stages(STAGES, dump_after), Allowance(limits)
    return _to_kernels(model, spaces, shapes, stages, allowance, plan, made)[1]


def _to_kernels(
    model: Model,
    spaces: Spaces,
    shapes: Shapes | None,
    stages: Stages,
    allowance: Allowance,
    decided: GraphPlan | None,
    made: MadeKernels | None = None,
) -> tuple[Graph, KernelProgram]:
    """The part of the pipeline that tuning and building share: the optimised graph, its kernels.

    The program's outputs are the graph's in order; one that is an input too has a name of its own.
    """
    target, numerics, plan = spaces.target, spaces.numerics, decided or RULES
    imported = stages.run("import", lambda: _imported(model, shapes, allowance))
    if decided is None:
        plan = estimated_merges(imported, spaces, allowance)
    graph = stages.run(
        "optimise",
        lambda: optimise_for(imported, target, stages.observe, allowance, numerics, plan),
    )
    kernels = GroupKernels(graph, numerics.rounds_each, made)
    if decided is None:
        plan = plan.with_decisions(*estimated_chains(kernels, spaces).decisions)
    program = stages.run(
        "extract_kernels", lambda: extract_kernels(graph, allowance, plan, kernels)
    )
    whole, signature = program, graph.signature
    program = stages.run(
        "live_extents",
        lambda: (
            whole
            if signature is None
            else limit_kernels(
                end_sums(whole, signature, graph.zeros), graph.outputs, signature, graph.unread
            )
        ),
    )
    return graph, program


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
        return f"{self.kernel.name}: {DEFAULT if self.choice is None else self.choice}"


@dataclass(frozen=True, slots=True)
class KernelSchedule:
    """The schedule that a distinct kernel is built with, which is `used`.

    `chosen` is what had been chosen for it, None for the default one; where another one is used
    `note` says why.
    """

    kernel: FusedKernel
    chosen: ScheduleChoice | None
    used: ScheduleChoice
    note: str = ""

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.kernel.name}: {self.used}{note}"


def choose_schedules(
    program: KernelProgram, choose: ChooseSchedule | None
) -> dict[str, ChosenSchedule]:
    """Ask for the schedule of each distinct kernel; the result is by workload key."""
    kernels = {key: calls[0].kernel for key, calls in program.kernel_calls().items()}
    return {
        key: ChosenSchedule(kernel, None if choose is None else choose(kernel))
        for key, kernel in kernels.items()
    }


@dataclass(frozen=True, slots=True)
class KernelStages:
    """What each distinct kernel goes through by itself: schedule, loops, LLVM and object code.

    Where the chosen schedule does not fit the default one takes its place, and the naive one where
    that does not fit either; the note says so. Raises `LimitError` before a kernel for which there
    is no time any more.
    """

    stages: Stages
    spaces: Spaces
    allowance: Allowance
    cache: ObjectCache | None = None

    def run(
        self, chosen: Mapping[str, ChosenSchedule]
    ) -> tuple[dict[str, KernelSchedule], dict[str, CompiledKernel]]:
        """Compile these kernels; what each is built with and its code, all by workload key.

        One thread lowers a kernel while another has LLVM compile those before it. More would only
        wait: the former hold the interpreter's lock, the latter one that llvmlite has for all LLVM.
        """
        with ThreadPoolExecutor(1) as llvm:

            def begin(key: str, schedule: Callable[[], KernelSchedule]) -> _Begun:
                first, compile = self.lower(key, f"kernel_{key}", schedule)
                return first, llvm.submit(compile)

            def finish(key: str, begun: _Begun) -> tuple[KernelSchedule, CompiledKernel]:
                schedule, code = begun
                try:
                    return schedule, self.stages.run("object_code", code.result, key)
                except _DOES_NOT_FIT as error:
                    following = partial(self._following, key, schedule, error)
                return finish(key, begin(key, following))

            begun = {
                key: begin(key, partial(self.first, key, item)) for key, item in chosen.items()
            }
            made = {key: finish(key, item) for key, item in begun.items()}
        schedules = {key: schedule for key, (schedule, _) in made.items()}
        return schedules, {key: code for key, (_, code) in made.items()}

    def lower(
        self, key: str, symbol: str, schedule: Callable[[], KernelSchedule]
    ) -> tuple[KernelSchedule, Callable[[], CompiledKernel]]:
        """Lower a kernel with this schedule, or the first one after it that fits.

        What is returned with the schedule compiles, in any thread; the function is named `symbol`.
        """
        chosen = self.stages.run("schedule", schedule, key)
        kernel, steps = chosen.kernel, chosen.used.schedule
        self.allowance.check_time(f"compiling kernel {kernel.name}")
        cache, target = self.cache, self.spaces.target
        entry = None if cache is None else cache.entry(kernel, steps, target, symbol)
        known = None if entry is None else entry.find()
        if known is not None and not any(self.stages.wants(name, key) for name in _BEFORE_CODE):
            return chosen, lambda: known
        try:
            nest = self.stages.run("loops", lambda: lower(kernel, steps), key)
            emitted = self.stages.run("llvm", lambda: emit_loops(nest, steps, target, symbol), key)
            why = scalar_work(nest, target)
        except _DOES_NOT_FIT as error:
            return self.lower(key, symbol, partial(self._following, key, chosen, error))

        def compile() -> CompiledKernel:
            if known is not None:
                return known
            self.allowance.check_time(f"compiling kernel {kernel.name}")
            compiled = replace(emitted.compile(target), not_vectorised=why)
            if entry is not None:
                entry.keep(compiled)
            return compiled

        return chosen, compile

    def first(self, key: str, item: ChosenSchedule) -> KernelSchedule:
        """The schedule to try first: the chosen one, or the default one."""
        if item.choice is None:
            return self._default(key, item.kernel, None, "")
        return KernelSchedule(item.kernel, item.choice, item.choice)

    def _following(self, key: str, item: KernelSchedule, error: TunefarmError) -> KernelSchedule:
        """The schedule to try after one that does not fit. Raises `error` if there is none."""
        used = item.used
        if used.source == NAIVE:
            raise error
        note = _note(item.note, used.source, used.record_id, error)
        if used.source == DEFAULT:
            return replace(item, used=_NAIVE, note=note)
        return self._default(key, item.kernel, item.chosen, note)

    def _default(
        self, key: str, kernel: FusedKernel, chosen: ScheduleChoice | None, note: str
    ) -> KernelSchedule:
        """The default schedule, or the naive one where a sketch fails on the kernel."""
        try:
            space = self.spaces.of(kernel, key)
            schedule = space.schedule(space.default())
        except _DOES_NOT_FIT as error:
            return KernelSchedule(kernel, chosen, _NAIVE, _note(note, DEFAULT, None, error))
        return KernelSchedule(kernel, chosen, ScheduleChoice(schedule, DEFAULT), note)


_Begun: TypeAlias = tuple[KernelSchedule, Future[CompiledKernel]]
_NAIVE = ScheduleChoice(naive_schedule(), NAIVE)


def _note(before: str, source: str, record_id: str | None, error: TunefarmError) -> str:
    """What to say of a kernel when the schedule of this source does not fit either."""
    record = f" of record {record_id}" if record_id else ""
    note = f"the {source} schedule{record} does not fit: {error}"
    return f"{before}; {note}" if before else note


def _workspaces(program: KernelProgram, compiled: Mapping[str, CompiledKernel]) -> list[int]:
    """Workspace bytes of every call of the program."""
    return [
        compiled[call.key].workspace_bytes if isinstance(call, KernelCall) else 0
        for call in program.calls
    ]


def _reports(
    program: KernelProgram,
    schedules: Mapping[str, KernelSchedule],
    compiled: Mapping[str, CompiledKernel],
) -> tuple[KernelReport, ...]:
    """One report per distinct kernel, in order of first use."""
    counts = calls_in_run(program)
    return tuple(
        _report(calls, counts[key], schedules[key], compiled[key])
        for key, calls in program.kernel_calls().items()
    )


def _operands(call: KernelCall) -> tuple[TensorType, ...]:
    """The types of a kernel's operands, then that of its result."""
    output = call.kernel.output
    return *(buffer.type for buffer in call.kernel.inputs), TensorType(output.dtype, output.shape)


def _numerics(kernel: FusedKernel, algorithm: Algorithm) -> str:
    """The algorithm that changes rounding, and the types that are multiplied if they are narrow."""
    factors = " x ".join(dict.fromkeys(narrow_factors(kernel)))
    if not factors:
        return str(algorithm)
    return factors if algorithm is Algorithm.DIRECT else f"{algorithm}, {factors}"


def _report(
    calls: list[KernelCall], count: int, built: KernelSchedule, code: CompiledKernel
) -> KernelReport:
    return KernelReport(
        name=calls[0].kernel.name,
        key=calls[0].key,
        occurrences=count,
        schedule_source=built.used.source,
        record_id=built.used.record_id,
        latency=built.used.latency,
        note=built.note,
        numerics=_numerics(calls[0].kernel, code.algorithm),
        parallel=code.parallel,
        workspace_bytes=code.workspace_bytes,
        flops=kernel_flops(calls[0].kernel),
        operators=calls[0].operators,
        sources=tuple(source for call in calls for source in call.sources),
        not_vectorised=code.not_vectorised,
    )
