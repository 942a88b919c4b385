"""The registry finds operators, completes attributes and refuses what it does not know."""

from __future__ import annotations

import pytest

from tunefarm.compiler.errors import ShapeError, UnsupportedOperatorError
from tunefarm.compiler.kernels.kernel import KernelBuilder
from tunefarm.compiler.operators.registry import (
    UNEXPRESSED,
    add_expression,
    all_operators,
    complete_attributes,
    infer_type,
    operator,
    register,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import TensorType


def test_all_operators_are_sorted_and_found_by_name() -> None:
    names = [definition.name for definition in all_operators()]
    assert names == sorted(set(names))
    assert all(operator(name).name == name for name in names)


def test_unknown_operator_names_the_nearest() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"reduce_men.*nearest.*reduce_mean"):
        operator("reduce_men")


def test_exactly_views_joins_functions_and_loops_have_no_expression() -> None:
    without = {item.name for item in all_operators() if item.expression is None}
    assert without == {item.name for item in all_operators() if item.pattern in UNEXPRESSED}
    loops = {"loop_index", "loop_result", "loop_state"}
    assert without == {"function", "identity", "join", "part", "reshape", *loops}


def test_defaults_complete_the_attributes() -> None:
    node = Node("average_pool", ("x",), "y", {"kernel": (2,), "shape": (3,)})
    assert complete_attributes(node) == {
        "kernel": (2,),
        "shape": (3,),
        "strides": (),
        "pads": (),
        "dilations": (),
        "count_include_pad": False,
        "layout": "NCHW",
    }


def test_missing_attribute_is_named() -> None:
    with pytest.raises(ShapeError, match="average_pool needs the attribute 'shape'"):
        complete_attributes(Node("average_pool", ("x",), "y", {"kernel": (2,)}))


def test_a_name_is_registered_once() -> None:
    exp = operator("exp")
    with pytest.raises(ValueError, match="exp is registered twice"):
        register(exp)


def test_a_view_has_no_expression_to_add() -> None:
    type = TensorType(DType.F32, (2,))
    builder = KernelBuilder()
    with pytest.raises(ValueError, match="identity is a view"):
        add_expression(builder, Node("identity", ("x",), "y"), [builder.input(type)], type)


def test_types_must_match_the_node_inputs() -> None:
    with pytest.raises(ValueError, match="0 types for 1 inputs"):
        infer_type(Node("exp", ("x",), "y"), [])
