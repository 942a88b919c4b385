"""Initializers: raw data, typed data, and external data inside the model's folder only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.frontend.onnx_models import model, node, tensor
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto, import_onnx
from tunefarm.compiler.frontend.tensors import read_sparse, read_tensor
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.types.dtypes import DType

TYPES = "float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("raw", [True, False])
def test_all_element_types_are_read(name: str, raw: bool) -> None:
    expected = np.array([[0, 1, 1], [1, 0, 100]]).astype(name)
    if raw:
        proto = numpy_helper.from_array(expected)
    else:
        number = helper.np_dtype_to_tensor_dtype(expected.dtype)
        proto = helper.make_tensor("t", number, expected.shape, expected.reshape(-1).tolist())
    array = read_tensor(proto, "t", None, ResourceBudget())
    assert array.dtype == expected.dtype
    assert not array.flags.writeable
    np.testing.assert_array_equal(array, expected)


def test_scalar_keeps_its_rank() -> None:
    assert (
        read_tensor(
            numpy_helper.from_array(np.array(3, np.float32)), "t", None, ResourceBudget()
        ).shape
        == ()
    )


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (TensorProto(data_type=1, dims=[3], raw_data=bytes(11)), "12 bytes of data and has 11"),
        (TensorProto(data_type=1, dims=[3], float_data=[1.0]), "needs 3 elements and has 1"),
        (TensorProto(data_type=1, dims=[-1], float_data=[1.0]), "negative dimension"),
        (TensorProto(data_type=1, dims=[2**40, 2**40]), "would take"),
        (TensorProto(data_type=2, dims=[1], int32_data=[300]), "outside the range of u8"),
        (TensorProto(data_type=10, dims=[1], int32_data=[1 << 16]), "outside the range of f16"),
        (TensorProto(data_type=16, dims=[1], int32_data=[-1]), "outside the range of bf16"),
        (TensorProto(data_type=22, dims=[3], raw_data=bytes(3)), "2 bytes of data and has 3"),
        (TensorProto(data_type=21, dims=[3], int32_data=[1]), "2 bytes of data and has 1"),
        (TensorProto(data_type=8, dims=[2], string_data=[b"a"]), "needs 2 elements and has 1"),
        (TensorProto(data_type=8, dims=[1], string_data=[b"\xff"]), "not UTF-8"),
        (TensorProto(data_type=14, dims=[1]), "complex64"),
        (TensorProto(data_type=77, dims=[1]), "number 77"),
        (TensorProto(dims=[1]), "undefined"),
    ],
)
def test_malformed_tensors_are_refused(proto: TensorProto, reason: str) -> None:
    with pytest.raises(ImportModelError, match=reason):
        read_tensor(proto, "initializer 'w'", None, ResourceBudget())


def external_model(entries: dict[str, str]) -> onnx.ModelProto:
    """x + w, where w of 4 floats is external data."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    result = model([node("Add", "x w")], [tensor("x", [4])])
    result.graph.initializer.append(weight)
    return result


def written(folder: Path, entries: dict[str, str]) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(external_model(entries).SerializeToString())
    return path


def test_external_data_is_read_at_its_offset(tmp_path: Path) -> None:
    values = np.arange(8, dtype=np.float32)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(values.tobytes())
    path = written(tmp_path, {"location": "data/w.bin", "offset": "8", "length": "16"})
    graph = import_onnx(path)
    np.testing.assert_array_equal(graph.constants["w"], values[2:6])


def test_missing_external_data(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match=r"'w.bin' of initializer 'w' is missing"):
        import_onnx(written(tmp_path, {"location": "w.bin"}))


def test_external_data_without_a_folder() -> None:
    with pytest.raises(ImportModelError, match="stored outside the model"):
        import_model_proto(external_model({"location": "w.bin"}))


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"location": "w.bin", "offset": "8"}, "has 16 bytes, and 24 are needed"),
        ({"location": "w.bin", "offset": "-8"}, "offset '-8'"),
        ({"location": "w.bin", "offset": "many"}, "offset 'many'"),
        ({"location": "w.bin", "length": "12"}, "declares 12"),
        ({"location": "."}, "is not a file"),
        ({}, "names no file"),
    ],
)
def test_malformed_external_data(tmp_path: Path, entries: dict[str, str], reason: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    with pytest.raises(ImportModelError, match=reason):
        import_onnx(written(tmp_path, entries))


NARROW = [dtype for dtype in DType if dtype.bits < 8 or (dtype.is_float and dtype.bits <= 16)]


@pytest.mark.parametrize("form", ["raw", "typed"])
@pytest.mark.parametrize("dtype", [dtype for dtype in NARROW if dtype is not DType.BOOL])
def test_narrow_elements_are_read_as_onnx_writes_them(dtype: DType, form: str) -> None:
    values = np.arange(7) % (1 << dtype.bits)
    array = values.astype(f"u{dtype.bytes}").view(dtype.numpy).reshape(1, 7)
    proto = numpy_helper.from_array(array)
    if form == "typed":
        packed = dtype.bits < 8
        data = np.frombuffer(proto.raw_data, np.uint8 if packed else f"u{dtype.bytes}")
        proto = TensorProto(data_type=proto.data_type, dims=[1, 7], int32_data=data.tolist())
    read = read_tensor(proto, "initializer 'w'", None, ResourceBudget())
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.tobytes() == array.tobytes()


def test_strings_that_a_sparse_tensor_has_not_are_empty() -> None:
    values = numpy_helper.from_array(np.array(["a", "b"], object), "words")
    places = numpy_helper.from_array(np.array([[1, 0], [0, 2]]), "places")
    sparse = helper.make_sparse_tensor(values, places, [2, 3])
    found = read_sparse(sparse, "w", None, ResourceBudget())
    assert found.tolist() == [["", "", "b"], ["a", "", ""]]
