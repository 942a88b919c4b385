"""Symbols that reach a place that needs a constant: which node, which symbol, what to fix."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import integers, model, node, tensor
from tests.compiler.frontend.sized_cases import floats
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.tensor_type import Array


def _on(nodes: list[onnx.NodeProto], **shapes: Any) -> onnx.ModelProto:
    constants: dict[str, Array] = {
        "to": integers(-1, 7),
        "w": floats(6, 4),
        "small": integers(2, 8),
        "three": np.array(3),
        "none": np.array(0),
    }
    inputs = [tensor(name, shape) for name, shape in shapes.items()]
    return model(nodes, inputs, constants=constants, opset=20)


_SMOOTHED = helper.make_node("Resize", ["x", "", "", "small"], ["y"], mode="linear", antialias=1)


@pytest.mark.parametrize(
    ("proto", "bounds", "told"),
    [
        (
            _on([node("Conv", "x v", group=2)], x=["b", 4, 9], v=["m", 2, 3]),
            {"b": "1..2", "m": "2..4"},
            "Conv node 'y': conv: an axis of the weights would have the size m (dynamic: "
            "m:2..4) (fix m with --shape, for example --shape m=4)",
        ),
        (
            _on([node("MaxPool", "x", kernel_shape=[5])], x=["b", 3, "h"]),
            {"b": "1..2", "h": "1..9"},
            "MaxPool node 'y': max_pool: a window of 5 may not fit into the size h with a padding "
            "of 0 (dynamic: h:1..9) (raise the lower bound of its symbols)",
        ),
        (
            _on([node("Reshape", "x to")], x=["b", 6]),
            {"b": "1..9"},
            "Reshape node 'y': [b, 6] under the shape [-1, 7] leaves a size that is not known "
            "(dynamic: b:1..9) (fix b with --shape, for example --shape b=9)",
        ),
        (
            _on([node("DFT", "x")], x=["b", "n", 1]),
            {"b": "1..2", "n": "4..9999"},
            "DFT node 'y': a transform of n elements (dynamic: n:4..9999) (give the "
            "length of the transform, or fix the size with --shape)",
        ),
        (
            _on(
                [
                    helper.make_node(
                        "Resize", ["x", "", "", "small"], ["y"], mode="linear", antialias=1
                    )
                ],
                x=["b", "s"],
            ),
            {"b": "2..2", "s": "4..999"},
            "Resize node 'y': smoothing over up to 250 elements (at most 128) (dynamic: "
            "s:4..999) (raise the lower bound of the size that is asked for, or lower the "
            "upper one of the data's)",
        ),
        (
            _on(
                [node("SplitToSequence", "x three", "parts"), node("SequenceAt", "parts none")],
                x=["b", 2],
            ),
            {"b": "1..9"},
            "SplitToSequence node 'parts': parts of 3 of an axis of b, whose number is not known "
            "(dynamic: b:1..9) (fix b with --shape, for example --shape b=9)",
        ),
        (
            _on([node("DeformConv", "x v o")], x=[1, 3, "h"], v=[2, 3, 4], o=[1, 4, "k"]),
            {"h": "1..9", "k": "1..6"},
            "DeformConv node 'y': a window of 4 may not fit into the size h (dynamic: "
            "h:1..9) (raise the lower bound of its symbols)",
        ),
        (
            _on([node("MatMul", "x w")], x=["b", "f"]),
            {"b": "1..2", "f": "7..9"},
            "MatMul node 'y': matmul: the sizes f and 6 are never equal (dynamic: "
            "f:7..9) (give bounds that have a size in common)",
        ),
    ],
)
def test_a_refusal_says_node_symbol_and_what_to_fix(
    proto: onnx.ModelProto, bounds: dict[str, str], told: str
) -> None:
    with pytest.raises(ImportModelError) as caught:
        import_model_proto(proto, {name: (text,) for name, text in bounds.items()})
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"seq": ("1..4",)}, r"no input 'seq' .* its symbols: 'b', 's'\) \(did you mean 's'\?\)"),
        ({"v": ("1..4",)}, r"for the symbol 'v' give the shape of an input: --shape x=b,v:1\.\.8"),
        ({"x": ("b:1..2", "s:1..4"), "v": ("b:1..3", 4)}, "fix the dimension 'b' to 1..2 and to"),
    ],
)
def test_a_symbol_that_is_none_names_the_nearest(given: dict[str, Any], told: str) -> None:
    second = "v" if list(given) == ["v"] else "s"
    proto = _on([node("Add", "x v")], x=["b", second], v=["b", 4])
    with pytest.raises(ImportModelError, match=told):
        import_model_proto(proto, given)
