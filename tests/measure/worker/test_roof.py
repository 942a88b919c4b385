"""The roof of this machine: its loop computes what it says, and nothing measured is above it."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tunefarm.compiler.llvm.machine import assembly, object_code
from tunefarm.compiler.llvm.peak_loop import peak_loop
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.measure.worker.roof import measure_read, measure_roof


def test_the_loop_multiplies_and_adds_as_often_as_it_says() -> None:
    target = host_target()
    loop = peak_loop(target)
    results = np.zeros(loop.result_bytes // 4, np.float32)
    assert loop.steps * target.lanes(DType.F32) == len(results)
    code = LoadedCode([object_code(loop.text, target)], [loop.symbol])
    arguments = ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
    function = ctypes.CFUNCTYPE(None, *arguments)(code.address(loop.symbol))
    function(3, 0, None, results.ctypes.data)
    assert (results == 0.875).all()  # 0.5, 0.75, 0.875
    if target.has_fma and target.triple.startswith("x86_64"):
        assert assembly(loop.text, target).count("vfmadd") == 12  # one a sum, none of them split


@pytest.mark.parametrize("threads", [1, 2])
def test_a_machine_has_a_roof(threads: int) -> None:
    roof = measure_roof(host_target(), threads)
    assert 1e8 < roof.flops < 1e14
    assert 1e7 < roof.bytes < 1e13


@pytest.mark.parametrize("threads", [1, 2])
def test_a_machine_reads(threads: int) -> None:
    assert 1e7 < measure_read(host_target(), threads) < 1e13
