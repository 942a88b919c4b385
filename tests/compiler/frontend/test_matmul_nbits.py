"""MatMulNBits: as onnxruntime computes it, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.onnxruntime_session import exact_session
from tunefarm.compiler import build
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.tensor_type import Array


def model_of(
    shape: Sequence[int],
    columns: int,
    block: int,
    bits: int = 4,
    *,
    zero_point: bool = False,
    bias: bool = False,
    dtype: str = "float32",
    groups: Array | None = None,
) -> onnx.ModelProto:
    """x[shape] times seeded weights of a few bits."""
    rng = np.random.default_rng(0)
    inner = shape[-1]
    blocks = -(-inner // block)
    weights = rng.integers(0, 256, (columns, blocks, block * bits // 8), np.uint8)
    constants = {"w": weights, "s": rng.uniform(0.01, 0.1, columns * blocks).astype(dtype)}
    if zero_point:
        bytes_of_row = -(-blocks * bits // 8)
        constants["z"] = rng.integers(0, 256, columns * bytes_of_row, np.uint8)
    if groups is not None:
        constants["g"] = groups
    if bias:
        constants["b"] = rng.standard_normal(columns).astype(dtype)
    names = [name if name in constants else "" for name in ("w", "s", "z", "g", "b")]
    while not names[-1]:
        names.pop()
    attributes: dict[str, Any] = {"K": inner, "N": columns, "bits": bits, "block_size": block}
    node = helper.make_node(
        "MatMulNBits", ["x", *names], ["y"], domain="com.microsoft", **attributes
    )
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", number, shape)],
        [helper.make_tensor_value_info("y", number, (*shape[:-1], columns))],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (model_of((1, 256), 96, 32), "float32"),
        (model_of((2, 3, 256), 96, 16, zero_point=True, bias=True), "float32"),
        (model_of((3, 272), 131, 32, zero_point=True), "float32"),
        (model_of((1, 256), 96, 64, bits=8, zero_point=True), "float32"),
        (model_of((5, 256), 96, 128, dtype="float16"), "float16"),
    ],
)
def test_products_are_those_of_onnxruntime(model: onnx.ModelProto, dtype: str) -> None:
    executable = build(import_model_proto(model))
    shape = executable.inputs["x"].shape
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    session = exact_session(model)
    (expected,) = session.run(None, {"x": x})
    got = executable.run({"x": x})["y"]
    tolerance = 1e-5 if dtype == "float32" else 4e-3
    largest = np.abs(expected.astype(np.float64)).max()
    error = np.abs(got.astype(np.float64) - expected.astype(np.float64)).max()
    assert got.dtype == dtype
    assert error <= tolerance * largest


def test_weights_are_kept_as_narrow_as_they_are() -> None:
    executable = build(import_model_proto(model_of((1, 512), 256, 32)))
    weights, scales = 512 * 256 // 2, 512 // 32 * 256 * 4
    assert sum(array.nbytes for array in executable.spec.constants) == weights + scales


def test_groups_that_there_are_not_are_refused() -> None:
    groups = np.arange(256, dtype=np.int32) // 32
    build(import_model_proto(model_of((1, 256), 96, 32, groups=groups)))
    for wrong in (groups + 1, groups - 1, groups[:100]):
        with pytest.raises(ImportModelError, match="groups for 256 columns of blocks of 32"):
            import_model_proto(model_of((1, 256), 96, 32, groups=wrong.copy()))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("bits", 3, "weights of 3 bits"),
        ("block_size", 0, "make no matrix"),
        ("K", 128, "has not 128 columns"),
        ("N", 95, "are no 95x256 weights"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(name: str, value: int, reason: str) -> None:
    model = model_of((1, 256), 96, 32)
    for attribute in model.graph.node[0].attribute:
        if attribute.name == name:
            attribute.i = value
    with pytest.raises(ImportModelError, match=reason):
        import_model_proto(model)
