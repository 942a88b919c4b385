"""Convolutions along one axis run on planes that are one row high."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_close,
    conversions,
    evaluate_graph,
    operators,
    random_inputs,
)
from tunefarm.compiler import build
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.layouts import choose_layouts, rows_as_planes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute


class _Maker(GraphMaker):
    def bytes(self, *shape: int) -> str:
        return self.constant(self.rng.integers(-127, 128, shape).astype(np.int8))

    def conv(
        self, x: str, outputs: int, size: int, groups: int = 1, **attributes: Attribute
    ) -> str:
        weight = self.bytes(outputs, self.types[x].shape[1] // groups, size)
        given: dict[str, Attribute] = {"accumulator": "i32", "groups": groups, **attributes}
        return self.node("conv", x, weight, **given)

    def requantised(self, x: str) -> str:
        channels = self.types[x].shape[1]
        scales = self.constant(self.rng.random((channels, 1)).astype(np.float32) / 99)
        scaled = self.node("relu", self.node("mul", self.node("cast", x, to="f32"), scales))
        return self.node(
            "quantize", scaled, self.scalar(0.5), self.constant(np.array(3, np.uint8)), to="u8"
        )


def _same(graph: Graph) -> Graph:
    found = rows_as_planes.run(graph, 8)
    data = np.random.default_rng(1).integers(0, 256, graph.types[graph.inputs[0]].shape)
    feed = {graph.inputs[0]: data.astype(np.uint8)}
    for ours, theirs in zip(evaluate_graph(found, feed), evaluate_graph(graph, feed), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    return found


@pytest.mark.parametrize(
    ("groups", "given"),
    [
        (1, {}),
        (1, {"pads": (1, 2), "strides": (2,)}),
        (1, {"pads": (3, 3), "dilations": (2,)}),
        (2, {}),
        (16, {}),
    ],
)
def test_what_lies_between_convolutions_becomes_a_plane(
    groups: int, given: dict[str, Attribute]
) -> None:
    maker = _Maker()
    x = maker.input(2, 16, 23, dtype=DType.U8)
    middle = maker.requantised(maker.conv(x, 16, 3, groups, **given))
    end = maker.requantised(maker.conv(maker.node("border", middle, pads=(1, 1), value=3), 16, 3))
    found = _same(maker.graph(end))
    assert operators(found).count("reshape") == 2
    assert {len(found.types[node.output].shape) for node in found.nodes[1:-1]} == {4}
    assert conversions(choose_layouts.run(found, 8)) == ["to_blocked", "from_blocked"]


def test_values_that_others_read_keep_their_shape() -> None:
    maker = _Maker()
    x = maker.input(1, 16, 20, dtype=DType.U8)
    first = maker.requantised(maker.conv(x, 16, 3))
    summed = maker.node("reduce_max", first, axes=(2,), keepdims=False)
    padded = maker.node("pad", first, pads=(0, 0, 2, 0, 0, 1))
    found = _same(maker.graph(maker.conv(padded, 8, 5), summed, first))
    assert operators(found).count("reduce_max") == 1


@pytest.mark.parametrize(
    ("shape", "outputs", "given"),
    [
        ((1, 8, 64), 32, {}),
        ((1, 32, 64), 8, {}),
        ((1, 32, 20), 32, {}),
        ((1, 64, 64), 64, {"groups": 2}),
    ],
    ids=["few channels read", "few channels given", "short rows", "groups"],
)
def test_other_convolutions_stay(
    shape: tuple[int, ...], outputs: int, given: dict[str, Attribute]
) -> None:
    maker = _Maker()
    groups = given.get("groups", 1)
    assert isinstance(groups, int)
    weight = maker.weights(outputs, shape[1] // groups, 3)
    graph = maker.graph(maker.node("conv", maker.input(*shape), weight, **given))
    assert rows_as_planes.run(graph, 8) is graph


def test_between_convolutions_of_floats_rows_stay_in_blocks() -> None:
    """Rows that are continued at both ends by what is at the other, and then cut."""
    maker = _Maker()
    x = maker.input(2, 32, 70)
    first = maker.node("relu", maker.node("conv", x, maker.weights(32, 32, 3), pads=(1, 1)))
    ends = [
        maker.node("slice", first, starts=(0, 0, start), steps=(1, 1, 1), shape=(2, 32, 4))
        for start in (66, 0)
    ]
    around = maker.node("concat", ends[0], first, ends[1], axis=2)
    second = maker.node("conv", around, maker.weights(32, 32, 3), dilations=(4,))
    graph = maker.graph(maker.node("add", second, first))
    found = rows_as_planes.run(graph, 8)
    inputs = random_inputs(graph)
    assert_close(evaluate_graph(found, inputs), evaluate_graph(graph, inputs))
    assert conversions(choose_layouts.run(found, 8)) == ["to_blocked", "from_blocked"]
    built = build(graph).run(inputs)
    assert_close([np.asarray(value) for value in built.values()], evaluate_graph(graph, inputs))


def test_planes_that_exporters_make_of_rows_are_seen_through() -> None:
    """Keras' Conv1D: each convolution is between an Unsqueeze and a Squeeze."""
    maker = GraphMaker()
    x = maker.input(2, 32, 1, 40)
    rows = maker.node(
        "reshape", maker.node("conv", x, maker.weights(32, 32, 1, 3)), shape=(2, 32, 38)
    )
    rows = maker.node("relu", maker.node("add", rows, maker.weights(1, 32, 1)))
    plane = maker.node("reshape", rows, shape=(2, 32, 1, 38))
    last = maker.node("conv", plane, maker.weights(32, 32, 1, 3))
    graph = maker.graph(maker.node("reshape", last, shape=(2, 32, 36)), rows)
    found = rows_as_planes.run(graph, 8)
    inputs = random_inputs(graph)
    assert_close(evaluate_graph(found, inputs), evaluate_graph(graph, inputs))
    between = operators(found)
    assert between[: between.index("conv", 1) + 1] == ["conv", "add", "relu", "conv"]


def test_targets_without_vectors_keep_rows() -> None:
    maker = _Maker()
    narrow = maker.graph(maker.conv(maker.input(1, 16, 20, dtype=DType.U8), 16, 3))
    assert rows_as_planes.run(narrow, None) is narrow


def test_a_range_of_all_elements_is_one_of_planes() -> None:
    """No value is converted, or reshaped, for a minimum and a maximum alone."""
    maker = _Maker()
    x = maker.input(2, 16, 23, dtype=DType.U8)
    middle = maker.requantised(maker.conv(x, 16, 3))
    ends = [
        maker.node(bound, middle, axes=(0, 1, 2), keepdims=False)
        for bound in ("reduce_min", "reduce_max")
    ]
    found = _same(maker.graph(maker.requantised(maker.conv(middle, 16, 3)), *ends))
    assert operators(found).count("reshape") == 2
    assert conversions(choose_layouts.run(found, 8)) == ["to_blocked", "from_blocked"]
