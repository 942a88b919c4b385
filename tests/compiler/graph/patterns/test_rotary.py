"""Rotary embeddings that models spell out become one operator; their neighbours stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators
from tunefarm.compiler.graph import recognise_patterns, simplify
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.dtypes import DType

Tables = tuple[str, str]


def part(maker: GraphMaker, x: str, start: int, count: int, step: int = 1) -> str:
    shape = maker.types[x].shape
    starts, steps = (0,) * (len(shape) - 1), (1,) * (len(shape) - 1)
    return maker.node(
        "slice", x, starts=(*starts, start), steps=(*steps, step), shape=(*shape[:-1], count)
    )


def joined(maker: GraphMaker, *parts: str) -> str:
    return maker.node("concat", *parts, axis=len(maker.types[parts[0]].shape) - 1)


def side_by_side(maker: GraphMaker, first: str, second: str) -> str:
    shape = maker.types[first].shape
    columns = [maker.node("reshape", item, shape=(*shape, 1)) for item in (first, second)]
    return maker.node("reshape", joined(maker, *columns), shape=(*shape[:-1], 2 * shape[-1]))


def halves_turned(maker: GraphMaker, x: str, tables: Tables, negated: str = "last") -> str:
    half = maker.types[x].shape[-1] // 2
    first, last = part(maker, x, 0, half), part(maker, x, half, half)
    if negated == "last":
        turned = joined(maker, maker.node("neg", last), first)
    else:
        turned = joined(maker, last, maker.node("neg", first))
    crossed = maker.node("mul", turned, tables[1])
    return maker.node("add", maker.node("mul", x, tables[0]), crossed)


def neighbours_turned(maker: GraphMaker, x: str, tables: Tables) -> str:
    half = maker.types[x].shape[-1] // 2
    even, odd = part(maker, x, 0, half, 2), part(maker, x, 1, half, 2)
    turned = side_by_side(maker, maker.node("neg", odd), even)
    crossed = maker.node("mul", tables[1], turned)
    return maker.node("add", crossed, maker.node("mul", tables[0], x))


def both(maker: GraphMaker, first: str, second: str, tables: Tables) -> tuple[str, str]:
    cosine, sine = tables
    left = maker.node("sub", maker.node("mul", first, cosine), maker.node("mul", sine, second))
    right = maker.node("add", maker.node("mul", first, sine), maker.node("mul", second, cosine))
    return left, right


def halves_joined(maker: GraphMaker, x: str, tables: Tables) -> str:
    half = maker.types[x].shape[-1] // 2
    pair = part(maker, x, 0, half), part(maker, x, half, half)
    return joined(maker, *both(maker, *pair, tables))


def pairs_stacked(maker: GraphMaker, x: str, tables: Tables) -> str:
    half = maker.types[x].shape[-1] // 2
    pair = part(maker, x, 0, half, 2), part(maker, x, 1, half, 2)
    return side_by_side(maker, *both(maker, *pair, tables))


def columns_stacked(maker: GraphMaker, x: str, tables: Tables) -> str:
    """The pairs are the columns of x, as torch's `view_as_complex` is written on real numbers."""
    shape = maker.types[x].shape
    half = (*shape[:-1], shape[-1] // 2)
    columns = maker.node("reshape", x, shape=(*half, 2))
    first, second = (maker.node("reshape", part(maker, columns, a, 1), shape=half) for a in (0, 1))
    return side_by_side(maker, *both(maker, first, second, tables))


def neighbour_columns_turned(maker: GraphMaker, x: str, tables: Tables) -> str:
    """As diffusion models have it: columns apart, one negated, stacked and flattened."""
    shape = maker.types[x].shape
    half = (*shape[:-1], shape[-1] // 2)
    columns = maker.node("reshape", x, shape=(*half, 2))
    even, odd = (maker.node("reshape", part(maker, columns, a, 1), shape=half) for a in (0, 1))
    turned = side_by_side(maker, maker.node("neg", odd), even)
    crossed = maker.node("mul", turned, tables[1])
    return maker.node("add", maker.node("mul", x, tables[0]), crossed)


WHOLE = (halves_turned, neighbours_turned, neighbour_columns_turned)
PAIRED = (halves_joined, pairs_stacked, columns_stacked)
INTERLEAVED = (neighbours_turned, neighbour_columns_turned, pairs_stacked, columns_stacked)
Spelling = Callable[[GraphMaker, str, Tables], str]


def tables_for(maker: GraphMaker, spelling: Spelling, *rows: int, width: int = 6) -> Tables:
    shape = (*rows, width if spelling in WHOLE else width // 2)
    return maker.input(*shape), maker.weights(*shape)


@pytest.mark.parametrize("spelling", [*WHOLE, *PAIRED])
@pytest.mark.parametrize("rows", [(), (5,), (1, 5), (3, 1), (2, 1, 5)])
def test_every_spelling_is_one_operator(spelling: Spelling, rows: tuple[int, ...]) -> None:
    maker = GraphMaker()
    x = maker.input(2, 3, 5, 6)
    graph = maker.graph(spelling(maker, x, tables_for(maker, spelling, *rows)))
    after = recognise_patterns.run(graph)
    assert operators(after) == ["rotary"]
    assert after.nodes[0].attributes["interleaved"] == (spelling in INTERLEAVED)
    assert_same_meaning(graph, after)
    assert recognise_patterns.run(after) == after


@pytest.mark.parametrize("spelling", [*WHOLE, *PAIRED])
def test_of_a_view_the_features_are_found_behind_the_simplified_reshape(
    spelling: Spelling,
) -> None:
    maker = GraphMaker()
    x = maker.node("reshape", maker.input(2, 5, 18), shape=(2, 5, 3, 6))
    tables = tables_for(maker, spelling, 5, 1)
    graph = simplify.run(maker.graph(spelling(maker, x, tables)))
    after = recognise_patterns.run(graph)
    assert [name for name in operators(after) if name != "reshape"] == ["rotary"]
    assert_same_meaning(graph, after)


@pytest.mark.parametrize("spelling", [*WHOLE, *PAIRED])
def test_of_the_first_features(spelling: Spelling) -> None:
    maker = GraphMaker()
    x = maker.input(2, 5, 11)
    turned = spelling(maker, part(maker, x, 0, 6), tables_for(maker, spelling, 5))
    graph = maker.graph(joined(maker, turned, part(maker, x, 6, 5)))
    after = recognise_patterns.run(graph)
    assert operators(after) == ["rotary"]
    assert after.nodes[0].attributes["width"] == 6
    assert_same_meaning(graph, after)


def test_what_is_joined_from_elsewhere_stays_behind_the_first_features() -> None:
    for start, other in ((5, False), (6, True)):
        maker = GraphMaker()
        x = maker.input(2, 5, 11)
        turned = halves_turned(maker, part(maker, x, 0, 6), (maker.weights(6), maker.weights(6)))
        rest = part(maker, maker.input(2, 5, 11) if other else x, start, 5)
        after = recognise_patterns.run(maker.graph(joined(maker, turned, rest)))
        assert sorted(operators(after)) == ["concat", "rotary", "slice", "slice"]


def wrong_half_negated(maker: GraphMaker, x: str, tables: Tables) -> str:
    return halves_turned(maker, x, tables, negated="first")


def halves_of_another(maker: GraphMaker, x: str, tables: Tables) -> str:
    turned = joined(
        maker, maker.node("neg", part(maker, maker.input(2, 3, 5, 6), 3, 3)), part(maker, x, 0, 3)
    )
    crossed = maker.node("mul", turned, tables[1])
    return maker.node("add", maker.node("mul", x, tables[0]), crossed)


def unequal_parts(maker: GraphMaker, x: str, tables: Tables) -> str:
    turned = joined(maker, maker.node("neg", part(maker, x, 4, 2)), part(maker, x, 0, 4))
    crossed = maker.node("mul", turned, tables[1])
    return maker.node("add", maker.node("mul", x, tables[0]), crossed)


def halves_side_by_side(maker: GraphMaker, x: str, tables: Tables) -> str:
    turned = side_by_side(maker, maker.node("neg", part(maker, x, 3, 3)), part(maker, x, 0, 3))
    crossed = maker.node("mul", turned, tables[1])
    return maker.node("add", maker.node("mul", x, tables[0]), crossed)


def joined_along_rows(maker: GraphMaker, x: str, tables: Tables) -> str:
    shape = maker.types[x].shape
    middle = (shape[0] // 2, *shape[1:])
    first, last = (
        maker.node("slice", x, starts=(at, 0, 0, 0), steps=(1,) * 4, shape=middle) for at in (0, 1)
    )
    turned = maker.node("concat", maker.node("neg", last), first, axis=0)
    crossed = maker.node("mul", turned, tables[1])
    return maker.node("add", maker.node("mul", x, tables[0]), crossed)


@pytest.mark.parametrize(
    "spelling",
    [
        wrong_half_negated,
        halves_of_another,
        unequal_parts,
        halves_side_by_side,
        joined_along_rows,
    ],
)
def test_neighbours_of_rotary_stay(spelling: Spelling) -> None:
    maker = GraphMaker()
    x = maker.input(2, 3, 5, 6)
    graph = maker.graph(spelling(maker, x, (maker.weights(5, 6), maker.weights(5, 6))))
    assert recognise_patterns.run(graph) == graph


def test_sine_and_cosine_of_the_other_feature_stay() -> None:
    maker = GraphMaker()
    x = maker.input(2, 5, 6)
    first, last = part(maker, x, 0, 3), part(maker, x, 3, 3)
    cosine, sine = maker.weights(3), maker.weights(3)
    left = maker.node("sub", maker.node("mul", first, cosine), maker.node("mul", last, sine))
    right = maker.node("add", maker.node("mul", first, cosine), maker.node("mul", last, sine))
    graph = maker.graph(joined(maker, left, right))
    assert recognise_patterns.run(graph) == graph


def test_what_others_read_is_not_taken_in() -> None:
    maker = GraphMaker()
    x = maker.input(2, 5, 6)
    result = halves_turned(maker, x, (maker.weights(6), maker.weights(6)))
    turned = next(node.output for node in maker.nodes if node.operator == "concat")
    graph = maker.graph(result, turned)
    assert recognise_patterns.run(graph) == graph


def test_tables_that_widen_the_data_stay() -> None:
    maker = GraphMaker()
    x = maker.input(1, 5, 6)
    graph = maker.graph(halves_turned(maker, x, (maker.weights(4, 1, 6), maker.weights(4, 1, 6))))
    assert recognise_patterns.run(graph) == graph


def turned_in_half_precision() -> Graph:
    maker = GraphMaker()
    x = maker.input(2, 5, 6, dtype=DType.F16)
    tables = [maker.constant(np.ones((5, 6), np.float16)) for _ in range(2)]
    return maker.graph(halves_turned(maker, x, (tables[0], tables[1])))


def test_of_narrow_floats() -> None:
    assert operators(recognise_patterns.run(turned_in_half_precision())) == ["rotary"]
