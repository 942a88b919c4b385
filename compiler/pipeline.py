"""THE MAP: how a model becomes an executable, stage by stage. Read `compile_model` first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from tunefarm.compiler.assemble_spec import Parts, assemble_spec
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernel_stages import (
    KERNEL_STAGES,
    KernelSchedule,
    KernelStages,
    choose_schedules,
)
from tunefarm.compiler.kernels.kernel import (
    Call,
    FunctionCall,
    FusedKernel,
    KernelCall,
    KernelProgram,
)
from tunefarm.compiler.limits import Limits, ResourceBudget
from tunefarm.compiler.llvm.compile_kernel import CompiledKernel
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.llvm.object_cache import ObjectCache
from tunefarm.compiler.plan.choices.estimated_chains import estimated_chains
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.fusion.group_kernels import GroupKernels
from tunefarm.compiler.plan.optimise import PASS_NAMES, optimise_for
from tunefarm.compiler.plan.sizes.end_sums import end_sums
from tunefarm.compiler.plan.sizes.live_extents import (
    limit_kernels,
    without_computed_outputs,
    without_computed_sizes,
)
from tunefarm.compiler.plan.sizes.pitches import dense_arguments, pitch_rows
from tunefarm.compiler.plan.sizes.share_filled import share_filled
from tunefarm.compiler.plan.sizes.small_size_variant import SmallSizeVariant, small_size_variant
from tunefarm.compiler.runtime.artefact.seal import seal_of
from tunefarm.compiler.runtime.entry.entry import entry_of
from tunefarm.compiler.runtime.machine.thread_pool import with_pool
from tunefarm.compiler.runtime.planning.memory_plan import plan_memory
from tunefarm.compiler.runtime.planning.pack_constants import pack_constants
from tunefarm.compiler.runtime.planning.run_steps import run_steps
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec, dense_places
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.runtime.spec.verify_spec import verify_spec
from tunefarm.compiler.schedule.schedule import ChooseSchedule, ScheduleChoice
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.stages import DumpAfter, Stages
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.extents import Shapes
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS, Denormals, Numerics, denormals_of

Model: TypeAlias = str | PathLike[str] | Graph

STAGES = (
    "import",
    *PASS_NAMES,
    "optimise",
    "extract_kernels",
    "live_extents",
    "pitch_rows",
    "dense_arguments",
    "small_size_variant",  # of builds that take no records
    "choose_schedules",
    *KERNEL_STAGES,  # each kernel by itself
    "pack_constants",
    "plan_memory",
    "run_steps",
    "entry",
    "entry_code",
)


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


# Long: the pipeline is one flat list of stages, and what it takes is said once.
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
    denormals: Denormals | None = None,
    cache: ObjectCache | None = None,
    limits: Limits | None = None,
    fallback: bool = False,
    keep_llvm: bool = False,
    guards: Sequence[SizeGuard] = (),
    chains: Collection[str] | None = None,
    to_write: bool = False,
) -> Compiled:
    """Compile a model (an ONNX file or a Graph) to machine code for `target`, default this CPU.

    `choose_schedule` gives a kernel's schedule, None for the default one. `shapes` fixes symbolic
    dimensions by input name. `dump_after` names a stage (see `STAGES`, or "all") whose program is
    printed to stderr, or is a function of (stage, text); of the stages of single kernels those of
    `dump_kernels`, if given, are dumped, by workload key. `numerics`, or those of that name, say
    what is stored in narrower types, and the algorithms that default schedules may have;
    `denormals` ("flush" or "keep"; None: as the precision has it) what becomes of floats too small
    to be normal. `cache` has code that was made before. What the model needs is within `limits`, or
    refused; they are this machine's if None. `fallback` marks a variant for CPUs that cannot run
    another one, `keep_llvm` asks for `Compiled.llvm`, `guards` say for which sizes it is one of
    several programs of a model. `chains` are those of the optimised graph, as in
    `GroupChains.joined`; None has estimates decide. What is made `to_write` to a file, and not to
    run, has large constants in a file that is mapped. Raises `ImportModelError` and its kinds for
    models that cannot be compiled; a schedule that does not fit is reported, not raised.
    """
    target = host_target() if target is None else target
    stages = Stages(STAGES, dump_after, dump_kernels, keep=("llvm",) if keep_llvm else ())
    numerics = Numerics.of(numerics)
    if denormals is not None:
        numerics = replace(numerics, denormals=denormals_of(denormals))
    spaces, allowance = SpaceCache(target, threads, numerics), ResourceBudget(limits)
    graph, program = _to_kernels(model, spaces, shapes, stages, allowance, chains)
    small = SmallSizeVariant(program)
    if not numerics.fixes_order:
        small = small_size_variant(program, graph.signature, spaces, choose_schedule)
    program = stages.run("small_size_variant", lambda: small.program)
    choose = partial(choose_schedules, program, choose_schedule, small.schedules)
    chosen = stages.run("choose_schedules", choose)
    schedules, code = KernelStages(stages, spaces, allowance, cache).run(chosen)
    pack = partial(pack_constants, program, code, allowance, numerics.denormals, to_write=to_write)
    constants = stages.run("pack_constants", pack)
    workspaces = _workspaces(program, code)
    memory = stages.run("plan_memory", lambda: plan_memory(program, workspaces, allowance))
    steps = stages.run("run_steps", lambda: run_steps(program, code, constants, memory))
    parts = Parts(graph, program, schedules, code, constants, memory, steps)
    spec = assemble_spec(parts, spaces, fallback=fallback, guards=tuple(guards))
    verify_spec(spec)
    tiled = any(item.used.schedule.uses_tiles for item in schedules.values())
    tiles = target.matrix_tiles if tiled else None
    entry = stages.run("entry", lambda: entry_of(spec, seal_of(spec), tiles))
    compile_entry = object_code if cache is None else cache.object_code
    whole = with_pool(entry, target.triple)
    entry_code = stages.run("entry_code", lambda: compile_entry(whole, target))
    llvm = {key: str(emitted) for key, emitted in stages.kept.get("llvm", {}).items()}
    return Compiled(program, schedules, replace(spec, entry=entry_code), graph, llvm)


def kernels_of(
    model: Model,
    target: Target | None = None,
    shapes: Shapes | None = None,
    dump_after: DumpAfter = None,
    limits: Limits | None = None,
    numerics: Numerics | str = DEFAULT_NUMERICS,
    chains: Collection[str] | None = None,
    threads: int = 1,
) -> KernelProgram:
    """The fused kernels of a model, in order: what a tuner tunes. It takes what `compile_model`
    does."""
    spaces = SpaceCache(host_target() if target is None else target, threads, numerics)
    stages, allowance = Stages(STAGES, dump_after), ResourceBudget(limits)
    return _to_kernels(model, spaces, shapes, stages, allowance, chains)[1]


def _to_kernels(
    model: Model,
    spaces: SpaceCache,
    shapes: Shapes | None,
    stages: Stages,
    allowance: ResourceBudget,
    chains: Collection[str] | None,
) -> tuple[Graph, KernelProgram]:
    """The part of the pipeline that tuning and building share: the optimised graph, its kernels.

    The program's outputs are the graph's in order; one that is an input too has a name of its own.
    """
    target, numerics = spaces.target, spaces.numerics
    if numerics.fixes_order:  # what is fused decides about products that sums add unrounded
        chains = ()
    imported = stages.run("import", lambda: _imported(model, shapes, allowance))
    graph = stages.run(
        "optimise",
        lambda: optimise_for(imported, target, stages.observe, allowance, numerics),
    )
    kernels = GroupKernels(graph, numerics.rounds_each)
    chosen = estimated_chains(kernels, spaces) if chains is None else chains
    program = stages.run(
        "extract_kernels", lambda: extract_kernels(graph, allowance, chosen, kernels)
    )
    program = stages.run("live_extents", lambda: _limited(program, graph))
    program = stages.run("pitch_rows", lambda: pitch_rows(program, target))
    program = stages.run("dense_arguments", lambda: dense_arguments(program, graph.signature))
    return without_computed_sizes(graph), program


def _limited(program: KernelProgram, graph: Graph) -> KernelProgram:
    """The program whose loops end where what is there at run time does."""
    limited = share_filled(limit_kernels(end_sums(program, graph), graph))
    return without_computed_outputs(limited, graph)


def _imported(model: Model, shapes: Shapes | None, allowance: ResourceBudget) -> Graph:
    if isinstance(model, Graph):
        return model
    try:
        from tunefarm.compiler.frontend.import_onnx import import_onnx  # most callers have a graph
    except ModuleNotFoundError as error:
        raise ImportModelError(
            f"no model can be built here: {error.name} is not installed",
            hint="pip install tunefarm, or build elsewhere: tune build FILE --untuned --output "
            "FILE.tuned",
        ) from error

    return import_onnx(Path(model), shapes, limits=allowance.limits)


def _workspaces(program: KernelProgram, compiled: Mapping[str, CompiledKernel]) -> list[int]:
    """Workspace bytes of every call of the program."""
    return [_workspace(call, compiled) for call in program.calls]


def _workspace(call: Call, compiled: Mapping[str, CompiledKernel]) -> int:
    if isinstance(call, KernelCall):
        return compiled[call.key].workspace_bytes
    if isinstance(call, FunctionCall) and call.axes:
        return dense_places(call.called, call.axes)[1]
    return 0
