"""The zoo's models: their sizes, their reproducibility, and outputs equal to onnxruntime's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from compiler.errors import SettingsError
from compiler.frontend.import_onnx import import_model_proto, import_onnx
from compiler.frontend.zoo import build_model, model_names, write_model
from compiler.frontend.zoo.network import Size
from compiler.graph.verify import verify_graph
from compiler.types.tensor_type import Array
from tests.compiler.frontend.onnx_models import outputs_of

SMALL = Size(image=32, width=0.25, classes=10, tokens=12, layers=2)
# Parameters of the published models (torchvision's count, without running statistics).
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "squeezenet1_1": 1_235_496,
}


def runtime_outputs(model: onnx.ModelProto, x: Array) -> list[Any]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    outputs: list[Any] = session.run(None, {"input": x})
    return outputs


@pytest.mark.parametrize("name", model_names())
def test_imported_graph_gives_onnxruntimes_outputs(name: str) -> None:
    model = build_model(name, seed=3, size=SMALL)
    graph = import_model_proto(model)
    verify_graph(graph)
    shape = graph.types["input"].shape
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    expected = runtime_outputs(model, x)
    for output, wanted in zip(outputs_of(graph, {"input": x}), expected, strict=True):
        assert np.isfinite(wanted).all()
        assert 0.05 < np.abs(wanted).max() < 100
        np.testing.assert_allclose(
            output, wanted, rtol=1e-3, atol=1e-4 * float(np.abs(wanted).max())
        )


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_size(name: str) -> None:
    model = build_model(name)
    statistics = (".running_mean", ".running_var")
    count = sum(
        int(np.prod(tensor.dims))
        for tensor in model.graph.initializer
        if len(tensor.dims) and not tensor.name.endswith(statistics)
    )
    assert count == PARAMETERS[name]
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [
        1,
        3,
        224,
        224,
    ]


def test_encoder_has_the_published_shape() -> None:
    model = build_model("encoder", size=Size(layers=1))
    graph = import_model_proto(model)
    assert graph.types["input"].shape == (1, 128, 768)
    assert graph.types["hidden"].shape == (1, 128, 768)
    assert graph.types["pooled"].shape == (1, 768)
    assert model.opset_import[0].version >= 18


def test_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    first = write_model("mlp", tmp_path / "a.onnx", seed=1).read_bytes()
    assert write_model("mlp", tmp_path / "b.onnx", seed=1).read_bytes() == first
    assert write_model("mlp", tmp_path / "b.onnx", seed=2).read_bytes() != first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "b.onnx"]
    assert import_onnx(tmp_path / "a.onnx").outputs == ("logits",)


def test_batch_normalisation_has_its_own_statistics() -> None:
    model = build_model("resnet18", size=SMALL)
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert tensors["bn1.running_mean"].std() > 0.01
    assert (tensors["bn1.running_var"] > 0.5).all()


def test_unknown_name_gives_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="did you mean resnet18"):
        write_model("resnet81", tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_unwritable_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be written"):
        write_model("mlp", tmp_path / "missing" / "m.onnx")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SettingsError, match="cannot be written"):
        write_model("mlp", tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
