"""What is computed in each step of a loop, and graphs whose loops make no sense."""

from __future__ import annotations

import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.graph.loop_regions import loop_regions, region_problem
from tunefarm.compiler.types.tensor_type import Attribute


def looped(maker: GraphMaker, loop: int, initial: str, following: str, **more: Attribute) -> str:
    attributes: dict[str, Attribute] = {
        "loop": loop,
        "states": 1,
        "most": 4,
        "number": 0,
        "backward": (),
        **more,
    }
    return maker.node("loop_result", "", "", "", initial, following, **attributes)


def test_what_depends_on_a_state_is_in_its_loop_and_the_result_is_not() -> None:
    maker = GraphMaker()
    x = maker.input(3)
    state = maker.node("loop_state", x, loop=1, number=0)
    outside = maker.node("exp", x)
    following = maker.node("add", state, outside)
    result = looped(maker, 1, x, following)
    graph = maker.graph(maker.node("relu", result))
    assert loop_regions(graph) == {state: (1,), following: (1,)}


def test_an_inner_loop_lies_in_the_outer_one_whatever_its_states_begin_with() -> None:
    maker = GraphMaker()
    x = maker.input(3)
    outer = maker.node("loop_state", x, loop=1, number=0)
    inner = maker.node("loop_state", x, loop=2, number=0)
    alone = maker.node("exp", inner)
    both = maker.node("add", alone, outer)
    last = looped(maker, 2, x, both)
    graph = maker.graph(looped(maker, 1, x, last))
    regions = loop_regions(graph)
    assert regions[alone] == regions[inner] == regions[both] == (1, 2)
    assert regions[last] == (1,)


def test_a_state_is_no_output() -> None:
    maker = GraphMaker()
    x = maker.input(3)
    state = maker.node("loop_state", x, loop=1, number=0)
    following = maker.node("exp", state)
    result = looped(maker, 1, x, following)
    graph = maker.graph(result)
    assert not region_problem(graph)
    wrong = type(graph)(
        graph.name, graph.inputs, (result, following), graph.nodes, graph.types, graph.constants
    )
    assert "known within a loop only" in region_problem(wrong)


def test_results_of_a_loop_are_of_the_same_values() -> None:
    maker = GraphMaker()
    x = maker.input(3)
    state = maker.node("loop_state", x, loop=1, number=0)
    first, second = maker.node("exp", state), maker.node("relu", state)
    one, other = looped(maker, 1, x, first), looped(maker, 1, x, second)
    with pytest.raises(VerifyError, match="not of the same values"):
        maker.graph(one, other)
