from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators
from tunefarm.compiler.graph import simplify
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import structurally_equal
from tunefarm.compiler.types.dtypes import DType


def simplified(graph: Graph) -> Graph:
    result = simplify.run(graph)
    assert_same_meaning(graph, result, tolerance=1e-6)
    assert structurally_equal(simplify.run(result), result)
    return result


def zeros(maker: GraphMaker, *shape: int) -> str:
    return maker.constant(np.zeros(shape, np.float32))


def ones(maker: GraphMaker, *shape: int) -> str:
    return maker.constant(np.ones(shape, np.float32))


NO_OPERATION: dict[str, Callable[[GraphMaker, str], str]] = {
    "x + 0": lambda m, x: m.node("add", x, zeros(m, 4)),
    "0 + x": lambda m, x: m.node("add", zeros(m, 1), x),
    "x - 0": lambda m, x: m.node("sub", x, zeros(m)),
    "x * 1": lambda m, x: m.node("mul", x, ones(m, 3, 1)),
    "x / 1": lambda m, x: m.node("div", x, ones(m)),
    "x ^ 1": lambda m, x: m.node("pow", x, ones(m)),
    "identity": lambda m, x: m.node("identity", x),
    "clip without bounds": lambda m, x: m.node("clip", x, min=None, max=None),
    "cast to the same type": lambda m, x: m.node("cast", x, to="f32"),
    "reshape to the same shape": lambda m, x: m.node("reshape", x, shape=(3, 4)),
    "expand to the same shape": lambda m, x: m.node("expand", x, shape=(3, 4)),
    "tile once": lambda m, x: m.node("tile", x, repeats=(1, 1)),
    "pad by nothing": lambda m, x: m.node("pad", x, pads=(0, 0, 0, 0)),
    "concat of one": lambda m, x: m.node("concat", x, axis=0),
    "whole slice": lambda m, x: m.node("slice", x, starts=(0, 0), steps=(1, 1), shape=(3, 4)),
    "same order": lambda m, x: m.node("transpose", x, perm=(0, 1)),
    "there and back": lambda m, x: m.node(
        "transpose", m.node("transpose", x, perm=(1, 0)), perm=(1, 0)
    ),
    "reshape there and back": lambda m, x: m.node(
        "reshape", m.node("reshape", x, shape=(12,)), shape=(3, 4)
    ),
    "sum over no axis": lambda m, x: m.node("reduce_sum", x, axes=()),
}


@pytest.mark.parametrize("build", NO_OPERATION.values(), ids=NO_OPERATION.keys())
def test_no_operation_disappears(build: Callable[[GraphMaker, str], str]) -> None:
    maker = GraphMaker()
    x = maker.node("exp", maker.input(3, 4))
    graph = maker.graph(maker.node("relu", build(maker, x)))
    assert operators(simplified(graph)) == ["exp", "relu"]


REAL_OPERATION: dict[str, Callable[[GraphMaker, str], str]] = {
    "x + 0 that widens": lambda m, x: m.node("add", x, zeros(m, 2, 3, 4)),
    "0 - x": lambda m, x: m.node("sub", zeros(m), x),
    "1 / x": lambda m, x: m.node("div", ones(m), x),
    "x + 1": lambda m, x: m.node("add", x, ones(m)),
    "reversing slice": lambda m, x: m.node("slice", x, starts=(0, 3), steps=(1, -1), shape=(3, 4)),
    "cast": lambda m, x: m.node("cast", x, to="f64"),
    "transpose": lambda m, x: m.node("transpose", x, perm=(1, 0)),
    "x / 3": lambda m, x: m.node("div", x, m.scalar(3)),
}


@pytest.mark.parametrize("build", REAL_OPERATION.values(), ids=REAL_OPERATION.keys())
def test_real_operation_stays(build: Callable[[GraphMaker, str], str]) -> None:
    maker = GraphMaker()
    graph = maker.graph(build(maker, maker.input(3, 4)))
    assert operators(simplified(graph)) == operators(graph)


def test_transposes_and_reshapes_are_composed() -> None:
    maker = GraphMaker()
    x = maker.input(2, 3, 4)
    turned = maker.node("transpose", maker.node("transpose", x, perm=(1, 2, 0)), perm=(0, 2, 1))
    flat = maker.node("reshape", maker.node("reshape", turned, shape=(6, 4)), shape=(24,))
    result = simplified(maker.graph(flat))
    assert operators(result) == ["transpose", "reshape"]
    assert result.nodes[0].attributes["perm"] == (1, 0, 2)


def test_transpose_of_unit_axes_is_a_reshape() -> None:
    maker = GraphMaker()
    graph = maker.graph(maker.node("transpose", maker.input(1, 3, 1, 4), perm=(1, 0, 3, 2)))
    assert operators(simplified(graph)) == ["reshape"]


def test_reduction_over_unit_axes_is_a_reshape() -> None:
    maker = GraphMaker()
    graph = maker.graph(maker.node("reduce_mean", maker.input(2, 3, 1), axes=(2,), keepdims=False))
    assert operators(simplified(graph)) == ["reshape"]


def test_division_by_powers_of_two_is_a_multiplication() -> None:
    maker = GraphMaker()
    divisor = maker.constant(np.array([8, 0.25, -2], np.float32))
    graph = maker.graph(maker.node("div", maker.input(4, 3), divisor))
    result = simplified(graph)
    assert operators(result) == ["mul"]


@pytest.mark.parametrize("divisor", [0.0, math.inf, 2.0**-127, 3.0])
def test_division_without_exact_reciprocal_stays(divisor: float) -> None:
    maker = GraphMaker()
    graph = maker.graph(maker.node("div", maker.input(3), maker.scalar(divisor)))
    assert operators(simplify.run(graph)) == ["div"]


def test_integer_division_stays() -> None:
    maker = GraphMaker()
    x = maker.input(3, dtype=DType.I32)
    graph = maker.graph(maker.node("div", x, maker.constant(np.array(2, np.int32))))
    assert operators(simplified(graph)) == ["div"]


def test_expand_before_a_pointwise_operator_is_skipped() -> None:
    maker = GraphMaker()
    x, y = maker.input(3, 4), maker.input(1, 4)
    graph = maker.graph(maker.node("add", x, maker.node("expand", y, shape=(3, 4))))
    assert [n for n in operators(simplified(graph)) if n == "add"] == ["add"]
    assert simplified(graph).nodes[-1].inputs == (x, y)


def test_expand_that_makes_the_shape_stays() -> None:
    maker = GraphMaker()
    y = maker.node("expand", maker.input(1, 4), shape=(3, 4))
    graph = maker.graph(maker.node("add", y, maker.scalar(1)))
    assert operators(simplified(graph)) == ["expand", "add"]


def test_outputs_that_are_inputs_or_each_other_keep_their_names() -> None:
    maker = GraphMaker()
    x = maker.input(3)
    y = maker.node("exp", x)
    same, again = maker.node("identity", y), maker.node("identity", y)
    whole = maker.node("reshape", x, shape=(3,))
    graph = maker.graph(same, again, whole, y)
    result = simplified(graph)
    assert operators(result).count("exp") == 1
    assert operators(result).count("identity") == 3


# --- padding ------------------------------------------------------------------------------------


def padded(maker: GraphMaker, value: float = 0.0, mode: str = "constant") -> str:
    x = maker.input(1, 2, 6, 6)
    return maker.node("pad", x, pads=(0, 0, 1, 0, 0, 0, 2, 1), value=value, mode=mode)


def pool(maker: GraphMaker, kind: str, x: str, **attributes: bool) -> str:
    return maker.node(kind, x, kernel=(3, 3), strides=(2, 2), shape=(4, 3), **attributes)


def test_zero_padding_joins_the_convolution() -> None:
    maker = GraphMaker()
    weight = maker.weights(3, 2, 3, 3)
    graph = maker.graph(maker.node("conv", padded(maker), weight, pads=(1, 1, 1, 1)))
    result = simplified(graph)
    assert [n.operator for n in result.nodes if n.output in result.outputs] == ["conv"]
    assert result.nodes[-1].attributes["pads"] == (2, 1, 3, 2)
    assert result.nodes[-1].inputs[0] == "x0"


def test_lowest_padding_joins_max_pool_and_zero_padding_average_pool() -> None:
    maker = GraphMaker()
    graph = maker.graph(
        pool(maker, "max_pool", padded(maker, -math.inf)),
        pool(maker, "average_pool", padded(maker)),
        pool(maker, "average_pool", padded(maker), count_include_pad=True),
    )
    result = simplified(graph)
    pools = [node for node in result.nodes if node.operator.endswith("pool")]
    assert [node.attributes["pads"] for node in pools] == [(1, 0, 2, 1)] * 3


def test_padding_with_another_meaning_stays() -> None:
    maker = GraphMaker()
    weight = maker.weights(3, 2, 3, 3)
    channels = maker.node("pad", maker.input(1, 1, 6, 6), pads=(0, 1, 0, 0, 0, 0, 0, 0))
    cut = maker.node("pad", maker.input(1, 2, 6, 6), pads=(0, 0, -1, 0, 0, 0, 1, 1))
    own = maker.node(
        "average_pool",
        padded(maker),
        kernel=(3, 3),
        strides=(2, 2),
        pads=(1, 1, 1, 1),
        shape=(5, 4),
    )
    graph = maker.graph(
        maker.node("conv", padded(maker, 1.0), weight),
        maker.node("conv", padded(maker, mode="edge"), weight),
        maker.node("conv", channels, weight),
        maker.node("conv", cut, weight),
        pool(maker, "max_pool", padded(maker, 0.0)),
        own,
    )
    assert operators(simplified(graph)).count("pad") == 6


# --- layouts ------------------------------------------------------------------------------------


def test_inverse_layout_changes_cancel() -> None:
    maker = GraphMaker()
    x = maker.node("exp", maker.input(1, 8, 3, 3))
    blocked = maker.node("to_blocked", x, block=4)
    plain = maker.node("from_blocked", blocked, channels=8)
    again = maker.node("to_blocked", plain, block=4)
    result = simplified(maker.graph(maker.node("relu", plain), maker.node("relu", again)))
    assert operators(result).count("from_blocked") == 0
    assert operators(result).count("to_blocked") == 1


def test_padding_lanes_are_not_taken_for_channels() -> None:
    maker = GraphMaker()
    x = maker.input(1, 2, 3, 3, 4)
    plain = maker.node("from_blocked", x, channels=7)
    graph = maker.graph(maker.node("to_blocked", plain, block=4))
    assert operators(simplified(graph)) == ["from_blocked", "to_blocked"]


@pytest.mark.parametrize("exponent", [2.0, 3.0])
def test_a_square_is_a_product(exponent: float) -> None:
    maker = GraphMaker()
    x = maker.input(3, 5)
    graph = maker.graph(maker.node("pow", x, maker.scalar(exponent)))
    after = simplify.run(graph)
    assert operators(after) == ["mul" if exponent == 2 else "pow"]
    assert_same_meaning(graph, after)


@pytest.mark.parametrize(("exponent", "products"), [(2, 1), (3, 2)])
def test_small_powers_of_integers_are_products(exponent: int, products: int) -> None:
    maker = GraphMaker()
    x = maker.input(3, 5, dtype=DType.I64)
    graph = maker.graph(maker.node("pow", x, maker.constant(np.array(exponent, np.int64))))
    after = simplify.run(graph)
    assert operators(after) == ["mul"] * products
    assert_same_meaning(graph, after)


def test_a_square_that_widens_the_shape_stays_a_power() -> None:
    maker = GraphMaker()
    x = maker.input(1, 5)
    graph = maker.graph(maker.node("pow", x, maker.constant(np.full((3, 1), 2, np.float32))))
    assert simplify.run(graph) == graph


@pytest.mark.parametrize("rows", [2, 16])
def test_few_rows_of_a_chosen_table_are_taken_before_the_choice(rows: int) -> None:
    maker = GraphMaker()
    above = maker.node("greater", maker.input(), maker.scalar(0.0))
    table = maker.node("choose", above, maker.weights(8, 4), maker.weights(8, 4))
    places = maker.constant(np.arange(rows, dtype=np.int64) % 8)
    after = simplified(maker.graph(maker.node("gather", table, places, axis=0)))
    few = ["greater", "gather", "gather", "choose"]
    assert operators(after) == (few if rows < 8 else ["greater", "choose", "gather"])
