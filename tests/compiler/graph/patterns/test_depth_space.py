"""Rearrangements of channels and pixels become one operator; other ones stay spelled out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators
from tunefarm.compiler.graph import recognise_patterns
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.dtypes import DType

Shape = tuple[int, ...]


def turned(
    data: Shape, split: Shape, perm: Shape, result: Shape, dtype: DType = DType.F32
) -> Graph:
    maker = GraphMaker()
    view = maker.node("reshape", maker.input(*data, dtype=dtype), shape=split)
    moved = maker.node("transpose", view, perm=perm)
    return maker.graph(maker.node("reshape", moved, shape=result))


def assert_becomes(graph: Graph, operator: str, **attributes: object) -> None:
    after = recognise_patterns.run(graph)
    assert operators(after) == [operator]
    assert dict(after.nodes[0].attributes) == attributes
    assert_same_meaning(graph, after)


@pytest.mark.parametrize(
    ("order", "split", "perm"),
    [
        ("yxc", (2, 3, 3, 5, 4, 7), (0, 3, 4, 1, 5, 2)),
        ("cyx", (2, 5, 3, 3, 4, 7), (0, 1, 4, 2, 5, 3)),
    ],
)
@pytest.mark.parametrize("dtype", [DType.F32, DType.U8])
def test_depth_to_space(order: str, split: Shape, perm: Shape, dtype: DType) -> None:
    graph = turned((2, 45, 4, 7), split, perm, (2, 5, 12, 21), dtype)
    assert_becomes(graph, "depth_to_space", block=3, order=order)


@pytest.mark.parametrize(
    ("order", "perm"),
    [("yxc", (0, 3, 5, 1, 2, 4)), ("cyx", (0, 1, 3, 5, 2, 4)), ("xyc", (0, 5, 3, 1, 2, 4))],
)
def test_space_to_depth(order: str, perm: Shape) -> None:
    graph = turned((2, 5, 12, 21), (2, 5, 4, 3, 7, 3), perm, (2, 45, 4, 7))
    assert_becomes(graph, "space_to_depth", block=3, order=order)


def test_axes_of_one_element_may_be_left_out() -> None:
    graph = turned((1, 12, 4, 7), (3, 2, 2, 4, 7), (0, 3, 1, 4, 2), (1, 3, 8, 14))
    assert_becomes(graph, "depth_to_space", block=2, order="cyx")


@pytest.mark.parametrize("positions", [(4,), (4, 3), (2, 3, 4)])
def test_channel_shuffle(positions: Shape) -> None:
    data = (2, 15, *positions)
    perm = (0, 2, 1, *range(3, 3 + len(positions)))
    graph = turned(data, (2, 3, 5, *positions), perm, data)
    assert_becomes(graph, "channel_shuffle", groups=3)


def test_channel_shuffle_of_joined_positions() -> None:
    graph = turned((2, 6, 4, 5), (2, 3, 2, 20), (0, 2, 1, 3), (2, 6, 4, 5))
    assert_becomes(graph, "channel_shuffle", groups=3)


@pytest.mark.parametrize(
    ("data", "split", "perm", "result"),
    [
        # The channel between row and column of the block.
        ((2, 8, 4, 7), (2, 2, 2, 2, 4, 7), (0, 2, 4, 1, 5, 3), (2, 2, 8, 14)),
        # The block's row lies outside of the image's.
        ((2, 8, 4, 7), (2, 2, 2, 2, 4, 7), (0, 3, 1, 4, 5, 2), (2, 2, 8, 14)),
        # Pixels of another shape.
        ((2, 8, 4, 7), (2, 2, 2, 2, 4, 7), (0, 3, 4, 1, 5, 2), (2, 2, 4, 28)),
        # Windows of pixels.
        ((1, 8, 8, 6), (1, 2, 4, 2, 4, 6), (0, 1, 3, 2, 4, 5), (4, 4, 4, 6)),
        # Groups of pixels.
        ((2, 3, 8), (2, 3, 2, 4), (0, 1, 3, 2), (2, 3, 8)),
        # Batch and channels change places.
        ((2, 6, 4), (2, 3, 2, 4), (1, 0, 2, 3), (2, 6, 4)),
        # A matrix that is turned.
        ((6, 4), (6, 4), (1, 0), (6, 4)),
    ],
)
def test_neighbours_stay(data: Shape, split: Shape, perm: Shape, result: Shape) -> None:
    graph = turned(data, split, perm, result)
    assert recognise_patterns.run(graph) == graph


def test_what_others_read_between_the_views_stays() -> None:
    maker = GraphMaker()
    view = maker.node("reshape", maker.input(2, 6, 4), shape=(2, 3, 2, 4))
    moved = maker.node("transpose", view, perm=(0, 2, 1, 3))
    graph = maker.graph(maker.node("reshape", moved, shape=(2, 6, 4)), maker.node("neg", moved))
    assert recognise_patterns.run(graph) == graph


def focus(phases: Sequence[tuple[int, int]], step: int = 2, size: int = 6, axis: int = 1) -> Graph:
    maker = GraphMaker()
    x = maker.input(2, 3, size, size)
    count = size // 2
    parts = [
        maker.node(
            "slice", x, starts=(0, 0, *phase), steps=(1, 1, step, step), shape=(2, 3, count, count)
        )
        for phase in phases
    ]
    return maker.graph(maker.node("concat", *parts, axis=axis))


@pytest.mark.parametrize(
    ("order", "phases"),
    [("xyc", [(0, 0), (1, 0), (0, 1), (1, 1)]), ("yxc", [(0, 0), (0, 1), (1, 0), (1, 1)])],
)
def test_every_second_pixel_of_four_phases(order: str, phases: list[tuple[int, int]]) -> None:
    assert_becomes(focus(phases), "space_to_depth", block=2, order=order)


def test_other_phases_stay() -> None:
    whole = [(0, 0), (1, 0), (0, 1), (1, 1)]
    for graph in (
        focus([(0, 0), (1, 1), (0, 1), (1, 0)]),
        focus([(0, 0), (0, 0), (0, 1), (1, 1)]),
        focus(whole, axis=2),
        focus(whole, size=7),
        focus(whole, step=1),
    ):
        assert recognise_patterns.run(graph) == graph


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("parts", [4, 9])
def test_slices_of_any_rank_that_are_joined_stay(rank: int, parts: int) -> None:
    maker = GraphMaker()
    x = maker.input(*(9,) * rank)
    slices = [
        maker.node(
            "slice",
            x,
            starts=(*(0,) * (rank - 1), number),
            steps=(1,) * rank,
            shape=(*(9,) * (rank - 1), 1),
        )
        for number in range(parts)
    ]
    graph = maker.graph(maker.node("concat", *slices, axis=rank - 1))
    assert recognise_patterns.run(graph) == graph
