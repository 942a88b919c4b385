"""What groups of nodes cost in given layouts, and what their conversions do."""

from __future__ import annotations

import math

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.plan.choices.test_layout_problem import conv_relu
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.choices.layout_costs import LayoutCosts
from tunefarm.compiler.plan.decisions.graph_plan import PLAIN
from tunefarm.compiler.plan.fusion.fuse import fuse

LANES = 16


def one_second(kernel: FusedKernel) -> tuple[float, float]:
    """Costs count kernels."""
    return 1.0, 0.0


def two_convolutions() -> tuple[Graph, str, str]:
    maker = GraphMaker()
    first = conv_relu(maker, maker.input(1, 20, 8, 8), 20)
    second = conv_relu(maker, first, 20)
    return maker.graph(second), first, second


def convolutions_of(graph: Graph, first: str, block: int) -> dict[str, int]:
    """All that the convolution before this value gives lies in this block."""
    at = next(n for n, node in enumerate(graph.nodes) if node.output == first)
    return {first: block, graph.nodes[at - 1].output: block}


def test_conversions_of_operands_are_told_apart() -> None:
    graph, first, second = two_convolutions()
    group = fuse(graph)[1]
    costs = LayoutCosts(graph, LANES, one_second)
    alike = convolutions_of(graph, first, 16) | convolutions_of(graph, second, 20)
    assert costs.group(group, alike).conversions == ()
    turned = costs.group(group, alike | convolutions_of(graph, second, PLAIN))
    assert turned.conversions == ((first, PLAIN),)
    assert turned.seconds == costs.group(group, alike).seconds == 1.0


def test_equal_layers_have_the_same_cost_under_their_own_names() -> None:
    graph, first, second = two_convolutions()
    costs = LayoutCosts(graph, LANES, one_second)
    one, two = fuse(graph)
    found = costs.group(one, convolutions_of(graph, first, 16))
    other = costs.group(two, convolutions_of(graph, second, 16))
    assert found.conversions == (("x0", 16),)
    assert other.conversions == ((first, 16),)
    assert found.kernels == other.kernels
    assert len(costs.asked) == 1


def test_layout_that_a_node_cannot_have_costs_infinitely_much() -> None:
    maker = GraphMaker()
    y = maker.node("softmax", maker.input(1, 16, 8, 8), axis=3)
    graph = maker.graph(y)
    assert math.isinf(LayoutCosts(graph, LANES, one_second).group(fuse(graph)[0], {y: 16}).seconds)


def test_conversion_costs_a_kernel_unless_nothing_moves_or_another_does_it() -> None:
    maker = GraphMaker()
    x = conv_relu(maker, maker.input(1, 32, 8, 8), 32)
    scaled = maker.node("mul", x, maker.input(1, 32, 1, 1))
    graph = maker.graph(conv_relu(maker, scaled, 32), x)
    costs = LayoutCosts(graph, LANES, one_second)
    image, pixel = graph.types[scaled], graph.types["x1"]
    assert costs.conversion(image, 16, PLAIN) == costs.conversion(image, PLAIN, 32) == 1.0
    assert costs.conversion(image, 16, 16) == costs.conversion(pixel, PLAIN, 16) == 0.0
    pointwise = next(group for group in fuse(graph) if group.output == scaled)
    blocks = {scaled: 16, x: 16}
    assert costs.conversion(image, 16, PLAIN, (pointwise, blocks)) == 0.0


def test_concat_that_is_written_in_place_is_free() -> None:
    found = {}
    for batch in (1, 2):
        maker = GraphMaker()
        parts = [conv_relu(maker, maker.input(batch, 3, 8, 8), 16) for _ in range(2)]
        joined = maker.node("concat", *parts, axis=1)
        graph = maker.graph(joined)
        group = next(group for group in fuse(graph) if group.output == joined)
        costs = LayoutCosts(graph, LANES, one_second)
        found[batch] = costs.group(group, dict.fromkeys((*parts, joined), 16)).seconds
    assert found == {1: 0.0, 2: 1.0}
