"""Kernels read dynamic arguments where callers have them, and nothing behind them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.compiler.frontend.onnx_models import model, node, tensor
from tests.compiler.runtime.test_in_place import RandomSchedules, guarded
from tests.compiler.schedule.guarded_run import targets
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import DensePitch, KernelCall, KernelProgram
from tunefarm.compiler.kernels.kernel_sizes import as_stored
from tunefarm.compiler.kernels.serialize import kernel_from_json, kernel_to_json
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.plan.sizes.pitches import dense_inputs
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.extents import Shapes
from tunefarm.compiler.types.tensor_type import Array, TensorType

TARGETS = targets()
SIDE = 41
IMAGE: list[str | int | None] = ["n", 3, "h", "w"]
SHAPES: Shapes = {"n": ("1..3",), "h": (f"1..{SIDE}",), "w": (f"1..{SIDE}",)}
SIZES = ((1, 1, 1), (1, 5, 41), (2, 41, 6), (3, 16, 17), (1, 33, 32), (3, 41, 41))


def _models() -> dict[str, onnx.ModelProto]:
    rng = np.random.default_rng(3)

    def weight(*shape: int) -> Array:
        return (0.3 * rng.standard_normal(shape)).astype(np.float32)

    padded = node("Conv", "x w", pads=[1, 1, 1, 1])
    scaled = [node("Cast", "x", "f", to=1), node("Mul", "f s", "g")]
    return {
        "padded convolution": model(
            [padded], [tensor("x", IMAGE)], constants={"w": weight(5, 3, 3, 3)}
        ),
        "image of bytes": model(
            [*scaled, node("Transpose", "g", perm=[0, 3, 1, 2])],
            [tensor("x", ["n", "h", "w", 3], onnx.TensorProto.UINT8)],
            constants={"s": np.array(1 / 255, np.float32)},
        ),
        "waves": model(
            "Conv x w pads=[3,3]",
            [tensor("x", ["n", 1, "w"])],
            constants={"w": weight(8, 1, 7)},
        ),
        "two readers": model(
            "a = Relu x; b = Neg x; Add a b",
            [tensor("x", IMAGE)],
        ),
    }


MODELS = _models()


def _bounds(name: str) -> Shapes:
    rows = {"w": ("1..4000",)} if name == "waves" else {}
    named = {axis for axis in _axes(name) if isinstance(axis, str)}
    return {key: given for key, given in {**SHAPES, **rows}.items() if key in named}


def _axes(name: str) -> list[str | int]:
    dims = MODELS[name].graph.input[0].type.tensor_type.shape.dim
    return [dim.dim_param or dim.dim_value for dim in dims]


def _at(name: str, sizes: tuple[int, int, int]) -> tuple[int, ...]:
    by_name = dict(zip("nhw", sizes, strict=True))
    return tuple(by_name[axis] if isinstance(axis, str) else axis for axis in _axes(name))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_arguments_are_read_up_to_the_end_of_memory(name: str, target: str) -> None:
    graph = import_model_proto(MODELS[name], _bounds(name))
    session = onnxruntime.InferenceSession(MODELS[name].SerializeToString())
    (port,) = session.get_inputs()
    dtype = graph.types["x"].dtype
    rng = np.random.default_rng(1)
    for seed in range(3):
        choose = RandomSchedules(seed, TARGETS[target])
        compiled = compile_model(graph, choose, target=TARGETS[target])
        assert dense_inputs(compiled.program) == {"x"}
        executable = Executable(compiled.spec)
        for sizes in SIZES:
            shape = _at(name, sizes)
            with ExitStack() as stack:
                type = TensorType(dtype, shape)
                arrays = [
                    stack.enter_context(guarded(type, at_end=at_end)) for at_end in (True, False)
                ]
                arrays[0][...] = arrays[1][...] = rng.uniform(0, 9, shape).astype(dtype.numpy)
                (expected,) = session.run(None, {port.name: arrays[0]})
                strided = np.asfortranarray(arrays[0])
                for array in (*arrays, strided):
                    (found,) = executable.run({"x": array}).values()
                    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_places_that_are_computed_are_read_up_to_the_end_of_memory(target: str) -> None:
    places = tensor("ids", ["b", "s"], onnx.TensorProto.INT64)
    proto = model("Gather x ids", [tensor("x", ["r", "c"]), places])
    bounds: Shapes = {"b": ("1..4",), "s": ("1..200",), "r": ("1..50",), "c": ("1..40",)}
    for seed in range(3):
        choose = RandomSchedules(seed, TARGETS[target])
        compiled = compile_model(import_model_proto(proto, bounds), choose, target=TARGETS[target])
        assert dense_inputs(compiled.program) == {"x"}  # the places are checked, all together
        executable, rng = Executable(compiled.spec), np.random.default_rng(seed)
        for b, s, r, c in ((1, 1, 1, 1), (3, 7, 49, 39), (4, 200, 2, 17), (2, 199, 50, 40)):
            with ExitStack() as stack:
                x = stack.enter_context(guarded(TensorType(DType.F32, (r, c)), at_end=True))
                ids = stack.enter_context(guarded(TensorType(DType.I64, (b, s)), at_end=True))
                x[...], ids[...] = rng.random(x.shape), rng.integers(-r, r, ids.shape)
                (found,) = executable.run({"x": x, "ids": ids}).values()
                np.testing.assert_array_equal(found, x[ids])


def test_a_result_of_another_call_and_a_part_of_an_array_are_arguments() -> None:
    shapes = _bounds("two readers")
    executable = Executable(compile_model(import_model_proto(MODELS["two readers"], shapes)).spec)
    rng = np.random.default_rng(2)
    whole = rng.standard_normal((3, 3, SIDE, SIDE)).astype(np.float32)
    for array in (whole[:1], whole[:2, :, :9, :7], whole[::2], whole[:1, :, 3:]):
        (found,) = executable.run({"x": array}).values()
        expected = np.maximum(array, 0) - array
        np.testing.assert_array_equal(found, expected)
        (again,) = executable.run({"x": found}).values()
        np.testing.assert_array_equal(again, np.maximum(expected, 0) - expected)


def _kernels(program: KernelProgram) -> list[KernelCall]:
    return [call for call in program.calls if isinstance(call, KernelCall)]


def test_what_sums_elements_or_is_returned_reads_them_from_their_places() -> None:
    product = model(
        "MatMul x w",
        [tensor("x", ["n", "h", 64])],
        constants={"w": np.eye(64, dtype="f4")},
    )
    shapes: Shapes = {"n": ("1..3",), "h": (f"1..{SIDE}",)}
    returned = model("Relu x; z = Identity x", [tensor("x", IMAGE)], ("y", "z"))
    for proto, given in ((product, shapes), (returned, SHAPES)):
        program = compile_model(import_model_proto(proto, given)).program
        assert dense_inputs(program) == frozenset()


@pytest.mark.parametrize("scale", [2.0, 3.0])
def test_an_argument_that_is_made_larger_is_read_from_its_place(scale: float) -> None:
    modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    resize = node("Resize", "x _ scales", **modes)
    scales = np.array([1, 1, scale, scale], np.float32)
    proto = model([resize], [tensor("x", IMAGE)], constants={"scales": scales})
    compiled = compile_model(import_model_proto(proto, SHAPES))
    assert dense_inputs(compiled.program) == frozenset()
    x = np.random.default_rng(4).random((2, 3, 5, 17), np.float32)
    (found,) = Executable(compiled.spec).run({"x": x}).values()
    np.testing.assert_array_equal(found, x.repeat(int(scale), 2).repeat(int(scale), 3))


def test_a_kernel_keeps_how_its_argument_lies_as_json() -> None:
    program = compile_model(import_model_proto(MODELS["two readers"], SHAPES)).program
    (call,) = _kernels(program)
    pitch: Mapping[str, object] = call.kernel.pitches
    assert any(isinstance(item, DensePitch) for item in pitch.values())
    assert kernel_from_json(kernel_to_json(call.kernel)) == call.kernel


def test_stored_elements_lie_one_behind_the_other() -> None:
    pitch = DensePitch((2, 3, 4), "sizes", (None, 1, 0))
    array = np.arange(24).reshape(2, 3, 4)
    stored = as_stored(array, pitch, {"sizes": np.array([3, 2])})
    assert stored.shape == array.shape
    np.testing.assert_array_equal(stored.reshape(-1)[:12], array[:, :2, :3].reshape(-1))
