"""The yardstick does the same work each time, and gives the time of one round of it."""

from __future__ import annotations

import ctypes
from itertools import accumulate

import numpy as np
import pytest

from tunefarm.compiler.llvm.peak_loop import YARDSTICK_SYMBOL, yardstick_object
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.measure.worker.timer import Yardstick


def test_seconds_are_the_shortest_run_by_its_rounds() -> None:
    calibration = [0.5e-4, 1e-4, 3e-4]  # of 1000, 2000 and 4000 rounds
    runs = [9e-4, 4e-4, 5e-4]
    moments = accumulate(step for span in (*calibration, *runs) for step in (1.0, span))
    yardstick = Yardstick(host_target(), lambda: next(moments))
    assert yardstick.seconds() == pytest.approx(4e-4 / 4000, rel=1e-6)


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_every_round_is_worked(rounds: int) -> None:
    """Eight chains of a <- a * x + x, from x on, are added up."""
    target = host_target()
    x = np.linspace(-0.9, 0.9, target.lanes(DType.F32), dtype=np.float32)
    expected = x
    for _ in range(rounds):
        expected = expected * x + x
    code = LoadedCode([yardstick_object(target)], [YARDSTICK_SYMBOL])
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    buffer = x.copy()
    function(code.address(YARDSTICK_SYMBOL))(buffer.ctypes.data, rounds)
    np.testing.assert_allclose(buffer, 8 * expected, rtol=1e-5, atol=1e-6)


def test_object_code_is_the_same_each_time() -> None:
    code = yardstick_object(host_target())
    yardstick_object.cache_clear()
    assert yardstick_object(host_target()) == code
