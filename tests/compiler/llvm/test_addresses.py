"""What an address is computed from."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from tests.compiler.loops.tiny_kernels import f
from tests.compiler.schedule.small_kernels import f32, inputs_for, run_kernel
from tunefarm.compiler.expr.nodes import Expr, Load, add, binary, index, integer
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.llvm.emit_kernel import emit_kernel
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.loops.interpret import interpret
from tunefarm.compiler.loops.ir import For, LoopKind, LoopNest, Memory, Store
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Unroll
from tunefarm.compiler.schedule.steps.tiles import Tile
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array

WIDTH = 5


def _read_in_rows(divisor: int) -> FusedKernel:
    """y[i] = x[(i + 2) // divisor, (i + 2) % divisor] + 1, of rows of WIDTH."""
    builder = KernelBuilder()
    x = builder.input(f32(23 // divisor + 1, WIDTH))

    def body(i: Expr) -> Expr:
        place, by = add(i, integer(2)), integer(divisor)
        row, column = (binary(op, place, by) for op in ("floordiv", "mod"))
        return binary("add", x[row, column], f(1))

    builder.stage("y", [("i", 20)], body)
    return builder.kernel("read_in_rows", "y")


@pytest.mark.parametrize(("divisor", "divides"), [(WIDTH, False), (WIDTH - 1, True)])
def test_positions_in_whole_rows_are_not_divided_for(divisor: int, divides: bool) -> None:
    kernel, schedule = _read_in_rows(divisor), Schedule((Tile("y", "i", 3), Unroll("y", "i.i")))
    text, _ = emit_kernel(lower(kernel, schedule), host_target(), "kernel")
    assert bool(re.search(r" [su](div|rem) i64", text)) == divides
    inputs = inputs_for(kernel)
    expected = evaluate_kernel(kernel, inputs)
    np.testing.assert_array_equal(run_kernel(kernel, schedule, inputs), expected)


def _run(nest: LoopNest, x: Array) -> Array:
    """What the code of a serial nest of one input makes of it."""
    code = LoadedCode(
        [object_code(emit_kernel(nest, host_target(), "kernel")[0], host_target())], ["kernel"]
    )
    output = np.empty(nest.output.shape, nest.output.dtype.numpy)
    buffers = (ctypes.c_void_p * 2)(x.ctypes.data, output.ctypes.data)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    function(code.address("kernel"))(ctypes.addressof(buffers), None, None)
    return output


@pytest.mark.parametrize("kinds", [("SERIAL", "UNROLLED"), ("UNROLLED", "SERIAL")])
def test_an_access_in_two_loops_has_the_address_of_each(kinds: tuple[str, str]) -> None:
    i = index("i")
    body = (Store("y", (i,), Load(DType.F32, "x", (binary("floordiv", i, integer(4)), i))),)
    first, second = (LoopKind[kind] for kind in kinds)
    loops = For("i", 0, 4, first, body), For("i", 4, 8, second, body)
    x, y = Memory("x", DType.F32, (2, 8)), Memory("y", DType.F32, (8,))
    nest = LoopNest("twice", (x,), y, loops)
    verify_loops(nest)
    data = np.arange(16, dtype=np.float32).reshape(2, 8)
    np.testing.assert_array_equal(_run(nest, data), interpret(nest, {"x": data}))


@pytest.mark.parametrize("rounds", [(1, 3), (3, 1)])
def test_an_access_in_two_loops_is_that_of_all_rounds_of_each(rounds: tuple[int, int]) -> None:
    body = (Store("y", (index("i"),), Load(DType.F32, "x", (index("i"),))),)
    loops = tuple(For("i", 0, count, LoopKind.UNROLLED, body) for count in rounds)
    x, y = Memory("x", DType.F32, (3,)), Memory("y", DType.F32, (3,))
    data = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(_run(LoopNest("twice", (x,), y, loops), data), data)
