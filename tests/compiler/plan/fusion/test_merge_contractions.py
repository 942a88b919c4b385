"""Convolutions of the same data as one: what is made of them means what they meant."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_close,
    assert_same_meaning,
    evaluate_graph,
    operators,
    random_inputs,
)
from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.plan import optimise
from tunefarm.compiler.plan.decisions.graph_plan import GraphPlan, Layout, Merged
from tunefarm.compiler.plan.fusion import merge_contractions
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.dtypes import DType

BLOCK = 8


def merged(graph: Graph, *values: str, tolerance: float = 1e-5) -> Graph:
    """The graph with these values' convolutions as one; it means the same, built as well."""
    plan = GraphPlan((Merged(values),))
    result = merge_contractions.run(graph, BLOCK, plan)
    assert_same_meaning(graph, result, tolerance)
    inputs = random_inputs(graph)
    outputs = Executable(compile_model(graph, plan=plan).spec).run(inputs)
    expected = evaluate_graph(graph, inputs)
    assert_close([np.asarray(outputs[name]) for name in graph.outputs], expected, tolerance)
    return result


def planned_kernels(graph: Graph, plan: GraphPlan) -> list[str]:
    """The kernels of the optimised graph, by name."""
    calls = extract_kernels(optimise.optimise(graph, BLOCK, plan=plan)).calls
    return [call.kernel.name for call in calls if isinstance(call, KernelCall)]


def conv(maker: GraphMaker, x: str, outputs: int, size: int = 1, bias: bool = True) -> str:
    channels = maker.types[x].shape[1]
    weight = maker.weights(outputs, channels, size, size, scale=1 / (channels * size))
    operands = (weight, maker.weights(outputs)) if bias else (weight,)
    return maker.node("conv", x, *operands, pads=(size // 2,) * 4)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("channels", [(16, 24), (12, 20, 7), (3, 5)])
def test_channels_of_convolutions_lie_side_by_side(batch: int, channels: tuple[int, ...]) -> None:
    maker = GraphMaker()
    x = maker.input(batch, 16, 5, 6)
    values = [conv(maker, x, count, bias=at != 1) for at, count in enumerate(channels)]
    graph = maker.graph(*(maker.node("relu", conv(maker, value, 8, 3)) for value in values))
    result = merged(graph, *values)
    assert operators(result)[: len(values) + 1] == ["conv", *("channels" for _ in values)]


def test_what_is_alike_behind_convolutions_goes_along() -> None:
    maker = GraphMaker()
    x = maker.input(1, 16, 5, 6)
    values = [conv(maker, x, count) for count in (12, 16)]
    scaled = [
        maker.node("mul", value, maker.weights(1, maker.types[value].shape[1], 1, 1))
        for value in values
    ]
    clipped = [maker.node("clip", value, min=-1.0, max=1.0) for value in scaled]
    shifted = [maker.node("add", value, maker.scalar(at)) for at, value in enumerate(clipped)]
    graph = maker.graph(
        maker.node("relu", conv(maker, shifted[0], 8, 3)),
        maker.node("sigmoid", conv(maker, shifted[1], 8, 3)),
    )
    result = merged(graph, *values)
    expected = ["conv", "mul", "clip", "add", "channels", "channels", "conv", "relu"]
    assert operators(result)[:8] == expected


def test_what_differs_behind_convolutions_follows_the_channels() -> None:
    maker = GraphMaker()
    x = maker.input(1, 16, 5, 6)
    first, second = conv(maker, x, 16), conv(maker, x, 16)
    graph = maker.graph(maker.node("relu", first), maker.node("tanh", second))
    assert operators(merged(graph, first, second)) == [
        "conv",
        "channels",
        "channels",
        "relu",
        "tanh",
    ]


def test_padding_between_branches_stays_a_number() -> None:
    """1 / x of padding that holds 0 would be infinite: what follows reads its blocks as a whole."""
    maker = GraphMaker()
    x = maker.input(1, 16, 5, 6)
    values = [conv(maker, x, count, 3) for count in (12, 20)]
    shifted = [maker.node("add", maker.node("relu", value), maker.scalar(1)) for value in values]
    inverse = [maker.node("reciprocal", value) for value in shifted]
    halves = [maker.node("sub", value, maker.scalar(1)) for value in inverse]
    again = [maker.node("reciprocal", maker.node("sub", half, maker.scalar(1))) for half in halves]
    graph = maker.graph(*(conv(maker, value, 16, 3) for value in again))
    merged(graph, *values, tolerance=1e-4)


def test_inception_module_copies_nothing() -> None:
    maker = GraphMaker()
    x = conv(maker, maker.input(1, 16, 9, 9), 32, 3)
    direct, *reduced = (maker.node("relu", conv(maker, x, count)) for count in (16, 12, 8))
    wide = [maker.node("relu", conv(maker, value, 16, 3)) for value in reduced]
    pooled = maker.node("max_pool", x, kernel=(3, 3), pads=(1, 1, 1, 1), shape=(9, 9))
    last = maker.node("relu", conv(maker, pooled, 8))
    joined = maker.node("concat", direct, *wide, last, axis=1)
    graph = maker.graph(conv(maker, joined, 16, 3))
    producers = {node.output: node for node in graph.nodes}
    values = [producers[value].inputs[0] for value in (*reduced, direct)]
    merged(graph, *values)
    kernels = planned_kernels(graph, GraphPlan((Merged(tuple(values)),)))
    assert kernels == [
        "to_blocked",
        "conv",
        "conv_relu",
        "conv_relu",
        "conv_relu",
        "max_pool",
        "conv_relu",
        "conv",
        "from_blocked",
    ]


def test_merged_results_lie_as_the_first_is_to() -> None:
    maker = GraphMaker()
    x = conv(maker, maker.input(1, 16, 9, 9), 32, 3)
    values = [conv(maker, x, count) for count in (16, 24)]
    ends = [maker.node("relu", value) for value in values]
    graph = maker.graph(*(conv(maker, value, 8, 3) for value in ends))
    blocks = dict(zip((x, *values, *ends), (8, 4, 0, 4, 4), strict=True))
    plan = GraphPlan((Merged(tuple(values)), *(Layout(*item) for item in blocks.items())))
    result = optimise.optimise(graph, BLOCK, plan=plan)
    (joint,) = (node for node in result.nodes if node.output == f"{values[0]}_merged_blocked")
    assert result.types[joint.output].shape == (1, 10, 9, 9, 4)
    assert_same_meaning(graph, result)


def test_bytes_of_other_scales_and_zero_points() -> None:
    maker = GraphMaker()
    x = maker.input(1, 16, 3, 5, dtype=DType.U8)
    weights = [maker.rng.integers(-9, 9, (n, 16, 1, 1)).astype(np.int8) for n in (12, 16)]
    values = [maker.node("conv", x, maker.constant(w), accumulator="i32") for w in weights]
    floats = [maker.node("cast", value, to="f32") for value in values]
    scaled = [maker.node("mul", value, maker.scalar(at / 8)) for at, value in enumerate(floats, 1)]
    bytes_ = [
        maker.node("saturate", value, maker.scalar(zero), to="u8")
        for value, zero in zip(scaled, (7, 19), strict=True)
    ]
    graph = maker.graph(*(maker.node("cast", value, to="f32") for value in bytes_))
    result = merged(graph, *values)
    assert operators(result)[:5] == ["conv", "cast", "mul", "saturate", "cast"]


def test_scales_of_blocks_stay_behind_their_branch() -> None:
    maker = GraphMaker()
    x = maker.input(1, 16, 3, 5, dtype=DType.U8)
    weights = [maker.rng.integers(-9, 9, (8, 16, 1, 1)).astype(np.int8) for _ in range(2)]
    values = [maker.node("conv", x, maker.constant(w), accumulator="i32") for w in weights]
    scales = [maker.weights(1, 2, 3, 5, scale=1.0) for _ in values]
    floats = [
        maker.node("dequantize", value, scale, to="f32", axis=1, block=4)
        for value, scale in zip(values, scales, strict=True)
    ]
    assert operators(merged(maker.graph(*floats), *values)).count("dequantize") == 2


# --- what cannot be merged ----------------------------------------------------------------------


def _image(maker: GraphMaker) -> str:
    return maker.input(1, 16, 5, 5)


def _other_data(maker: GraphMaker) -> tuple[str, ...]:
    return conv(maker, _image(maker), 8), conv(maker, _image(maker), 8)


def _products(maker: GraphMaker) -> tuple[str, ...]:
    x = maker.input(3, 16)
    return tuple(maker.node("matmul", x, maker.weights(16, 8)) for _ in range(2))


def _other_window(maker: GraphMaker) -> tuple[str, ...]:
    x = _image(maker)
    return conv(maker, x, 8, 1), conv(maker, x, 8, 3)


def _groups(maker: GraphMaker) -> tuple[str, ...]:
    x = _image(maker)
    weights = [maker.weights(8, 8, 1, 1) for _ in range(2)]
    return tuple(maker.node("conv", x, weight, groups=2) for weight in weights)


def _computed_weight(maker: GraphMaker) -> tuple[str, ...]:
    x, weight = _image(maker), maker.input(8, 16, 1, 1)
    return maker.node("conv", x, weight), conv(maker, x, 8)


def _following(maker: GraphMaker) -> tuple[str, ...]:
    first = conv(maker, _image(maker), 16)
    return first, conv(maker, first, 16)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_other_data, "not made of the same data"),
        (_products, "made by matmul, which cannot be merged"),
        (_other_window, "in different ways"),
        (_groups, "groups"),
        (_computed_weight, "no constant"),
        (_following, "not made of the same data"),
    ],
)
def test_what_cannot_be_merged_is_refused(
    make: Callable[[GraphMaker], tuple[str, ...]], reason: str
) -> None:
    maker = GraphMaker()
    values = make(maker)
    graph = maker.graph(*values)
    with pytest.raises(PlanError, match=reason):
        merge_contractions.run(graph, BLOCK, GraphPlan((Merged(values),)))


def test_value_that_is_not_there_is_refused() -> None:
    maker = GraphMaker()
    value = conv(maker, _image(maker), 8)
    with pytest.raises(PlanError, match="no node computes 'gone'"):
        merge_contractions.run(maker.graph(value), BLOCK, GraphPlan((Merged((value, "gone")),)))
