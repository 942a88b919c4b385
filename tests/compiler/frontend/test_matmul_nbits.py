"""MatMulNBits: as onnxruntime computes it, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.compiler.frontend.onnx_models import model, tensor
from tests.onnxruntime_session import assert_agrees, exact_session
from tunefarm.compiler import build
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.runtime.execution.executable import Executable
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
    ports = [tensor("x", shape, number)], [tensor("y", (*shape[:-1], columns), number)]
    return model([node], *ports, constants, opset=21)


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
    tolerance = 1e-5 if dtype == "float32" else 4e-3
    assert_agrees(executable.run, model, {"x": x}, rtol=0, atol=0, of_largest=tolerance)


def test_weights_are_kept_as_narrow_as_they_are() -> None:
    executable = build(import_model_proto(model_of((1, 512), 256, 32)))
    weights, scales = 512 * 256 // 2, 512 // 32 * 256 * 4
    assert sum(array.nbytes for array in executable.spec.constants) == weights + scales


def _wanted(model: onnx.ModelProto, x: Array, bits: int) -> Any:
    """By the definition of the operator: onnxruntime has kernels of few combinations."""
    constants: dict[str, Any] = {
        item.name: numpy_helper.to_array(item) for item in model.graph.initializer
    }
    columns, blocks = constants["w"].shape[:2]

    def fields(packed: Any) -> Any:
        parts = [(packed >> at) & ((1 << bits) - 1) for at in range(0, 8, bits)]
        return np.stack(parts, -1).reshape(columns, -1).astype(np.float32)

    inner = x.shape[-1]
    block = fields(constants["w"]).shape[1] // blocks
    groups = constants.get("g", np.arange(inner) // block)[:inner]
    scales = constants["s"].reshape(columns, blocks).astype(np.float32)
    zero: Any = np.full((columns, blocks), 1 << (bits - 1), np.float32)
    if "z" in constants:
        given = constants["z"]
        zero = given if given.dtype != np.uint8 else fields(given.reshape(columns, -1))
        zero = zero.reshape(columns, -1)[:, :blocks].astype(np.float32)
    weights = (fields(constants["w"])[:, :inner] - zero[:, groups]) * scales[:, groups]
    return x.astype(np.float32) @ weights.T + constants.get("b", np.float32(0))


def _with_float_zeros(model: onnx.ModelProto, count: int, bits: int, kind: str = "float32") -> None:
    zero = np.random.default_rng(3).uniform(0, 1 << bits, count).astype(kind)
    (node,) = model.graph.node
    names = [*node.input, "", ""][: max(4, len(node.input))]
    names[3] = "z"
    node.input[:] = names
    model.graph.initializer.append(numpy_helper.from_array(zero, "z"))


def _stored_bytes(executable: Executable) -> int:
    return sum(array.nbytes for array in executable.spec.constants)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    ("shape", "columns", "block", "dtype", "kind"),
    [
        ((3, 64), 16, 32, "float32", "float32"),
        ((2, 3, 272), 131, 32, "float32", "float32"),
        ((1, 256), 96, 16, "float32", "float16"),
        ((256,), 96, 64, "float32", "float32"),
        ((5, 256), 96, 128, "float16", "float16"),
    ],
)
def test_zero_points_that_are_floats(
    bits: int, shape: tuple[int, ...], columns: int, block: int, dtype: str, kind: str
) -> None:
    model = model_of(shape, columns, block, bits, bias=len(shape) > 2, dtype=dtype)
    _with_float_zeros(model, columns * -(-shape[-1] // block), bits, kind)
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    wanted = _wanted(model, x, bits)
    executable = build(import_model_proto(model))
    found = executable.run({"x": x})["y"]
    assert found.dtype == dtype
    assert found.shape == wanted.shape
    tolerance = 1e-5 if dtype == "float32" else 4e-3
    assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()
    if bits == 4 and dtype == "float32" and len(shape) > 1:
        (theirs,) = exact_session(model).run(None, {"x": x})
        assert np.abs(found - theirs).max() <= 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero", ["none", "packed", "floats"])
@pytest.mark.parametrize("order", ["turned", "shuffled", "longer", "uneven", "short last block"])
def test_blocks_in_any_order(bits: int, zero: str, order: str) -> None:
    inner = 250 if order == "short last block" else 256
    groups, rng = np.arange(inner, dtype=np.int32) // 32, np.random.default_rng(5)
    groups = {
        "turned": groups[::-1].copy(),
        "shuffled": rng.permutation(groups),
        "longer": np.concatenate([rng.permutation(groups), groups[:7]]),
        "uneven": rng.integers(0, 8, inner).astype(np.int32),
        "short last block": rng.permutation(groups),
    }[order]
    model = model_of((3, inner), 96, 32, bits, groups=groups, zero_point=zero == "packed")
    if zero == "floats":
        _with_float_zeros(model, 96 * 8, bits)
    x = np.random.default_rng(1).standard_normal((3, inner)).astype(np.float32)
    executable = build(import_model_proto(model))
    found, wanted = executable.run({"x": x})["y"], _wanted(model, x, bits)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    if order != "uneven":
        zeros_and_scales = 2 * 96 * 8 * 4
        assert _stored_bytes(executable) <= inner * 96 * max(bits, 4) // 8 + zeros_and_scales + 4096
    if bits == 4 and zero != "packed" and order != "longer":  # which it leaves out of account
        (theirs,) = exact_session(model).run(None, {"x": x})
        assert np.abs(found - theirs).max() <= 1e-4 * np.abs(theirs).max()


def test_groups_and_float_zero_points_of_a_dynamic_batch() -> None:
    groups = np.random.default_rng(5).permutation(np.arange(256, dtype=np.int32) // 32)
    model = model_of((3, 256), 96, 32, bias=True, groups=groups)
    _with_float_zeros(model, 96 * 8, 4)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    executable = build(import_model_proto(model, {"rows": ("1..5",)}))
    for rows in (1, 3, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 256)).astype(np.float32)
        wanted = _wanted(model, x, 4)
        found = executable.run({"x": x})["y"]
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_zero_points_that_do_not_fit_are_refused() -> None:
    for count, change in ((7, 0.0), (96 * 8, np.nan)):
        model = model_of((1, 256), 96, 32)
        _with_float_zeros(model, count, 4)
        zero = numpy_helper.to_array(model.graph.initializer[-1]) + np.float32(change)
        model.graph.initializer[-1].CopyFrom(numpy_helper.from_array(zero, "z"))
        with pytest.raises(ImportModelError, match="zero points for 96x8 blocks"):
            import_model_proto(model)


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
