"""Executables: what they compute, what they refuse, threads, concurrency and life time."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pytest

from tests.compiler.runtime.hand_kernels import (
    ADD_IR,
    COUNT,
    VECTOR,
    add_kernel,
    call,
    chain_spec,
    compile_ir,
    make_program,
    make_spec,
)
from tests.compiler.runtime.sized_graphs import cache_graph
from tunefarm import compiler
from tunefarm.compiler.errors import ArtefactError, InputError, LoweringError
from tunefarm.compiler.kernels.kernel import ViewCall
from tunefarm.compiler.loops.constant_layout import ConstantLayout
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.machine import threads as runtime_threads
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.spec.buffers import address_of, aligned_empty
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

WEIGHT = np.linspace(-1, 1, COUNT, dtype=np.float32)
needs_threads = pytest.mark.skipif(
    not runtime_threads.make_runtime(2)[1], reason="no pool on this machine"
)


Vector = npt.NDArray[np.float32]


def expected(x: Vector) -> Vector:
    result: Vector = np.exp(x + 4 * WEIGHT)
    return result


@pytest.fixture(scope="module")
def chain() -> Executable:
    return Executable(chain_spec(WEIGHT))


def test_kernels_run_in_order_over_the_arena(chain: Executable) -> None:
    x = np.random.default_rng(0).standard_normal(COUNT).astype(np.float32)
    outputs = chain.run({"x": x})
    assert list(outputs) == ["y"]
    assert outputs["y"].dtype == np.float32
    np.testing.assert_allclose(outputs["y"], expected(x), rtol=1e-5)


def test_executables_take_turns_in_one_arena(chain: Executable) -> None:
    arena = aligned_empty((chain.spec.arena_bytes + 4096,), np.dtype(np.uint8))
    other = Executable(chain.spec)
    frames = [(chain, chain.new_frame(arena)), (other, other.new_frame(arena))]
    for value in (1.0, 2.0):
        x = np.full(COUNT, value, np.float32)
        for executable, frame in frames:
            assert frame.arena_address(0) == address_of(arena)
            result = executable.run_in(frame, {"x": x})["y"]
            np.testing.assert_allclose(result, expected(x), rtol=1e-5)
    assert other.idle_frames == 0


@pytest.mark.parametrize("begin, count", [(0, -1), (1, 0)])
def test_an_arena_that_does_not_fit_is_refused(chain: Executable, begin: int, count: int) -> None:
    memory = aligned_empty((chain.spec.arena_bytes + 64,), np.dtype(np.uint8))
    with pytest.raises(ValueError, match="arena must have"):
        chain.new_frame(memory[begin : begin + chain.spec.arena_bytes + count])


def test_outputs_of_one_call_survive_the_next(chain: Executable) -> None:
    first = chain.run({"x": np.zeros(COUNT, np.float32)})["y"]
    kept = first.copy()
    chain.run({"x": np.ones(COUNT, np.float32)})
    np.testing.assert_array_equal(first, kept)


def test_inputs_outputs_and_kernels_are_described(chain: Executable) -> None:
    assert chain.inputs == {"x": VECTOR}
    assert chain.outputs == {"y": VECTOR}
    assert [report.key for report in chain.kernels] == ["add", "exp"]
    assert "x: f32[37]" in repr(chain)


@pytest.mark.parametrize(
    "array",
    [
        (np.arange(2 * COUNT, dtype=np.float32) / COUNT)[::2],
        (np.arange(COUNT, dtype=np.float32) / COUNT)[::-1],
        np.broadcast_to(np.float32(0.5), COUNT),
        np.frombuffer(b"?" + np.linspace(0, 1, COUNT, dtype=np.float32).tobytes(), "f4", -1, 1),
    ],
    ids=["strided", "reversed", "repeated", "between elements"],
)
def test_inputs_that_cannot_be_read_in_place_are_copied(chain: Executable, array: Vector) -> None:
    assert not (array.flags.c_contiguous and array.flags.aligned)
    np.testing.assert_allclose(chain.run({"x": array})["y"], expected(array), rtol=1e-5)


def test_empty_inputs_are_aligned_and_of_the_declared_types(chain: Executable) -> None:
    inputs = chain.empty_inputs()
    assert address_of(inputs["x"]) % ALIGNMENT == 0
    assert inputs["x"].shape == (COUNT,)
    assert inputs["x"].dtype == np.float32
    inputs["x"][:] = 0.5
    np.testing.assert_allclose(chain.run(inputs)["y"], expected(inputs["x"]), rtol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'x' is missing; the model's inputs are 'x'"),
        ({"X1": np.zeros(COUNT, np.float32)}, "no input 'X1'"),
        ({"xx": np.zeros(COUNT, np.float32)}, "did you mean 'x'"),
        (
            {"x": np.zeros(COUNT, np.float32), "z": np.zeros(1)},
            "no input 'z'; its inputs are 'x'",
        ),
        ({"x": np.zeros(COUNT)}, r"type f64, the model takes f32.*astype\(numpy.float32\)"),
        ({"x": np.zeros(COUNT, ">f4")}, "type >f4, the model takes f32"),
        ({"x": np.zeros((1, COUNT), np.float32)}, r"shape \[1, 37\].*built for \[37\]"),
        ({"x": None}, "type object, the model takes f32"),
        ({"x": [[1.0], [1.0, 2.0]]}, "input 'x' is no array"),
        ([np.zeros(COUNT, np.float32)], "inputs are given by name, as a dict, not as list"),
    ],
)
def test_wrong_inputs_are_refused_with_a_reason(
    chain: Executable, inputs: Mapping[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        chain.run(inputs)
    np.testing.assert_allclose(
        chain.run({"x": np.zeros(COUNT, np.float32)})["y"],
        expected(np.zeros(COUNT, np.float32)),
        rtol=1e-5,
    )


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=needs_threads)])
def test_calls_from_several_threads_do_not_disturb_each_other(threads: int) -> None:
    chain = Executable(chain_spec(WEIGHT), threads=threads)
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(COUNT).astype(np.float32) for _ in range(4)]
    wrong: list[int] = []
    start = threading.Barrier(4)

    def call_often(i: int) -> None:
        start.wait()
        right = expected(inputs[i])
        for _ in range(200):
            if not np.allclose(chain.run({"x": inputs[i]})["y"], right, rtol=1e-5):
                wrong.append(i)

    workers = [threading.Thread(target=call_often, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_many_executables_come_and_go() -> None:
    spec = chain_spec(WEIGHT)
    x = np.ones(COUNT, np.float32)
    for _ in range(20):
        np.testing.assert_allclose(Executable(spec).run({"x": x})["y"], expected(x), rtol=1e-5)
    gc.collect()


@needs_threads
def test_parallel_kernels_give_the_same_result_on_two_threads() -> None:
    executable = Executable(chain_spec(WEIGHT), threads=2)
    assert executable.threads == 2
    assert executable.threading
    x = np.linspace(0, 1, COUNT, dtype=np.float32)
    for _ in range(50):
        np.testing.assert_allclose(executable.run({"x": x})["y"], expected(x), rtol=1e-5)


def test_thread_count_defaults_to_the_one_it_was_built_for() -> None:
    assert Executable(chain_spec(WEIGHT, threads=1)).threads == 1
    with pytest.raises(ValueError, match="at least 1"):
        Executable(chain_spec(WEIGHT), threads=0)


def test_outputs_that_are_inputs_constants_or_views_are_copied() -> None:
    square = TensorType(DType.F32, (1, COUNT))
    program = make_program(
        ["x"],
        ["x", "w", "sum", "flat", "wide"],
        [
            call(add_kernel(COUNT), "add", ("x", "w"), "sum"),
            ViewCall("sum", "flat"),
            ViewCall("w", "wide"),
        ],
        {"x": VECTOR, "w": VECTOR, "sum": VECTOR, "flat": square, "wide": square},
        {"w": WEIGHT},
    )
    spec = make_spec(program, {"add": compile_ir(ADD_IR, "k", COUNT, workspace_bytes=4 * COUNT)})
    x = np.full(COUNT, 3, np.float32)
    outputs = Executable(spec).run({"x": x})
    np.testing.assert_array_equal(outputs["x"], x)
    np.testing.assert_array_equal(outputs["w"], WEIGHT)
    np.testing.assert_array_equal(outputs["sum"], x + WEIGHT)
    np.testing.assert_array_equal(outputs["flat"], (x + WEIGHT)[None])
    np.testing.assert_array_equal(outputs["wide"], WEIGHT[None])
    assert outputs["x"] is not x


def test_model_without_kernels_runs() -> None:
    program = make_program(["x"], ["x"], [], {"x": VECTOR})
    x = np.ones(COUNT, np.float32)
    np.testing.assert_array_equal(Executable(make_spec(program, {})).run({"x": x})["x"], x)


def test_constants_are_packed_once_per_layout() -> None:
    halves = ConstantLayout(((0, 4),), (1, 0))
    weight = np.arange(8, dtype=np.float32)
    eight = TensorType(DType.F32, (8,))
    calls = [
        call(add_kernel(8, constant=True), "packed", ("x", "w"), "a"),
        call(add_kernel(8, constant=True), "packed", ("a", "w"), "b"),
        call(add_kernel(8), "plain", ("b", "w"), "y"),
    ]
    program = make_program(
        ["x"], ["y"], calls, dict.fromkeys(("x", "w", "a", "b", "y"), eight), {"w": weight}
    )
    spec = make_spec(
        program,
        {
            "packed": compile_ir(
                ADD_IR, "packed", 8, workspace_bytes=32, layouts=(("in1", halves),)
            ),
            "plain": compile_ir(ADD_IR, "plain", 8, workspace_bytes=32),
        },
    )
    assert len(spec.constants) == 2
    assert all(address_of(constant) % ALIGNMENT == 0 for constant in spec.constants)
    packed = weight.reshape(2, 4).T.reshape(-1)
    outputs = Executable(spec).run({"x": np.zeros(8, np.float32)})
    np.testing.assert_array_equal(outputs["y"], 2 * packed + weight)


def test_packing_what_is_no_constant_is_refused() -> None:
    layout = ConstantLayout(((0, 4),), (1, 0))
    eight = TensorType(DType.F32, (8,))
    program = make_program(
        ["x"], ["y"], [call(add_kernel(8), "k", ("x", "x"), "y")], {"x": eight, "y": eight}
    )
    compiled = compile_ir(ADD_IR, "k", 8, workspace_bytes=32, layouts=(("in1", layout),))
    with pytest.raises(LoweringError, match="wants its input x packed"):
        make_spec(program, {"k": compiled})


def test_undefined_symbol_is_an_error_and_not_an_abort() -> None:
    code = compile_ir(
        "declare void @no_such_function()\n"
        "define void @{symbol}() {{\n  call void @no_such_function()\n  ret void\n}}",
        "k",
        0,
    ).object_code
    with pytest.raises(ArtefactError, match=r"does not link: .*symbols"):
        LoadedCode([code], ["k"])


def test_code_that_is_no_object_file_is_an_error() -> None:
    with pytest.raises(ArtefactError, match="does not link"):
        LoadedCode([b"not an object"], ["k"])


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_executable_is_neither_pickled_nor_copied(copied: Callable[[object], object]) -> None:
    executable = Executable(chain_spec(WEIGHT))
    with pytest.raises(TypeError, match=r"save\(\) it here and tunefarm.load\(\) it there"):
        copied(executable)


def test_types_of_open_sizes_are_the_greatest_that_can_be_given() -> None:
    executable = compiler.build(cache_graph())
    greatest = {name: np.zeros(t.shape, t.dtype.numpy) for name, t in executable.inputs.items()}
    found = executable.run(greatest)
    assert {name: array.shape for name, array in found.items()} == {
        name: type.shape for name, type in executable.outputs.items()
    }
