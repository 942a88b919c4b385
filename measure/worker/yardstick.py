"""The yardstick, timed round every measurement: how fast the core was at that moment."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter

import numpy as np

from tunefarm.compiler.llvm.yardstick import YARDSTICK_SYMBOL, yardstick_object
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType

_SECONDS = 2e-4  # of one run, about
_RUNS = 3  # the fastest counts: an interrupted run says nothing about the clock


class Yardstick:
    """Times the same work again and again."""

    def __init__(self, target: Target, clock: Callable[[], float] = perf_counter) -> None:
        """`target`: this machine's."""
        self._clock = clock
        self._code = LoadedCode([yardstick_object(target)], [YARDSTICK_SYMBOL])
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        self._function = signature(self._code.address(YARDSTICK_SYMBOL))
        self._buffer = np.zeros(target.lanes(DType.F32), np.float32)
        self._rounds = 1000
        while self._time() < _SECONDS:
            self._rounds *= 2

    def seconds(self) -> float:
        """Seconds of one round of the work, now; comparable on one machine."""
        return min(self._time() for _ in range(_RUNS)) / self._rounds

    def _time(self) -> float:
        start = self._clock()
        self._function(self._buffer.ctypes.data, self._rounds)
        return self._clock() - start
