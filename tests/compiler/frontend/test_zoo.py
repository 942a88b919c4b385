"""The zoo's models: their sizes, their reproducibility, and outputs equal to onnxruntime's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.compiler.frontend.onnx_models import outputs_of
from tests.onnxruntime_session import exact_session
from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.frontend.import_onnx import import_model_proto, import_onnx
from tunefarm.compiler.frontend.zoo import build_model, model_names, write_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.types.tensor_type import Array

SMALL = Size(image=32, width=0.25, classes=10, tokens=12, layers=2)
# Parameters of the published models (torchvision's count, without running statistics).
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "squeezenet1_1": 1_235_496,
    "efficientnet_b0": 5_288_548,
    "vit_tiny": 5_717_416,
}


def runtime_outputs(model: onnx.ModelProto, inputs: dict[str, Array]) -> list[Any]:
    session = exact_session(model)
    outputs: list[Any] = session.run(None, inputs)
    return outputs


def drawn_inputs(graph: Graph) -> dict[str, Array]:
    """Normal floats, and integers that are 0 or 1: indices, positions, masks."""
    rng = np.random.default_rng(0)
    inputs: dict[str, Array] = {}
    for name in graph.inputs:
        type = graph.types[name]
        floats: Array = rng.standard_normal(type.shape, np.float32)
        inputs[name] = floats if type.dtype.is_float else rng.integers(0, 2, type.shape)
    return inputs


@pytest.mark.parametrize("name", model_names())
def test_imported_graph_gives_onnxruntimes_outputs(name: str) -> None:
    model = build_model(name, seed=3, size=SMALL)
    graph = import_model_proto(model)
    verify_graph(graph)
    inputs = drawn_inputs(graph)
    expected = runtime_outputs(model, inputs)
    for output, wanted in zip(outputs_of(graph, inputs), expected, strict=True):
        assert np.isfinite(wanted).all()
        assert 0.05 < np.abs(wanted).max() < 1000
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
        if len(tensor.dims)
        and tensor.data_type == onnx.TensorProto.FLOAT
        and not tensor.name.endswith(statistics)
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


def test_a_step_of_the_decoder_continues_its_prefill() -> None:
    """The cache that prefill gives and one more token lead to what prefill says of all tokens."""
    tokens, size = 12, Size(width=0.25, tokens=12, layers=2, classes=50)
    prefill = build_model("decoder_prefill", size=size)
    step = build_model("decoder_step", size=size)
    ids = np.random.default_rng(0).integers(0, 50, (1, tokens))
    places = np.arange(tokens)[None]
    expected = runtime_outputs(prefill, {"input_ids": ids, "position_ids": places})
    values = dict(zip([output.name for output in prefill.graph.output], expected, strict=True))
    cache = {
        name.replace("present", "past_key_values"): array[:, :, :-1]
        for name, array in values.items()
        if name.startswith("present")
    }
    last = {"input_ids": ids[:, -1:], "position_ids": places[:, -1:]}
    found = runtime_outputs(step, last | cache | {"attention_mask": np.ones((1, tokens), np.int64)})
    logits = dict(zip([output.name for output in step.graph.output], found, strict=True))["logits"]
    np.testing.assert_allclose(logits[:, 0], values["logits"][:, -1], rtol=1e-4, atol=1e-4)


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
