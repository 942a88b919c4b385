"""Converters against onnxruntime, where the onnx package's own tests look at few cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.compiler.frontend.onnx_models import INT64, integers, model, node, outputs_of, tensor
from tests.onnxruntime_session import exact_session
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.types.tensor_type import Array

EXTENTS = st.sampled_from((1, 2, 3, 7, 13))


def check(proto: onnx.ModelProto, inputs: Mapping[str, Array], rtol: float = 1e-4) -> None:
    """The imported graph gives what onnxruntime gives; when we refuse, so must it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    expected: list[Any] | None = None
    reason = ""
    try:
        session = exact_session(proto, options)
        expected = session.run(None, dict(inputs))
    except Exception as error:  # noqa: BLE001  # onnxruntime's errors have no common base
        reason = str(error)
    try:
        graph = import_model_proto(proto)
    except ImportModelError as error:
        assert expected is None or any(0 in output.shape for output in expected), error
        return
    verify_graph(graph)
    assert expected is not None, reason
    for output, wanted in zip(outputs_of(graph, inputs), expected, strict=True):
        assert output.dtype == wanted.dtype
        np.testing.assert_allclose(output, wanted, rtol=rtol, atol=1e-5)


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), rank=st.integers(1, 2))
def test_conv(data: st.DataObject, rank: int) -> None:
    def draw(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    kernel, groups = draw(1, 3), data.draw(st.sampled_from((1, 2)))
    attributes: dict[str, Any] = {"strides": draw(1, 3), "group": groups}
    auto_pad = data.draw(st.sampled_from(("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")))
    if auto_pad == "NOTSET":
        attributes |= {"pads": draw(0, 2) + draw(0, 2), "dilations": draw(1, 2)}
    else:
        attributes["auto_pad"] = auto_pad
    spatial = draw(3, 9)
    proto = model(
        [node("Conv", "x w b", **attributes)],
        [tensor("x", [2, 2 * groups, *spatial])],
        constants={"w": random(2 * groups, 2, *kernel), "b": random(2 * groups)},
    )
    check(proto, {"x": random(2, 2 * groups, *spatial)})


@settings(max_examples=60, deadline=None)
@given(data=st.data(), operator=st.sampled_from(("MaxPool", "AveragePool")))
def test_pool(data: st.DataObject, operator: str) -> None:
    kernel = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=2))
    pads = [data.draw(st.integers(0, extent - 1)) for extent in kernel * 2]
    strides = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=2))
    attributes: dict[str, Any] = {"kernel_shape": kernel, "pads": pads, "strides": strides}
    if operator == "AveragePool":
        attributes["count_include_pad"] = data.draw(st.integers(0, 1))
    else:
        attributes["ceil_mode"] = data.draw(st.integers(0, 1))
    spatial = data.draw(st.lists(st.integers(3, 9), min_size=2, max_size=2))
    proto = model([node(operator, "x", **attributes)], [tensor("x", [1, 3, *spatial])], opset=19)
    check(proto, {"x": random(1, 3, *spatial)})


@settings(max_examples=60, deadline=None)
@given(data=st.data(), rank=st.integers(1, 3))
def test_slice(data: st.DataObject, rank: int) -> None:
    shape = data.draw(st.lists(EXTENTS, min_size=rank, max_size=rank))
    bounds = st.lists(
        st.one_of(st.integers(-15, 15), st.sampled_from((2**62, -(2**62)))),
        min_size=rank,
        max_size=rank,
    )
    steps = data.draw(st.lists(st.sampled_from((1, 1, 2, 3, -1, -2)), min_size=rank, max_size=rank))
    constants = {
        "starts": integers(*data.draw(bounds)),
        "ends": integers(*data.draw(bounds)),
        "axes": integers(*data.draw(st.permutations(range(rank)))),
        "steps": integers(*steps),
    }
    proto = model(
        [helper.make_node("Slice", ["x", *constants], ["y"])],
        [tensor("x", shape)],
        constants=constants,
    )
    check(proto, {"x": random(*shape)})


@settings(max_examples=40, deadline=None)
@given(data=st.data(), mode=st.sampled_from(("constant", "reflect", "edge")))
def test_pad(data: st.DataObject, mode: str) -> None:
    shape = data.draw(st.lists(st.integers(3, 7), min_size=2, max_size=2))
    pads = data.draw(st.lists(st.integers(-1, 1), min_size=4, max_size=4))
    inputs = ["x", "pads", "value"] if mode == "constant" else ["x", "pads"]
    proto = model(
        [helper.make_node("Pad", inputs, ["y"], mode=mode)],
        [tensor("x", shape)],
        constants={"pads": integers(*pads), "value": np.array(2.5, np.float32)},
    )
    check(proto, {"x": random(*shape)})


@settings(max_examples=40, deadline=None)
@given(
    left=st.lists(EXTENTS, min_size=1, max_size=3),
    right=st.lists(EXTENTS, min_size=1, max_size=3),
    inner=EXTENTS,
)
def test_matmul_of_all_ranks(left: list[int], right: list[int], inner: int) -> None:
    a, b = [*left[:-1], inner], [*right, 2] if len(right) > 1 else right
    b[-2 if len(b) > 1 else 0] = inner
    proto = model([node("MatMul", "a b")], [tensor("a", a), tensor("b", b)])
    check(proto, {"a": random(*a), "b": random(*b)})


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_flattened_the_axes_before_opset_13(operator: str, axis: int, opset: int) -> None:
    proto = model([node(operator, "x", axis=axis)], [tensor("x", [2, 3, 4, 2])], opset=opset)
    check(proto, {"x": random(2, 3, 4, 2)})


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk->ki", [(2, 3), (3, 4)]),
        ("bij,bkj->bik", [(2, 3, 5), (2, 4, 5)]),
        ("ij->ji", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("i,j->ij", [(2,), (3,)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
        ("bhid,bhjd->bhij", [(1, 2, 3, 4), (1, 2, 5, 4)]),
        ("ii->i", [(3, 3)]),
        ("ij,jk", [(2, 3), (3, 4)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    names = [f"x{position}" for position in range(len(shapes))]
    proto = model(
        [helper.make_node("Einsum", names, ["y"], equation=equation)],
        [tensor(name, shape) for name, shape in zip(names, shapes, strict=True)],
    )
    inputs = {name: random(*shape) for name, shape in zip(names, shapes, strict=True)}
    graph = import_model_proto(proto)
    expected = np.einsum(equation, *[array.astype(np.float32) for array in inputs.values()])
    np.testing.assert_allclose(outputs_of(graph, inputs)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["ij,jk->iz", "i.j->i", "ij->iij", "ijk->i", "ij,jk->i,k"])
def test_malformed_einsum(equation: str) -> None:
    names = ["a", "b"][: equation.split("->")[0].count(",") + 1]
    proto = model(
        [helper.make_node("Einsum", names, ["y"], equation=equation)],
        [tensor(n, [2, 2]) for n in names],
    )
    with pytest.raises(ImportModelError):
        import_model_proto(proto)


# With align_corners and a fractional extent onnxruntime departs from ONNX's definition.
RESIZES = [
    (transform, scale)
    for transform in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    for scale in ((2.0, 3.0) if transform == "align_corners" else (2.0, 0.6, 1.5, 3.0))
]


@pytest.mark.parametrize(("transform", "scale"), RESIZES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize(mode: str, transform: str, scale: float) -> None:
    proto = model(
        [
            node(
                "Resize",
                "x _ scales",
                mode=mode,
                coordinate_transformation_mode=transform,
                nearest_mode="floor" if transform == "asymmetric" else "round_prefer_floor",
            )
        ],
        [tensor("x", [1, 2, 5, 7])],
        constants={"scales": np.array([1, 1, scale, scale], np.float32)},
    )
    check(proto, {"x": random(1, 2, 5, 7)}, rtol=1e-3)


@pytest.mark.parametrize("momentum", [0.9, 1.0, 0.0])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (7, 3), (1, 3, 9)])
def test_batch_norm_by_the_statistics_of_the_data(shape: tuple[int, ...], momentum: float) -> None:
    names = ["scale", "bias", "mean", "variance"]
    node = helper.make_node(
        "BatchNormalization",
        ["x", *names],
        ["y", "running_mean", "running_variance"],
        training_mode=1,
        momentum=momentum,
        epsilon=1e-3,
    )
    statistics = {name: random(3) for name in names}
    outputs = ["y", "running_mean", "running_variance"]
    proto = model([node], [tensor("x", list(shape))], outputs, statistics)
    check(proto, {"x": np.multiply(random(*shape), np.float32(3.0))})


def test_broadcasting_by_axis_before_opset_7() -> None:
    proto = model(
        [node("Add", "x b", broadcast=1, axis=1)],
        [tensor("x", [2, 3, 4])],
        constants={"b": np.array([10, 20, 30], np.float32)},
        opset=6,
    )
    x = random(2, 3, 4)
    (output,) = outputs_of(import_model_proto(proto), {"x": x})
    np.testing.assert_allclose(output, x + np.array([[10], [20], [30]]), rtol=1e-6)


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [False, True])
def test_recurrent_layers(operator: str, direction: str, lengths: bool) -> None:
    steps, batch, size, hidden = 5, 3, 4, 2
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    directions = 2 if direction == "bidirectional" else 1
    constants = {
        "w": random(directions, gates * hidden, size),
        "r": random(directions, gates * hidden, hidden),
        "b": random(directions, 2 * gates * hidden),
        "n": np.array([5, 3, 1], np.int32),
        "h": random(directions, batch, hidden),
    }
    inputs = ["x", "w", "r", "b", "n" if lengths else "", "h"]
    outputs = ["y", "y_h", "y_c"][: 3 if operator == "LSTM" else 2]
    proto = model(
        [helper.make_node(operator, inputs, outputs, hidden_size=hidden, direction=direction)],
        [tensor("x", [steps, batch, size])],
        outputs,
        constants,
    )
    check(proto, {"x": random(steps, batch, size)})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_with_repeated_indices(reduction: str) -> None:
    """The last of repeated updates wins, or all are combined."""
    proto = model(
        [node("ScatterElements", "x i u", axis=1, reduction=reduction)],
        [tensor("x", [2, 4]), tensor("u", [2, 3])],
        constants={"i": np.array([[0, -1, 0], [2, 2, 2]])},
    )
    check(proto, {"x": random(2, 4), "u": random(2, 3)})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatter_of_rows(reduction: str, computed: bool, depth: int) -> None:
    """Places that are constants, or inputs; negative ones, and some twice."""
    shape, count = (5, 3, 4), 4
    indices = np.array([[0, -1, 1], [3, 2, 3], [-2, 1, -2], [3, 2, 3]])[:, :depth]
    inputs = [tensor("x", shape), tensor("u", [count, *shape[depth:]])]
    values = {"x": random(*shape), "u": random(count, *shape[depth:])}
    if computed:
        inputs.append(tensor("i", indices.shape, INT64))
        values["i"] = indices
    scatter = node("ScatterND", "x i u", reduction=reduction)
    check(model([scatter], inputs, constants={} if computed else {"i": indices}), values)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scatter_to_computed_places(reduction: str, axis: int) -> None:
    shape = [2, 4, 3]
    places = [*shape[:axis], 5, *shape[axis + 1 :]]
    indices = np.random.default_rng(axis).integers(-shape[axis], shape[axis], places)
    inputs = [tensor("x", shape), tensor("u", places), tensor("i", places, INT64)]
    values = {"x": random(*shape), "u": random(*places), "i": indices}
    scatter = node("ScatterElements", "x i u", axis=axis, reduction=reduction)
    check(model([scatter], inputs), values)


@pytest.mark.parametrize(
    "picks", [2, [-1], [1, 3, 5], [4, 2, 0], [[0, 1], [2, 3]], [1, 1], [0, 3, 4]]
)
def test_gather_at_constant_places(picks: object) -> None:
    constants = {"i": np.array(picks)}
    proto = model([node("Gather", "x i", axis=1)], [tensor("x", [3, 6, 2])], constants=constants)
    check(proto, {"x": random(3, 6, 2)})


def loop(operator: str, inputs: list[str], **attributes: Any) -> onnx.ModelProto:
    return model(
        [helper.make_node(operator, inputs, ["last", "all"], **attributes)],
        [tensor("x", [2]), tensor("xs", [3, 2])],
        ["last", "all"],
        {"three": np.array(3), "true": np.array(True), "limit": np.array(2)},
    )


def test_scan_is_unrolled() -> None:
    body = helper.make_graph(
        [node("Add", "s e", "t"), node("Identity", "t", "o")],
        "body",
        [tensor("s", [2]), tensor("e", [2])],
        [tensor("t", [2]), tensor("o", [2])],
    )
    proto = loop("Scan", ["x", "xs"], body=body, num_scan_inputs=1)
    check(proto, {"x": random(2), "xs": random(3, 2)})


def counting_body(condition: list[onnx.NodeProto]) -> onnx.GraphProto:
    return helper.make_graph(
        [*condition, node("Mul", "s s", "t"), node("Add", "t x", "o")],
        "body",
        [tensor("i", [], INT64), tensor("c", [], onnx.TensorProto.BOOL), tensor("s", [2])],
        [tensor("going", [], onnx.TensorProto.BOOL), tensor("t", [2]), tensor("o", [2])],
    )


def test_loop_is_unrolled_until_its_condition_fails() -> None:
    body = counting_body([node("Less", "i limit", "going")])
    graph = import_model_proto(loop("Loop", ["three", "true", "x"], body=body))
    assert sum(n.operator == "mul" for n in graph.nodes) == 3


def test_loop_without_condition_input_runs_all_trips() -> None:
    body = counting_body([node("Identity", "c", "going")])
    check(loop("Loop", ["three", "", "x"], body=body), {"x": random(2), "xs": random(3, 2)})


@settings(max_examples=80, deadline=None)
@given(data=st.data(), operator=st.sampled_from(("MaxPool", "AveragePool", "LpPool")))
def test_pool_whose_windows_are_longer_than_the_data(data: st.DataObject, operator: str) -> None:
    kernel = data.draw(st.lists(st.integers(2, 5), min_size=2, max_size=2))
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "pads": [data.draw(st.integers(0, extent - 1)) for extent in kernel * 2],
        "strides": data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=2)),
    }
    opset = data.draw(st.sampled_from((11, 18, 19, 22)))
    # onnxruntime's greatest of no elements, which a dilated MaxPool meets in padding, is finite
    if operator != "MaxPool" and opset >= {"LpPool": 18, "AveragePool": 19}[operator]:
        attributes["dilations"] = data.draw(st.lists(st.integers(1, 2), min_size=2, max_size=2))
    if operator != "LpPool" or opset >= 18:
        attributes["ceil_mode"] = data.draw(st.integers(0, 1))
    if operator == "AveragePool":
        attributes["count_include_pad"] = data.draw(st.integers(0, 1))
    spatial = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=2))
    proto = model([node(operator, "x", **attributes)], [tensor("x", [1, 2, *spatial])], opset=opset)
    check(proto, {"x": random(1, 2, *spatial)})


def test_mean_of_a_window_that_lies_in_the_padding_is_zero() -> None:
    proto = model(
        [node("AveragePool", "x", kernel_shape=[2], dilations=[3], pads=[1, 1])],
        [tensor("x", [1, 1, 2])],
    )
    check(proto, {"x": random(1, 1, 2)})


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "align_corners"])
@pytest.mark.parametrize("axis", [1, 2, 3])
def test_resize_of_an_axis_of_width_1_repeats_it_to_the_bit(
    axis: int, coordinates: str, mode: str
) -> None:
    shape, sizes = [1, 5, 5, 5], [1, 5, 5, 5]
    shape[axis], sizes[axis] = 1, 7
    x = random(*shape)
    x.flat[:2] = np.inf, np.nan
    result = _resized(x, sizes, mode=mode, coordinate_transformation_mode=coordinates)
    np.testing.assert_array_equal(result, np.repeat(x, 7, axis))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "align_corners"])
@pytest.mark.parametrize("sizes", [(1, 5), (5, 1), (1, 1)])
def test_resize_to_width_1(sizes: tuple[int, int], coordinates: str, mode: str) -> None:
    proto = model(
        [node("Resize", "x _ _ sizes", mode=mode, coordinate_transformation_mode=coordinates)],
        [tensor("x", [1, 2, 7, 4])],
        constants={"sizes": integers(1, 2, *sizes)},
    )  # fmt: skip
    check(proto, {"x": random(1, 2, 7, 4)})


def test_resize_reads_no_element_that_has_no_weight() -> None:
    x = np.array([[[1, np.inf, 2, np.nan]]], np.float32)
    one = _resized(x, [1, 1, 1], mode="linear", coordinate_transformation_mode="pytorch_half_pixel")
    np.testing.assert_array_equal(one, [[[1]]])
    twice = _resized(x, [1, 1, 8], mode="linear", coordinate_transformation_mode="asymmetric")
    np.testing.assert_array_equal(twice[0, 0, ::2], x[0, 0])
    clipped = _resized(x, [1, 1, 8], mode="linear")
    np.testing.assert_array_equal(clipped[0, 0, [0, 7]], [1, np.nan])


def _resized(x: Array, sizes: list[int], **attributes: str) -> Array:
    proto = model(
        [node("Resize", "x _ _ sizes", **attributes)],
        [tensor("x", list(x.shape))],
        constants={"sizes": integers(*sizes)},
    )
    results: list[Array] = outputs_of(import_model_proto(proto), {"x": x})
    return results[0]
