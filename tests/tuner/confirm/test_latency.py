"""Interleaved whole-model runs, with a clock that is moved by hand."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

import numpy as np
import pytest

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.tuner.confirm.drawn_inputs import seeded_inputs
from tunefarm.tuner.confirm.latency import (
    LatencyOptions,
    interleaved_latencies,
    latency_of_meetings,
    outputs_agree,
    outputs_near,
    pinned,
    wait_until_idle,
)
from tunefarm.tuner.confirm.verdict import Meeting
from tunefarm.tuner.interrupt import Interrupt, interruptible


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


def test_every_round_has_all_programs_in_an_order_that_is_drawn() -> None:
    clock = Clock()
    programs = [partial(clock.program, name, 1.0) for name in "abc"]
    options = LatencyOptions(rounds=40, max_seconds=1e6, settle=False)
    interleaved_latencies(programs, options, lambda: clock.now)
    calls = "".join(clock.calls)
    assert calls.startswith("aabbcc")  # calibration
    rounds = [calls[i : i + 3] for i in range(6, len(calls), 3)]
    assert len(rounds) == 40
    assert {"".join(sorted(order)) for order in rounds} == {"abc"}
    assert len(set(rounds)) == 6


def test_short_programs_run_once_before_each_sample() -> None:
    clock = Clock()
    options = LatencyOptions(rounds=1, min_sample_seconds=0.02, settle=False)
    programs = [lambda: clock.program("a", 0.01)]
    interleaved_latencies(programs, options, lambda: clock.now)
    assert len(clock.calls) == 2 + 1 + 2  # calibration, warm-up, the sample


def meetings(untuned: float, tuned: float, former: float | None = None) -> list[Meeting]:
    """Rounds of models on a core that changes its speed by half, within rounds too."""
    rng = np.random.default_rng(1)
    times = [untuned, tuned, *([] if former is None else [former])]
    made: list[Meeting] = []
    for _ in range(4):
        drift = np.exp(rng.normal(0.0, 0.4, 30))
        noise = np.exp(rng.normal(0.0, 0.02, (len(times), 30)))
        taken = [(time * drift * one).tolist() for time, one in zip(times, noise, strict=True)]
        made.append(dict(enumerate(taken)))
    return made


@pytest.mark.parametrize("tuned", [0.9, 0.995, 1.2])
def test_latencies_and_ratio_of_a_line_agree(tuned: float) -> None:
    found = latency_of_meetings(meetings(1.0, tuned))
    assert found.tuned / found.untuned == pytest.approx(found.ratio)
    assert found.low < found.ratio < found.high
    assert found.ratio == pytest.approx(tuned, rel=0.02)
    assert found.is_slower == (tuned > 1.1)
    assert found.applied.ratio == (1.0 if found.is_slower else found.ratio)


def test_the_former_model_is_told_by_what_decides_about_it() -> None:
    found = latency_of_meetings(meetings(1.0, 0.9, 0.8), former=2)
    assert found.former is not None
    assert found.is_slower
    assert found.former < found.tuned < found.untuned
    assert found.applied.ratio == pytest.approx(0.8, rel=0.02)
    better = latency_of_meetings(meetings(1.0, 0.8, 0.9), former=2)
    assert better.former is not None
    assert not better.is_slower
    assert better.applied.ratio == better.ratio


def test_a_thread_that_computes_is_waited_for() -> None:
    ended = threading.Event()

    def compute() -> None:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        ended.set()

    thread = threading.Thread(target=compute)
    thread.start()
    wait_until_idle(30.0)
    assert ended.is_set()
    thread.join()


def test_a_thread_that_does_not_end_is_waited_for_no_longer_than_is_said() -> None:
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    begin = time.perf_counter()
    wait_until_idle(0.05)
    assert time.perf_counter() - begin >= 0.05
    stop.set()
    thread.join()


def test_slow_programs_get_three_rounds() -> None:
    clock = Clock()
    options = LatencyOptions(rounds=15, max_seconds=10)
    (samples,) = interleaved_latencies(
        [lambda: clock.program("a", 30.0)], options, lambda: clock.now
    )
    assert len(samples) == 3


def test_few_pairs_refuse_nothing() -> None:
    few = [{n: samples[:2] for n, samples in meeting.items()} for meeting in meetings(1.0, 1.5)]
    assert not latency_of_meetings(few).is_slower
    assert latency_of_meetings(meetings(1.0, 1.5)).is_slower


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
        interrupt.add_listener(lambda: asked.append("stop"))
        interrupt.ask()
        assert asked == ["stop"]
        with pytest.raises(KeyboardInterrupt):
            interrupt.ask()


def test_a_listener_that_comes_late_is_told_at_once() -> None:
    interrupt = Interrupt()
    interrupt.ask()
    asked: list[str] = []
    interrupt.add_listener(lambda: asked.append("stop"))
    assert asked == ["stop"]


def test_models_that_round_inside_may_differ_by_a_share_of_the_largest_output() -> None:
    expected = np.array([10.0, 0.0, np.inf])
    assert outputs_near(np.array([10.4, 0.4, np.inf]), expected)
    assert not outputs_near(np.array([10.0, 0.6, np.inf]), expected)
    assert not outputs_near(np.array([10.0, np.nan, np.inf]), expected)
    assert not outputs_near(np.array([10.0, 0.0, 5.0]), expected)
    assert outputs_near(np.array([3]), np.array([4]))  # an index of the largest, say
