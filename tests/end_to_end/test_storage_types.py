"""Models in narrow types, from the file to outputs that ONNX's reference evaluator has, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.onnxruntime_session import exact_session
from tests.targets import target_named
from tunefarm.compiler import build, load
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.runtime.artefact.array_files import write_outputs
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.commands.run_model import run_model

FLOATS = {"float16": DType.F16, "bfloat16": DType.BF16}
MACHINES = ("host", "x86-64-v3", "x86-64-v2")


def parsed(text: str, opset: int = 23) -> onnx.ModelProto:
    header = f'<ir_version: 10, opset_import: ["" : {opset}]>'
    return onnx.parser.parse_model(f"{header} {text}")


def referred(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """What the reference evaluator makes of the inputs."""
    outputs: Any = ReferenceEvaluator(model).run(None, feeds)
    return [np.asarray(output) for output in outputs]


def drawn(seed: int, shape: tuple[int, ...], dtype: DType) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype.numpy)


def assert_close(got: Array, expected: Array, dtype: DType) -> None:
    """Within a few roundings of what is largest."""
    assert got.dtype == expected.dtype
    wide = expected.astype(np.float64)
    error = np.abs(np.subtract(got.astype(np.float64), wide)).max()
    assert error <= 4 * dtype.epsilon * np.abs(wide).max()


NETWORK = """
network ({type}[1, 8, 9, 9] x) => ({type}[1, 10] y)
{{
    conv = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    act = HardSwish (conv)
    pool = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (act)
    mean = GlobalAveragePool (pool)
    flat = Flatten (mean)
    norm = LayerNormalization (flat, scale, shift)
    gelu = Gelu (norm)
    product = MatMul (gelu, v)
    y = Softmax (product)
}}
"""


def network(name: str) -> onnx.ModelProto:
    """Convolution, pooling, normalisation and a product, all in one float type."""
    model = parsed(NETWORK.format(type=name))
    shapes = {"w": (16, 8, 3, 3), "b": (16,), "scale": (16,), "shift": (16,), "v": (16, 10)}
    for number, (initializer, shape) in enumerate(shapes.items()):
        array = 0.3 * drawn(number, shape, FLOATS[name]).astype(np.float32)
        stored = numpy_helper.from_array(array.astype(FLOATS[name].numpy), initializer)
        model.graph.initializer.append(stored)
    return model


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", FLOATS)
def test_a_network_in_16_bits_runs(name: str, machine: str) -> None:
    dtype, model = FLOATS[name], network(name)
    target = None if machine == "host" else target_named(machine)
    executable = build(import_model_proto(model), target=target)
    assert not [report.not_vectorised for report in executable.spec.kernels if report.note]
    x = drawn(9, (1, 8, 9, 9), dtype)
    (expected,) = referred(model, {"x": x})
    assert_close(executable.run({"x": x})["y"], expected, dtype)


def test_f16_is_as_exact_as_onnxruntime() -> None:
    model = parsed(
        "g (float16[7, 100] x, float16[100, 33] w, float16[33] b) => (float16[7, 33] y) "
        "{ p = MatMul (x, w) s = Add (p, b) y = Tanh (s) }",
        opset=21,
    )
    feeds = {
        "x": drawn(0, (7, 100), DType.F16),
        "w": drawn(1, (100, 33), DType.F16),
        "b": drawn(2, (33,), DType.F16),
    }
    session = exact_session(model)
    (expected,) = session.run(None, feeds)
    assert_close(build(import_model_proto(model)).run(feeds)["y"], expected, DType.F16)


def test_strict_numerics_round_at_every_operator() -> None:
    model = parsed(
        "g (bfloat16[64] x, bfloat16[64] z) => (bfloat16[64] y) { a = Mul (x, z) y = Sub (a, x) }"
    )
    x, z = drawn(0, (64,), DType.BF16), drawn(1, (64,), DType.BF16)
    graph = import_model_proto(model)
    (rounded,) = referred(model, {"x": x, "z": z})
    strict = build(graph, numerics="strict").run({"x": x, "z": z})["y"]
    np.testing.assert_array_equal(strict.astype(np.float32), rounded.astype(np.float32))
    exact = (x.astype(np.float32) * z.astype(np.float32) - x.astype(np.float32)).astype(x.dtype)
    default = build(graph).run({"x": x, "z": z})["y"]
    np.testing.assert_array_equal(default.astype(np.float32), exact.astype(np.float32))
    assert (exact != rounded).any()


def test_a_conversion_of_the_models_own_rounds_within_a_kernel() -> None:
    model = parsed(
        "g (float[64] x) => (float[64] y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }"
    )
    x = drawn(0, (64,), DType.F32)
    executable = build(import_model_proto(model))
    assert len(executable.spec.kernels) == 1
    expected = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(executable.run({"x": x})["y"], expected)


NARROW = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "int4": ml_dtypes.int4,
    "uint2": ml_dtypes.uint2,
}


@pytest.mark.parametrize("name", NARROW)
def test_narrow_inputs_outputs_and_constants_pass_through_an_artefact(
    name: str, tmp_path: Path
) -> None:
    model = parsed(
        f"g ({name}[3, 5] x) => ({name}[5, 3] y, {name}[4] c) "
        "{ y = Transpose <perm = [1, 0]> (x) c = Identity (k) }",
        opset=25,
    )
    constant = np.array([0, 1, 1, 0], np.float32).astype(NARROW[name])
    model.graph.initializer.append(numpy_helper.from_array(constant, "k"))
    path = tmp_path / "model.tuned"
    build(import_model_proto(model)).save(path)
    executable = load(path)
    x = (np.arange(15) % 3).reshape(3, 5).astype(np.float32).astype(NARROW[name])
    np.save(tmp_path / "x.npy", x)
    outputs, result = run_model(executable, {"x": str(tmp_path / "x.npy")})
    assert outputs["y"].tobytes() == x.T.tobytes()
    assert outputs["c"].astype(np.float32).tolist() == [0, 1, 1, 0]
    write_outputs(outputs, str(tmp_path / "out.npz"))
    written = np.load(tmp_path / "out.npz")["y"]
    assert written.tobytes() == x.T.tobytes()
    assert result.outputs["y"].startswith(str(DType.from_numpy(x.dtype)))
