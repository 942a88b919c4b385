from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.sizes import cut_windows
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute


def average(*shape: int, dtype: DType = DType.F32, **attributes: Attribute) -> Graph:
    maker = GraphMaker()
    return maker.graph(maker.node("average_pool", maker.input(*shape, dtype=dtype), **attributes))


def rewritten(graph: Graph) -> Graph:
    result = cut_windows.run(graph)
    assert_same_meaning(graph, result)
    return result


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_drawn_windows_keep_their_meaning(data: st.DataObject) -> None:
    def numbers(low: int, high: int, count: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(count))

    rank = data.draw(st.integers(1, 3))
    plane, kernel = numbers(1, 7, rank), numbers(1, 4, rank)
    strides, dilations, pads = numbers(1, 3, rank), numbers(1, 2, rank), numbers(0, 2, 2 * rank)
    shape = tuple(
        (plane[axis] + pads[axis] + pads[rank + axis] - 1) // strides[axis] + 1
        for axis in range(rank)
    )
    rewritten(
        average(
            2,
            3,
            *plane,
            kernel=kernel,
            strides=strides,
            dilations=dilations,
            pads=pads,
            shape=shape,
            count_include_pad=data.draw(st.booleans()),
        )
    )


def test_counts_are_a_factor_of_each_axis_along_which_they_differ() -> None:
    graph = average(1, 2, 5, 6, kernel=(3, 2), pads=(1, 0, 1, 0), shape=(5, 5))
    result = rewritten(graph)
    assert operators(result) == ["sum_pool", "mul"]
    (factors,) = result.constants.values()
    expected = np.array([1 / 4, 1 / 6, 1 / 6, 1 / 6, 1 / 4], np.float32)
    assert np.array_equal(factors.reshape(-1), expected)


def test_windows_of_one_count_stay() -> None:
    for include in (False, True):
        pads = (1, 1, 1, 1) if include else ()
        shape = (5, 5) if include else (3, 3)
        graph = average(
            1, 2, 5, 5, kernel=(3, 3), pads=pads, shape=shape, count_include_pad=include
        )
        assert rewritten(graph).nodes == graph.nodes


def test_wide_averages_are_divided_exactly() -> None:
    graph = average(1, 2, 5, dtype=DType.F64, kernel=(3,), pads=(1, 1), shape=(5,))
    assert rewritten(graph).nodes == graph.nodes
