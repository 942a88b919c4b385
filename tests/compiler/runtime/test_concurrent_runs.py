"""One executable called by several threads: outputs are right, and memory stays as it is."""

from __future__ import annotations

import ctypes
import gc
import mmap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.compiler.runtime.hand_kernels import (
    ADD_IR,
    COUNT,
    add_kernel,
    call,
    chain_spec,
    compile_ir,
    make_program,
    make_spec,
)
from tunefarm.compiler.errors import InputError
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.execution.frame import Frame
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

CALLERS = 8
CALLS = 1000  # of each caller
SETTLED = 200  # calls of each after which every caller has what it needs
ELEMENTS = 8192
BYTES = 4 * ELEMENTS  # of the output, and of the arena of a frame
# Between two readings there are 6,400 calls: 200 MiB if each left an output or a frame behind, 25
# MiB if one in eight did. Without a leak it is about 0.3 MiB, of 8 threads with a few arrays of 32
# KiB each and of what the interpreter keeps.
TOLERANCE = 8 * 2**20

Vector = npt.NDArray[np.float32]


@pytest.fixture
def adder() -> Executable:
    """y = (x + w) + w, with an intermediate value in the arena."""
    type = TensorType(DType.F32, (ELEMENTS,))
    kernel = add_kernel(ELEMENTS)
    program = make_program(
        ["x"],
        ["y"],
        [call(kernel, "add", ("x", "w"), "t"), call(kernel, "add", ("t", "w"), "y")],
        dict.fromkeys(("x", "w", "t", "y"), type),
        {"w": np.ones(ELEMENTS, np.float32)},
    )
    compiled = {"add": compile_ir(ADD_IR, "k", ELEMENTS, workspace_bytes=BYTES)}
    return Executable(make_spec(program, compiled))


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free does not count
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def call_from_threads(work: Callable[[int], None]) -> None:
    """Run `work(number)` in `CALLERS` threads; raises what one of them raised."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - handed on
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_eight_threads_get_their_own_outputs_and_leave_no_memory_behind(adder: Executable) -> None:
    readings: list[int] = []
    settled = threading.Barrier(CALLERS, action=lambda: readings.append(resident_bytes()))
    finished = threading.Barrier(CALLERS, action=lambda: readings.append(resident_bytes()))

    def work(number: int) -> None:
        try:
            for i in range(CALLS):
                x = np.full(ELEMENTS, CALLS * number + i, np.float32)
                y = adder.run({"x": x})["y"]
                assert y.min() == y.max() == x[0] + 2
                if i == SETTLED:
                    settled.wait()
            finished.wait()
        except BaseException:
            settled.abort()
            finished.abort()
            raise

    call_from_threads(work)
    before, after = readings
    assert after - before < TOLERANCE
    assert 1 <= adder.idle_frames <= CALLERS


def test_there_are_no_more_frames_than_callers_at_a_time(
    adder: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = threading.Barrier(CALLERS)
    bind_outputs = Frame.bind_outputs

    def meet(frame: Frame, *arguments: object) -> dict[str, Vector]:
        inside.wait()  # all callers are in `run`
        return bind_outputs(frame, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Frame, "bind_outputs", meet)

    def work(number: int) -> None:
        for _ in range(5):
            adder.run({"x": np.zeros(ELEMENTS, np.float32)})

    call_from_threads(work)
    assert adder.idle_frames == CALLERS


@pytest.mark.parametrize(
    "inputs",
    [{}, {"z": np.zeros(COUNT, np.float32)}, {"x": np.zeros(COUNT)}, {"x": "text"}, [1]],
    ids=["missing", "unknown", "wrong type", "no array", "no mapping"],
)
def test_a_refused_call_gives_its_frame_back(inputs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Executable(chain_spec(np.zeros(COUNT, np.float32)))
    made: list[Frame] = []
    make = chain.new_frame

    def counted() -> Frame:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(chain, "new_frame", counted)
    x = np.zeros(COUNT, np.float32)
    for _ in range(10):
        with pytest.raises(InputError):
            chain.run(inputs)
        with pytest.raises(InputError):
            chain.run({"x": x}, out={"y": x})
        chain.run({"x": x})
    assert len(made) == chain.idle_frames == 1


def test_an_exception_from_outside_neither_loses_nor_doubles_a_frame(
    adder: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.zeros(ELEMENTS, np.float32)
    adder.run({"x": x})
    bind_outputs = Frame.bind_outputs

    def interrupted(frame: Frame, *arguments: object) -> dict[str, Vector]:
        bind_outputs(frame, *arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Frame, "bind_outputs", interrupted)
        with pytest.raises(KeyboardInterrupt):
            adder.run({"x": x})
    assert adder.idle_frames == 1
    assert adder.run({"x": x})["y"].max() == 2
    assert adder.idle_frames == 1


@pytest.mark.parametrize("threads", [4, 16, 64])
def test_more_threads_and_callers_than_cores_are_right_and_end(threads: int) -> None:
    weight = np.linspace(-1, 1, COUNT, dtype=np.float32)
    model = Executable(chain_spec(weight), threads)
    inputs = [np.full(COUNT, number / 8, np.float32) for number in range(4)]
    expected = [Executable(chain_spec(weight), 1).run({"x": x})["y"] for x in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(100):
            if not np.array_equal(model.run({"x": inputs[number]})["y"], expected[number]):
                wrong.append(number)

    callers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(120)
    assert not any(caller.is_alive() for caller in callers)
    assert not wrong
