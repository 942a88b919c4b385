"""The pieces in which threads take the iterations of a parallel loop."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tunefarm.compiler.expr.nodes import Load, binary, const, index
from tunefarm.compiler.kernels.kernel import KernelBuilder
from tunefarm.compiler.llvm import compile_kernel
from tunefarm.compiler.llvm.parallel_loops import MOST_ASKED_FOR, read_by_all
from tunefarm.compiler.loops.ir import Dot, For, LoopKind, Memory, Store
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.machine.threads import Runtime
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Parallelize
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_TEAM = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
_LOOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Context(ctypes.Structure):
    _fields_ = (
        ("buffers", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("next", ctypes.c_int64),
        ("chunks", ctypes.c_int64),
    )


def pieces(extent: int, chunks: int, threads: int) -> list[list[int]]:
    """The iterations of each chunk, in the order in which they are drawn."""
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (extent,)))
    builder.stage("y", [("i", extent)], lambda i: binary("add", x[i], const(1.0, DType.F32)))
    kernel = builder.kernel("adds", "y")
    compiled = compile_kernel(kernel, Schedule((Parallelize("y", "i", chunks),)), host_target())
    code = LoadedCode([compiled.object_code], [compiled.symbol])
    zeros, written = np.zeros(extent, np.float32), np.zeros(extent, np.float32)
    left: list[list[int]] = []

    def team(loop: int, data: int, count: int, flags: int) -> None:
        context = _Context.from_address(data)
        for number in range(context.chunks + 1):
            written[:] = 0
            context.next = number
            _LOOP(loop)(data)
            left.append(np.flatnonzero(written).tolist())

    callback = _TEAM(team)
    runtime = Runtime(ctypes.cast(callback, ctypes.c_void_p).value, threads, 0)
    buffers = (ctypes.c_void_p * 2)(zeros.ctypes.data, written.ctypes.data)
    function = _KERNEL(code.address(compiled.symbol))
    function(ctypes.addressof(buffers), None, ctypes.addressof(runtime))
    return [sorted(set(before) - set(after)) for before, after in pairwise(left)]


@pytest.mark.parametrize(
    ("extent", "chunks", "threads", "sizes"),
    [
        (8, 2, 2, [2, 2, 2, 2]),
        (6, 2, 2, [2, 2, 1, 1]),  # 3 and 3 for two threads; 1, 2, 1, 2 would be 4 and 2
        (11, 2, 2, [3, 3, 3, 2]),
        (9, 1, 4, [3, 2, 2, 2]),
        (5, 8, 3, [1, 1, 1, 1, 1]),
    ],
)
def test_longer_chunks_are_drawn_first(
    extent: int, chunks: int, threads: int, sizes: list[int]
) -> None:
    found = pieces(extent, chunks, threads)
    assert [len(piece) for piece in found] == sizes
    assert [i for piece in found for i in piece] == list(range(extent))


def a_loop(terms: int, row: str = "t") -> tuple[For, list[Memory]]:
    """A parallel loop, `sums[i] = bias[i] + the sum of x[row] * w[i, t]`, and what it reads."""
    memories = [
        Memory("x", DType.I8, (terms,)),
        Memory("w", DType.I8, (96, terms)),
        Memory("bias", DType.F32, (96,)),
    ]
    left, right = Load(DType.I8, "x", (index(row),)), Load(DType.I8, "w", (index("i"), index("t")))
    dot = Dot("sums", (index("i"),), "t", terms, left, right)
    first = Store("sums", (index("i"),), Load(DType.F32, "bias", (index("i"),)))
    return For("i", 0, 96, LoopKind.PARALLEL, (first, dot)), memories


@pytest.mark.parametrize(
    ("terms", "row", "asked"),
    [
        (4096, "t", ["x"]),
        (4096, "i", []),  # each iteration reads a part of its own
        (4096, "before", []),  # where it reads is known outside of the loop alone
        (64, "t", []),  # one line
        (MOST_ASKED_FOR + 1, "t", []),
    ],
)
def test_threads_ask_for_what_all_iterations_read(terms: int, row: str, asked: list[str]) -> None:
    loop, memories = a_loop(terms, row)
    assert [memory.name for memory in read_by_all(loop, memories)] == asked


def test_loops_without_dot_products_ask_for_nothing() -> None:
    loop, memories = a_loop(4096)
    assert read_by_all(replace(loop, body=loop.body[:1]), memories) == []
