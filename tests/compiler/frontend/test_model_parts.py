"""Parts of a model: what they read is given, what they compute for others is an output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.model_parts import (
    ModelParts,
    reference_outputs,
    whole_model,
    with_all_values,
    with_types,
    write_model,
)
from tunefarm.compiler.types.tensor_type import Array

CHAIN = """
<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[batch, 4] x) => (float[batch, 4] y)
<float[4] w = {1.0, 2.0, 3.0, 4.0}>
{
    scale = Exp (w)
    a = Relu (x)
    b = Mul (a, scale)
    shape = Shape (b)
    c = Reshape (b, shape)
    d = own.twice (c)
    y = Add (d, a)
}
<domain: "own", opset_import: ["" : 17]>
twice (p) => (q) { q = Add (p, p) }
"""
X = np.array([[-1, 2, -3, 4], [5, -6, 7, 8]], np.float32)


def parts_of(text: str, folder: Path, **inputs: Array) -> ModelParts:
    """The parts of a model with the values that ONNX's reference evaluator gives it."""
    model = onnx.parser.parse_model(text)
    write_model(with_all_values(model), str(folder / "wide.onnx"))
    values = reference_outputs(str(folder / "wide.onnx"), inputs)
    with_types(model)
    return ModelParts(model, {**values, **inputs})


def check_part(parts: ModelParts, folder: Path, kept: tuple[int, ...]) -> onnx.ModelProto:
    """A part, once it gives the values that the whole model has."""
    outputs = parts.outputs(kept)
    assert parts.needed(set(kept), outputs) == kept
    made = parts.part(kept, outputs)
    assert made is not None
    model, inputs = made
    onnx.checker.check_model(model)
    write_model(model, str(folder / "part.onnx"))
    found = reference_outputs(str(folder / "part.onnx"), inputs)
    assert list(found) == outputs == [info.name for info in model.graph.output]
    return model


def names(infos: object) -> list[str]:
    return [info.name for info in infos]  # type: ignore[attr-defined]


def test_the_whole_is_a_part(tmp_path: Path) -> None:
    model = check_part(parts_of(CHAIN, tmp_path, x=X), tmp_path, tuple(range(7)))
    assert (names(model.graph.input), names(model.graph.output)) == (["x"], ["y"])
    assert names(model.functions) == ["twice"]


def test_values_that_are_cut_are_inputs_with_the_symbols_of_the_model(tmp_path: Path) -> None:
    model = check_part(parts_of(CHAIN, tmp_path, x=X), tmp_path, (2,))
    (info,) = model.graph.input
    assert info.name == "a"
    first, second = info.type.tensor_type.shape.dim
    assert (first.dim_param, second.dim_value) == ("batch", 4)
    assert not model.functions


def test_what_follows_from_no_input_becomes_an_initializer(tmp_path: Path) -> None:
    parts = parts_of(CHAIN, tmp_path, x=X)
    assert parts.constants == {0}
    (tensor,) = check_part(parts, tmp_path, (2,)).graph.initializer
    assert tensor.name == "scale"
    found = numpy_helper.to_array(tensor)
    np.testing.assert_allclose(found, np.exp(np.arange(1, 5)), rtol=1e-6)


def test_a_shape_becomes_an_initializer(tmp_path: Path) -> None:
    model = check_part(parts_of(CHAIN, tmp_path, x=X), tmp_path, (4,))
    assert names(model.graph.input) == ["b"]
    assert names(model.graph.initializer) == ["shape"]


def test_a_value_that_both_sides_read_is_an_output_of_the_side_that_drops_its_readers(
    tmp_path: Path,
) -> None:
    parts = parts_of(CHAIN, tmp_path, x=X)
    assert parts.outputs((1,)) == ["a"]
    assert parts.outputs((1, 2)) == ["b"]
    assert parts.outputs((1, 5)) == ["a", "d"]


def test_a_subgraph_reads_values_around_it(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x, bool c) => (float[2] y)
    {
        a = Exp (x)
        y = If (c) <
            then_branch = t () => (float[2] u) { u = Neg (a) },
            else_branch = e () => (float[2] v) { v = Identity (a) }
        >
    }
    """
    inputs: dict[str, Array] = {"x": np.array([1, 2], np.float32), "c": np.array(True)}
    model = check_part(parts_of(text, tmp_path, **inputs), tmp_path, (1,))
    assert set(names(model.graph.input)) == {"a", "c"}


def test_a_value_that_is_not_recorded_cannot_be_cut(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(CHAIN)
    assert ModelParts(model, {"x": X}).part((2,), ["b"]) is None


def test_external_data_comes_along(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(CHAIN)
    onnx.save(
        model,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="weights",
        size_threshold=0,
    )
    (tensor,) = whole_model(tmp_path / "m.onnx").graph.initializer
    assert numpy_helper.to_array(tensor).tolist() == [1, 2, 3, 4]


def test_missing_external_data_is_an_error(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(CHAIN)
    (tensor,) = model.graph.initializer
    del tensor.float_data[:]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="nowhere")
    write_model(model, str(tmp_path / "m.onnx"))
    with pytest.raises(ImportModelError, match="external data"):
        whole_model(tmp_path / "m.onnx")
