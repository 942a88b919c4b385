"""Resize and Upsample of integers: interpolated as floats, and rounded as onnxruntime rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.compiler.frontend.onnx_models import model, tensor
from tests.onnxruntime_session import assert_agrees, exact_session
from tunefarm import compiler
from tunefarm.compiler.expr.nodes import const
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.dtypes import DType

TYPES = {"u8": TensorProto.UINT8, "i8": TensorProto.INT8, "i32": TensorProto.INT32}


def resize(
    dtype: int, shape: list[int | str], scales: list[float], opset: int = 18, **attributes: Any
) -> onnx.ModelProto:
    operator = "Upsample" if opset == 9 else "Resize"
    inputs = ["x", "s"] if opset == 9 else ["x", "", "s"]
    resized = helper.make_node(operator, inputs, ["y"], **attributes)
    constants = {"s": np.array(scales, np.float32)}
    ports = [tensor("x", shape, dtype)], [tensor("y", None, dtype)]
    return model([resized], *ports, constants, opset=opset)


def numbers(dtype: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    low, high = (0, 256) if dtype == TensorProto.UINT8 else (-100, 100)
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    return np.random.default_rng(3).integers(low, high, shape).astype(kind)


def check(model: onnx.ModelProto, x: np.ndarray[Any, Any], sizes: dict[str, Any]) -> None:
    """Equal but for sums that lie within a rounding of an integer."""
    (expected,) = exact_session(model).run(None, {"x": x})
    found = compiler.build(import_model_proto(model, sizes)).run({"x": x})["y"]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    off = np.abs(found.astype(np.int64) - expected.astype(np.int64))
    assert off.max() <= 1 and (off > 0).mean() < 0.1


@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("scales", [(2.0, 2.0), (1.7, 2.3), (0.5, 0.6)])
@pytest.mark.parametrize("dtype", TYPES)
def test_linear_drops_what_is_behind_the_point(
    dtype: str, scales: tuple[float, float], mode: str
) -> None:
    model = resize(
        TYPES[dtype],
        [1, 2, 8, 10],
        [1, 1, *scales],
        mode="linear",
        coordinate_transformation_mode=mode,
    )
    check(model, numbers(TYPES[dtype], (1, 2, 8, 10)), {})


@pytest.mark.parametrize("scales", [(2.0, 2.0), (0.5, 0.6)])
def test_upsample_and_dynamic_sizes(scales: tuple[float, float]) -> None:
    x = numbers(TensorProto.UINT8, (1, 2, 8, 10))
    if min(scales) >= 1:
        old = resize(TensorProto.UINT8, [1, 2, 8, 10], [1, 1, *scales], opset=9, mode="linear")
        check(old, x, {})
    model = resize(TensorProto.UINT8, [1, 2, "h", "w"], [1, 1, *scales], mode="linear")
    check(model, x, {"h": ("4..16",), "w": ("4..16",)})


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("scales", [(0.5, 0.5), (0.6, 0.35)])
def test_antialiased_bytes_are_rounded_in_each_pass(mode: str, scales: tuple[float, float]) -> None:
    shape = [1, 1, 16, 20]
    model = resize(TensorProto.UINT8, list(shape), [1, 1, *scales], mode=mode, antialias=1)
    check(model, numbers(TensorProto.UINT8, (1, 1, 16, 20)), {})


@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_cubic_stays_within_the_type(dtype: str) -> None:
    """onnxruntime has no kernel: beside the same of floats."""
    steps = np.where(np.arange(12) % 6 < 3, 0, 255 if dtype == "u8" else 127)
    x = np.broadcast_to(steps, (1, 1, 12, 12)).astype(np.uint8 if dtype == "u8" else np.int8)
    model = resize(TYPES[dtype], [1, 1, 12, 12], [1, 1, 2, 2], mode="cubic")
    floats = resize(TensorProto.FLOAT, [1, 1, 12, 12], [1, 1, 2, 2], mode="cubic")
    found = compiler.build(import_model_proto(model)).run({"x": x})["y"].astype(np.int64)
    (real,) = exact_session(floats).run(None, {"x": x.astype(np.float32)})
    ends = np.iinfo(x.dtype)
    np.testing.assert_allclose(found, np.trunc(np.clip(real, ends.min, ends.max)), atol=1)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("scales", [(0.5, 0.5), (0.6, 0.35)])
def test_antialiased_halves_are_rounded_away_from_zero(
    mode: str, scales: tuple[float, float]
) -> None:
    model = resize(TensorProto.INT32, [1, 1, 12, 16], [1, 1, *scales], mode=mode, antialias=1)
    check(model, numbers(TensorProto.INT32, (1, 1, 12, 16)), {})


@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
def test_cubic_of_wide_integers_ends_at_the_last_float_within(dtype: type[Any]) -> None:
    ends = np.iinfo(dtype)
    steps = np.where(np.arange(12) % 6 < 3, ends.min, ends.max).astype(dtype)
    x = np.ascontiguousarray(np.broadcast_to(steps, (1, 1, 12, 12)))
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    model = resize(kind, [1, 1, 12, 12], [1, 1, 2, 2], mode="cubic")
    floats = resize(TensorProto.FLOAT, [1, 1, 12, 12], [1, 1, 2, 2], mode="cubic")
    found = compiler.build(import_model_proto(model)).run({"x": x})["y"]
    (real,) = exact_session(floats).run(None, {"x": x.astype(np.float32)})
    np.testing.assert_allclose(
        found, np.clip(real.astype(np.float64), ends.min, ends.max), atol=1024
    )


@pytest.mark.parametrize(
    ("extent", "scale"), [(10, 2.3), (10, 0.7), (7, 1 / 7), (1000, 1 / 300), (90, 1.1), (3, 1 / 3)]
)
def test_sizes_are_products_of_f32(extent: int, scale: float) -> None:
    """10 times 2.3 is 23 for onnxruntime, and for ONNX's shape inference."""
    model = resize(TensorProto.FLOAT, [1, 1, "n", 4], [1, 1, scale, 1], mode="nearest")
    x = np.random.default_rng(0).standard_normal((1, 1, extent, 4)).astype(np.float32)
    for sizes in ((extent,), ("1..2000",), (f"{extent}..100000",)):
        run = compiler.build(import_model_proto(model, {"n": sizes})).run
        assert_agrees(run, model, {"x": x}, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("number", "dtype"),
    [(0.25, DType.I32), (256, DType.U8), (-1, DType.U16), (2**31, DType.I32), (2, DType.BOOL)],
)
def test_no_constant_is_a_number_that_its_type_cannot_hold(number: float, dtype: DType) -> None:
    with pytest.raises(ValueError, match="is no"):
        const(number, dtype)
