"""Interleaved whole-model runs, with a clock that is moved by hand."""

from __future__ import annotations

import os

import numpy as np
import pytest

from compiler.types.dtypes import DType
from compiler.types.tensor_type import TensorType
from tuner.confirm.latency import (
    LatencyOptions,
    interleaved_latencies,
    outputs_agree,
    pinned,
    seeded_inputs,
)
from tuner.interrupt import Interrupt, interruptible


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def program(self, name: str, seconds: float) -> None:
        self.now += seconds
        self.calls.append(name)


def test_samples_are_seconds_per_call() -> None:
    clock = Clock()
    programs = [lambda: clock.program("a", 0.002), lambda: clock.program("b", 0.5)]
    options = LatencyOptions(rounds=4, min_sample_seconds=0.01, max_seconds=60)
    first, second = interleaved_latencies(programs, options, lambda: clock.now)
    assert first == pytest.approx([0.002] * 4)
    assert second == pytest.approx([0.5] * 4)


def test_programs_take_turns_and_change_the_order() -> None:
    clock = Clock()
    programs = [lambda: clock.program("a", 1.0), lambda: clock.program("b", 1.0)]
    interleaved_latencies(programs, LatencyOptions(rounds=2, max_seconds=60), lambda: clock.now)
    assert "".join(clock.calls) == "aabb" + "aa" + "bb" + "bb" + "aa"  # warm-up, two rounds


def test_slow_programs_get_three_rounds() -> None:
    clock = Clock()
    options = LatencyOptions(rounds=15, max_seconds=10)
    (samples,) = interleaved_latencies(
        [lambda: clock.program("a", 30.0)], options, lambda: clock.now
    )
    assert len(samples) == 3


def test_seeded_inputs_are_equal_for_equal_seeds_and_fit_the_types() -> None:
    types = {
        "x": TensorType(DType.F32, (2, 3)),
        "ids": TensorType(DType.I64, (50,)),
        "mask": TensorType(DType.BOOL, (4,)),
    }
    first, again, other = (seeded_inputs(types, seed) for seed in (1, 1, 2))
    for name, type in types.items():
        assert (first[name].dtype, first[name].shape) == (type.dtype.numpy, type.shape)
        np.testing.assert_array_equal(first[name], again[name])
    assert set(first["ids"].tolist()) == {0, 1}
    assert not np.array_equal(first["x"], other["x"])


def test_outputs_agree_within_the_tolerance_of_the_largest_element() -> None:
    expected = np.array([1000.0, 0.0], np.float32)
    assert outputs_agree(np.array([1000.5, 0.05], np.float32), expected)
    assert not outputs_agree(np.array([1000.0, 0.2], np.float32), expected)
    assert not outputs_agree(np.array([1000.0, np.nan], np.float32), expected)
    assert not outputs_agree(np.array([1, 2]), np.array([1, 3]))


def test_pinning_is_undone() -> None:
    before = os.sched_getaffinity(0)
    with pinned(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before


def test_the_first_signal_asks_and_the_second_ends() -> None:
    asked: list[str] = []
    with interruptible() as interrupt:
        interrupt.tell(lambda: asked.append("stop"))
        interrupt.ask()
        assert asked == ["stop"]
        with pytest.raises(KeyboardInterrupt):
            interrupt.ask()


def test_a_listener_that_comes_late_is_told_at_once() -> None:
    interrupt = Interrupt()
    interrupt.ask()
    asked: list[str] = []
    interrupt.tell(lambda: asked.append("stop"))
    assert asked == ["stop"]
