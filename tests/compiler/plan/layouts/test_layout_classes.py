"""Which values share a layout, and which blocks they may have."""

from __future__ import annotations

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.plan.choices.test_layout_problem import conv_relu
from tunefarm.compiler.plan.decisions.graph_plan import PLAIN
from tunefarm.compiler.plan.layouts.layout_classes import layout_classes

LANES = 16


def test_what_follows_its_data_is_tied_and_convolutions_are_not() -> None:
    maker = GraphMaker()
    first = conv_relu(maker, maker.input(1, 3, 8, 8), 20)
    wise = conv_relu(maker, first, 20, groups=20)
    pooled = maker.node("max_pool", wise, kernel=(2, 2), strides=(2, 2), shape=(4, 4))
    second = conv_relu(maker, pooled, 20)
    total = maker.node("add", second, pooled)
    one, *others = layout_classes(maker.graph(conv_relu(maker, total, 24)), LANES)
    assert {first, wise, pooled, second, total} <= set(one.values)
    assert [len(each.values) for each in others] == [2]


def test_blocks_are_those_that_might_pay() -> None:
    found = {}
    for channels in (16, 20, 24, 53, 64, 300):
        maker = GraphMaker()
        (only,) = layout_classes(
            maker.graph(conv_relu(maker, maker.input(1, 3, 8, 8), channels)), LANES
        )
        found[channels] = only.blocks
    assert found == {
        16: (PLAIN, 16),
        20: (PLAIN, 16, 8, 20),
        24: (PLAIN, 16, 8, 24),
        53: (PLAIN, 16, 8, 53),
        64: (PLAIN, 16, 64),
        300: (PLAIN, 16),
    }


def test_joined_values_have_blocks_that_divide_all_of_them() -> None:
    maker = GraphMaker()
    x = maker.input(1, 3, 8, 8)
    joined = maker.node("concat", conv_relu(maker, x, 16), conv_relu(maker, x, 32), axis=1)
    (only,) = layout_classes(maker.graph(joined), LANES)
    assert only.blocks == (PLAIN, 16)
    assert joined in only.values


def test_what_runs_plain_or_has_one_pixel_is_in_no_class() -> None:
    maker = GraphMaker()
    x = maker.input(1, 24, 8, 8)
    turned = maker.node("transpose", x, perm=(0, 1, 3, 2))
    gate = conv_relu(maker, maker.node("reduce_mean", x, axes=(2, 3), keepdims=True), 24, size=1)
    classes = layout_classes(maker.graph(maker.node("mul", turned, gate)), LANES)
    values = {value for each in classes for value in each.values}
    assert turned not in values
    assert gate not in values


def test_without_vectors_there_is_nothing_to_choose() -> None:
    maker = GraphMaker()
    graph = maker.graph(conv_relu(maker, maker.input(1, 3, 8, 8), 24))
    assert layout_classes(graph, 1) == ()
