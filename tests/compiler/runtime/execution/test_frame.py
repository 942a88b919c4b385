"""Arrays in and out: what is used in place, DLPack, outputs that the caller provides."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from tests.compiler.runtime.hand_kernels import (
    ADD_IR,
    COUNT,
    VECTOR,
    add_kernel,
    call,
    compile_ir,
    make_program,
    make_spec,
)
from tunefarm import compiler
from tunefarm.compiler.errors import InputError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import ViewCall
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.buffers import address_of, aligned_empty
from tunefarm.compiler.types.tensor_type import TensorType

WEIGHT = np.linspace(-1, 1, COUNT, dtype=np.float32)
CPU, CUDA, CUDA_HOST, UNHEARD_OF = 1, 2, 3, 99
Vector = npt.NDArray[np.float32]


class Tensor:
    """Another library's tensor: nothing but DLPack."""

    def __init__(self, array: npt.NDArray[Any], device: int = CPU) -> None:
        self._array = array
        self._device = device
        self.exports = 0

    def __dlpack__(self, **arguments: Any) -> Any:
        self.exports += 1
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


class OldTensor(Tensor):
    """A tensor of a library that knows only the first version of the protocol."""

    def __dlpack__(self, stream: None = None) -> Any:  # type: ignore[override]
        return super().__dlpack__()


class RefusingTensor(Tensor):
    def __dlpack__(self, **arguments: Any) -> Any:
        raise BufferError("this tensor wants its gradient")


@pytest.fixture(scope="module", params=[(COUNT,), (f"1..{COUNT}",)], ids=["static", "dynamic"])
def model(request: pytest.FixtureRequest) -> Executable:
    """y = exp(x), of a fixed size or of at most as much."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Exp (x) }'
    )
    return compiler.build(import_model_proto(proto, {"N": request.param}))


@pytest.fixture(scope="module")
def two() -> Executable:
    """sum = a + b, same = a"""
    program = make_program(
        ["a", "b"],
        ["sum", "same"],
        [
            call(add_kernel(COUNT), "add", ("a", "b"), "sum"),
            ViewCall("a", "same"),
        ],
        dict.fromkeys(("a", "b", "sum", "same"), VECTOR),
    )
    return Executable(
        make_spec(program, {"add": compile_ir(ADD_IR, "k", COUNT, workspace_bytes=4 * COUNT)})
    )


def expected(x: Vector) -> Vector:
    result: Vector = np.exp(x)
    return result


def ramp() -> Vector:
    return np.linspace(0, 1, COUNT, dtype=np.float32)


@pytest.mark.parametrize("offset", range(4))
def test_contiguous_inputs_are_read_where_they_are(model: Executable, offset: int) -> None:
    memory = aligned_empty((COUNT + offset,), np.dtype(np.float32))
    x = memory[offset:]
    frame = model.new_frame()
    (array,) = frame.bind_inputs({"x": x})
    assert array is x
    assert frame.inputs[0] == address_of(memory) + 4 * offset


def test_read_only_inputs_are_read_where_they_are(model: Executable) -> None:
    x = ramp()
    x.flags.writeable = False
    frame = model.new_frame()
    frame.bind_inputs({"x": x})
    assert frame.inputs[0] == address_of(x)
    np.testing.assert_allclose(model.run({"x": x})["y"], expected(x), rtol=1e-5)


@pytest.mark.parametrize("kind", [Tensor, OldTensor])
def test_tensors_of_other_libraries_are_read_where_they_are(
    model: Executable, kind: type[Tensor]
) -> None:
    x = ramp()
    tensor = kind(x)
    frame = model.new_frame()
    frame.bind_inputs({"x": tensor})
    assert frame.inputs[0] == address_of(x)
    np.testing.assert_allclose(model.run({"x": tensor})["y"], expected(x), rtol=1e-5)
    assert tensor.exports == 2


def test_memory_of_a_device_that_the_cpu_reads_is_accepted(model: Executable) -> None:
    # NumPy takes the device from the capsule, which says CPU here: only our check is tested.
    x = ramp()
    np.testing.assert_allclose(model.run({"x": Tensor(x, CUDA_HOST)})["y"], expected(x), rtol=1e-5)


def test_tensors_that_are_not_contiguous_are_copied(model: Executable) -> None:
    x = np.linspace(0, 1, 2 * COUNT, dtype=np.float32)[::2]
    np.testing.assert_allclose(model.run({"x": Tensor(x)})["y"], expected(x), rtol=1e-5)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (Tensor(ramp(), CUDA), "^input 'x' is on the device cuda:0, the model runs on the CPU"),
        (Tensor(ramp(), UNHEARD_OF), "device type 99:0"),
        (RefusingTensor(ramp()), "cannot be read through DLPack: this tensor wants its gradient"),
        (Tensor(ramp().astype(np.float64)), "type f64, the model takes f32"),
        (Tensor(ramp().astype(np.complex64)), "type complex64, the model takes f32"),
        (Tensor(ramp()[None]), r"shape \[1, 37\]"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    model: Executable, tensor: Tensor, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model.run({"x": tensor})


def test_outputs_are_handed_on_through_dlpack_without_a_copy(model: Executable) -> None:
    result = model.run({"x": ramp()})["y"]
    taken = np.from_dlpack(Tensor(result))
    assert address_of(taken) == address_of(result)
    del result
    np.testing.assert_allclose(taken, expected(ramp()), rtol=1e-5)


@pytest.mark.parametrize("offset", range(2))
def test_outputs_are_written_where_the_caller_wants_them(model: Executable, offset: int) -> None:
    memory = np.full(COUNT + 2, -1, np.float32)
    y = memory[offset : COUNT + offset]
    results = model.run({"x": ramp()}, out={"y": y})
    assert results["y"] is y
    np.testing.assert_allclose(y, expected(ramp()), rtol=1e-5)
    assert (np.delete(memory, np.s_[offset : COUNT + offset]) == -1).all()


def test_outputs_are_written_into_tensors_of_other_libraries(model: Executable) -> None:
    y = np.zeros(COUNT, np.float32)
    results = model.run({"x": ramp()}, out={"y": Tensor(y)})
    np.testing.assert_allclose(y, expected(ramp()), rtol=1e-5)
    assert address_of(results["y"]) == address_of(y)


def test_some_outputs_may_be_given_and_others_not(two: Executable) -> None:
    a, b, same = ramp(), WEIGHT, np.zeros(COUNT, np.float32)
    results = two.run({"a": a, "b": b}, out={"same": same})
    assert list(results) == ["sum", "same"]
    assert results["same"] is same
    np.testing.assert_array_equal(same, a)
    np.testing.assert_array_equal(results["sum"], a + b)


def read_only() -> Vector:
    array = np.zeros(COUNT, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ({"z": np.zeros(COUNT, np.float32)}, "no output 'z'; its outputs are 'y'"),
        ({"y": np.zeros(COUNT)}, "output 'y' has elements of type f64, the model gives f32"),
        ({"y": np.zeros(COUNT + 1, np.float32)}, r"output 'y' has the shape \[38\]"),
        ({"y": np.zeros(2 * COUNT, np.float32)[::2]}, "'y' is not C-contiguous"),
        ({"y": read_only()}, "'y' is read-only"),
        ({"y": OldTensor(np.zeros(COUNT, np.float32))}, "'y' is read-only"),
        ({"y": np.zeros(4 * COUNT + 1, np.uint8)[1:].view(np.float32)}, "multiple of its elements"),
        ({"y": [np.float32(0)] * COUNT}, "'y' is no array"),
        ({"y": Tensor(np.zeros(COUNT, np.float32), CUDA)}, "^output 'y' is on the device cuda:0"),
        ([np.zeros(COUNT, np.float32)], "outputs are given by name, as a dict, not as list"),
        (np.zeros(COUNT, np.float32), "outputs are given by name, as a dict, not as ndarray"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused(
    model: Executable, out: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model.run({"x": ramp()}, out=out)


def test_outputs_must_not_share_memory_with_inputs_or_each_other(two: Executable) -> None:
    memory = np.zeros(2 * COUNT, np.float32)
    a, b = ramp(), memory[:COUNT]
    message = "'sum' shares memory with an input or another output"
    with pytest.raises(InputError, match=message):
        two.run({"a": a, "b": b}, out={"sum": memory[5 : COUNT + 5]})
    with pytest.raises(InputError, match=message):
        two.run({"a": a, "b": memory[: 2 * COUNT : 2]}, out={"sum": memory[:COUNT]})
    with pytest.raises(InputError, match="'same' shares memory with an input or another output"):
        two.run({"a": a, "b": WEIGHT}, out={"sum": memory[:COUNT], "same": memory[:COUNT]})
    assert not memory.any()  # nothing has run
    two.run({"a": a, "b": b}, out={"sum": memory[COUNT:]})
    np.testing.assert_array_equal(memory[COUNT:], a)


def test_an_empty_tensor_is_an_input_and_an_output() -> None:
    empty = TensorType(VECTOR.dtype, (0, 3))
    executable = Executable(make_spec(make_program(["x"], ["x"], [], {"x": empty}), {}))
    y = np.zeros((0, 3), np.float32)
    assert executable.run({"x": np.zeros((0, 3), np.float32)}, out={"x": y})["x"] is y
