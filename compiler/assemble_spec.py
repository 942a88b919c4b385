"""What an executable is made of, from what the stages have made of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernel_stages import KernelSchedule
from tunefarm.compiler.kernels.accumulate import narrow_types
from tunefarm.compiler.kernels.calls_in_run import calls_in_run
from tunefarm.compiler.kernels.count_work import kernel_flops
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall, KernelProgram
from tunefarm.compiler.llvm.compile_kernel import CompiledKernel
from tunefarm.compiler.plan.sizes.pitches import dense_inputs
from tunefarm.compiler.runtime.artefact.seal import part_digests
from tunefarm.compiler.runtime.planning.memory_plan import MemoryPlan, outputs_in_place
from tunefarm.compiler.runtime.planning.pack_constants import PackedConstants
from tunefarm.compiler.runtime.planning.run_steps import function_links
from tunefarm.compiler.runtime.spec.executable_spec import (
    ExecutableSpec,
    ObjectPart,
    RunStep,
    report_bytes,
)
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.runtime.spec.kernel_report import KernelReport
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.numerics import Algorithm
from tunefarm.compiler.types.signature import Signature
from tunefarm.compiler.types.tensor_type import TensorType


@frozen
class Parts:
    """What the stages have made: the graph, its kernels with the schedules and the code of the
    distinct ones by workload key, and how they run over which memory."""

    graph: Graph
    program: KernelProgram
    schedules: Mapping[str, KernelSchedule]
    compiled: Mapping[str, CompiledKernel]
    constants: PackedConstants
    memory: MemoryPlan
    steps: tuple[RunStep, ...]


def assemble_spec(
    parts: Parts, spaces: SpaceCache, *, fallback: bool, guards: tuple[SizeGuard, ...]
) -> ExecutableSpec:
    """The executable of these parts, but for the code of its entry. `spaces` have what its kernels
    were scheduled for; `fallback` and `guards` are those of the executable."""
    graph, program, memory = parts.graph, parts.program, parts.memory
    objects = tuple(ObjectPart(item.symbol, item.object_code) for item in parts.compiled.values())
    inputs = tuple((name, program.types[name]) for name in program.inputs)
    outputs = tuple((name, graph.types[name]) for name in graph.outputs)
    return ExecutableSpec(
        name=program.name,
        target=spaces.target,
        threads=spaces.threads,
        inputs=inputs,
        outputs=outputs,
        arena_bytes=memory.arena_bytes + report_bytes(parts.steps),
        arena_lower_bound=memory.lower_bound,
        steps=parts.steps,
        constants=parts.constants.arrays,
        kernels=_reports(program, parts.schedules, parts.compiled),
        objects=objects,
        digests=part_digests(objects, parts.constants.arrays),
        entry=b"",
        fallback=fallback,
        numerics=spaces.numerics.name,
        denormals=spaces.numerics.denormals,
        structure=graph.structure,
        metadata=graph.metadata,
        guards=guards,
        signature=_read_dense(graph.signature, program),
        functions=function_links(program),
        operands=tuple(_operands(calls[0]) for calls in program.kernel_calls().values()),
        in_place=outputs_in_place(program, memory),
        packings=parts.constants.packings,
        machine=spaces.target.machine.digest,
    )


def _read_dense(signature: Signature, program: KernelProgram) -> Signature:
    """The signature, which says of inputs that kernels read them as they lie."""
    dense = dense_inputs(program)
    ports = (replace(port, read_dense=port.name in dense) for port in signature.inputs)
    return replace(signature, inputs=tuple(ports))


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
    types = (dtype for stage in kernel.stages for dtype in narrow_types(stage))
    factors = " x ".join(dict.fromkeys(types))
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
