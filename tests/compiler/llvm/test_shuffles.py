"""Rearranged vectors, compiled and compared with NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tunefarm.compiler.expr.instructions import type_of
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.llvm.shuffles import transpose, transpose_block
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array

_ABI = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def run(
    rearrange: Callable[[FunctionWriter, list[Value]], Sequence[Value]],
    data: Array,
    starts: Sequence[int],
    width: int,
    outputs: int,
    lanes: int = 0,
) -> Array:
    """Load vectors of `data` at `starts`, rearrange them, and return what comes out.

    What comes out has `lanes` elements, 0 for as many as what is loaded.
    """
    lanes = lanes or width
    dtype = DType.from_numpy(data.dtype)
    declarations: set[str] = set()
    writer = FunctionWriter(declarations, has_fma=False)

    def pointer(base: str, element: int) -> str:
        return writer.emit(f"getelementptr i8, ptr {base}, i64 {element * dtype.bytes}")

    vectors = []
    for start in starts:
        name = writer.emit(f"load {type_of(dtype, width)}, ptr {pointer('%x', start)}, align 1")
        vectors.append(Value(name, dtype, width))
    for i, value in enumerate(rearrange(writer, vectors)):
        writer.line(f"store {value.typed}, ptr {pointer('%y', i * lanes)}, align 1")
    writer.line("ret void")
    text = f"define void @f(ptr %x, ptr %y) {{\nentry:\n{writer.text()}\n}}"
    code = LoadedCode([object_code("\n".join([*declarations, text]), host_target())], ["f"])
    result = np.zeros((outputs, lanes), data.dtype)
    _ABI(code.address("f"))(data.ctypes.data, result.ctypes.data)
    return result


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1"])
@pytest.mark.parametrize("side", [1, 2, 4, 8, 16])
def test_a_block_is_transposed(side: int, dtype: str) -> None:
    block = np.arange(side * side).astype(dtype).reshape(side, side)
    columns = run(transpose, block, range(0, side * side, side), side, side)
    np.testing.assert_array_equal(columns, block.T)


@pytest.mark.parametrize(("count", "width"), [(4, 4), (7, 16), (14, 16), (16, 5), (3, 3), (1, 8)])
def test_a_block_of_any_size_is_turned(count: int, width: int) -> None:
    data = np.arange(count * width, dtype=np.float32)
    starts = [i * width for i in range(count)]
    turned = run(transpose_block, data, starts, width, width, count)
    np.testing.assert_array_equal(turned.reshape(width, count), data.reshape(count, width).T)
