"""`run_async` runs calls in order, on the cores that there are, and gives results and errors."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref

import numpy as np
import pytest

from tests.compiler.runtime.hand_kernels import COUNT, chain_spec
from tunefarm.compiler.errors import InputError
from tunefarm.compiler.runtime.execution import executable
from tunefarm.compiler.runtime.execution.executable import CallQueue, Executable

WEIGHT = np.linspace(-1, 1, COUNT, dtype=np.float32)
LONG = 30.0  # seconds, after which something hangs


@pytest.fixture
def model() -> Executable:
    return Executable(chain_spec(WEIGHT))


def test_outputs_are_those_of_each_call(model: Executable) -> None:
    arrays = [np.full(COUNT, number / 50, np.float32) for number in range(50)]
    futures = [model.run_async({"x": array}) for array in arrays]
    for array, future in zip(arrays, futures, strict=True):
        np.testing.assert_array_equal(future.result(LONG)["y"], model.run({"x": array})["y"])


def test_outputs_go_where_they_are_wanted(model: Executable) -> None:
    out = {"y": np.empty(COUNT, np.float32)}
    assert model.run_async({"x": WEIGHT}, out).result(LONG)["y"] is out["y"]
    np.testing.assert_array_equal(out["y"], model.run({"x": WEIGHT})["y"])


def test_errors_are_the_futures(model: Executable) -> None:
    future = model.run_async({"wrong": WEIGHT})
    with pytest.raises(InputError, match="wrong"):
        future.result(LONG)
    assert model.run_async({"x": WEIGHT}).result(LONG)  # the next call is none the worse


def test_it_can_be_awaited(model: Executable) -> None:
    async def several() -> list[np.ndarray]:
        calls = [asyncio.wrap_future(model.run_async({"x": WEIGHT})) for _ in range(5)]
        return [outputs["y"] for outputs in await asyncio.gather(*calls)]

    for result in asyncio.run(several()):
        np.testing.assert_array_equal(result, model.run({"x": WEIGHT})["y"])


@pytest.mark.parametrize(
    ("cores", "threads", "workers"), [(2, 1, 2), (2, 2, 1), (2, 7, 1), (16, 4, 4), (1, 1, 1)]
)
def test_as_many_calls_run_as_there_are_cores_for(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int, workers: int
) -> None:
    monkeypatch.setattr(executable, "usable_cores", lambda: cores)
    queue = CallQueue(threads)
    running, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(workers)

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(LONG)
        with lock:
            running -= 1

    for future in [queue.submit(call) for _ in range(3 * workers)]:
        future.result(LONG)
    assert most == workers


def test_memory_is_that_of_the_calls_at_a_time(model: Executable) -> None:
    for future in [model.run_async({"x": WEIGHT}) for _ in range(200)]:
        future.result(LONG)
    assert model.idle_frames <= executable.usable_cores()


def test_a_model_that_nobody_keeps_is_released() -> None:
    model = Executable(chain_spec(WEIGHT))
    model.run_async({"x": WEIGHT}).result(LONG)
    released = weakref.ref(model)
    del model
    gc.collect()
    assert released() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_runs_calls_of_its_own(model: Executable) -> None:
    model.run_async({"x": WEIGHT}).result(LONG)
    child = os.fork()
    if child == 0:  # no assertion here: what fails in a child must not become another test run
        try:
            done = model.run_async({"x": WEIGHT}).result(LONG)["y"]
            os._exit(0 if np.isfinite(done).all() else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
