"""Kernels written as LLVM IR by hand: the runtime's tests need the ABI, not the code generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

import llvmlite.binding as llvm

from tunefarm.compiler.expr.nodes import add, index
from tunefarm.compiler.kernels.kernel import (
    Buffer,
    FusedKernel,
    KernelBuilder,
    KernelCall,
    KernelProgram,
    ViewCall,
)
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.llvm import CompiledKernel
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.loops.constant_layout import ConstantLayout
from tunefarm.compiler.runtime.artefact.seal import part_digests, seal_of
from tunefarm.compiler.runtime.entry.entry import entry_of
from tunefarm.compiler.runtime.planning.memory_plan import plan_memory
from tunefarm.compiler.runtime.planning.pack_constants import pack_constants
from tunefarm.compiler.runtime.planning.run_steps import run_steps
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec, ObjectPart
from tunefarm.compiler.runtime.spec.kernel_report import KernelReport
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import Algorithm
from tunefarm.compiler.types.signature import fixed_signature
from tunefarm.compiler.types.tensor_type import Array, TensorType

# out[i] = in0[i] + in1[i] by way of the workspace, which is filled first
ADD_IR = """
define void @{symbol}(ptr %buffers, ptr %workspace, ptr %runtime) {{
entry:
  %a = load ptr, ptr %buffers
  %bp = getelementptr ptr, ptr %buffers, i64 1
  %b = load ptr, ptr %bp
  %outp = getelementptr ptr, ptr %buffers, i64 2
  %out = load ptr, ptr %outp
  br label %fill
fill:
  %i = phi i64 [ 0, %entry ], [ %i1, %fill ]
  %ap = getelementptr float, ptr %a, i64 %i
  %av = load float, ptr %ap
  %wp = getelementptr float, ptr %workspace, i64 %i
  store float %av, ptr %wp
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, {count}
  br i1 %more, label %fill, label %sum
sum:
  %j = phi i64 [ 0, %fill ], [ %j1, %sum ]
  %vp = getelementptr float, ptr %workspace, i64 %j
  %v = load float, ptr %vp
  %xp = getelementptr float, ptr %b, i64 %j
  %x = load float, ptr %xp
  %s = fadd float %v, %x
  %sp = getelementptr float, ptr %out, i64 %j
  store float %s, ptr %sp
  %j1 = add i64 %j, 1
  %again = icmp ult i64 %j1, {count}
  br i1 %again, label %sum, label %done
done:
  ret void
}}
"""

# out[i] = expf(in0[i]); every thread of the team takes the next element until none is left, and
# counts itself in `team` so that a test sees how many there were
EXP_PARALLEL_IR = """
declare float @expf(float)
define internal void @body(ptr %data) {{
entry:
  %inp = getelementptr ptr, ptr %data, i64 1
  %in = load ptr, ptr %inp
  %outp = getelementptr ptr, ptr %data, i64 2
  %out = load ptr, ptr %outp
  br label %next
next:
  %i = atomicrmw add ptr %data, i64 1 seq_cst
  %more = icmp ult i64 %i, {count}
  br i1 %more, label %work, label %done
work:
  %xp = getelementptr float, ptr %in, i64 %i
  %x = load float, ptr %xp
  %y = call float @expf(float %x)
  %yp = getelementptr float, ptr %out, i64 %i
  store float %y, ptr %yp
  br label %next
done:
  ret void
}}
define void @{symbol}(ptr %buffers, ptr %workspace, ptr %runtime) {{
  %data = alloca [3 x ptr], align 16
  store i64 0, ptr %data
  %in = load ptr, ptr %buffers
  %inp = getelementptr ptr, ptr %data, i64 1
  store ptr %in, ptr %inp
  %bp = getelementptr ptr, ptr %buffers, i64 1
  %out = load ptr, ptr %bp
  %outp = getelementptr ptr, ptr %data, i64 2
  store ptr %out, ptr %outp
  %parallel = load ptr, ptr %runtime
  %tp = getelementptr i8, ptr %runtime, i64 8
  %threads = load i32, ptr %tp
  %none = icmp eq ptr %parallel, null
  br i1 %none, label %serial, label %fork
serial:
  call void @body(ptr %data)
  ret void
fork:
  call void %parallel(ptr @body, ptr %data, i32 %threads, i32 0)
  ret void
}}
"""


def compile_ir(
    ir: str,
    symbol: str,
    count: int,
    *,
    workspace_bytes: int = 0,
    layouts: tuple[tuple[str, ConstantLayout], ...] = (),
) -> CompiledKernel:
    """A compiled kernel from a template with `symbol` and `count`."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1, reloc="pic")
    code = machine.emit_object(llvm.parse_assembly(ir.format(symbol=symbol, count=count)))
    return CompiledKernel(
        symbol=symbol,
        object_code=code,
        workspace_bytes=workspace_bytes,
        constant_layouts=layouts,
        parallel="%parallel" in ir,
        algorithm=Algorithm.DIRECT,
    )


def add_kernel(count: int, *, constant: bool = False) -> FusedKernel:
    """in0 + in1 on `count` floats; `constant` marks in1 as a weight."""
    builder = KernelBuilder()
    type = TensorType(DType.F32, (count,))
    left, right = builder.input(type), builder.input(type, constant)
    builder.stage("add", [("i0", count)], lambda i0: add(left[i0], right[i0]))
    return builder.kernel("add", "add")


def exp_kernel(count: int) -> FusedKernel:
    """exp(in0) on `count` floats (its stage is a stand-in: only the buffers matter here)."""
    buffer = Buffer("in0", DType.F32, (count,))
    stage = Stage("exp", (Axis("i0", count),), (), "", index("i0"))
    return FusedKernel("exp", (buffer,), (stage,), "exp")


def call(kernel: FusedKernel, key: str, inputs: Sequence[str], output: str) -> KernelCall:
    """A call of `kernel`, as the extraction of kernels makes it."""
    return KernelCall(kernel, key, tuple(inputs), output, (f"node_{output}",), (kernel.name,))


def make_program(
    inputs: Sequence[str],
    outputs: Sequence[str],
    calls: Sequence[KernelCall | ViewCall],
    types: Mapping[str, TensorType],
    constants: Mapping[str, Array] = MappingProxyType({}),
) -> KernelProgram:
    """A program over the given values."""
    return KernelProgram(
        "hand_made", tuple(inputs), tuple(outputs), tuple(calls), dict(types), dict(constants)
    )


def make_spec(
    program: KernelProgram, compiled: Mapping[str, CompiledKernel], threads: int = 1
) -> ExecutableSpec:
    """What the pipeline makes of a program whose kernels are compiled already."""
    workspaces = [
        compiled[item.key].workspace_bytes if isinstance(item, KernelCall) else 0
        for item in program.calls
    ]
    constants = pack_constants(program, compiled)
    plan = plan_memory(program, workspaces)
    steps = run_steps(program, compiled, constants, plan)
    objects = tuple(ObjectPart(item.symbol, item.object_code) for item in compiled.values())
    inputs = tuple((name, program.types[name]) for name in program.inputs)
    outputs = tuple((name, program.types[name]) for name in program.outputs)
    spec = ExecutableSpec(
        name=program.name,
        target=host_target(),
        threads=threads,
        inputs=inputs,
        outputs=outputs,
        arena_bytes=plan.arena_bytes,
        arena_lower_bound=plan.lower_bound,
        steps=steps,
        constants=constants.arrays,
        kernels=tuple(_report(key, item) for key, item in compiled.items()),
        objects=objects,
        digests=part_digests(objects, constants.arrays),
        entry=b"",
        signature=fixed_signature(inputs, outputs),
    )
    return sealed(spec)


def sealed(spec: ExecutableSpec) -> ExecutableSpec:
    """The spec with an entry that was made for it, on this machine."""
    return replace(spec, entry=object_code(entry_of(spec, seal_of(spec)), host_target()))


def _report(key: str, compiled: CompiledKernel) -> KernelReport:
    return KernelReport(
        name=compiled.symbol,
        key=key,
        occurrences=1,
        schedule_source="default",
        record_id=None,
        latency=None,
        note="",
        numerics="direct",
        parallel=compiled.parallel,
        workspace_bytes=compiled.workspace_bytes,
        flops=COUNT,
        operators=("add",),
        sources=("node",),
    )


COUNT = 37
VECTOR = TensorType(DType.F32, (COUNT,))


def chain_spec(weight: Array, threads: int = 1, length: int = 4) -> ExecutableSpec:
    """y = exp(x + length * weight), as `length` adds with one weight and an exponential."""
    values = ["x", *(f"sum{i}" for i in range(length))]
    kernel = add_kernel(COUNT, constant=True)
    calls: list[KernelCall | ViewCall] = [
        call(kernel, "add", (source, "w"), result) for source, result in pairwise(values)
    ]
    calls.append(call(exp_kernel(COUNT), "exp", (values[-1],), "y"))
    program = make_program(
        ["x"],
        ["y"],
        calls,
        dict.fromkeys((*values, "w", "y"), VECTOR),
        {"w": weight},
    )
    compiled = {
        "add": compile_ir(ADD_IR, "kernel_add", COUNT, workspace_bytes=4 * COUNT),
        "exp": compile_ir(EXP_PARALLEL_IR, "kernel_exp", COUNT),
    }
    return make_spec(program, compiled, threads)
