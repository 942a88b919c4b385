"""The walk over a model: shape computations vanish, functions expand, problems are collected."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import (
    BOOL,
    INT64,
    integers,
    model,
    node,
    outputs_of,
    tensor,
)
from tunefarm.compiler.errors import (
    ImportModelError,
    LimitError,
    ShapeError,
    UnsupportedOperatorError,
)
from tunefarm.compiler.frontend.converter import converted_operators, converter, covered_versions
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.limits import Limits


def test_shape_computation_leaves_one_reshape() -> None:
    """x.view(x.size(0), -1), as exporters write it."""
    proto = model(
        "shape = Shape x; batch = Gather shape zero axis=0; "
        "batches = Unsqueeze batch axes; wanted = Concat batches minus_one axis=0; "
        "Reshape x wanted",
        [tensor("x", [2, 3, 5])],
        constants={"zero": np.array(0), "axes": integers(0), "minus_one": integers(-1)},
    )
    graph = import_model_proto(proto)
    verify_graph(graph)
    assert [n.operator for n in graph.nodes] == ["reshape"]
    assert graph.types["y"].shape == (2, 15)
    assert not graph.constants


def test_expand_by_where_idiom() -> None:
    """Exporters replace -1 in a shape by Where(Equal(shape, -1), ConstantOfShape, shape)."""
    proto = model(
        [
            node("ConstantOfShape", "two", "ones", value=onnx.numpy_helper.from_array(integers(1))),
            node("Mul", "ones minus_one", "negative"),
            node("Equal", "wanted negative", "open"),
            node("Where", "open ones wanted", "shape"),
            node("Expand", "x shape"),
        ],
        [tensor("x", [3, 1])],
        constants={"two": integers(2), "minus_one": integers(-1), "wanted": integers(-1, 4)},
    )
    graph = import_model_proto(proto)
    assert [n.operator for n in graph.nodes] == ["expand"]
    assert graph.types["y"].shape == (3, 4)


@pytest.mark.parametrize(
    ("data", "indices", "axis"),
    [((1, 512), (1, 64), 1), ((40, 1), (40, 1), 0), ((3, 5), (2, 4), -1)],
)
def test_elements_of_constants_are_gathered_as_onnx_says(
    data: tuple[int, ...], indices: tuple[int, ...], axis: int
) -> None:
    """BERT's token types are such constants; the reference evaluator refuses them or errs."""
    rng = np.random.default_rng(1)
    table, places = rng.integers(0, 99, data), rng.integers(-data[axis], data[axis], indices)
    within = table[
        tuple(slice(extent) if i != axis % 2 else slice(None) for i, extent in enumerate(indices))
    ]
    nodes = [node("GatherElements", "table places", "found", axis=axis), node("Add", "x found")]
    inputs = [tensor("x", list(indices), INT64)]
    graph = import_model_proto(model(nodes, inputs, constants={"table": table, "places": places}))
    assert [n.operator for n in graph.nodes] == ["add"]
    (found,) = graph.constants.values()
    np.testing.assert_array_equal(found, np.take_along_axis(within, places, axis))


def test_what_the_reference_evaluator_refuses_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ImportModelError("refused")

    monkeypatch.setattr("tunefarm.compiler.frontend.model_importer.evaluate_node", refuse)
    nodes = "b = Mul a a; Add x b"
    proto = model(nodes, [tensor("x", [2])], constants={"a": np.array([2, 3], np.float32)})
    assert [n.operator for n in import_model_proto(proto).nodes] == ["mul", "add"]


def test_long_shape_chain_is_folded() -> None:
    count = 2000
    nodes = [node("Add", f"s{i} one", f"s{i + 1}") for i in range(count)]
    nodes.append(node("Reshape", f"x s{count}"))
    constants = {"s0": integers(4 - count), "one": integers(1)}
    graph = import_model_proto(model(nodes, [tensor("x", [2, 2])], constants=constants))
    assert [n.operator for n in graph.nodes] == ["reshape"]
    assert graph.types["y"].shape == (4,)


def test_every_unsupported_operator_is_listed_at_once() -> None:
    proto = model(
        "a = ImageDecoder x name=first; b = Invented a name=second; "
        "c = Invented x name=third; d = Relu b name=fine; "
        "e = LpNormalization x name=fourth p=3; Other d name=fifth domain=com.example",
        [tensor("x", [1, 2, 4])],
    )
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_model_proto(proto)
    message = str(caught.value)
    assert "4 operators" in message
    parts = (
        "ImageDecoder (node 'first')",
        "Invented (nodes 'second', 'third')",
        "LpNormalization (node 'fourth'): p=3",
        "com.example.Other (node 'fifth')",
    )
    for part in parts:
        assert part in message
    assert "fine" not in message


def test_unsupported_operators_are_told_before_other_errors() -> None:
    proto = model(
        "a = Add x w; Invented a name=one",
        [tensor("x", [2])],
        constants={"w": np.ones(3, np.float32)},
    )
    with pytest.raises(UnsupportedOperatorError, match="Invented"):
        import_model_proto(proto)


def test_operator_version_that_is_not_covered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunefarm.compiler.frontend import converter as registry

    key = ("", "Conv")
    table = {version: f for version, f in registry._CONVERTERS[key].items() if version != 22}
    monkeypatch.setitem(registry._CONVERTERS, key, table)
    proto = model(
        "Conv x w name=conv",
        [tensor("x", [1, 1, 4])],
        constants={"w": np.ones((1, 1, 2), np.float32)},
        opset=22,
    )
    with pytest.raises(UnsupportedOperatorError, match=r"Conv .*version 22.*covered: 1, 11"):
        import_model_proto(proto)


def test_one_version_has_one_converter() -> None:
    with pytest.raises(ValueError, match="two converters"):
        converter("Relu", 14)(lambda node, graph: node.input(0))


ADDED = {("LayerNormalization", 1), ("SimplifiedLayerNormalization", 1)}


EARLY = {
    (operator, 1)
    for operator in (
        "Affine",
        "Crop",
        "ImageScaler",
        "ParametricSoftplus",
        "Scale",
        "ScaledTanh",
        "ThresholdedRelu",
        "MeanVarianceNormalization",
    )
}


def test_converters_name_versions_that_exist() -> None:
    own = [found for found in converted_operators() if found[0] != "com.microsoft"]
    for domain, operator in own:  # onnx knows nothing of onnxruntime's
        for version in covered_versions(domain, operator):
            if (operator, version) in ADDED:  # by onnxruntime
                continue
            if (operator, version) in EARLY:  # onnx has forgotten them
                continue
            schema = onnx.defs.get_schema(operator, version, domain)
            assert schema.since_version == version, operator


def test_schema_function_is_expanded() -> None:
    """SoftmaxCrossEntropyLoss has no converter, and its definition is a function."""
    assert ("", "SoftmaxCrossEntropyLoss") not in converted_operators()
    proto = model(
        "SoftmaxCrossEntropyLoss x t reduction=mean",
        [tensor("x", [3, 5]), tensor("t", [3], INT64)],
    )
    graph = import_model_proto(proto)
    verify_graph(graph)
    x = np.random.default_rng(0).standard_normal((3, 5), np.float32)
    t = integers(1, 0, 4)
    log_p = x - np.log(np.exp(x).sum(1, keepdims=True))
    expected = -log_p[np.arange(3), t].mean()
    np.testing.assert_allclose(outputs_of(graph, {"x": x, "t": t})[0], expected, rtol=1e-5)


def scaled(name: str = "Scaled") -> onnx.FunctionProto:
    """f(a, b; k) = a * k + b, where b may be absent."""
    constant = node("Constant", "", "factor")
    reference = constant.attribute.add(name="value_float", ref_attr_name="k")
    reference.type = onnx.AttributeProto.FLOAT
    return helper.make_function(
        "local",
        name,
        ["a", "b"],
        ["r"],
        [constant, node("Mul", "a factor", "m"), node("Add", "m b", "r")],
        [helper.make_opsetid("", 18)],
        ["k"],
    )


def test_local_function_is_expanded_with_its_attributes() -> None:
    proto = model(
        "m = Scaled x w domain=local k=3.0; Scaled m w domain=local k=-1.0",
        [tensor("x", [2])],
        constants={"w": np.array([1, 2], np.float32)},
        functions=[scaled()],
        domains={"local": 1},
    )
    graph = import_model_proto(proto)
    verify_graph(graph)
    x = np.array([5, 7], np.float32)
    np.testing.assert_allclose(outputs_of(graph, {"x": x})[0], [-15, -21])


def test_function_that_calls_itself_is_refused() -> None:
    endless = helper.make_function(
        "local", "Endless", ["a"], ["r"], [node("Endless", "a", "r", domain="local")],
        [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
    )  # fmt: skip
    proto = model(
        "Endless x domain=local",
        [tensor("x", [2])],
        functions=[endless],
        domains={"local": 1},
    )
    with pytest.raises(ImportModelError, match="calls itself"):
        import_model_proto(proto)


def test_functions_that_grow_exponentially_are_refused() -> None:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    functions = [
        helper.make_function("local", "F0", ["a"], ["r"], [node("Relu", "a", "r")], opsets)
    ]
    for level in range(1, 30):
        inner = f"F{level - 1}"
        body = [node(inner, "a", "m", domain="local"), node(inner, "m", "r", domain="local")]
        functions.append(helper.make_function("local", f"F{level}", ["a"], ["r"], body, opsets))
    proto = model(
        "F29 x domain=local",
        [tensor("x", [2])],
        functions=functions,
        domains={"local": 1},
    )
    with pytest.raises(LimitError, match="more than 2000 nodes"):
        import_model_proto(proto, limits=Limits(nodes=2000))


def branching(condition_input: bool) -> onnx.ModelProto:
    def branch(operator: str) -> onnx.GraphProto:
        return helper.make_graph([node(operator, "x", "r")], operator, [], [tensor("r", [2])])

    inputs = [tensor("x", [2])] + ([tensor("c", [], BOOL)] if condition_input else [])
    return model(
        [node("If", "c", name="choice", then_branch=branch("Relu"), else_branch=branch("Neg"))],
        inputs,
        constants={} if condition_input else {"c": np.array(False)},
    )


def test_branch_of_a_constant_condition_is_inlined() -> None:
    graph = import_model_proto(branching(condition_input=False))
    assert [n.operator for n in graph.nodes] == ["neg"]
    assert graph.nodes[0].output == "y"


def test_branches_of_a_computed_condition_are_chosen_from() -> None:
    graph = import_model_proto(branching(condition_input=True))
    assert [n.operator for n in graph.nodes] == ["relu", "neg", "choose"]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node("Relu", "z")], "'z' is used before it is computed"),
        ([node("Relu", "x"), node("Neg", "x")], "'y' is computed twice"),
        ([node("Relu", "x", alpha=1.0)], "no attribute 'alpha'"),
        ([node("Relu", "x x")], "has 2 inputs and takes 1"),
        ([node("Add", "x _")], "input 'B' is missing"),
        ([node("Not", "x")], "element type f32, which the operator does not take"),
        ([node("Add", "x i")], "must be equal"),
        ([node("Transpose", "x", perm=[0, 0])], "no permutation"),
        ([node("Concat", "x x", axis=5)], "axis 5 is outside"),
        ([node("Concat", "x x")], "needs the attribute 'axis'"),
        ([node("Softmax", "x", axis="1")], "has the type STRING instead of INT"),
    ],
)
def test_malformed_nodes(nodes: list[onnx.NodeProto], reason: str) -> None:
    proto = model(nodes, [tensor("x", [2, 3]), tensor("i", [2, 3], INT64)])
    with pytest.raises(ImportModelError, match=reason):
        import_model_proto(proto)


def test_giant_constants_are_not_computed() -> None:
    proto = model(
        "a = ConstantOfShape shape; Add a x",
        [tensor("x", [1])],
        constants={"shape": integers(2**20, 2**20)},
    )
    with pytest.raises((ShapeError, LimitError), match="would take"):
        import_model_proto(proto)


def test_outputs_keep_their_names() -> None:
    """An output may be an input, a constant, or a value that has another name already."""
    proto = model(
        "copy = Identity x; r = Relu x; r2 = Identity r; c = Constant value_floats=[1.0,2.0]",
        [tensor("x", [2])],
        ["x", "copy", "r", "r2", "c"],
    )
    graph = import_model_proto(proto)
    verify_graph(graph)
    assert graph.outputs == ("x", "copy", "r", "r2", "c")
    x = np.array([-1, 3], np.float32)
    for output, expected in zip(
        outputs_of(graph, {"x": x}), (x, x, [0, 3], [0, 3], [1, 2]), strict=True
    ):
        np.testing.assert_array_equal(output, expected)


def test_nodes_remember_their_source() -> None:
    proto = model(
        "g = Gelu x name=activation; ReduceL2 g",
        [tensor("x", [2])],
        opset=20,
    )
    assert {n.source for n in import_model_proto(proto).nodes} == {"activation", "y"}
