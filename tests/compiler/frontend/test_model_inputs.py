"""Inputs' shapes: declared, fixed by the user, or asked for in one readable error."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.parser import parse_model

from tests.compiler.frontend.onnx_models import INT64, integers, model, node, outputs_of, tensor
from tunefarm.compiler.errors import (
    DeclaredShapeWarning,
    ImportModelError,
    ShapeError,
    UnsupportedOperatorError,
)
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.extents import FixedInput, Given
from tunefarm.compiler.types.padded_shape import true_shape


def relu(shape: Sequence[int | str | None] | None, dtype: int = 1) -> onnx.ModelProto:
    return model("Relu x", [tensor("x", shape, dtype)])


def test_symbolic_dimension_is_fixed() -> None:
    graph = import_model_proto(relu(["N", 3, None]), {"x": (2, 3, 5)})
    assert graph.types["y"].shape == (2, 3, 5)


def test_unresolved_dimensions_name_the_input_and_what_to_type() -> None:
    with pytest.raises(ShapeError) as caught:
        import_model_proto(relu(["N", 3, None]))
    assert "axis 2 of 'x'; 'N' of 'x'" in str(caught.value)
    assert "--shape x=1,3,1" in str(caught.value)


def test_input_without_any_shape() -> None:
    with pytest.raises(ShapeError, match="no shape at all"):
        import_model_proto(relu(None))
    assert import_model_proto(relu(None), {"x": (7,)}).types["y"].shape == (7,)


def test_symbol_settled_by_one_input_holds_for_the_others() -> None:
    proto = model("Add a b", [tensor("a", ["N", 4]), tensor("b", ["N", 4])])
    graph = import_model_proto(proto, {"a": (3, 4)})
    assert graph.types["b"].shape == (3, 4)
    with pytest.raises(ImportModelError, match="fix the dimension 'N' to 3 and to 2"):
        import_model_proto(proto, {"a": (3, 4), "N": (2,)})


@pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.DeclaredShapeWarning")
@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        ({"a": (3, 4), "b": (2, 4)}, {"a": "3", "b": "2", "y": "5"}),
        ({"a": ("M:1..4", 4), "b": ("K:2..8", 4)}, {"a": "M", "b": "K", "y": "K + M"}),
        ({"a": (3, 4), "b": ("K:2..8", 4)}, {"a": "3", "b": "K", "y": "K + 3"}),
        ({"a": ("M:1..4", 4), "b": (2, 4)}, {"a": "M", "b": "2", "y": "M + 2"}),
        ({"a": ("M:1..4", 4), "b": ("M", 4)}, {"a": "M", "b": "M", "y": "2*M"}),
    ],
)
def test_one_name_of_the_file_stands_for_sizes_that_are_given_apart(
    shapes: dict[str, tuple[Given, ...]], sizes: dict[str, str]
) -> None:
    """Exporters are told to call axis 2 of every input the width."""
    joined = node("Concat", "a b", axis=0)
    proto = model([joined], [tensor("a", ["N", 4]), tensor("b", ["N", 4])])
    graph = import_model_proto(proto, shapes)
    assert {name: str(true_shape(graph.types[name].dims)[0]) for name in sizes} == sizes


def test_sizes_given_apart_are_noted() -> None:
    proto = model("Concat a b axis=0", [tensor("a", ["N", 4]), tensor("b", ["N", 4])])
    with pytest.warns(DeclaredShapeWarning, match="axis 0 of input 'b' is called 'N'"):
        import_model_proto(proto, {"a": (3, 4), "b": (2, 4)})


def test_unknown_input_names_the_nearest() -> None:
    proto = model("Relu input", [tensor("input", [2])])
    with pytest.raises(ImportModelError, match="did you mean 'input'"):
        import_model_proto(proto, {"inptu": (2,)})


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((2, 4, 5), "contradicts"),
        ((2, 3), "has 3 dimensions"),
        ((-1, 3, 5), "negative dimension"),
        ((2**40, 3, 2**40), "would take"),
    ],
)
def test_shapes_that_do_not_fit(shape: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ImportModelError, match=reason):
        import_model_proto(relu(["N", 3, None]), {"x": shape})


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (TensorProto.FLOAT6E2M3, "float6e2m3"),
        (TensorProto.COMPLEX64, "complex64"),
        (4242, "number 4242"),
    ],
)
def test_element_types_that_are_not_supported(dtype: int, name: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=name):
        import_model_proto(relu([2], dtype))


def test_maps_are_refused() -> None:
    kind = helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    proto = model("Relu x", [helper.make_value_info("x", kind)])
    with pytest.raises(UnsupportedOperatorError, match="map type"):
        import_model_proto(proto)


def test_input_with_an_initializer_is_a_constant_in_old_files_and_where_it_must_be_known() -> None:
    proto = model(
        "Add x w",
        [tensor("x", [2]), tensor("w", [2])],
        constants={"w": np.ones(2, np.float32)},
    )
    assert import_model_proto(proto).inputs == ("x", "w")
    proto.ir_version = 3
    assert import_model_proto(proto).inputs == ("x",)
    shaped = model(
        "Reshape x shape",
        [tensor("x", [6]), tensor("shape", [2], INT64)],
        constants={"shape": integers(2, 3)},
    )
    assert import_model_proto(shaped).inputs == ("x",)


def test_input_can_be_fixed_to_a_constant() -> None:
    proto = model("Reshape x shape", [tensor("x", [6]), tensor("shape", [2], INT64)])
    with pytest.raises(ShapeError, match="'shape'"):
        import_model_proto(proto)
    graph = import_model_proto(proto, {"shape": FixedInput.of(integers(2, -1))})
    assert graph.inputs == ("x",)
    x = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(outputs_of(graph, {"x": x})[0], x.reshape(2, 3))


def test_fixing_an_unknown_input() -> None:
    with pytest.raises(ImportModelError, match="no input 'z'"):
        import_model_proto(relu([2]), {"z": FixedInput.of(integers(1))})


def test_repeated_and_unnamed_inputs() -> None:
    twice = model("Relu x", [tensor("x", [2])] * 2)
    with pytest.raises(ImportModelError, match="'x' of the model is there twice"):
        import_model_proto(twice)
    unnamed = model("Relu x", [tensor("", [2])])
    with pytest.raises(ImportModelError, match="has no name"):
        import_model_proto(unnamed)


def sum_of(*shapes: Sequence[int | str | None]) -> onnx.ModelProto:
    names = [f"x{number}" for number in range(len(shapes))]
    inputs = [tensor(name, shape) for name, shape in zip(names, shapes, strict=True)]
    return model([helper.make_node("Sum", names, ["y"])], inputs)


def test_bounded_symbol_is_padded_to_its_upper_bound() -> None:
    graph = import_model_proto(relu(["N", 3]), {"x": ("N:1..4", 3)})
    assert graph.types["y"].shape == (4, 3)
    assert str(graph.signature.outputs[0]) == "f32[N:1..4, 3]"


@pytest.mark.parametrize(
    "shapes",
    [{"N": ("1..4",)}, {"N": ((1, 4),)}, {"x0": ("1..4", 3)}, {"x0": ("N", 3), "N": ("1|2|4",)}],
)
def test_symbol_is_bounded_once_for_all_inputs(shapes: dict[str, tuple[Given, ...]]) -> None:
    graph = import_model_proto(sum_of(["N", 3], ["N", 3]), shapes)
    assert graph.types["x1"].shape == (4, 3)
    assert graph.signature.equalities == ()


def test_a_known_name_without_bounds_has_usual_ones() -> None:
    graph = import_model_proto(relu(["batch_size", 3]), {"x": ("batch_size", 3)})
    assert graph.types["y"].shape == (8, 3)
    with pytest.raises(ImportModelError, match="no usual ones"):
        import_model_proto(relu(["things", 3]), {"x": ("things", 3)})


def test_dimensions_that_are_computed_of_symbols_follow_them() -> None:
    proto = sum_of(["past + 1", 3], ["past + 1", 3], ["past", 1])
    with pytest.raises(ShapeError, match="never equal"):
        import_model_proto(proto, {"past": ("1..4",)})
    graph = import_model_proto(relu(["past + 1", "past"]), {"past": ("0..4",)})
    assert graph.types["y"].shape == (5, 4)


def test_sizes_of_different_symbols_are_compared_at_run_time() -> None:
    graph = import_model_proto(sum_of(["N", 3], ["M", 3]), {"N": ("1..4",), "M": ("2..8",)})
    (equality,) = graph.signature.equalities
    assert {str(equality.left), str(equality.right)} == {"N", "M"}
    assert graph.types["y"].shape == (4, 3)


@pytest.mark.parametrize(
    ("shapes", "reason", "hint"),
    [
        ({"x0": ("M:1..4", 3), "N": ("K:1..4",)}, "symbol 'N' is named 'M' and 'K'", ""),
        ({"x0": ("M:1..4", 3), "x1": ("M:1..5", 3)}, "'N' to 1..4 and to 1..5", ""),
        ({"x0": ("N:1..4", 3), "x1": ("N:1..5", 3)}, "'N' to 1..4 and to 1..5", ""),
        ({"x0": ("N:1..4", 3), "x1": (2, 3)}, "'N' to 1..4 and to 2", ""),
        ({"x0": ("1..4",)}, "has 2 dimensions", ""),
        ({"x0": ("N:1..4", "1..3")}, "contradicts", ""),
        ({"x": ("1..4",)}, "no input 'x'", "did you mean"),
        ({"N": ("1..4", 3)}, "is a symbol and takes one size", "--shape N=1..8"),
        ({"N": ("4..1",)}, "hold no size", "batch:1..8"),
        ({"x0": None}, "'x0' is no optional", ""),
    ],
)
def test_bounds_that_do_not_fit(
    shapes: dict[str, tuple[Given, ...]], reason: str, hint: str
) -> None:
    with pytest.raises(ImportModelError, match=reason) as caught:
        import_model_proto(sum_of(["N", 3], ["N", 3]), shapes)
    assert hint in caught.value.hint


def test_a_size_where_a_constant_is_needed_names_node_symbol_and_what_to_fix() -> None:
    nodes = "s = Shape x; n = Gather s zero; DFT signal n name=picky"
    constants = {"zero": np.array(0), "signal": np.ones((1, 8, 1), np.float32)}
    proto = model(nodes, [tensor("x", ["batch", 3])], constants=constants)
    with pytest.raises(ShapeError) as caught:
        import_model_proto(proto, {"batch": ("1..4",)})
    assert "picky" in str(caught.value)
    assert "batch" in str(caught.value)
    assert "--shape" in caught.value.hint


def test_what_is_said_of_a_shape_stays_in_the_example_of_what_is_missing() -> None:
    proto = relu(["batch", "seq"])
    with pytest.raises(ShapeError, match="known: 'seq' of 'x'") as caught:
        import_model_proto(proto, {"batch": ("1..8",)})
    assert caught.value.hint == (
        "fix them, as in --shape seq=1; or give bounds, as in --shape seq=1..512"
    )
    with pytest.raises(ShapeError, match="known: axis 1 of 'x'") as caught:
        import_model_proto(relu(["batch", None]), {"batch": ("1..8",)})
    assert "as in --shape x=batch:1..8,1..8" in caught.value.hint


def test_a_symbol_of_another_axis_is_told_the_one_that_is_there() -> None:
    with pytest.raises(ImportModelError, match="'seq' cannot be named 'batch'") as caught:
        import_model_proto(relu(["batch", "seq"]), {"x": ("batch:1..8", "batch:1..512")})
    assert "did you mean 'seq'" in caught.value.hint


def test_one_error_lists_what_is_missing_once_with_a_line_that_works() -> None:
    proto = sum_of(["N", "a b", None], ["N", "a b", 4], ["N", 1, 1], ["x3"])
    with pytest.raises(ShapeError) as caught:
        import_model_proto(proto)
    assert "axis 2 of 'x0'; 'N' of 'x0', 'x1' and 1 more; 'a b' of 'x0', 'x1'" in str(caught.value)
    assert "'x3' of 'x3'" in str(caught.value)
    for line in re.findall(r"as in ((?:--shape [^;]*)+)", caught.value.hint):
        typed = (text.rpartition("=") for text in shlex.split(line)[1::2])
        given: dict[str, list[Given]] = {name: list(text.split(",")) for name, _, text in typed}
        with suppress(ShapeError):  # of sizes that do not fit each other
            import_model_proto(proto, given)
        assert set(given) >= {"x0", "x3"} and "N" not in given


@pytest.mark.parametrize(
    ("declared", "given", "shape", "text"),
    [
        ([-1, 3], ("1..4", 3), (4, 3), "f32[x_0:1..4, 3]"),
        ([0, 3], ("b:1..4", 3), (4, 3), "f32[b:1..4, 3]"),
        ([-1, 0], ("1..4", 5), (4, 5), "f32[x_0:1..4, 5]"),
        ([None, 3], ("rows:1..4", 3), (4, 3), "f32[rows:1..4, 3]"),
        (["N", -1], ("b:1..4", "w:2..5"), (4, 5), "f32[b:1..4, w:2..5]"),
    ],
)
def test_dimensions_that_exporters_write_for_any_size(
    declared: list[int | str | None], given: tuple[Given, ...], shape: tuple[int, int], text: str
) -> None:
    graph = import_model_proto(relu(declared), {"x": given})
    assert graph.types["y"].shape == shape
    assert str(graph.signature.inputs[0]) == text


def test_no_elements_are_declared_by_a_zero_that_nobody_gives_another_size() -> None:
    assert import_model_proto(relu([0, 3])).types["y"].shape == (0, 3)
    with pytest.raises(ShapeError, match="axis 0 of 'x'"):
        import_model_proto(relu([-1, 3]))


@pytest.mark.parametrize(
    "shapes",
    [
        {"x0": ("b:1..4", 3)},
        {"x1": ("b:1..4", 3)},
        {"x0": ("b:1..4", 3), "x1": ("1..4", 3)},
        {"x0": ("1..4", 3), "x1": ("b:1..4", 3)},
        {"x0": ("b", 3), "b": ("1..4",)},
        {"b": ("1..4",), "x1": ("b", 3)},
        {"N": ("b:1..4",)},
    ],
)
def test_users_name_dimensions_as_they_like(shapes: dict[str, tuple[Given, ...]]) -> None:
    graph = import_model_proto(sum_of(["N", 3], ["N", 3]), shapes)
    assert [str(port) for port in graph.signature.inputs] == ["f32[b:1..4, 3]"] * 2
    assert graph.signature.equalities == ()


def test_symbols_that_users_give_one_name_are_one() -> None:
    shapes = {"x0": ("b:1..4", 3), "x1": ("b:1..4", 3)}
    graph = import_model_proto(sum_of(["N", 3], ["M", 3]), shapes)
    assert graph.signature.equalities == ()
    with pytest.raises(ImportModelError, match=r"to 1\.\.4 and to 1\.\.5"):
        import_model_proto(sum_of(["N", 3], ["M", 3]), {"x0": ("b:1..4", 3), "x1": ("b:1..5", 3)})


def cache_model() -> onnx.ModelProto:
    """Keys of 4 heads of 8, by the weights, behind those of a cache."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, seq, 32] x, float[batch, heads, past, head_size] cache) => (float[a,b,e,d] y)
    <int64[4] shape = {0, 0, 4, 8}> {
        q = Reshape (x, shape)
        k = Transpose <perm = [0, 2, 1, 3]> (q)
        y = Concat <axis = 2> (cache, k)
    }"""
    return parse_model(text)


def test_sizes_that_follow_from_the_operators_need_not_be_given() -> None:
    shapes: dict[str, tuple[Given, ...]] = {"batch": (2,), "seq": (3,), "past": ("0..5",)}
    graph = import_model_proto(cache_model(), shapes)
    assert str(graph.signature.inputs[1]) == "f32[2, 4, past:0..5, 8]"
    with pytest.raises(ShapeError) as caught:
        import_model_proto(cache_model(), {"batch": (2,)})
    assert "head" not in str(caught.value) and "'past'" in str(caught.value)
    with pytest.raises(ImportModelError):
        import_model_proto(cache_model(), {**shapes, "heads": (5,)})


def test_features_of_a_product_and_channels_of_a_convolution_follow() -> None:
    weights = {"w": np.ones((700, 2), np.float32)}
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    product = model([node], [tensor("x", ["n", "f"])], constants=weights)
    assert import_model_proto(product, {"n": (2,)}).types["x"].shape == (2, 700)
    taps = {"w": np.ones((2, 3, 1, 1), np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    conv = model([node], [tensor("x", ["n", "c", 4, 4])], constants=taps)
    assert import_model_proto(conv, {"n": ("1..2",)}).types["x"].shape == (2, 3, 4, 4)


@pytest.mark.parametrize(
    ("operator", "attributes", "shape"),
    [
        ("NonZero", {}, ["n", "s"]),
        ("EyeLike", {}, ["n", "s"]),
        ("AveragePool", {"kernel_shape": [3, 3], "ceil_mode": 1}, [1, 3, "h", "w"]),
    ],
)
def test_open_sizes_of_constants_as_large_as_the_data_are_named(
    operator: str, attributes: dict[str, Any], shape: list[int | str]
) -> None:
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    proto = model([node], [tensor("x", shape)])
    with pytest.raises(ShapeError, match="the sizes of these dimensions must be known"):
        import_model_proto(proto)
