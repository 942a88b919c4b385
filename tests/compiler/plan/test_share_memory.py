"""Slices that are parts and concats that are joins, and those that stay; all mean the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_close,
    assert_same_meaning,
    evaluate_graph,
    operators,
    random_inputs,
)
from tunefarm.compiler import build
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.plan import share_memory
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.types.dtypes import DType


def shared(graph: Graph) -> Graph:
    """The graph after the pass; it means the same, node by node and as it runs."""
    result = share_memory.run(graph)
    assert_same_meaning(graph, result)
    inputs = random_inputs(graph)
    outputs = build(graph).run(inputs)
    expected = evaluate_graph(graph, inputs)
    assert_close([np.asarray(outputs[name]) for name in graph.outputs], expected)
    return result


def kernels(graph: Graph) -> list[str]:
    calls = extract_kernels(graph).calls
    return [call.kernel.name for call in calls if isinstance(call, KernelCall)]


def sliced(maker: GraphMaker, x: str, starts: tuple[int, ...], shape: tuple[int, ...]) -> str:
    steps = (1,) * len(starts)
    return maker.node("slice", x, starts=starts, steps=steps, shape=shape)


def matmul(maker: GraphMaker, x: str, columns: int) -> str:
    return maker.node("matmul", x, maker.weights(maker.types[x].shape[-1], columns))


@pytest.mark.parametrize(
    ("starts", "shape", "is_part"),
    [
        ((2, 0, 0), (3, 4, 6), True),
        ((2, 1, 0), (1, 2, 6), True),
        ((2, 1, 3), (1, 1, 2), True),
        ((2, 1, 0), (2, 2, 6), False),
        ((2, 0, 3), (1, 2, 2), False),
    ],
)
def test_slice_whose_elements_are_neighbours_is_a_part(
    starts: tuple[int, ...], shape: tuple[int, ...], is_part: bool
) -> None:
    maker = GraphMaker()
    part = sliced(maker, maker.input(7, 4, 6), starts, shape)
    graph = shared(maker.graph(matmul(maker, part, 3)))
    assert operators(graph) == ["part" if is_part else "slice", "matmul"]
    assert kernels(graph) == ["matmul"] if is_part else ["slice", "matmul"]


def test_node_without_its_first_operand_is_no_slice() -> None:
    maker = GraphMaker()
    bounded = maker.node("clip", maker.input(3, 4), min=0.0)
    absent = replace(maker.nodes[-1], operator="sequence", inputs=("", bounded))
    assert share_memory._offset(maker.graph(bounded), absent) is None


def test_strided_slice_is_none() -> None:
    maker = GraphMaker()
    x = maker.input(7, 6)
    rows = maker.node("slice", x, starts=(0, 0), steps=(2, 1), shape=(4, 6))
    assert operators(shared(maker.graph(matmul(maker, rows, 3)))) == ["slice", "matmul"]


def test_slice_of_what_is_computed_for_it_alone_stays() -> None:
    maker = GraphMaker()
    y = sliced(maker, maker.node("relu", maker.input(7, 6)), (2, 0), (3, 6))
    assert kernels(shared(maker.graph(matmul(maker, y, 3)))) == ["relu_slice", "matmul"]


def test_slice_that_is_an_output_is_computed() -> None:
    maker = GraphMaker()
    y = matmul(maker, maker.input(7, 6), 8)
    first = sliced(maker, y, (0, 0), (3, 8))
    flat = maker.node("reshape", sliced(maker, y, (3, 0), (4, 8)), shape=(32,))
    assert operators(shared(maker.graph(y, first, flat))).count("slice") == 2


def test_parts_of_inputs_and_outputs_are_read_there() -> None:
    maker = GraphMaker()
    x = maker.input(4, 6)
    y = matmul(maker, sliced(maker, x, (1, 0), (3, 6)), 8)
    z = matmul(maker, sliced(maker, y, (2, 0), (1, 8)), 5)
    assert kernels(shared(maker.graph(y, z))) == ["matmul", "matmul"]


@pytest.mark.parametrize("batch", [1, 2])
def test_concat_of_one_piece_is_written_by_its_operands(batch: int) -> None:
    maker = GraphMaker()
    x = maker.input(batch, 5, 6)
    parts = [matmul(maker, x, 8), matmul(maker, x, 8), matmul(maker, x, 8)]
    joined = maker.node("concat", *parts, axis=1)
    graph = shared(maker.graph(matmul(maker, joined, 3)))
    assert kernels(graph) == ["matmul"] * 3 + ["concat"] * (batch > 1) + ["matmul"]


def test_concat_may_be_an_output() -> None:
    maker = GraphMaker()
    x = maker.input(5, 6)
    joined = maker.node("concat", matmul(maker, x, 8), matmul(maker, x, 8), axis=0)
    assert kernels(shared(maker.graph(joined))) == ["matmul", "matmul"]


def test_operands_that_lie_elsewhere_are_copied() -> None:
    maker = GraphMaker()
    x = maker.input(2, 8)
    y = matmul(maker, x, 8)
    z = matmul(maker, y, 8)
    w = maker.node("reshape", matmul(maker, y, 32), shape=(8, 8))
    joined = maker.node("concat", w, x, z, maker.weights(1, 8), z, y, axis=0)
    graph = shared(maker.graph(matmul(maker, joined, 3), y))
    assert operators(graph).count("copy") == 4  # x, the weights, z again, and y, an output


def test_concat_of_copies_mostly_is_one_kernel() -> None:
    maker = GraphMaker()
    x = maker.input(2, 8)
    joined = maker.node("concat", matmul(maker, x, 8), x, x, axis=0)
    assert kernels(shared(maker.graph(matmul(maker, joined, 3)))) == ["matmul", "concat", "matmul"]


def test_growing_concats_are_parts_of_the_last() -> None:
    maker = GraphMaker()
    features = [matmul(maker, maker.input(4, 6), 6)]
    for _ in range(3):
        joined = maker.node("concat", *features, axis=0) if features[1:] else features[0]
        flat = maker.node("reshape", joined, shape=(1, 24 * len(features)))
        features.append(maker.node("reshape", matmul(maker, flat, 24), shape=(4, 6)))
    joined = maker.node("concat", *features, axis=0)
    graph = shared(maker.graph(matmul(maker, joined, 5)))
    assert operators(graph).count("join") == 3
    assert kernels(graph) == ["matmul"] * 5


def test_parts_of_a_value_are_joined_as_that_value() -> None:
    maker = GraphMaker()
    y = matmul(maker, maker.input(6, 8), 8)
    first, second = (sliced(maker, y, (start, 0), (3, 8)) for start in (0, 3))
    joined = maker.node("concat", first, second, matmul(maker, second, 8), axis=0)
    graph = shared(maker.graph(matmul(maker, joined, 5)))
    assert kernels(graph) == ["matmul"] * 3
    maker = GraphMaker()
    y = matmul(maker, maker.input(6, 8), 8)
    first, second = (sliced(maker, y, (start, 0), (3, 8)) for start in (0, 3))
    joined = maker.node("concat", second, first, matmul(maker, second, 24), axis=1)
    assert "concat" in kernels(shared(maker.graph(joined)))


def test_concat_that_is_fused_on_both_sides_stays() -> None:
    maker = GraphMaker()
    x, y = maker.input(4, 6), maker.input(4, 6)
    joined = maker.node("concat", maker.node("relu", x), maker.node("exp", y), axis=0)
    assert len(kernels(shared(maker.graph(maker.node("tanh", joined))))) == 1


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Products, pointwise nodes, slices and concats along the first axis, any of them returned."""
    maker = GraphMaker()
    width = draw(st.sampled_from([1, 3, 16]))
    dtype = draw(st.sampled_from([DType.F32, DType.F32, DType.I32]))
    known = [maker.input(draw(st.integers(1, 5)), width, dtype=dtype) for _ in range(2)]
    for _ in range(draw(st.integers(2, 10))):
        kind, x = draw(st.integers(0, 7)), draw(st.sampled_from(known))
        rows = maker.types[x].shape[0]
        if kind == 0 and dtype is DType.F32:
            known.append(matmul(maker, x, width))
        elif kind <= 2:
            known.append(maker.node(draw(st.sampled_from(["neg", "abs"])), x))
        elif kind <= 4:
            start = draw(st.integers(0, rows - 1))
            known.append(sliced(maker, x, (start, 0), (draw(st.integers(1, rows - start)), width)))
        elif kind == 5:
            flat = maker.node("reshape", x, shape=(1, rows * width))
            known.append(maker.node("reshape", flat, shape=(rows, width)))
        else:
            parts = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))
            if sum(maker.types[part].shape[0] for part in parts) < 60:
                known.append(maker.node("concat", *parts, axis=0))
    made = [name for name in known if name not in maker.inputs] or [maker.node("neg", known[0])]
    return maker.graph(*draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True)))


@settings(max_examples=30, deadline=None)
@given(graphs())
def test_drawn_graphs_mean_the_same(graph: Graph) -> None:
    shared(graph)


def halves(maker: GraphMaker, x: str) -> tuple[str, str]:
    """Two halves of the rows of a product, each a part of it."""
    whole = matmul(maker, x, 8)
    rows = maker.types[whole].shape[0] // 2
    return sliced(maker, whole, (0, 0), (rows, 8)), sliced(maker, whole, (rows, 0), (rows, 8))


@pytest.mark.parametrize("at_the_end", [False, True])
def test_concat_with_a_part_at_its_border_takes_the_whole_of_that(at_the_end: bool) -> None:
    maker = GraphMaker()
    first, last = halves(maker, maker.input(6, 8))
    kept, other = (first, last) if at_the_end else (last, first)
    made = matmul(maker, other, 8)
    operands = (made, kept) if at_the_end else (kept, made)
    joined = maker.node("concat", *operands, axis=0)
    graph = shared(maker.graph(matmul(maker, joined, 3)))
    assert kernels(graph) == ["matmul"] * 3
    assert operators(graph).count("part") == 3


def test_concat_between_parts_takes_the_wholes_of_both() -> None:
    maker = GraphMaker()
    x = maker.input(6, 8)
    (other, begins), (ends, more) = halves(maker, x), halves(maker, maker.node("relu", x))
    made = matmul(maker, maker.node("add", other, more), 8)
    joined = maker.node("concat", begins, made, ends, axis=0)
    graph = shared(maker.graph(matmul(maker, joined, 3)))
    assert "copy" not in operators(graph) and "concat" not in operators(graph)


def test_concat_that_is_an_output_copies_its_part() -> None:
    maker = GraphMaker()
    first, last = halves(maker, maker.input(6, 8))
    graph = shared(maker.graph(maker.node("concat", last, matmul(maker, first, 8), axis=0)))
    assert operators(graph).count("copy") == 1


def test_part_in_the_middle_of_a_concat_is_copied() -> None:
    maker = GraphMaker()
    first, last = halves(maker, maker.input(6, 8))
    around = [matmul(maker, value, 8) for value in (first, last)]
    joined = maker.node("concat", around[0], first, around[1], axis=0)
    graph = shared(maker.graph(matmul(maker, joined, 3)))
    assert operators(graph).count("copy") == 1


def test_concat_that_lies_in_a_later_one_copies_its_part() -> None:
    maker = GraphMaker()
    first, last = halves(maker, maker.input(6, 8))
    inner = maker.node("concat", last, matmul(maker, first, 8), axis=0)
    made = matmul(maker, inner, 8)
    outer = maker.node("concat", inner, made, axis=0)
    shared(maker.graph(matmul(maker, outer, 3)))


@pytest.mark.parametrize(
    ("axis", "extents"),
    [(1, [1] * 70), (0, [1, 2, 3] * 25), (1, [3, 1] * 40), (1, [200, *[1] * 34, 300])],
)
def test_concat_of_many_operands_is_a_concat_of_small_ones(axis: int, extents: list[int]) -> None:
    maker = GraphMaker()
    shapes = [(extent, 5) if axis == 0 else (5, extent) for extent in extents]
    operands = [maker.input(*shape) for shape in shapes]
    graph = shared(maker.graph(maker.node("concat", *operands, axis=axis)))
    concats = [node for node in graph.nodes if node.operator == "concat"]
    assert all(len(node.inputs) <= share_memory.MOST_OPERANDS for node in concats)
    assert len(kernels(graph)) >= len(concats)


def test_large_operand_of_many_is_copied_once() -> None:
    maker = GraphMaker()
    operands = [maker.input(5, extent) for extent in (*[1] * 20, 1000, *[1] * 20)]
    graph = shared(maker.graph(maker.node("concat", *operands, axis=1)))
    assert operands[20] in graph.nodes[-1].inputs


def test_kernel_holds_no_more_borders_of_concats_than_its_loops_are_cut_at() -> None:
    maker = GraphMaker()
    half = share_memory.MOST_OPERANDS // 2 + 2
    pairs = [[maker.input(5, 2) for _ in range(half)] for _ in range(2)]
    first, second = (maker.node("relu", maker.node("concat", *p, axis=1)) for p in pairs)
    graph = shared(maker.graph(maker.node("add", first, second)))
    assert len(kernels(graph)) == 2
