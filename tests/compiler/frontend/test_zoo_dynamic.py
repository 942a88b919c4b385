"""Models of the zoo with dynamic shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.frontend.sized_models import called, check_sizes
from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.frontend.symbol_names import expression_size
from tunefarm.compiler.frontend.zoo.models import build_model, dynamic_shapes, write_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.types.sizes import Dimension
from tunefarm.compiler.types.tensor_type import Array

SMALL = Size(image=64, width=0.1, classes=4, tokens=8, layers=1, dynamic=True)
BOUNDS = {
    "batch": ("1..2",),
    "sequence": ("1..6",),
    "past_sequence_length": ("0..5",),
    "height": ("32..48",),
    "width": ("32..48",),
}
CALLS = {
    "encoder": ({"batch": 1, "sequence": 3}, {"batch": 2, "sequence": 6}),
    "decoder_prefill": ({"batch": 2, "sequence": 5},),
    "decoder_step": tuple({"batch": 1, "past_sequence_length": past} for past in (0, 1, 4, 5)),
    "mlp": ({"batch": 2},),
}


def arguments(proto: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    known: dict[str, Dimension] = dict(sizes)
    inputs: dict[str, Array] = {}
    for info in proto.graph.input:
        dims = info.type.tensor_type.shape.dim
        found = [expression_size(d.dim_param, known) if d.dim_param else d.dim_value for d in dims]
        shape = [extent for extent in found if isinstance(extent, int)]
        if info.name == "attention_mask":
            inputs[info.name] = np.ones(shape, np.int64)
        elif info.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            inputs[info.name] = rng.integers(0, 4, shape)
        else:
            inputs[info.name] = rng.standard_normal(shape).astype(np.float32)
    return inputs


def shapes_of(name: str) -> dict[str, tuple[str]]:
    return {symbol: BOUNDS[symbol] for symbol in dynamic_shapes(name)}


@pytest.mark.parametrize("name", CALLS)
def test_dynamic_forms_give_what_onnxruntime_gives(name: str) -> None:
    proto = build_model(name, size=SMALL)
    check_sizes(proto, shapes_of(name), [arguments(proto, sizes) for sizes in CALLS[name]])


def test_encoder_of_any_length_keeps_its_attention() -> None:
    proto = build_model("encoder", size=SMALL)
    graph = check_sizes(proto, shapes_of("encoder"), [])
    optimised = optimise(graph, 16)
    assert [item.operator for item in optimised.nodes].count("attention") == 1
    inputs = arguments(proto, {"batch": 2, "sequence": 4})
    pairs = zip(called(optimised, inputs), called(graph, inputs), strict=True)
    assert all(np.allclose(left, right, atol=1e-4) for left, right in pairs)


def test_a_form_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        write_model("yolov8n", tmp_path / "model.onnx", dynamic=True)
    assert "encoder" in caught.value.hint
