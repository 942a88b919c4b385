"""Models as programs give them: bytes with external data, and initializers of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.compiler.frontend.onnx_models import model, node
from tests.processes import python
from tunefarm import compiler
from tunefarm.compiler import InferenceSession, OrtValue, SessionOptions
from tunefarm.compiler.errors import ImportModelError, SettingsError

pytestmark = pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UntunedWarning")

FLOATS = helper.make_tensor_value_info
X = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
W = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)
DATA_FOLDER = "session.model_external_initializers_file_folder_path"
Array = npt.NDArray[Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `model.onnx`, and its weights in `data/w.bin`."""
    inputs, outputs = ([FLOATS(n, TensorProto.FLOAT, ["n", k])] for n, k in (("x", 3), ("y", 4)))
    made = model([node("MatMul", "x w")], inputs, outputs, {"w": W}, opset=21)
    onnx.save(made, tmp_path / "whole.onnx")
    (tmp_path / "data").mkdir()
    onnx.save(
        made,
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="data/w.bin",
        size_threshold=0,
    )
    return tmp_path


def both(given: object, prepare: Callable[[Any, Any], object]) -> tuple[Array, Array]:
    """What our session and onnxruntime's compute, with options that are prepared alike; what
    `prepare` returns stays alive, as onnxruntime reads values where they lie."""
    found = []
    for engine in (compiler, onnxruntime):
        options: Any = engine.SessionOptions()
        kept = prepare(options, engine.OrtValue)
        session: Any = engine.InferenceSession(given, options)
        found.append(session.run(None, {"x": X})[0])
        del kept
    return found[0], found[1]


def test_data_of_bytes_is_looked_for_in_the_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (folder / "model.onnx").read_bytes()
    monkeypatch.chdir(folder)
    np.testing.assert_allclose(*both(data, lambda options, _: None), rtol=1e-6)
    monkeypatch.chdir("/")
    with pytest.raises(ImportModelError, match=r"'data/w\.bin' of initializer 'w' is missing"):
        InferenceSession(data)


def test_options_name_the_folder_of_the_data_of_bytes(folder: Path) -> None:
    def prepare(options: Any, value: Any) -> None:
        options.add_session_config_entry(DATA_FOLDER, str(folder))

    data = (folder / "model.onnx").read_bytes()
    np.testing.assert_allclose(*both(data, prepare), rtol=1e-6)


def test_files_of_data_are_given_in_memory(folder: Path) -> None:
    data, weights = ((folder / name).read_bytes() for name in ("model.onnx", "data/w.bin"))

    def prepare(options: Any, value: Any) -> None:
        options.add_external_initializers_from_files_in_memory(
            ["data/w.bin"], [weights], [len(weights)]
        )

    (folder / "data" / "w.bin").unlink()
    np.testing.assert_allclose(*both(data, prepare), rtol=1e-6)
    other = SessionOptions()
    other.add_external_initializers_from_files_in_memory(["v.bin"], [weights], [len(weights)])
    with pytest.raises(ImportModelError, match=r"not among the files in memory.*'v\.bin'"):
        InferenceSession(data, other)
    with pytest.raises(SettingsError, match="2 names for 1 buffers"):
        other.add_external_initializers_from_files_in_memory(["a", "b"], [weights], [1, 2])


@pytest.mark.parametrize("name", ["whole.onnx", "model.onnx"])
@pytest.mark.parametrize("is_bytes", [False, True])
def test_initializers_are_replaced(
    folder: Path, name: str, is_bytes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(options: Any, value: Any) -> object:
        array, other = map(value.ortvalue_from_numpy, (2 * W, X))
        if name == "model.onnx":
            options.add_external_initializers(["w"], [array])
        else:
            options.add_initializer("w", array)
            options.add_initializer("of another model", other)
        return array, other

    monkeypatch.chdir(folder)
    path = folder / name
    ours, theirs = both(path.read_bytes() if is_bytes else str(path), prepare)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(ours, X @ (2 * W), rtol=1e-5)


def test_initializers_that_cannot_be_are_refused(folder: Path, tmp_path: Path) -> None:
    path = str(folder / "whole.onnx")
    options = SessionOptions()
    options.add_initializer("w", OrtValue.ortvalue_from_numpy(W[:2]))
    with pytest.raises(ImportModelError, match=r"'w' is float\[3, 4\].*by float\[2, 4\]"):
        InferenceSession(path, options)
    with pytest.raises(SettingsError, match="'w' was added before"):
        options.add_initializer("w", W)
    options = SessionOptions()
    options.add_external_initializers(["v"], [W])
    with pytest.raises(ImportModelError, match="no initializer 'v' to replace"):
        InferenceSession(path, options)
    executable = compiler.build(path, shapes={"n": (2,)})
    executable.save(tmp_path / "m.tuned")
    for given in (executable, tmp_path / "m.tuned", (tmp_path / "m.tuned").read_bytes()):
        with pytest.raises(SettingsError, match=r"is built already.*initializers"):
            InferenceSession(given, options)


def test_weights_of_an_adapter_are_inputs(folder: Path) -> None:
    """As the error of `add_active_adapter` says."""
    inputs = [FLOATS(n, TensorProto.FLOAT, shape) for n, shape in (("x", [2, 3]), ("w", [3, 4]))]
    made = model(
        [node("MatMul", "x w")],
        inputs,
        [FLOATS("y", TensorProto.FLOAT, [2, 4])],
        {"w": np.zeros_like(W)},
        opset=21,
    )
    onnx.save(made, folder / "adapted.onnx")
    adapter = onnxruntime.AdapterFormat()
    adapter.set_parameters({"w": onnxruntime.OrtValue.ortvalue_from_numpy(W)})
    adapter.export_adapter(str(folder / "w.adapter"))
    np.save(folder / "x.npy", X)
    program = f"""
import tunefarm
tunefarm.replace_onnxruntime()
import numpy, onnxruntime
weights = onnxruntime.AdapterFormat.read_adapter({str(folder / "w.adapter")!r}).get_parameters()
session = onnxruntime.InferenceSession({str(folder / "adapted.onnx")!r})
x = numpy.load({str(folder / "x.npy")!r})
numpy.save({str(folder / "y.npy")!r}, session.run(None, {{"x": x, **weights}})[0])
"""
    python("-W", "ignore", "-c", program, check=True)
    np.testing.assert_allclose(np.load(folder / "y.npy"), X @ W, rtol=1e-5)
