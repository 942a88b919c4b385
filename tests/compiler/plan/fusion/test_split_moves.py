"""Moves that share no kernel are turned with their axes split; others stay."""

from __future__ import annotations

import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.plan.fusion import split_moves
from tunefarm.compiler.types.tensor_type import Attribute

BLOCKS = ("depth_to_space", "space_to_depth")
ORDERED = [(name, order) for name in BLOCKS for order in ("yxc", "cyx", "xyc")]


@pytest.mark.parametrize(("name", "order"), [*ORDERED, ("channel_shuffle", "")])
def test_a_move_alone_is_split(name: str, order: str) -> None:
    attributes: dict[str, Attribute] = {"block": 2, "order": order} if order else {"groups": 3}
    maker = GraphMaker()
    graph = maker.graph(maker.node(name, maker.input(2, 12, 4, 6), **attributes))
    after = split_moves.run(graph, ResourceBudget())
    assert operators(after) == ["reshape", name, "reshape"]
    assert_same_meaning(graph, after, tolerance=0)
    assert split_moves.run(after, ResourceBudget()) == after


def test_a_move_that_shares_its_kernel_stays() -> None:
    maker = GraphMaker()
    moved = maker.node("depth_to_space", maker.input(2, 12, 4, 6), block=2, order="cyx")
    graph = maker.graph(maker.node("relu", moved))
    assert split_moves.run(graph, ResourceBudget()) == graph


def test_what_would_be_read_from_far_apart_is_split_before_what_reads_it() -> None:
    maker = GraphMaker()
    moved = maker.node("space_to_depth", maker.input(2, 3, 8, 12), block=4, order="cyx")
    graph = maker.graph(maker.node("relu", moved))
    after = split_moves.run(graph, ResourceBudget())
    assert operators(after) == ["reshape", "space_to_depth", "reshape", "relu"]
    assert_same_meaning(graph, after, tolerance=0)
