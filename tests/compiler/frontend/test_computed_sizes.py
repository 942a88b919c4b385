"""Operands that say sizes, computed, where the model names the sizes of the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.compiler.frontend.onnx_models import model, node, tensor
from tests.compiler.frontend.sized_cases import floats
from tests.onnxruntime_session import assert_agrees
from tunefarm import compiler
from tunefarm.compiler.errors import InputError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.runtime.execution.executable import Executable

BOUNDS = {"h": ("2..6",), "p": ("1..12",), "q": ("1..12",)}


def _check(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    declared: list[int | str],
    calls: list[dict[str, Any]],
) -> Executable:
    """Compare with onnxruntime a model whose result y has a declared shape."""
    proto = model(nodes, inputs, opset=18)
    proto.graph.output[0].CopyFrom(tensor("y", declared))
    named = {
        axis.dim_param for port in proto.graph.input for axis in port.type.tensor_type.shape.dim
    }
    named |= {axis for axis in declared if isinstance(axis, str)}
    bounds = {name: given for name, given in BOUNDS.items() if name in named}
    executable = compiler.build(import_model_proto(proto, bounds))
    assert_agrees(executable.run, proto, *calls)
    return executable


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_by_computed_scales_and_sizes(mode: str) -> None:
    data = tensor("x", [1, 1, "h", 5])
    scales = [tensor("s", [4])]
    by_scales = [node("Resize", "x _ s", mode=mode)]
    calls = [
        {"x": floats(1, 1, high, 5), "s": np.array([1, 1, *by], np.float32)}
        for high, by in ((3, (2, 2)), (6, (0.5, 1.4)))
    ]
    _check(by_scales, [data, *scales], [1, 1, "p", "q"], calls)
    by_sizes = [node("Resize", "x _ _ s", mode=mode)]
    calls = [
        {"x": floats(1, 1, high, 5), "s": np.array([1, 1, *to])}
        for high, to in ((3, (7, 2)), (6, (1, 12)))
    ]
    _check(by_sizes, [data, tensor("s", [4], TensorProto.INT64)], [1, 1, "p", "q"], calls)


def test_tile_by_computed_repeats() -> None:
    inputs = [tensor("x", ["h", 3]), tensor("r", [2], TensorProto.INT64)]
    calls = [
        {"x": floats(high, 3), "r": np.array(repeats)}
        for high, repeats in ((2, (3, 2)), (6, (1, 1)), (3, (4, 4)))
    ]
    executable = _check([node("Tile", "x r")], inputs, ["p", "q"], calls)
    with pytest.raises(InputError, match=r"the repeated shape \(p\) must be 1 to 12"):
        executable.run({"x": floats(5, 3), "r": np.array([3, 1])})


def test_a_shape_to_expand_to_may_have_1_where_the_data_has_its_size() -> None:
    inputs = [tensor("x", ["h", 1]), tensor("r", [2], TensorProto.INT64)]
    calls = [{"x": floats(4, 1), "r": np.array(shape)} for shape in ((1, 5), (4, 5), (4, 1))]
    _check([node("Expand", "x r")], inputs, ["h", "q"], calls)


def test_one_row_or_all_expand_to_as_many_as_the_past_and_they_are() -> None:
    """A causal mask [tokens, tokens] as onnxruntime-genai's builder expands it in fp16."""
    inputs = [tensor("x", ["h", "h"]), tensor("past", ["q", 2])]
    nodes = (
        "sx = Shape x start=0 end=1; sp = Shape past start=0 end=1; total = Add sx sp; "
        "to = Concat sx total axis=0; Expand x to"
    )
    proto = model(nodes, inputs, opset=18)
    executable = compiler.build(
        import_model_proto(proto, {"h": ("1..4",), "q": ("0..6",)}), threads=1
    )
    for tokens, past in ((1, 5), (1, 1), (1, 0), (4, 0)):
        call = {"x": floats(tokens, tokens), "past": floats(past, 2)}
        assert_agrees(executable.run, proto, call, rtol=0, atol=0)
    with pytest.raises(InputError, match="must be equal"):
        executable.run({"x": floats(3, 3), "past": floats(2, 2)})


def test_different_slices_of_open_size() -> None:
    proto = model("Unique x axis=1", [tensor("x", ["h", 4])], opset=18)
    executable = compiler.build(import_model_proto(proto, {"h": ("2..6",)}))
    x = np.array([[1, 0, 1, 0], [2, 3, 2, 1], [0, 0, 0, 0]], np.float32)
    assert executable.run({"x": x})["y"].tolist() == [[0, 0, 1], [1, 3, 2], [0, 0, 0]]


def test_branches_may_give_texts_of_several_lengths() -> None:
    sides = [
        helper.make_graph([single], "side", [], [onnx.ValueInfoProto(name=single.output[0])])
        for single in (node("Identity", "s", "all"), node("Concat", "s s", "twice", axis=0))
    ]
    inputs = [tensor("s", [2], TensorProto.STRING), tensor("c", [], TensorProto.BOOL)]
    choice = node("If", "c", then_branch=sides[0], else_branch=sides[1])
    executable = compiler.build(import_model_proto(model([choice], inputs, opset=18)))
    texts = np.array(["a", "b"], object)
    for condition, expected in ((True, ["a", "b"]), (False, ["a", "b", "a", "b"])):
        found = executable.run({"s": texts, "c": np.array(condition)})["y"]
        assert found.tolist() == expected
