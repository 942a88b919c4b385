"""Vectors of which some lanes are loaded: at the end of memory, and in what LLVM makes of it."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from tests.targets import target_named
from tunefarm.compiler.expr.instructions import type_of
from tunefarm.compiler.llvm.loads import masked_load
from tunefarm.compiler.llvm.machine import assembly, object_code
from tunefarm.compiler.llvm.shuffles import reversed_lanes
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.measure.sandbox.guarded import GuardedBuffer

_ABI = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
TYPES = (DType.F32, DType.F64, DType.I32, DType.I64, DType.F16, DType.I16, DType.I8)


def function(dtype: DType, width: int, target: Target) -> str:
    """y = select(mask, reversed(masked.load(x, mask)), y), what LLVM 22 folds as it should not.

    The mask is as many lanes as %count says, an i32 in memory.
    """
    declarations: set[str] = set()
    writer = FunctionWriter(
        declarations, has_fma=False, has_avx512=target.has_avx512, has_avx2=target.has_gather
    )
    lanes, kind = f"<{width} x i32>", type_of(dtype, width)
    count = writer.emit("load i32, ptr %count, align 4")
    first = writer.emit(f"insertelement {lanes} poison, i32 {count}, i64 0")
    most = writer.emit(f"shufflevector {lanes} {first}, {lanes} poison, {lanes} zeroinitializer")
    places = ", ".join(f"i32 {lane}" for lane in range(width))
    mask = Value(writer.emit(f"icmp slt {lanes} <{places}>, {most}"), DType.BOOL, width)
    turned = reversed_lanes(writer, masked_load(writer, "%x", mask, dtype))
    old = writer.emit(f"load {kind}, ptr %y, align 1")
    new = writer.emit(f"select {mask.typed}, {turned.typed}, {kind} {old}")
    writer.line(f"store {kind} {new}, ptr %y, align 1")
    writer.line("ret void")
    text = f"define void @f(ptr %x, ptr %y, ptr %count) {{\nentry:\n{writer.text()}\n}}"
    return "\n".join([*sorted(declarations), text])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [2, 5, 8, 16, 20, 53])
def test_lanes_behind_the_end_are_not_read(width: int, dtype: DType) -> None:
    target = host_target()
    code = LoadedCode([object_code(function(dtype, width, target), target)], ["f"])
    for count in sorted({1, width // 2, width - 1, width}):
        data = np.arange(1, count + 1).astype(dtype.numpy)
        result, lanes = np.full(width, 99, dtype.numpy), np.array([count], np.int32)
        with GuardedBuffer(-(-data.nbytes // 64) * 64) as source:
            source.bytes[-data.nbytes :] = data.view(np.uint8)
            begin = source.address + source.nbytes - data.nbytes
            _ABI(code.address("f"))(begin, result.ctypes.data, lanes.ctypes.data)
        expected = np.full(width, 99, dtype.numpy)
        padded = np.concatenate([data, np.zeros(width - count, dtype.numpy)])
        expected[:count] = padded[::-1][:count]
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [5, 8, 16, 20, 64])
def test_no_operation_but_a_move_has_a_mask_and_memory(width: int, dtype: DType) -> None:
    target = target_named("x86-64-v4")
    text = assembly(function(dtype, width, target), target)
    variable = [line for line in text.splitlines() if "(%rip)" not in line]
    masked = [line.split()[0] for line in variable if re.search(r"\).*\{%k", line)]
    assert masked
    assert all(re.match("vmov|vpinsr", name) for name in masked), masked
