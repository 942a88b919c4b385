"""The roof of this machine: its loop computes what it says, and nothing measured is above it."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tunefarm.compiler.llvm.machine import assembly, object_code
from tunefarm.compiler.llvm.peak_loop import (
    READ_SYMBOL,
    SYMBOL,
    peak_loop,
    read_loop,
    result_floats,
)
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import host_target
from tunefarm.measure.worker.roof import measure_read, measure_roof


def test_the_loop_multiplies_and_adds_as_often_as_it_says() -> None:
    target = host_target()
    text, operations = peak_loop(target)
    results = np.zeros(result_floats(target), np.float32)
    assert operations == 2 * len(results)
    code = LoadedCode([object_code(text, target)], [SYMBOL])
    loop = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(code.address(SYMBOL))
    loop(3, results.ctypes.data)
    assert (results == 0.875).all()  # 0.5, 0.75, 0.875
    if target.has_fma and target.triple.startswith("x86_64"):
        assert assembly(text, target).count("vfmadd") == 12  # one a sum, none of them split


@pytest.mark.parametrize("threads", [1, 2])
def test_a_machine_has_a_roof(threads: int) -> None:
    roof = measure_roof(host_target(), threads)
    assert 1e8 < roof.flops < 1e14
    assert 1e7 < roof.bytes < 1e13


def test_the_reading_loop_sums_what_it_says() -> None:
    target = host_target()
    text, integers = read_loop(target)
    code = LoadedCode([object_code(text, target)], [READ_SYMBOL])
    arguments = ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
    loop = ctypes.CFUNCTYPE(None, *arguments)(code.address(READ_SYMBOL))
    data = np.arange(3 * integers, dtype=np.int64)
    results = np.zeros(integers, np.int64)
    loop(3, data.ctypes.data, results.ctypes.data)
    assert (results == data.reshape(3, integers).sum(axis=0)).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_machine_reads(threads: int) -> None:
    assert 1e7 < measure_read(host_target(), threads) < 1e13
