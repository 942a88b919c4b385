"""Operands that shapes and places depend on, computed at run time: against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.compiler.frontend.onnx_models import INT64, integers, node, outputs_of, tensor
from tests.compiler.frontend.onnx_models import model as model_of
from tests.onnxruntime_session import assert_agrees, exact_session
from tunefarm import compiler
from tunefarm.compiler.errors import ImportModelError, InputError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.limits import Limits
from tunefarm.compiler.types.tensor_type import Array

SHAPE = (3, 4, 5)


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def floats(values: Sequence[float]) -> Array:
    return np.array(values, np.float32)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Sequence[int | str] | None],
    opset: int = 18,
    dtype: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model that declares shapes of its outputs, with inputs of these arrays' types."""
    results = [tensor(name, shape, dtype) for name, shape in outputs.items()]
    return model_of(nodes, inputs, results, opset=opset)


def run(graph: Graph, inputs: Mapping[str, Array]) -> tuple[list[Any], list[str]]:
    """The outputs, and the checks that have failed, as messages."""
    values = outputs_of(graph, inputs)
    signature = graph.signature
    count = len(signature.outputs)
    failed = [
        f"{check.operand} {check.reason}"
        for check, flags in zip(signature.checks, values[count:], strict=True)
        if flags.any()
    ]
    return values[:count], failed


def compare(proto: onnx.ModelProto, *runs: Mapping[str, Array]) -> Graph:
    """One imported graph gives what onnxruntime gives of all of these inputs."""
    session = exact_session(proto)
    graph = import_model_proto(proto)
    verify_graph(graph)
    for inputs in runs:
        outputs, failed = run(graph, inputs)
        assert not failed
        for output, wanted in zip(outputs, session.run(None, dict(inputs)), strict=True):
            assert output.dtype == wanted.dtype
            np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-5)
    return graph


def refuses(graph: Graph, inputs: Mapping[str, Array], operand: str, text: str) -> None:
    """A run is refused by a check of this operand, whose reason has the text."""
    _, failed = run(graph, inputs)
    assert [message for message in failed if message.startswith(operand) and text in message]


REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare"
).split()


@pytest.mark.parametrize("operator", REDUCTIONS)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_of_a_reduction(operator: str, keepdims: int) -> None:
    inputs = {"x": random(*SHAPE), "axes": integers(0, 2)}
    shape = [1, 4, 1] if keepdims else [4]
    proto = model([node(operator, "x axes", keepdims=keepdims)], inputs, {"y": shape})
    same = [{**inputs, "axes": integers(*axes)} for axes in ((0, 2), (2, 0), (-1, -3), (0, -1))]
    graph = compare(proto, *same)
    for axes in ((0, 1), (0, 0), (2, 5), (-4, 0)):
        refuses(graph, {**inputs, "axes": integers(*axes)}, "axes", "must be [0, 2]")


def test_axes_of_a_reduction_that_several_shapes_fit() -> None:
    inputs = {"x": random(4, 3, 4), "axes": integers(0)}
    proto = model([node("ReduceSum", "x axes", keepdims=0)], inputs, {"y": [3, 4]})
    x = inputs["x"]
    graph = import_model_proto(proto)
    refuses(graph, {"x": x, "axes": integers(1)}, "axes", "must be [0]")
    proto = model([node("ReduceSum", "x axes", keepdims=0)], inputs, {"y": [4, 3]})
    compare(proto, {"x": x, "axes": integers(2)}, {"x": x, "axes": integers(-1)})
    square = random(4, 4)
    proto = model(
        [node("ReduceSum", "x axes", keepdims=0)], {"x": square, "axes": integers(0)}, {"y": [4]}
    )
    compare(proto, *({"x": square, "axes": integers(axis)} for axis in (0, 1, -1, -2)))


def test_reduction_takes_the_shape_that_is_declared_behind_pointwise_nodes() -> None:
    inputs = {"x": np.abs(random(*SHAPE)) + 1, "axes": integers(1)}
    nodes = [
        node("ReduceSum", "x axes", "sum", keepdims=1),
        node("Log", "sum", "log"),
        node("Constant", "", "two", value_float=2.0),
        node("Mul", "two log"),
    ]
    compare(model(nodes, inputs, {"y": [3, 1, 5]}), inputs, {**inputs, "axes": integers(-2)})


def test_empty_list_of_axes_is_known() -> None:
    inputs = {"x": random(*SHAPE), "axes": integers()}
    for noop, shape in ((0, [1, 1, 1]), (1, list(SHAPE))):
        nodes = [node("ReduceSum", "x axes", noop_with_empty_axes=noop)]
        graph = import_model_proto(model(nodes, inputs, {"y": None}))
        verify_graph(graph)
        assert graph.inputs == ("x", "axes")
        assert list(outputs_of(graph, inputs)[0].shape) == shape


def test_operand_that_only_gives_a_type_may_be_empty() -> None:
    inputs = {"x": random(*SHAPE), "like": np.zeros(0, np.float16)}
    proto = model([node("CastLike", "x like")], inputs, {"y": None}, opset=19)
    graph = import_model_proto(proto)
    verify_graph(graph)
    (output,) = outputs_of(graph, inputs)
    np.testing.assert_array_equal(output, inputs["x"].astype(np.float16))


@pytest.mark.parametrize("exclusive", [0, 1])
def test_axis_of_a_running_sum(exclusive: int) -> None:
    inputs = {"x": random(*SHAPE), "axis": np.array(0, np.int64)}
    nodes = [node("CumSum", "x axis", exclusive=exclusive)]
    runs = [{**inputs, "axis": np.array(axis, np.int64)} for axis in range(-3, 3)]
    graph = compare(model(nodes, inputs, {"y": None}), *runs)
    refuses(graph, {**inputs, "axis": np.array(3, np.int64)}, "axis", "[0] or [1] or [2]")


def test_shape_of_a_reshape() -> None:
    inputs = {"x": random(*SHAPE), "shape": integers(3, 2, 10)}
    proto = model([node("Reshape", "x shape")], inputs, {"y": [3, 2, 10]})
    shapes = ((3, 2, 10), (0, 2, -1), (-1, 2, 10), (3, -1, 10))
    graph = compare(proto, *({**inputs, "shape": integers(*shape)} for shape in shapes))
    for shape in ((3, 10, 2), (-1, -1, 10), (3, 0, 10), (3, 2, 11)):
        refuses(graph, {**inputs, "shape": integers(*shape)}, "shape", "[3, 2, 10]")


def test_axes_of_squeeze_and_unsqueeze() -> None:
    inputs = {"x": random(1, 3, 1, 5), "axes": integers(0)}
    proto = model([node("Squeeze", "x axes")], inputs, {"y": [3, 1, 5]})
    graph = compare(proto, inputs, {**inputs, "axes": integers(-4)})
    refuses(graph, {**inputs, "axes": integers(2)}, "axes", "must be [0]")
    inputs = {"x": random(3, 5), "axes": integers(1, 0)}
    proto = model([node("Unsqueeze", "x axes")], inputs, {"y": [1, 3, 1, 5]})
    graph = compare(proto, *({**inputs, "axes": integers(*a)} for a in ((0, 2), (2, 0), (-4, -2))))
    refuses(graph, inputs, "axes", "must be [0, 2]")


def test_shape_of_an_expand() -> None:
    inputs = {"x": random(3, 1, 5), "shape": integers(2, 1, 4, 1)}
    proto = model([node("Expand", "x shape")], inputs, {"y": [2, 3, 4, 5]})
    shapes = ((2, 1, 4, 1), (2, 3, 4, 5), (2, 3, 4, 1))
    graph = compare(proto, *({**inputs, "shape": integers(*shape)} for shape in shapes))
    for shape in ((1, 3, 4, 5), (2, 3, 1, 5), (2, 4, 4, 5)):
        refuses(graph, {**inputs, "shape": integers(*shape)}, "shape", "[2, 3, 4, 5]")


def test_repeats_sizes_and_depths_follow_from_the_result() -> None:
    inputs: dict[str, Array] = {"x": random(2, 3), "repeats": integers(2, 1)}
    proto = model([node("Tile", "x repeats")], inputs, {"y": [4, 3]})
    refuses(compare(proto, inputs), {**inputs, "repeats": integers(1, 2)}, "repeats", "[2, 1]")

    inputs = {"x": random(2, 6), "split": integers(2, 4)}
    proto = model([node("Split", "x split", "y z", axis=1)], inputs, {"y": [2, 2], "z": None})
    refuses(compare(proto, inputs), {**inputs, "split": integers(4, 2)}, "split", "[2, 4]")

    inputs = {"i": integers(0, 2, -1), "depth": np.array(3), "values": floats([2, 5])}
    proto = model([node("OneHot", "i depth values")], inputs, {"y": [3, 3]})
    refuses(compare(proto, inputs), {**inputs, "depth": np.array(4)}, "depth", "must be 3")

    inputs = {"shape": integers(2, 3)}
    proto = model([node("ConstantOfShape", "shape")], inputs, {"y": [2, 3]})
    refuses(compare(proto, inputs), {"shape": integers(2, 4)}, "shape", "[2, 3]")


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_range(dtype: Any) -> None:
    runs = [
        {"start": dtype(start), "limit": dtype(limit), "delta": dtype(delta)}
        for start, limit, delta in ((0, 5, 1), (10, 1, -2), (-3, 12, 3), (1, 5.9, 1))
    ]
    inputs = {name: np.asarray(value) for name, value in runs[0].items()}
    tensor = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto = model([node("Range", "start limit delta")], inputs, {"y": [5]}, dtype=tensor)
    scalars = [{name: np.asarray(value) for name, value in one.items()} for one in runs]
    graph = compare(proto, *(scalars if dtype is np.float32 else scalars[:3]))
    for name, value in (("limit", 6), ("delta", 0), ("delta", -1), ("start", 9)):
        refuses(graph, {**inputs, name: np.array(value, dtype)}, "limit", "5 elements")


def test_slice() -> None:
    inputs = {
        "x": random(7, 6, 5),
        "starts": integers(1, 0),
        "ends": integers(5, 6),
        "axes": integers(0, 1),
        "steps": integers(2, 2),
    }
    proto = model([helper.make_node("Slice", list(inputs), ["y"])], inputs, {"y": [2, 3, 5]})
    runs = [
        {**inputs, "starts": integers(*s), "ends": integers(*e), "axes": integers(*a)}
        | {"steps": integers(*t)}
        for s, e, a, t in (
            ((1, 0), (5, 6), (0, 1), (2, 2)),
            ((0, -3), (2, 2**62), (-3, -2), (1, 1)),
            ((5, 6), (0, 4), (1, 0), (-2, -1)),
            ((4, 5), (-(2**63), -7), (1, 0), (-2, -4)),
            ((-4, 2), (-2, 5), (0, 1), (1, 1)),
        )
    ]
    graph = compare(proto, *runs)
    refuses(graph, {**inputs, "ends": integers(6, 6)}, "ends", "[2, 3, 5]")
    refuses(graph, {**inputs, "steps": integers(0, 2)}, "ends", "[2, 3, 5]")
    refuses(graph, {**inputs, "axes": integers(0, 0)}, "ends", "[2, 3, 5]")
    refuses(graph, {**inputs, "axes": integers(1, 0)}, "ends", "[2, 3, 5]")
    refuses(graph, {**inputs, "axes": integers(0, 3)}, "ends", "[2, 3, 5]")


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("with_axes", [False, True])
def test_pad(mode: str, with_axes: bool) -> None:
    inputs = {"x": random(4, 5), "pads": integers(1, 2, 2, 1), "value": np.array(2.5, np.float32)}
    if with_axes:
        inputs["axes"] = integers(0, 1)
    names = ["x", "pads", "value" if mode == "constant" else "", "axes"][: 3 + with_axes]
    if mode != "constant":
        del inputs["value"]
    proto = model(
        [helper.make_node("Pad", names, ["y"], mode=mode)], inputs, {"y": [7, 8]}, opset=19
    )
    lists = [(1, 2, 2, 1), (3, 0, 0, 3), (0, 3, 3, 0)]
    if mode in ("constant", "edge"):
        lists.append((4, -1, -1, 4))
    runs = [{**inputs, "pads": integers(*pads)} for pads in lists]
    if with_axes:
        runs += [{**inputs, "pads": integers(2, 1, 1, 2), "axes": integers(-1, -2)}]
    graph = compare(proto, *runs)
    refuses(graph, {**inputs, "pads": integers(1, 2, 2, 2)}, "pads", "[7, 8]")


@pytest.mark.parametrize("upper", [0, 1])
def test_diagonal_of_trilu(upper: int) -> None:
    inputs = {"x": random(2, 4, 5), "k": np.array(0, np.int64)}
    proto = model([node("Trilu", "x k", upper=upper)], inputs, {"y": None})
    values = (-7, -2, 0, 1, 6)
    session = exact_session(proto)
    graph = import_model_proto(proto)
    for k in values:
        arrays = {**inputs, "k": np.array(k, np.int64)}
        np.testing.assert_array_equal(outputs_of(graph, arrays)[0], session.run(None, arrays)[0])


def test_block_of_col2im() -> None:
    inputs = {"x": random(1, 4, 6), "image": integers(3, 4), "block": integers(2, 2)}
    proto = model([helper.make_node("Col2Im", list(inputs), ["y"])], inputs, {"y": [1, 1, 3, 4]})
    graph = compare(proto, inputs)
    refuses(graph, {**inputs, "block": integers(1, 4)}, "block", "must be [2, 2]")
    refuses(graph, {**inputs, "image": integers(4, 3)}, "image", "must be [3, 4]")
    inputs = {"x": random(1, 5, 5), "image": integers(5, 5), "block": integers(1, 5)}
    proto = model([helper.make_node("Col2Im", list(inputs), ["y"])], inputs, {"y": [1, 1, 5, 5]})
    compare(proto, inputs, {**inputs, "block": integers(5, 1)})


COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_scales_of_a_resize(mode: str, coordinates: str) -> None:
    inputs = {"x": random(1, 2, 4, 6), "scales": floats([1, 1, 1.6, 0.6])}
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    resize = node("Resize", "x _ scales", **attributes)
    proto = model([resize], inputs, {"y": [1, 2, 6, 3]}, opset=19)
    lists: list[list[float]] = [[1, 1, 1.6, 0.6], [1, 1, 1.5, 0.5], [1, 1, 1.7, 0.65]]
    graph = import_model_proto(proto)
    for scales in lists:
        arrays = {**inputs, "scales": floats(scales)}
        outputs, failed = run(graph, arrays)
        assert not failed
        del proto.graph.input[1:]
        proto.graph.ClearField("initializer")
        proto.graph.initializer.append(onnx.numpy_helper.from_array(arrays["scales"], "scales"))
        (wanted,) = outputs_of(import_model_proto(proto), {"x": inputs["x"]})
        np.testing.assert_allclose(outputs[0], wanted, rtol=1e-5, atol=1e-6)
    refuses(graph, {**inputs, "scales": floats([1, 1, 2, 0.6])}, "scales", "[1, 2, 6, 3]")
    refuses(graph, {**inputs, "scales": floats([1, 1.2, 1.6, 0.6])}, "scales", "[1, 2, 6, 3]")
    refuses(graph, {**inputs, "scales": floats([1, 1, np.nan, 0.6])}, "scales", "[1, 2, 6, 3]")


def test_infinite_neighbour_without_weight_leaves_a_position_as_it_is() -> None:
    inputs = {"x": floats([1, 2, np.inf]).reshape(1, 1, 1, 3)}
    scales = floats([1, 1, 1, 2])
    resize = node("Resize", "x _ scales", mode="linear")
    both = {**inputs, "scales": scales}
    outputs, _ = run(import_model_proto(model([resize], both, {"y": [1, 1, 1, 6]})), both)
    np.testing.assert_allclose(outputs[0].reshape(-1)[:3], [1, 1.25, 1.75])
    assert not np.isnan(outputs[0]).any()


def test_operand_of_which_nothing_is_declared_is_refused() -> None:
    inputs = {"x": random(*SHAPE), "shape": integers(3, 20)}
    with pytest.raises(ImportModelError, match=r"the shape .*computed at run time") as raised:
        import_model_proto(model([node("Reshape", "x shape")], inputs, {"y": None}))
    assert "declare the shape" in raised.value.hint


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("operator", ["Tile", "Expand", "ConstantOfShape"])
def test_list_of_which_nothing_is_declared_has_a_bound(operator: str, dynamic: bool) -> None:
    """Its other elements are constants and sizes; those that are there are kept by 1, too."""
    inputs: dict[str, Array] = {"x": random(2, 1, 3), "count": np.array([4], np.int32)}
    first, last = ("one", "one") if operator == "Tile" else ("batch", "three")
    operands = ["list"] if operator == "ConstantOfShape" else ["x", "list"]
    nodes = [
        node("Constant", "", "one", value=onnx.numpy_helper.from_array(np.ones(1, np.int32))),
        node("Constant", "", "three", value=onnx.numpy_helper.from_array(np.full(1, 3, np.int32))),
        node("Constant", "", "axes", value_ints=[1]),
        helper.make_node("Shape", ["x"], ["size"], end=1),
        helper.make_node("Cast", ["size"], ["batch"], to=TensorProto.INT32),
        helper.make_node("Concat", [first, "count", last], ["joined"], axis=0),
        helper.make_node("Cast", ["joined"], ["list"], to=TensorProto.INT64),
        helper.make_node(operator, operands, ["r"]),
        helper.make_node("Sub", ["x", "r"], ["apart"]),
        helper.make_node("ReduceSum", ["apart", "axes"], ["y"], keepdims=0),
    ]
    proto = model(nodes, inputs, {"y": ["n" if dynamic else 2, 3]})
    if dynamic:
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    executable = compiler.build(import_model_proto(proto, {"n": "1..4"} if dynamic else {}))
    for rows, count in ((2, 4), (2, 1), (4 if dynamic else 2, 1000)):
        given = {"x": random(rows, 1, 3), "count": np.array([count], np.int32)}
        assert_agrees(executable.run, proto, given)
    least = 0 if operator == "ConstantOfShape" else 1
    with pytest.raises(InputError, match=f"must give {least} to 1024 elements"):
        executable.run({**inputs, "count": np.array([1025], np.int32)})


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("integer", ["INT64", "INT32"])
def test_number_of_true_elements_bounds_a_list(integer: str, dynamic: bool) -> None:
    """As torch writes `x[mask] = value`: one value for each, however many the mask has."""
    inputs: dict[str, Array] = {"x": random(40, 50), "mask": np.ones((40, 50), np.bool_)}
    nodes = [
        node("Constant", "", "all", value_ints=[-1]),
        node("Constant", "", "value", value_float=-1.0),
        node("NonZero", "mask", "places"),
        node("Transpose", "places", "rows", perm=[1, 0]),
        node("Reshape", "mask all", "flags"),
        helper.make_node("Cast", ["flags"], ["ones"], to=getattr(TensorProto, integer)),
        node("ReduceSum", "ones", "number", keepdims=1),
        helper.make_node("Cast", ["number"], ["list"], to=TensorProto.INT64),
        node("Expand", "value list", "values"),
        node("ScatterND", "x rows values"),
    ]
    proto = model(nodes, inputs, {"y": ["n" if dynamic else 40, 50]})
    if dynamic:
        for port in proto.graph.input:
            port.type.tensor_type.shape.dim[0].dim_param = "n"
    executable = compiler.build(import_model_proto(proto, {"n": "1..40"} if dynamic else {}))
    for rows in (40, 3 if dynamic else 40):
        x = random(rows, 50)
        for least in (0, -9, 9):
            mask = np.greater(x, least)
            assert_agrees(executable.run, proto, {"x": x, "mask": mask})


def test_expand_keeps_what_is_there_whether_its_list_says_so_or_1() -> None:
    inputs = {"x": random(3, 1), "shape": integers(3, 4)}
    nodes = [node("Expand", "x shape", "wide"), node("ReduceMax", "wide", keepdims=0)]
    proto = model(nodes, inputs, {"y": None})
    executable = compiler.build(import_model_proto(proto))
    for shape in ((3, 4), (1, 5), (3, 1)):
        assert_agrees(executable.run, proto, {**inputs, "shape": integers(*shape)})
    with pytest.raises(InputError, match="element 0 of the shape must be 3"):
        executable.run({**inputs, "shape": integers(2, 4)})


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_image_whose_list_of_sizes_is_an_input_keeps_its_channels(dynamic: bool) -> None:
    inputs = {"x": random(1, 3, 4, 5), "sizes": integers(1, 3, 7, 6)}
    nodes = [
        node("Resize", "x _ _ sizes", "large", mode="linear"),
        node("ReduceMax", "large", keepdims=0),
    ]
    proto = model(nodes, inputs, {"y": None})
    if dynamic:
        for axis, name in ((0, "n"), (2, "h"), (3, "w")):
            proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    shapes = {"n": "1..2", "h": "2..5", "w": "2..5"} if dynamic else {}
    executable = compiler.build(import_model_proto(proto, shapes))
    for batch, height, width in ((1, 7, 6), (2 if dynamic else 1, 2, 40)):
        given = {"x": random(batch, 3, 4, 5), "sizes": integers(batch, 3, height, width)}
        assert_agrees(executable.run, proto, given)
    with pytest.raises(InputError, match="element 1 of the list of sizes must be 3"):
        executable.run({**inputs, "sizes": integers(1, 6, 7, 6)})


def test_a_list_whose_bounds_are_too_large_is_refused_for_what_is_not_declared() -> None:
    """Not for memory: with bounds for its elements the model is small."""
    inputs = {"x": random(1, 1, 2, 2, 2), "sizes": integers(1, 1, 3, 3, 3)}
    nodes = [
        node("Resize", "x _ _ sizes", "large", mode="nearest"),
        node("ReduceMax", "large", keepdims=0),
    ]
    with pytest.raises(
        ImportModelError, match=r"the list of sizes .*computed at run time"
    ) as raised:
        import_model_proto(model(nodes, inputs, {"y": None}), limits=Limits(bytes=2**30))
    assert "--input NAME=" in raised.value.hint
    assert "declare the shape" in raised.value.hint


@pytest.mark.parametrize("bounds", ["named", "limits"])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pads_that_are_inputs_give_a_result_of_dynamic_shape(mode: str, bounds: str) -> None:
    """Of dynamic data, too; without bounds of the result as many as loops collect."""
    inputs = {"x": random(4, 5), "pads": integers(1, 0, 2, 3)}
    nodes = [node("Pad", "x pads", "large", mode=mode), node("Neg", "large")]
    proto = model(nodes, inputs, {"y": ["u", "v"] if bounds == "named" else None})
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    shapes = {"n": "4..6"} | ({"u": "4..12", "v": "5..9"} if bounds == "named" else {})
    executable = compiler.build(import_model_proto(proto, shapes))
    for rows, pads in ((4, (1, 0, 2, 3)), (6, (0, 3, 3, 0)), (5, (0, 0, 0, 0))):
        given = {"x": random(rows, 5), "pads": integers(*pads)}
        assert_agrees(executable.run, proto, given)
    most = 12 if bounds == "named" else 1024
    for pads in ((most + 1, 0, 0, 0), (0, 0, -1, 0)):
        with pytest.raises(InputError, match=f"of the list of pads must give 0 to {most} elements"):
            executable.run({**inputs, "pads": integers(*pads)})


def test_squeeze_of_a_size_that_only_the_run_says() -> None:
    inputs = {"x": random(4, 5), "starts": integers(2), "ends": integers(3)}
    nodes = [
        node("Constant", "", "zero", value_ints=[0]),
        node("Slice", "x starts ends zero", "part"),
        node("Squeeze", "part zero"),
    ]
    executable = compiler.build(import_model_proto(proto := model(nodes, inputs, {"y": None})))
    assert_agrees(executable.run, proto, inputs)
    for start in (1, 3):
        with pytest.raises(InputError, match="squeezes must have the size 1"):
            executable.run({**inputs, "starts": integers(start)})


def test_slice_has_no_more_elements_than_its_step_leaves() -> None:
    """As tf2onnx writes one place of an axis: a step beyond its end."""
    inputs = {"x": random(4, 5), "starts": integers(2), "ends": integers(2**31)}
    nodes = [
        node("Constant", "", "zero", value_ints=[0]),
        node("Constant", "", "step", value_ints=[10**9]),
        node("Slice", "x starts ends zero step", "part"),
        node("Squeeze", "part zero"),
    ]
    executable = compiler.build(import_model_proto(proto := model(nodes, inputs, {"y": None})))
    for start in (0, 3, -1):
        assert_agrees(executable.run, proto, {**inputs, "starts": integers(start)})
    with pytest.raises(InputError, match="squeezes must have the size 1"):
        executable.run({**inputs, "starts": integers(4)})


def test_slice_of_a_size_that_only_the_run_says() -> None:
    inputs = {
        "x": random(7, 6, 5),
        "starts": integers(1, 0),
        "ends": integers(5, 6),
        "steps": integers(2, 2),
    }
    nodes = [
        node("Constant", "", "axes", value_ints=[1, 0]),
        node("Slice", "x starts ends axes steps", "part"),
        node("ReduceSum", "part", keepdims=0),
    ]
    proto = model(nodes, inputs, {"part": None, "y": None})
    executable = compiler.build(import_model_proto(proto))
    for starts, ends, steps in (
        ((1, 0), (5, 6), (2, 2)),
        ((-3, 2), (2**62, -1), (1, 3)),
        ((5, 6), (0, -(2**63)), (-2, -1)),
        ((0, 0), (1, 1), (1, 1)),
    ):
        given = {"starts": integers(*starts), "ends": integers(*ends), "steps": integers(*steps)}
        assert_agrees(executable.run, proto, {**inputs, **given})
    with pytest.raises(InputError, match="no step may be 0"):
        executable.run({**inputs, "steps": integers(0, 1)})


def test_slice_along_axes_that_only_the_run_says() -> None:
    inputs = {"x": random(7, 6, 5), "starts": integers(1), "ends": integers(5), "axes": integers(0)}
    proto = model([node("Slice", "x starts ends axes")], inputs, {"y": None})
    executable = compiler.build(import_model_proto(proto))
    for axis, start, end in ((0, 1, 5), (-1, -3, 2**62), (1, 0, 0)):
        given = {**inputs, "starts": integers(start), "ends": integers(end), "axes": integers(axis)}
        assert_agrees(executable.run, proto, given, rtol=0, atol=0)
    with pytest.raises(InputError, match="the axes must be of 3, none of them twice"):
        executable.run({**inputs, "axes": integers(3)})


@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_of_a_result_of_which_nothing_is_declared(keepdims: int) -> None:
    inputs = {"x": random(*SHAPE), "axes": integers(0, 1)}
    nodes = [
        node("ReduceMax", "x axes", keepdims=keepdims),
        node("ReduceSum", "y", "sum", keepdims=0),
    ]
    proto = model(nodes, inputs, {"y": None, "sum": None})
    executable = compiler.build(import_model_proto(proto))
    calls = [{**inputs, "axes": integers(*axes)} for axes in ((0, 1), (-1, 0), (2, 1))]
    assert_agrees(executable.run, proto, *calls, rtol=1e-5)
    with pytest.raises(InputError, match="the list of axes must be"):
        executable.run({**inputs, "axes": integers(1, 1)})


def test_list_of_axes_of_any_length() -> None:
    inputs = {"x": random(*SHAPE), "axes": integers(2)}
    proto = model([node("ReduceSum", "x axes")], inputs, {"y": None})
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "n"
    executable = compiler.build(import_model_proto(proto, {"n": ("1..3",)}))
    calls = [{**inputs, "axes": integers(*axes)} for axes in ((2,), (0, -1), (2, 0, 1))]
    assert_agrees(executable.run, proto, *calls)
    proto = model([node("ReduceSum", "x axes", keepdims=0)], inputs, {"y": None})
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(ImportModelError, match=r"the list of axes .*computed at run time"):
        import_model_proto(proto, {"n": ("1..3",)})


@pytest.mark.parametrize(("operator", "shape"), [("Squeeze", (1, 3, 1)), ("Unsqueeze", (2, 3))])
def test_view_of_which_nothing_is_declared(operator: str, shape: tuple[int, ...]) -> None:
    inputs = {"x": random(*shape), "axes": integers(0)}
    proto = model([node(operator, "x axes")], inputs, {"y": None})
    executable = compiler.build(import_model_proto(proto))
    calls = [{**inputs, "axes": integers(axis)} for axis in (0, 2, -1)]
    assert_agrees(executable.run, proto, *calls, rtol=0, atol=0)


def test_run_with_an_operand_that_does_not_fit_names_it_and_what_was_built() -> None:
    inputs = {"x": random(*SHAPE), "axes": integers(1)}
    proto = model([node("ReduceSum", "x axes")], inputs, {"y": [3, 1, 5]})
    executable = compiler.build(import_model_proto(proto))
    np.testing.assert_allclose(
        executable.run(inputs)["y"], inputs["x"].sum(1, keepdims=True), rtol=1e-5
    )
    reason = r"input 'axes' is \[2\]: the list of axes must be \[1\] for ReduceSum node"
    with pytest.raises(InputError, match=reason):
        executable.run({**inputs, "axes": integers(2)})


@pytest.mark.parametrize("given", [True, False])
def test_shapes_of_results_with_bounds(given: bool) -> None:
    """An operand that is an input says the symbol itself; of another the graph computes it."""
    inputs: dict[str, Array] = {"x": random(1, 4), "shape": integers(3, 4)}
    nodes = [
        node("Identity" if given else "Abs", "shape", "asked"),
        helper.make_node("Expand", ["x", "shape" if given else "asked"], ["wide"]),
        node("ReduceSum", "wide", keepdims=0),
    ]
    proto = model(nodes, inputs, {"wide": ["n", 4], "y": None})
    executable = compiler.build(import_model_proto(proto, {"n": ["2..5"]}))
    for count in (2, 3, 5):
        results = executable.run({**inputs, "shape": integers(count, 4)})
        wanted = np.broadcast_to(inputs["x"], (count, 4))
        np.testing.assert_array_equal(results["wide"], wanted)
        np.testing.assert_allclose(results["y"], wanted.sum(), rtol=1e-5)
    for shape in ((6, 4), (1, 4), (3, 5)):
        with pytest.raises(InputError, match="shape"):
            executable.run({**inputs, "shape": integers(*shape)})


def test_range_and_filled_shape_with_bounds() -> None:
    inputs: dict[str, Array] = {
        "start": np.array(2, np.int64),
        "limit": np.array(5, np.int64),
        "delta": np.array(1, np.int64),
    }
    nodes = [helper.make_node("Range", list(inputs), ["r"]), node("ReduceMax", "r", keepdims=0)]
    proto = model(nodes, inputs, {"r": ["n"], "y": None}, dtype=INT64)
    executable = compiler.build(import_model_proto(proto, {"n": ["1..7"]}))
    for start, limit, delta in ((2, 5, 1), (0, 7, 1), (9, 2, -3)):
        values = {"start": start, "limit": limit, "delta": delta}
        results = executable.run({name: np.array(v, np.int64) for name, v in values.items()})
        np.testing.assert_array_equal(results["r"], np.arange(start, limit, delta))
        assert results["y"] == max(range(start, limit, delta))
    with pytest.raises(InputError, match="1 to 7"):
        executable.run({**inputs, "limit": np.array(99, np.int64)})

    inputs = {"shape": integers(2, 3)}
    proto = model([node("ConstantOfShape", "shape")], inputs, {"y": [2, "m"]})
    executable = compiler.build(import_model_proto(proto, {"m": ["1..4"]}))
    for count in (1, 4):
        assert executable.run({"shape": integers(2, count)})["y"].shape == (2, count)


def test_computed_shape_of_a_view_of_open_sizes() -> None:
    arrays: dict[str, Array] = {"x": random(2, 6), "shape": integers(2, 2, 3)}
    proto = model(
        [node("Reshape", "x shape", "r"), node("Relu", "r")], arrays, {"y": ["batch", 2, 3]}
    )
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    executable = compiler.build(import_model_proto(proto, {"batch": ["1..4"]}))
    for batch in (1, 3):
        x = random(batch, 6)
        for first in (batch, -1):
            y = executable.run({"x": x, "shape": integers(first, 2, 3)})["y"]
            np.testing.assert_array_equal(y, np.maximum(x, 0).reshape(batch, 2, 3))
    with pytest.raises(InputError, match="the shape must be"):
        executable.run({"x": random(2, 6), "shape": integers(3, 2, 3)})


def test_axis_and_length_of_a_fourier_transform() -> None:
    inputs: dict[str, Array] = {"x": random(2, 6, 6, 1), "axis": np.array(1, np.int64)}
    nodes = [node("DFT", "x _ axis")]
    proto = model(nodes, inputs, {"y": [2, 6, 6, 2]}, opset=20)
    runs = [{**inputs, "axis": np.array(axis, np.int64)} for axis in (1, 2, -2, -3)]
    # axis 0 would fit, too, along which onnxruntime transforms nothing
    refuses(compare(proto, *runs), {**inputs, "axis": np.array(3, np.int64)}, "axis", "[1] or [2]")
    inputs = {"x": random(2, 6, 1), "length": np.array(4, np.int64)}
    proto = model([node("DFT", "x length")], inputs, {"y": [2, 4, 2]}, opset=20)
    refuses(compare(proto, inputs), {**inputs, "length": np.array(5)}, "length", "must be 4")


@pytest.mark.parametrize("onesided", [0, 1])
def test_frames_of_a_fourier_transform(onesided: int) -> None:
    inputs: dict[str, Array] = {
        "x": random(1, 30, 1),
        "step": np.array(4, np.int64),
        "length": np.array(8, np.int64),
    }
    nodes = [node("STFT", "x step _ length", onesided=onesided)]
    proto = model(nodes, inputs, {"y": [1, 6, 5 if onesided else 8, 2]}, opset=17)
    runs = [inputs]
    if onesided:
        runs.append({**inputs, "length": np.array(9, np.int64)})
    graph = compare(proto, *runs)
    refuses(graph, {**inputs, "step": np.array(3, np.int64)}, "step", "6 frames")
    refuses(graph, {**inputs, "step": np.array(-4, np.int64)}, "step", "6 frames")
    refuses(graph, {**inputs, "length": np.array(10, np.int64)}, "length", "must be 8")
