from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import TensorType


def small() -> Graph:
    maker = GraphMaker()
    x = maker.input(2, 3)
    total = maker.node("add", x, maker.weights(3))
    return maker.graph(maker.node("relu", total))


def test_valid_graph_passes() -> None:
    verify_graph(small())


def test_each_rule_is_checked() -> None:
    good = small()
    add, relu = good.nodes
    writeable = np.zeros(3, np.float32)
    other_type = {**good.types, "c0": TensorType(DType.F64, (3,))}
    strided = np.zeros((3, 2), np.float32).T
    strided.flags.writeable = False
    cases = {
        "used before it is defined": replace(good, nodes=(relu, add)),
        "defined twice": replace(good, nodes=(add, add, relu)),
        "has no output": replace(good, outputs=()),
        "output nowhere is not defined": replace(good, outputs=("nowhere",)),
        "its axes are": replace(good, unread={add.output: (((2, 2),),)}),
        "same name": replace(good, inputs=("x0", "x0")),
        "both an input and a constant": replace(good, inputs=("x0", "c0")),
        "input x1 has no type": replace(good, inputs=("x0", "x1")),
        "is writeable": replace(good, constants={"c0": writeable}),
        r"declared f64\[3\]": replace(good, types=other_type),
        "not C-contiguous": replace(
            good,
            constants={**good.constants, "s": strided},
            types={**good.types, "s": TensorType(DType.F32, (2, 3))},
        ),
        "values that do not exist": replace(good, types={**good.types, "ghost": good.types["x0"]}),
        "has no type, in relu_1": replace(
            good, types={k: v for k, v in good.types.items() if k != "relu_1"}
        ),
        "but it is": replace(good, types={**good.types, "relu_1": TensorType(DType.F32, (3, 2))}),
        "no operator 'rely'": replace(good, nodes=(add, replace(relu, operator="rely"))),
        "no attribute": replace(good, nodes=(add, replace(relu, attributes={"slope": 1.0}))),
        "extent below 0": replace(
            good,
            inputs=(*good.inputs, "unread"),
            types={**good.types, "unread": TensorType(DType.F32, (-1, 3))},
        ),
    }
    for reason, graph in cases.items():
        with pytest.raises(VerifyError, match=reason) as caught:
            verify_graph(graph)
        assert caught.value.program.startswith("graph test")


def test_an_absent_optional_input_is_no_value() -> None:
    maker = GraphMaker()
    x = maker.input(1, 2, 5, 5)
    y = maker.node("conv", x, maker.weights(4, 2, 3, 3), "")
    verify_graph(maker.graph(y))
    broken = replace(maker.graph(y), nodes=(Node("conv", (x, "", ""), y),))
    with pytest.raises(VerifyError, match="required but absent"):
        verify_graph(broken)


def test_views_alone_may_be_of_nothing() -> None:
    nothing = TensorType(DType.F32, (0, 3))
    for operator, verdict in (("identity", ""), ("copy", "a tensor has no elements")):
        node = Node(operator, ("x",), "y")
        graph = Graph("g", ("x",), ("y",), (node,), {"x": nothing, "y": nothing}, {})
        if not verdict:
            verify_graph(graph)
            continue
        with pytest.raises(VerifyError, match=verdict):
            verify_graph(graph)
