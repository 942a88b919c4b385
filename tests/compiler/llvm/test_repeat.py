from __future__ import annotations

import ctypes

import numpy as np

from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.llvm.peak_loop import REPEAT_SYMBOL, repeat_call_object
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import host_target

COUNTING_KERNEL = """
define void @count(ptr %buffers, ptr %workspace, ptr %runtime) {
  %p = load ptr, ptr %buffers, align 8
  %old = load i64, ptr %p, align 8
  %new = add i64 %old, 1
  store i64 %new, ptr %p, align 8
  ret void
}
"""


def test_calls_take_turns_with_the_tables_from_the_first_one_on() -> None:
    target = host_target()
    objects = (object_code(COUNTING_KERNEL, target), repeat_call_object(target))
    code = LoadedCode(objects, ("count", REPEAT_SYMBOL))
    counts = np.zeros(3, np.int64)
    tables = (ctypes.c_void_p * 3)(*(counts.ctypes.data + 8 * i for i in range(3)))
    repeat = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 4)(
        code.address(REPEAT_SYMBOL)
    )
    repeat(code.address("count"), ctypes.addressof(tables), None, None, 4, 1, 3, 8)
    assert counts.tolist() == [1, 2, 1]
    repeat(code.address("count"), ctypes.addressof(tables), None, None, 0, 0, 3, 8)
    assert counts.tolist() == [1, 2, 1]
