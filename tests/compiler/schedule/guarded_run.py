"""Run generated code between guard pages, on targets of several vector widths."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from tests.compiler.schedule.tile_session import tile_session
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.llvm import compile_kernel
from tunefarm.compiler.llvm.compile_kernel import CompiledKernel
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.machine.threads import make_runtime
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure.sandbox.guarded import GuardedBuffer

_POISON = 0xFF  # every float is a NaN, every integer -1 or the largest
_ABI = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def targets() -> dict[str, Target]:
    """This CPU as it is; with the narrowest vectors its family has; with the widest it can run.

    The last has a cache that even small tensors exceed, so that streams from memory are prefetched.
    """
    host = host_target()
    wide = replace(host, vector_bytes=64, vector_registers=32, l2_bytes=1024)
    if wide.lacking_feature:
        wide = replace(host, l2_bytes=1024)
    narrow = replace(host, vector_bytes=16, vector_registers=16)
    if host.triple.startswith("x86_64"):
        narrow = replace(narrow, cpu="x86-64", features=("sse2",))
    return {"host": host, "narrow": narrow, "wide": wide}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a kernel left behind; `problem` says which rule of the ABI it broke, or ""."""

    output: Array
    problem: str
    is_parallel: bool


def run_guarded(
    kernel: FusedKernel,
    schedule: Schedule,
    inputs: Mapping[str, Array],
    target: Target,
    threads: int = 1,
    fixed_rounding: bool = False,
) -> Outcome:
    """Compile and call a kernel; an access beyond a buffer's end by a page or more is a crash.

    Output and workspace begin as NaN, every buffer ends at a guard page.
    """
    compiled = compile_kernel(kernel, schedule, target, fixed_rounding=fixed_rounding)
    layouts = dict(compiled.constant_layouts)
    arrays = [
        layouts[buffer.name].pack(inputs[buffer.name])
        if buffer.name in layouts
        else np.ascontiguousarray(inputs[buffer.name])
        for buffer in kernel.inputs
    ]
    with ExitStack() as stack:
        guarded = [stack.enter_context(GuardedBuffer(array.nbytes)) for array in arrays]
        for buffer, array in zip(guarded, arrays, strict=True):
            buffer.fill(array)
        shape, dtype = kernel.output.shape, kernel.output.dtype
        output = stack.enter_context(GuardedBuffer(dtype.bytes * int(np.prod(shape))))
        output.poison(_POISON)
        workspace = stack.enter_context(GuardedBuffer(compiled.workspace_bytes))
        workspace.poison(_POISON)
        _call(compiled, [*guarded, output], workspace, threads, target)
        problem = ""
        for name, buffer, array in zip(
            (item.name for item in kernel.inputs), guarded, arrays, strict=True
        ):
            if not buffer.equals(array):
                problem = f"input {name} was changed"
        for name, buffer in (("output", output), ("workspace", workspace)):
            if buffer.damage():
                problem = f"{name}: {buffer.damage()}"
        return Outcome(output.array(dtype, shape).copy(), problem, compiled.parallel)


def _call(
    compiled: CompiledKernel,
    buffers: list[GuardedBuffer],
    workspace: GuardedBuffer,
    threads: int,
    target: Target,
) -> None:
    code = LoadedCode([compiled.object_code], [compiled.symbol])
    pointers = (ctypes.c_void_p * len(buffers))(*(buffer.address for buffer in buffers))
    runtime, _ = make_runtime(threads)
    address = workspace.address if compiled.workspace_bytes else None
    with tile_session(target):
        _ABI(code.address(compiled.symbol))(
            ctypes.addressof(pointers), address, ctypes.addressof(runtime)
        )
