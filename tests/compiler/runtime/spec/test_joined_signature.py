"""One signature of several programs: bounds and values of all, and shapes that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.runtime.sized_graphs import part_graph, rows_graph, squeezed_programs
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.runtime.spec.joined_signature import joined_signature, program_ranges
from tunefarm.compiler.types.chosen_sizes import choose_sizes
from tunefarm.compiler.types.signature import AxisSource


def part(low: int, high: int) -> ExecutableSpec:
    guard = SizeGuard("length", "x", 1, low, high)
    return compile_model(part_graph(low, high), guards=[guard]).spec


@pytest.mark.parametrize(
    ("parts", "sizes"),
    [
        ([(1, 4), (5, 8)], "length:1..8"),
        ([(5, 8), (1, 4)], "length:1..8"),
        ([(1, 1), (4, 4)], "length:1|4"),
        ([(1, 1), (4, 6), (9, 9)], "length:1|4..6|9"),
        ([(1, 6), (4, 8)], "length:1..8"),
    ],
)
def test_sizes_of_all_programs_are_one_symbol(parts: list[tuple[int, int]], sizes: str) -> None:
    programs = [part(*ends) for ends in parts]
    signature = joined_signature(programs)
    assert str(signature).splitlines() == [
        f"input x: f32[2, {sizes}, 5]",
        f"output y: f32[2, {sizes}, 5]",
        "output rows: f32[2*length, 5]",
        "output z: f32[2, 5]",
    ]
    (source,) = signature.sources
    assert source == AxisSource(signature.symbols[0], "x", 1)
    assert program_ranges(programs, signature) == [{"length": ends} for ends in parts]


def test_programs_for_ranges_of_one_signature_are_joined_to_it() -> None:
    """As tuning finds them: guards take parts of bounds that all have."""
    spec = compile_model(rows_graph()).spec
    whole = joined_signature([spec])
    assert whole is spec.signature
    specs = [
        compile_model(rows_graph(), guards=[SizeGuard("length", "x", 1, *ends)]).spec
        for ends in ((0, 2), (3, 7))
    ]
    joined = joined_signature(specs)
    assert str(joined) == str(whole)
    assert program_ranges(specs, joined) == [
        {"batch": (1, 4), "length": ends} for ends in ((0, 2), (3, 7))
    ]


def test_extents_of_outputs_are_sums_and_products_of_sizes() -> None:
    def specs() -> Iterator[ExecutableSpec]:
        for rows, columns in product((1, 4), (2, 7)):
            maker = GraphMaker()
            x, row = maker.input(rows, columns), maker.input(1, columns)
            both = maker.node("concat", maker.node("relu", x), row, axis=0)
            flat = maker.node("reshape", x, shape=(rows * columns,))
            guards = [
                SizeGuard("rows", "x0", 0, rows, rows),
                SizeGuard("columns", "x0", 1, columns, columns),
                SizeGuard("x1[1]", "x1", 1, columns, columns),
            ]
            yield compile_model(maker.graph(both, flat), guards=guards).spec

    assert str(joined_signature(list(specs()))).splitlines() == [
        "input x0: f32[rows:1|4, columns:2|7]",
        "input x1: f32[1, columns:2|7]",
        "output concat_1: f32[rows + 1, columns:2|7]",
        "output reshape_2: f32[columns*rows]",
    ]


def test_outputs_of_several_ranks_list_their_shapes_the_largest_first() -> None:
    joined = joined_signature(squeezed_programs())
    assert str(joined).splitlines()[2:] == [
        "output y: f32[b:2..5, 3] or f32[3]",
        "output z: f32[b:2..5, kept_count:0..3] or f32[kept_count:0..3]",
        "output sums: f32[b:1..5]",
    ]
    assert [port.rank for port in joined.outputs] == [2, 2, 1]


def window(size: int) -> Graph:
    maker = GraphMaker()
    x = maker.input(1, size)
    every_third = maker.node("slice", x, starts=(0, 0), steps=(1, 3), shape=(1, -(-size // 3)))
    return maker.graph(every_third)


def test_extents_of_outputs_that_follow_from_no_expression_have_a_size_of_their_own() -> None:
    evenly, unevenly = (
        joined_signature(
            [
                compile_model(window(size), guards=[SizeGuard("n", "x0", 1, size, size)]).spec
                for size in sizes
            ]
        )
        for sizes in ((3, 9, 6), (3, 4, 20))
    )
    assert str(evenly.outputs[0]) == "f32[1, ((n) // (3))]"
    assert [choose_sizes(evenly, {"n": n})["n"] for n in (3, 6, 9)] == [3, 6, 9]
    assert str(unevenly).endswith("slice_0: f32[1, slice_0[1]:1..2|7]")
