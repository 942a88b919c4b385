"""Hand-made machine code for `output[i] = 2 * in0[i]`, right and wrong in every way that matters.

`compile_fault` is a build step for `create_runner(compile=COMPILE_FAULT)`: the schedule of a
request names the fault.
"""

from __future__ import annotations

import os

from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.expr.nodes import binary, const
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.measure.measurement import MeasureRequest
from tunefarm.measure.worker.build_candidate import BuiltCandidate

COMPILE_FAULT = "tests.measure.fault_kernels:compile_fault"
EXTENT = 1000  # 32 bytes of canary follow the output, then the guard page


def make_kernel(extent: int = EXTENT) -> FusedKernel:
    """output[i] = 2 * in0[i]."""
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (extent,)))
    builder.stage("mul", [("i0", extent)], lambda i: binary("mul", x[i], const(2.0, DType.F32)))
    return builder.kernel("double", "mul")


def make_request(
    fault: str, request_id: str = "", options: dict[str, float | int] | None = None
) -> MeasureRequest:
    """A quick request for the kernel with this fault ("none" is right)."""
    kernel = make_kernel()
    quick: dict[str, float | int] = {"samples": 3, "min_sample_seconds": 1e-4, "unstable_limit": 9}
    return MeasureRequest(
        request_id or fault,
        kernel_to_json(kernel),
        workload_key(kernel),
        [["fault", fault]],
        1,
        {**quick, **(options or {})},
    )


_DECLARATIONS = """
declare void @abort()
declare i32 @raise(i32)
declare void @exit(i32)
declare i32 @puts(ptr)
declare void @llvm.trap()
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i32 @usleep(i32)
@spun = internal global float 0.0
@calls = internal global i64 0
@saved = internal global [1000 x float] zeroinitializer
@text = internal constant [12 x i8] c"tfm1 rubbish"
"""


def _kernel_ir(first: int = 0, last: int = EXTENT, factor: str = "2.0", before: str = "") -> str:
    """The kernel over first <= i < last; `before` runs first."""
    return f"""{_DECLARATIONS}
define void @kernel(ptr %buffers, ptr %workspace, ptr %runtime) {{
entry:
  %x = load ptr, ptr %buffers
  %slot = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %slot
  {before}
  br label %loop
loop:
  %i = phi i64 [ {first}, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %x, i64 %i
  %value = load float, ptr %from
  %result = fmul float %value, {factor}
  %to = getelementptr float, ptr %y, i64 %i
  store float %result, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {last}
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


_STALE = f"""{_DECLARATIONS}
define void @kernel(ptr %buffers, ptr %workspace, ptr %runtime) {{
entry:
  %x = load ptr, ptr %buffers
  %slot = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %slot
  %count = load i64, ptr @calls
  %following = add i64 %count, 1
  store i64 %following, ptr @calls
  %old = icmp sgt i64 %count, 0
  br i1 %old, label %copy, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %x, i64 %i
  %value = load float, ptr %from
  %result = fmul float %value, 2.0
  %to = getelementptr float, ptr @saved, i64 %i
  store float %result, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {EXTENT}
  br i1 %more, label %loop, label %copy
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %y, ptr @saved, i64 {4 * EXTENT}, i1 false)
  ret void
}}
"""


def _late_ir(late: str) -> str:
    """The right kernel, but for what it does in calls after the first two, which are checked."""
    return _kernel_ir(
        before=f"""%count = load i64, ptr @calls
  %following = add i64 %count, 1
  store i64 %following, ptr @calls
  %late = icmp sgt i64 %count, 1
  br i1 %late, label %misdeed, label %loop_entry
misdeed:
  {late}
  br label %loop_entry
loop_entry:"""
    ).replace("[ 0, %entry ], [ %next, %loop ]", "[ 0, %loop_entry ], [ %next, %loop ]")


def _apart_ir(distance: int) -> str:
    """The right kernel, which in late calls wants its output so many bytes after its input."""
    return _late_ir(
        f"""%xi = ptrtoint ptr %x to i64
  %yi = ptrtoint ptr %y to i64
  %apart = sub i64 %yi, %xi
  %right = icmp eq i64 %apart, {distance}
  br i1 %right, label %loop_entry, label %trap
trap:
  call void @llvm.trap()"""
    )


def _beside_output(index: int) -> str:
    """Write an element that is not of the output."""
    return f"""%beside = getelementptr float, ptr %y, i64 {index}
  store float 7.0, ptr %beside"""


_HANG = """
define void @kernel(ptr %buffers, ptr %workspace, ptr %runtime) {
entry:
  br label %loop
loop:
  br label %loop
}
"""

_UNDEFINED = """
declare void @tunefarm_no_such_function()
define void @kernel(ptr %buffers, ptr %workspace, ptr %runtime) {
  call void @tunefarm_no_such_function()
  ret void
}
"""

_IR = {
    "none": _kernel_ir(),
    "segfault": _kernel_ir(before="store volatile i64 0, ptr null"),
    "illegal": _kernel_ir(before="call void @llvm.trap()"),
    "arithmetic": _kernel_ir(before="%r = call i32 @raise(i32 8)"),
    "abort": _kernel_ir(before="call void @abort()"),
    "exit": _kernel_ir(before="call void @exit(i32 0)"),
    "killed": _kernel_ir(before="%r = call i32 @raise(i32 9)"),
    "prints": _kernel_ir(before="%r = call i32 @puts(ptr @text)"),
    "hang": _HANG,
    "overrun": _kernel_ir(last=EXTENT + 1),
    "far_overrun": _kernel_ir(last=EXTENT + 16),
    "underrun": _kernel_ir(first=-1),
    "writes_input": _kernel_ir(before="store float 7.0, ptr %x"),
    "tail": _kernel_ir(last=EXTENT - 1),
    "wrong": _kernel_ir(factor="3.0"),
    "imprecise": _kernel_ir(factor="0x4000010000000000"),  # 2.00012: beyond the tolerance
    "stale": _STALE,
    "undefined": _UNDEFINED,
    "eats_memory": _kernel_ir(),
    "slow": _kernel_ir(),
    "late_overrun": _late_ir(_beside_output(EXTENT)),
    "late_underrun": _late_ir(_beside_output(-1)),
    "late_far_overrun": _late_ir(_beside_output(EXTENT + 500)),
    "late_writes_input": _late_ir("store float 7.0, ptr %x"),
    "late_nothing": _late_ir("ret void\nnever:"),
}


def _spin_ir(rounds: int) -> str:
    """The right kernel after `rounds` dependent additions: its time is known by construction."""
    return _kernel_ir(
        before=f"""br label %spin
spin:
  %round = phi i64 [ 0, %entry ], [ %following, %spin ]
  %sum = phi float [ 1.0, %entry ], [ %added, %spin ]
  %added = fadd float %sum, 1.0
  %following = add i64 %round, 1
  %again = icmp slt i64 %following, {rounds}
  br i1 %again, label %spin, label %spun
spun:
  store volatile float %added, ptr @spun
  br label %loop_entry
loop_entry:"""
    ).replace("[ 0, %entry ], [ %next, %loop ]", "[ 0, %loop_entry ], [ %next, %loop ]")


def _ir_of(fault: str) -> str:
    """The code of a fault.

    "spin N" means N additions more, "sleep N" N microseconds more; "apart N" see `_apart_ir`.
    """
    kind, _, number = fault.partition(" ")
    if kind == "spin":
        return _spin_ir(int(number))
    if kind == "apart":
        return _apart_ir(int(number))
    if kind == "sleep":
        return _kernel_ir(before=f"%r = call i32 @usleep(i32 {int(number)})")
    return _IR[fault]


def compile_fault(request: MeasureRequest, target: Target) -> BuiltCandidate:
    """The build step: the object code with the fault that the schedule names."""
    fault = request.schedule[0][1]
    if fault == "build_error":
        raise LoweringError("the schedule does not fit", program="for i in 0..1000")
    if fault == "build_bug":
        raise KeyError("i_inner")
    if fault == "build_crash":
        os.abort()
    while fault == "build_hang":
        pass
    workspace = 1 << 50 if fault == "eats_memory" else 0
    return BuiltCandidate("kernel", object_code(_ir_of(fault), target), workspace)
