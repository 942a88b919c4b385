"""A core that builds without end, to see what that does to its neighbours (`measure.farm.overlap`).

python -m measure.farm.build_load PARENT CORE
"""

from __future__ import annotations

import os
import random
import sys

from compiler.expr.nodes import binary
from compiler.kernels.kernel import FusedKernel, KernelBuilder
from compiler.llvm import compile_kernel
from compiler.schedule.spaces import schedule_space
from compiler.target import host_target
from compiler.types.dtypes import DType
from compiler.types.tensor_type import TensorType
from measure.sandbox.limits import die_with


def compile_for_ever(parent: int, core: int) -> None:
    """Compile on `core` until `parent` dies; prints a line when it begins."""
    die_with(parent)
    os.sched_setaffinity(0, [core])
    kernel, target = _product(), host_target()
    space = schedule_space(kernel, target)
    rng = random.Random(0)
    while True:
        compile_kernel(kernel, space.schedule(space.sample(rng)), target)
        if not sys.stdout.closed:
            print("compiling", flush=True)
            sys.stdout.close()


def _product() -> FusedKernel:
    """y[m, n] = sum over k of a[m, k] * b[k, n]."""
    builder = KernelBuilder()
    a = builder.input(TensorType(DType.F32, (96, 256)))
    b = builder.input(TensorType(DType.F32, (256, 128)), constant=True)
    builder.stage(
        "matmul",
        [("m", 96), ("n", 128)],
        lambda m, n, k: binary("mul", a[m, k], b[k, n]),
        reduce=[("k", 256)],
        combiner="sum",
    )
    return FusedKernel("matmul", tuple(builder.inputs), tuple(builder.stages), "matmul")


if __name__ == "__main__":
    compile_for_ever(int(sys.argv[1]), int(sys.argv[2]))
