"""Models are read in a process of their own: the same graph, the same errors, no crash of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.frontend.onnx_models import node, tensor
from tunefarm.compiler.errors import (
    DeclaredShapeWarning,
    ImportModelError,
    UnsupportedOperatorError,
)
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.limits import Limits
from tunefarm.measure.sandbox.import_model import import_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = relu(x @ w) + b, with an empty constant and one of whole numbers beside it."""
    rng = np.random.default_rng(0)
    arrays: dict[str, npt.NDArray[Any]] = {
        "w": rng.standard_normal((5, 3)).astype(np.float32),
        "b": rng.standard_normal(()).astype(np.float32),
        "shape": np.array([1, -1], np.int64),
    }
    nodes = "p = MatMul x w; r = Relu p; s = Add r b; Reshape s shape"
    path = tmp_path / "small.onnx"
    onnx.save(model_of(nodes, [tensor("x", ["batch", 5])], constants=arrays, opset=20), path)
    return path


def test_the_graph_is_the_same(model: Path) -> None:
    shapes = {"x": (2, 5)}
    there, here = import_model(model, shapes), import_onnx(model, shapes)
    assert structural_hash(there) == structural_hash(here)
    assert there.types == here.types
    assert [node.source for node in there.nodes] == [node.source for node in here.nodes]
    for name, array in here.constants.items():
        np.testing.assert_array_equal(there.constants[name], array, strict=True)
        assert not there.constants[name].flags.writeable


def test_what_the_file_declares_wrongly_is_warned_of_here(model: Path) -> None:
    proto = onnx.load(model)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [7]))
    onnx.save(proto, model)
    with pytest.warns(DeclaredShapeWarning, match=r"'y' as \[7\], not \[1, 6\]"):
        import_model(model, {"x": (2, 5)})


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn])
def test_constants_of_any_type_are_the_same(dtype: npt.DTypeLike, tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    graph = helper.make_graph(
        [node("Reshape", "w shape")],
        "narrow",
        [],
        [helper.make_tensor_value_info("y", kind, None)],
        [
            helper.make_tensor("w", kind, array.shape, array.tobytes(), raw=True),
            onnx.numpy_helper.from_array(np.array([3, 2]), "shape"),
        ],
    )
    path = tmp_path / "narrow.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    there, here = import_model(path), import_onnx(path)
    assert here.constants.keys() == there.constants.keys()
    assert any(found.dtype == dtype for found in there.constants.values())
    for name, found in here.constants.items():
        np.testing.assert_array_equal(there.constants[name], found, strict=True)


def test_errors_are_the_same(model: Path, tmp_path: Path) -> None:
    for path, kind in ((model, ImportModelError), (tmp_path / "none.onnx", ImportModelError)):
        with pytest.raises(kind) as here:
            import_onnx(path)
        with pytest.raises(kind) as there:
            import_model(path)
        assert type(there.value) is type(here.value)
        assert (there.value.message, there.value.hint) == (here.value.message, here.value.hint)


def test_the_kind_of_an_error_survives(tmp_path: Path) -> None:
    node = helper.make_node("NoSuchOperator", ["x"], ["y"])
    types = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    path = tmp_path / "unknown.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "g", types[:1], types[1:])), path)
    with pytest.raises(UnsupportedOperatorError, match="NoSuchOperator"):
        import_model(path)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV"),
        ("import os; os.abort()", "killed by SIGABRT"),
        ("import time; time.sleep(60)", "no answer within 6 s"),
        ("kept = bytearray(1 << 50)", "out of memory"),
    ],
)
def test_what_parsing_does_to_its_process_is_an_error(
    body: str, reason: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "packages" / "onnx"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(body)  # stands before the real one
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=":")
    with pytest.raises(ImportModelError, match=reason):
        import_model(model, limits=Limits(seconds=1.0))


def test_nothing_is_left_in_the_folder_for_temporary_files(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    graph = import_model(model, {"x": (1, 5)})
    assert not list((tmp_path / "scratch").iterdir())
    assert all(np.isfinite(array).all() for array in graph.constants.values())  # still mapped
