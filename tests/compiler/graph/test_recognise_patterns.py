"""Patterns that models spell out become one operator; their neighbours stay what they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators
from tunefarm.compiler.graph import recognise_patterns
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute

Spelling = Callable[[GraphMaker, str], str]
LAST: dict[str, Attribute] = {"axes": (2,), "keepdims": True}


def spelled(spelling: Spelling, *shape: int, dtype: DType = DType.F32) -> Graph:
    maker = GraphMaker()
    return maker.graph(spelling(maker, maker.input(*(shape or (3, 5, 7)), dtype=dtype)))


def assert_becomes(graph: Graph, *wanted: str) -> Graph:
    after = recognise_patterns.run(graph)
    assert tuple(operators(after)) == wanted
    assert_same_meaning(graph, after)
    assert recognise_patterns.run(after) == after
    return after


# --- normalisations -----------------------------------------------------------------------------


def variance(
    maker: GraphMaker, x: str, power: bool = True, reduction: Mapping[str, Attribute] = LAST
) -> str:
    """The mean square plus epsilon."""
    square = maker.node("pow", x, maker.scalar(2.0)) if power else maker.node("mul", x, x)
    mean = maker.node("reduce_mean", square, **reduction)
    return maker.node("add", mean, maker.scalar(1e-3))


def divided(maker: GraphMaker, x: str, square: str) -> str:
    return maker.node("div", x, maker.node("sqrt", square))


def by_reciprocal(maker: GraphMaker, x: str, square: str) -> str:
    return maker.node("mul", maker.node("reciprocal", maker.node("sqrt", square)), x)


def by_quotient(maker: GraphMaker, x: str, square: str) -> str:
    return maker.node("mul", x, maker.node("div", maker.scalar(1.0), maker.node("sqrt", square)))


def by_power(maker: GraphMaker, x: str, square: str) -> str:
    return maker.node("mul", x, maker.node("pow", square, maker.scalar(-0.5)))


DIVISIONS = (divided, by_reciprocal, by_quotient, by_power)


@pytest.mark.parametrize("divide", DIVISIONS)
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("scaled", ["left", "right", "no"])
def test_rms_norm(divide: Callable[..., str], power: bool, scaled: str) -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        normal = divide(maker, x, variance(maker, x, power=power))
        if scaled == "no":
            return normal
        operands = [normal, maker.weights(7)]
        return maker.node("mul", *(operands if scaled == "left" else operands[::-1]))

    after = assert_becomes(spelled(spelling), "rms_norm")
    assert after.nodes[0].attributes["axis"] == 2


def test_rms_norm_whose_reciprocal_is_scaled() -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        inverse = maker.node("reciprocal", maker.node("sqrt", variance(maker, x)))
        return maker.node("mul", x, maker.node("mul", maker.weights(7), inverse))

    assert_becomes(spelled(spelling), "rms_norm")


def deviation(maker: GraphMaker, x: str, reduction: Mapping[str, Attribute] = LAST) -> str:
    mean = maker.node("reduce_mean", x, **reduction)
    return maker.node("sub", x, mean)


@pytest.mark.parametrize("divide", DIVISIONS)
@pytest.mark.parametrize("parameters", ["scale and bias", "scale", "none"])
def test_layer_norm(divide: Callable[..., str], parameters: str) -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        centered = deviation(maker, x)
        result = divide(maker, centered, variance(maker, centered))
        if parameters != "none":
            result = maker.node("mul", result, maker.weights(7))
        if parameters == "scale and bias":
            result = maker.node("add", maker.weights(7), result)
        return result

    assert_becomes(spelled(spelling), "layer_norm")


def folded(maker: GraphMaker, x: str, center: str) -> str:
    """x s + (bias - mean s), as TensorFlow has it."""
    mean = maker.node("reduce_mean", x, **LAST)
    centered = maker.node("sub", x, center or mean)
    inverse = maker.node("reciprocal", maker.node("sqrt", variance(maker, centered)))
    factor = maker.node("mul", inverse, maker.weights(7))
    shift = maker.node("sub", maker.weights(7), maker.node("mul", mean, factor))
    return maker.node("add", maker.node("mul", x, factor), shift)


def test_layer_norm_whose_scale_is_folded() -> None:
    assert_becomes(spelled(lambda m, x: folded(m, x, "")), "layer_norm")


def test_a_variance_round_something_else_than_the_mean_is_no_layer_norm() -> None:
    graph = spelled(lambda m, x: folded(m, x, m.weights(3, 5, 1)))
    assert recognise_patterns.run(graph) == graph


def test_layer_norm_of_several_axes() -> None:
    axes: dict[str, Attribute] = {"axes": (1, 2), "keepdims": True}

    def spelling(maker: GraphMaker, x: str) -> str:
        centered = deviation(maker, x, axes)
        return divided(maker, centered, variance(maker, centered, reduction=axes))

    after = assert_becomes(spelled(spelling), "layer_norm")
    assert after.nodes[0].attributes["axis"] == 1


def test_a_norm_over_other_axes_stays() -> None:
    for axes in ((1,), (0, 2)):
        maker = GraphMaker()
        x = maker.input(3, 5, 7)
        square = variance(maker, x, reduction={"axes": axes, "keepdims": True})
        graph = maker.graph(divided(maker, x, square))
        assert recognise_patterns.run(graph) == graph


def test_a_mean_over_other_axes_than_the_variance_is_no_layer_norm() -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        centered = deviation(maker, x, {"axes": (1,), "keepdims": True})
        return divided(maker, centered, variance(maker, centered))

    assert_becomes(spelled(spelling), "reduce_mean", "sub", "rms_norm")


def test_the_variance_of_something_else_stays() -> None:
    graph = spelled(lambda m, x: divided(m, x, variance(m, m.node("relu", x))))
    assert recognise_patterns.run(graph) == graph


def test_an_epsilon_that_varies_stays() -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        mean = maker.node("reduce_mean", maker.node("mul", x, x), **LAST)
        return divided(maker, x, maker.node("add", mean, maker.weights(3, 5, 1)))

    graph = spelled(spelling)
    assert recognise_patterns.run(graph) == graph


def test_what_others_need_is_not_taken_in() -> None:
    maker = GraphMaker()
    x = maker.input(3, 5, 7)
    square = variance(maker, x)
    graph = maker.graph(divided(maker, x, square), maker.node("neg", square))
    assert recognise_patterns.run(graph) == graph
    maker = GraphMaker()
    x = maker.input(3, 5, 7)
    square = variance(maker, x)
    graph = maker.graph(divided(maker, x, square), square)
    assert recognise_patterns.run(graph) == graph


def test_the_deviation_that_is_read_elsewhere_is_computed_once() -> None:
    maker = GraphMaker()
    x = maker.input(3, 5, 7)
    centered = deviation(maker, x)
    normal = divided(maker, centered, variance(maker, centered))
    graph = maker.graph(normal, centered)
    assert recognise_patterns.run(graph) == graph


def test_a_residual_stays_beside_the_norm() -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        total = maker.node("add", x, maker.input(3, 5, 7))
        normal = maker.node("mul", divided(maker, total, variance(maker, total)), maker.weights(7))
        return maker.node("add", normal, total)

    assert_becomes(spelled(spelling), "add", "rms_norm", "add")


# --- group norm ---------------------------------------------------------------------------------


def group_norm(maker: GraphMaker, x: str, scale: str, bias: str, rows: tuple[int, ...]) -> str:
    shape = maker.types[x].shape
    grouped = maker.node("reshape", x, shape=rows)
    own = (maker.weights(rows[1], 1), maker.weights(rows[1], 1))
    normal = maker.node("layer_norm", grouped, *own, axis=2)
    back = maker.node("reshape", normal, shape=shape)
    return maker.node("add", maker.node("mul", back, scale), bias)


def test_group_norm_has_one_scale_and_one_bias_by_channel() -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        return group_norm(maker, x, maker.weights(6, 1, 1), maker.weights(6, 1, 1), (2, 3, 40))

    after = assert_becomes(spelled(spelling, 2, 6, 4, 5), "reshape", "layer_norm", "reshape")
    assert after.types[after.nodes[0].output].shape == (2, 3, 2, 20)


def test_group_norm_with_parameters_by_position_stays() -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        return group_norm(maker, x, maker.weights(4, 5), maker.weights(6, 1, 1), (2, 3, 40))

    graph = spelled(spelling, 2, 6, 4, 5)
    assert recognise_patterns.run(graph) == graph


def test_rows_that_are_no_groups_of_channels_stay() -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        return group_norm(maker, x, maker.weights(6, 1, 1), maker.weights(6, 1, 1), (1, 6, 40))

    graph = spelled(spelling, 2, 6, 4, 5)
    assert recognise_patterns.run(graph) == graph


# --- softmax ------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("with_maximum", [False, True])
@pytest.mark.parametrize("with_reciprocal", [False, True])
@pytest.mark.parametrize("logarithm", [False, True])
def test_softmax(axis: int, with_maximum: bool, with_reciprocal: bool, logarithm: bool) -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        kept: dict[str, Attribute] = {"axes": (axis,), "keepdims": True}
        if with_maximum:
            x = maker.node("sub", x, maker.node("reduce_max", x, **kept))
        exponential = maker.node("exp", x)
        total = maker.node("reduce_sum", exponential, **kept)
        if with_reciprocal:
            result = maker.node("mul", maker.node("reciprocal", total), exponential)
        else:
            result = maker.node("div", exponential, total)
        return maker.node("log", result) if logarithm else result

    after = assert_becomes(spelled(spelling), "log_softmax" if logarithm else "softmax")
    assert after.nodes[0].attributes["axis"] == axis


def test_the_logarithm_of_a_softmax() -> None:
    graph = spelled(lambda m, x: m.node("log", m.node("softmax", x, axis=1)))
    assert_becomes(graph, "log_softmax")


def test_a_maximum_along_another_axis_stays_before_the_softmax() -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        largest = maker.node("reduce_max", x, axes=(1,), keepdims=True)
        exponential = maker.node("exp", maker.node("sub", x, largest))
        return maker.node("div", exponential, maker.node("reduce_sum", exponential, **LAST))

    assert_becomes(spelled(spelling), "reduce_max", "sub", "softmax")


def test_exponentials_over_the_sum_of_others_stay() -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        total = maker.node("reduce_sum", maker.node("exp", maker.node("neg", x)), **LAST)
        return maker.node("div", maker.node("exp", x), total)

    graph = spelled(spelling)
    assert recognise_patterns.run(graph) == graph


# --- activations --------------------------------------------------------------------------------


def gelu(maker: GraphMaker, x: str, gate: str, order: int) -> str:
    """x / 2 times the gate, multiplied in some order."""
    half = maker.scalar(0.5)
    if order == 0:
        return maker.node("mul", maker.node("mul", x, gate), half)
    if order == 1:
        return maker.node("mul", maker.node("mul", half, x), gate)
    if order == 2:
        return maker.node("mul", x, maker.node("mul", gate, half))
    return maker.node("div", maker.node("mul", gate, x), maker.scalar(2.0))


def erf_gate(maker: GraphMaker, x: str, divides: bool = True) -> str:
    operator, number = ("div", math.sqrt(2)) if divides else ("mul", math.sqrt(0.5))
    inner = maker.node("erf", maker.node(operator, x, maker.scalar(number)))
    return maker.node("add", inner, maker.scalar(1.0))


def tanh_gate(maker: GraphMaker, x: str, factored: bool, cubic: float = 0.044715) -> str:
    if factored:  # x (a + b x^2)
        squared = maker.node("mul", maker.node("mul", x, x), maker.scalar(cubic))
        inner = maker.node("mul", x, maker.node("add", maker.scalar(1.0), squared))
    else:
        cube = maker.node("mul", maker.node("pow", x, maker.scalar(3.0)), maker.scalar(cubic))
        inner = maker.node("add", x, cube)
    scaled = maker.node("mul", inner, maker.scalar(math.sqrt(2 / math.pi)))
    return maker.node("add", maker.scalar(1.0), maker.node("tanh", scaled))


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("variant", [False, True])
@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu(order: int, variant: bool, form: str) -> None:
    gate = erf_gate if form == "none" else tanh_gate
    graph = spelled(lambda m, x: gelu(m, x, gate(m, x, variant), order))
    after = assert_becomes(graph, "gelu")
    assert after.nodes[0].attributes["approximate"] == form


def test_other_numbers_are_no_gelu() -> None:
    other_cubic = spelled(lambda m, x: gelu(m, x, tanh_gate(m, x, False, 0.05), 0))
    assert recognise_patterns.run(other_cubic) == other_cubic
    doubled = spelled(lambda m, x: m.node("mul", x, erf_gate(m, x)))
    assert recognise_patterns.run(doubled) == doubled


def test_the_gate_of_something_else_is_no_gelu() -> None:
    graph = spelled(lambda m, x: gelu(m, x, erf_gate(m, m.node("neg", x)), 0))
    assert recognise_patterns.run(graph) == graph


def test_gelu_that_is_multiplied_on() -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        activated = gelu(maker, x, erf_gate(maker, x), 0)
        return maker.node("mul", maker.node("mul", activated, maker.scalar(3.0)), maker.input(7))

    assert_becomes(spelled(spelling), "gelu", "mul", "mul")


@pytest.mark.parametrize("alpha", [1.0, 1.702])
def test_swish_and_quick_gelu(alpha: float) -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        inner = x if alpha == 1 else maker.node("mul", x, maker.scalar(alpha))
        return maker.node("mul", maker.node("sigmoid", inner), x)

    after = assert_becomes(spelled(spelling), "swish")
    assert after.nodes[0].attributes["alpha"] == pytest.approx(alpha)


def test_a_gate_of_another_value_is_no_swish() -> None:
    for spelling in (
        lambda m, x: m.node("mul", x, m.node("sigmoid", m.input(3, 5, 7))),
        lambda m, x: m.node("mul", x, m.node("sigmoid", m.node("add", x, m.scalar(1.0)))),
        lambda m, x: m.node("mul", x, m.node("sigmoid", m.node("mul", x, m.weights(7)))),
    ):
        graph = spelled(spelling)
        assert recognise_patterns.run(graph) == graph


@pytest.mark.parametrize("spelling", ["div last", "mul last", "ramp first", "hard_sigmoid"])
def test_hard_swish(spelling: str) -> None:
    def spell(maker: GraphMaker, x: str) -> str:
        if spelling == "hard_sigmoid":
            return maker.node("mul", x, maker.node("hard_sigmoid", x, alpha=1 / 6, beta=0.5))
        ramp = maker.node("clip", maker.node("add", x, maker.scalar(3.0)), min=0.0, max=6.0)
        if spelling == "ramp first":
            return maker.node("mul", maker.node("div", ramp, maker.scalar(6.0)), x)
        product = maker.node("mul", x, ramp)
        if spelling == "div last":
            return maker.node("div", product, maker.scalar(6.0))
        return maker.node("mul", maker.scalar(1 / 6), product)

    assert_becomes(spelled(spell), "hard_swish")


def test_another_ramp_is_no_hard_swish() -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        ramp = maker.node("clip", maker.node("add", x, maker.scalar(3.0)), min=0.0, max=5.0)
        return maker.node("div", maker.node("mul", x, ramp), maker.scalar(6.0))

    graph = spelled(spelling)
    assert recognise_patterns.run(graph) == graph


@pytest.mark.parametrize("with_softplus", [False, True])
def test_mish(with_softplus: bool) -> None:
    def spelling(maker: GraphMaker, x: str) -> str:
        if with_softplus:
            inner = maker.node("softplus", x)
        else:
            inner = maker.node("log", maker.node("add", maker.node("exp", x), maker.scalar(1.0)))
        return maker.node("mul", x, maker.node("tanh", inner))

    assert_becomes(spelled(spelling), "mish")


def test_activations_of_doubles_stay() -> None:
    maker = GraphMaker()
    x = maker.input(3, 5, dtype=DType.F64)
    graph = maker.graph(maker.node("mul", x, maker.node("sigmoid", x)))
    assert recognise_patterns.run(graph) == graph


def test_numbers_that_widen_the_shape_stay() -> None:
    maker = GraphMaker()
    x = maker.input(1, 7)
    scaled = maker.node("mul", x, maker.constant(np.ones((3, 1), np.float32)))
    graph = maker.graph(maker.node("mul", x, maker.node("sigmoid", scaled)))
    assert recognise_patterns.run(graph) == graph
