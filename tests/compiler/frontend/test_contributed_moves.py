"""onnxruntime's own variants of ONNX's operators."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from tests.compiler.frontend.contributed_models import (
    Values,
    assert_same,
    by_onnxruntime,
    by_us,
    model_of,
)
from tests.compiler.frontend.test_fused import X, floats
from tunefarm import compiler
from tunefarm.compiler.errors import ShapeError, UnsupportedOperatorError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.operators.recurrence import BATCH

_RNG = np.random.default_rng(0)


def number(value: float, kind: str = "float32") -> Values:
    return np.array(value, kind)


def whole(*values: int) -> Values:
    return np.array(values, np.int64)


def drawn(low: int, high: int, kind: str, *shape: int) -> Values:
    return _RNG.integers(low, high, shape).astype(kind)


_QCONV = {
    "x": drawn(0, 255, "uint8", 1, 7, 8, 4),
    "xs": number(0.02),
    "xz": number(100, "uint8"),
    "w": drawn(0, 255, "uint8", 6, 4, 3, 3),
    "ws": number(0.01),
    "wz": number(120, "uint8"),
    "ys": number(0.3),
    "yz": number(90, "uint8"),
    "b": drawn(-100, 100, "int32", 6),
}
_TABLE = {"t": drawn(0, 255, "uint8", 11, 32), "i": drawn(0, 11, "int32", 2, 3)}
_SCALES = {"s": np.abs(floats(11, 2))}
_WINDOW = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}

# operator, inputs, names of those that are constants, attributes
CASES: dict[str, tuple[str, dict[str, Values], tuple[str, ...], dict[str, Any]]] = {
    "expand": ("ExpandDims", {"x": X, "a": number(-1, "int32")}, ("a",), {}),
    "triangle": ("Trilu", {"x": X, "k": whole(1).reshape(())}, ("k",), {"upper": 0}),
    "range": ("Range", {"a": number(1), "b": number(9)}, ("a", "b"), {}),
    "pad": (
        "Pad",
        {"x": X, "p": whole(0, 1, 2, 0, 1, 3), "v": number(0.5).reshape(1)},
        ("p", "v"),
        {},
    ),
    "reflect": ("Pad", {"x": X, "p": whole(0, 1, 2, 0, 1, 3)}, ("p",), {"mode": "reflect"}),
    "gather": ("GatherND", {"x": X, "i": drawn(0, 2, "int32", 4, 2)}, (), {}),
    "unfold": ("UnfoldTensor", {"x": floats(2, 9, 5)}, (), {"dim": 1, "size": 3, "step": 2}),
    "grid": (
        "GridSample",
        {"x": floats(2, 3, 5, 6), "g": (floats(2, 4, 3, 2) / 2).clip(-1.2, 1.2)},
        (),
        {"mode": "bilinear", "padding_mode": "reflection"},
    ),
    "distance": ("CDist", {"a": floats(5, 7), "b": floats(6, 7)}, (), {"metric": "euclidean"}),
    "pool": ("NhwcMaxPool", {"x": drawn(-99, 99, "int8", 1, 7, 8, 3)}, (), _WINDOW),
    "conv": ("QLinearConv", _QCONV, tuple(_QCONV)[1:], {"channels_last": 1}),
    "transposed": (
        "ConvTransposeWithDynamicPads",
        {"x": floats(1, 3, 5, 5), "w": floats(3, 4, 3, 3), "p": whole(1, 1, 0, 1)},
        ("w", "p"),
        {"strides": [2, 2]},
    ),
    "table of 4 bits": (
        "GatherBlockQuantized",
        {**_TABLE, "s": np.abs(floats(11, 4)), "z": drawn(0, 255, "uint8", 11, 2)},
        ("t", "s", "z"),
        {"block_size": 16, "quantize_axis": 1},
    ),
    "table of 8 bits": (
        "GatherBlockQuantized",
        {**_TABLE, "s": np.abs(floats(11, 2))},
        ("t", "s"),
        {"block_size": 16, "quantize_axis": 1, "bits": 8},
    ),
    "table of 4 bits with a sign": (
        "GatherBlockQuantized",
        {"t": drawn(-8, 7, "int8", 11, 32).astype(ml_dtypes.int4), "i": _TABLE["i"], **_SCALES},
        ("t", "s"),
        {"block_size": 16, "quantize_axis": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_operator_gives_what_onnxruntime_gives(case: str) -> None:
    operator, feeds, constants, attributes = CASES[case]
    assert_same(model_of(operator, feeds, constants=constants, **attributes), feeds)


@pytest.mark.parametrize("shape", [(22,), (11, 4), (11, 1), (5, 4), (12, 2)])
def test_zero_points_of_other_blocks_are_refused(shape: tuple[int, ...]) -> None:
    """As the builder writes them for a table that is the last product's weights too."""
    feeds = {**_TABLE, "s": np.abs(floats(11, 4)), "z": drawn(0, 255, "uint8", *shape)}
    model = model_of(
        "GatherBlockQuantized", feeds, constants=("t", "s", "z"), block_size=16, quantize_axis=1
    )
    match = "^GatherBlockQuantized.*the zero points .* are not 11 x 2, those of 11 x 4 blocks"
    with pytest.raises(ShapeError, match=match):
        import_model_proto(model)


_CAUSAL = {"x": floats(2, 6, 5), "w": floats(6, 1, 3), "b": floats(6), "p": floats(2, 6, 2)}


def causal_convolution(**attributes: Any) -> onnx.ModelProto:
    found = ("y", "s")
    return model_of("CausalConvWithState", _CAUSAL, found, ("w", "b"), ndim=1, **attributes)


def test_causal_convolution_takes_what_asks_for_nothing() -> None:
    assert_same(causal_convolution(state_window=0, dilation=1), _CAUSAL)


@pytest.mark.parametrize("asked", [{"dilation": 2}, {"state_window": 3}, {"channels_last": 1}])
def test_causal_convolution_names_what_it_does_not_do(asked: dict[str, int]) -> None:
    ((name, value),) = asked.items()
    with pytest.raises(UnsupportedOperatorError, match=f"CausalConvWithState.*{name}={value}"):
        import_model_proto(causal_convolution(**asked))


def rounded_layer(
    kind: str,
    columns: bool,
    shape: tuple[int, int] = (6, 3),
    lengths: bool = False,
    hidden: int = 6,
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """An LSTM of integer weights for so many steps and rows, and its inputs.

    Weights with a sign have 7 bits: onnxruntime's products of others saturate on CPUs without VNNI.
    """
    directions = 1 if lengths else 2
    scales = (directions, 4 * hidden) if columns else (directions,)
    zero = np.full(scales, 0 if kind == "int8" else 130, kind)
    low, high = (-64, 64) if kind == "int8" else (0, 256)
    feeds = {
        "x": floats(*shape, 4),
        "w": drawn(low, high, kind, directions, 4, 4 * hidden),
        "r": drawn(low, high, kind, directions, hidden, 4 * hidden),
        "b": floats(directions, 8 * hidden),
        "lengths": np.array([shape[0], 2, 4][: shape[1]], np.int32) if lengths else None,
        "h": floats(directions, shape[1], hidden) / 2,
        "c": floats(directions, shape[1], hidden),
        "p": floats(directions, 3 * hidden),
        "ws": np.abs(floats(*scales)) / 100,
        "wz": zero,
        "rs": np.abs(floats(*scales)) / 100,
        "rz": zero,
    }
    constants = ("w", "r", "b", "p", "ws", "wz", "rs", "rz")
    direction = "forward" if lengths else "bidirectional"
    given: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    return model_of("DynamicQuantizeLSTM", feeds, ("y", "h2", "c2"), constants, **given), feeds


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(("rows", "hidden"), [(1, 6), (3, 6), (2, 32), (1, 19)])
def test_states_are_rounded_at_each_step(kind: str, columns: bool, rows: int, hidden: int) -> None:
    """Products run over words of whole vectors, and over what is left of both."""
    model, feeds = rounded_layer(kind, columns, (6, rows), hidden=hidden)
    expected = by_onnxruntime(model, feeds)
    for ours, theirs in zip(by_us(model, feeds), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_rows_behind_their_end_are_in_no_range() -> None:
    model, feeds = rounded_layer("uint8", True, lengths=True)
    for ours, theirs in zip(by_us(model, feeds), by_onnxruntime(model, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_ranges_are_those_of_the_rows_that_are_there() -> None:
    """Of a dynamic batch: what lies behind is none of it."""
    model, feeds = rounded_layer("uint8", False)
    for name in ("x", "h", "c"):
        (value,) = (item for item in model.graph.input if item.name == name)
        value.type.tensor_type.shape.dim[1].dim_param = "rows"
    graph = import_model_proto(model, {"rows": ["1..4"]})
    (layer,) = (node for node in graph.nodes if node.operator == "recurrence")
    assert layer.inputs[BATCH] in graph.inputs, "loops over rows end at no size that a run gives"
    executable = compiler.build(graph)
    for rows in (3, 1, 2):
        some = {n: np.ascontiguousarray(feeds[n][:, :rows]) for n in ("x", "h", "c")}
        expected = by_onnxruntime(model, {**feeds, **some})
        for ours, theirs in zip(executable.run(some).values(), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("domain", "operator", "reason"),
    [
        ("com.microsoft", "BeamSearch", "search for tokens round decoders"),
        ("com.microsoft", "QMoE", "QMoE.*a router picks the experts"),
        ("com.microsoft", "PackedAttention", "for graphics processors alone"),
        ("com.microsoft", "EPContext", "another compiler's code"),
        ("com.microsoft.nchwc", "Conv", "for the vectors of one machine: save the model at level"),
        ("ai.onnx.contrib", "BertTokenizer", r"register_function\('ai.onnx.contrib::BertTokenizer"),
    ],
)
def test_what_cannot_be_imported_says_why(domain: str, operator: str, reason: str) -> None:
    node = helper.make_node(operator, ["x"], ["y"], domain=domain)
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 3))
    result = helper.make_value_info("y", onnx.TypeProto())
    graph = helper.make_graph([node], "g", [value], [result])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    with pytest.raises(UnsupportedOperatorError, match=reason):
        import_model_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
