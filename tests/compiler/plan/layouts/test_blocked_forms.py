"""Layouts that a plan decides, value by value: each combination means what the plain graph does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_close,
    assert_same_meaning,
    conv,
    conversions,
    evaluate_graph,
    evaluate_program,
    extracted,
    operators,
    random_inputs,
)
from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import consumers
from tunefarm.compiler.plan.decisions.graph_plan import PLAIN, GraphPlan, Layout
from tunefarm.compiler.plan.layouts import choose_layouts
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.types.dtypes import DType

LANES = 8


def planned(graph: Graph, **blocks: int) -> Graph:
    """The graph with these results in these blocks, checked to lie and to mean so."""
    plan = GraphPlan(tuple(Layout(value, block) for value, block in blocks.items()))
    result = choose_layouts.run(graph, LANES, plan)
    assert_same_meaning(graph, result)
    for value, block in blocks.items():
        if block:
            assert result.types[f"{value}_blocked"].shape[-1] == block
    return result


def chain(*channels: int) -> tuple[Graph, list[str]]:
    """Convolutions of these channels one after another, and the values that they compute."""
    maker = GraphMaker()
    value, values = maker.input(1, channels[0], 6, 5), []
    for number, outputs in enumerate(channels[1:]):
        value = conv(maker, value, outputs, size=1 + 2 * (number % 2))
        values.append(value)
    return maker.graph(value), values


@pytest.mark.parametrize("channels", [20, 24, 40, 53, 116])
@pytest.mark.parametrize("first", [PLAIN, 4, 8, 16, "all"])
@pytest.mark.parametrize("second", [PLAIN, 8, 32, "all"])
def test_convolution_reads_one_block_and_gives_another(
    channels: int, first: int | str, second: int | str
) -> None:
    graph, (one, two) = chain(3, channels, 24)
    blocks = {
        one: channels if first == "all" else int(first),
        two: 24 if second == "all" else int(second),
    }
    result = planned(graph, **blocks)
    if blocks[one] and blocks[two]:
        assert conversions(result) == ["from_blocked"]  # of the output


def test_block_of_all_channels_is_nhwc_and_pads_nothing() -> None:
    graph, (one, two) = chain(3, 53, 20)
    result = planned(graph, **{one: 53, two: 20})
    assert result.types[f"{one}_blocked"].shape == (1, 1, 6, 5, 53)
    assert result.types[f"{two}_blocked"].shape == (1, 1, 6, 5, 20)
    (node,) = (node for node in result.nodes if node.output == f"{two}_blocked")
    assert result.types[node.inputs[1]].shape == (20, 53, 3, 3)
    assert extracted(result)


def test_value_is_converted_once_into_each_form_that_readers_ask_for() -> None:
    maker = GraphMaker()
    x = conv(maker, maker.input(1, 24, 6, 5), 24)
    other = conv(maker, maker.input(1, 24, 6, 5), 24)
    sums = [maker.node("add", x, other) for _ in range(3)]
    graph = maker.graph(*(conv(maker, value, 24) for value in sums))
    forms = dict(zip(sums, (8, 24, 24), strict=True))
    result = planned(graph, **{x: 16, other: 16, **forms})
    inner = [node for node in result.nodes if node.inputs[0] in (x, other)]
    assert sorted(node.operator for node in inner) == ["to_blocked"] * 4
    back = [node for node in result.nodes if node.output in (x, other)]
    assert [node.operator for node in back] == ["from_blocked"] * 2


@pytest.mark.parametrize(("plain_one", "block"), [(0, 12), (1, 8), (1, 20)])
def test_residual_addition_takes_the_decided_form(plain_one: int, block: int) -> None:
    maker = GraphMaker()
    x = maker.input(2, 20, 6, 5)
    branches = [conv(maker, x, 20), conv(maker, x, 20)]
    total = maker.node("relu", maker.node("add", *branches))
    graph = maker.graph(conv(maker, total, 20))
    add = maker.nodes[-3].output
    decided = {branches[plain_one]: PLAIN, branches[1 - plain_one]: 16, add: block}
    assert planned(graph, **decided).types[f"{total}_blocked"].shape[-1] == block


def test_undecided_pointwise_nodes_and_pools_keep_the_block_of_their_data() -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(1, 3, 8, 8), 20)
    relu = maker.node("relu", y)
    pool = maker.node("max_pool", relu, kernel=(2, 2), strides=(2, 2), shape=(4, 4))
    mean = maker.node("average_pool", pool, kernel=(3, 3), pads=(1, 1, 1, 1), shape=(4, 4))
    resized = maker.node("resample", mean, axis=2, size=8, divisor=2)
    depthwise = conv(maker, resized, 20, groups=20, strides=(2, 1))  # type: ignore[arg-type]
    result = planned(maker.graph(conv(maker, depthwise, 24)), **{y: 20})
    for value in (relu, pool, mean, resized, depthwise):
        assert result.types[f"{value}_blocked"].shape[-1] == 20
    assert conversions(result) == ["from_blocked"]


@pytest.mark.parametrize(("size", "stride", "converts"), [(1, 1, 0), (3, 2, 0), (3, 1, 1)])
def test_plain_data_is_converted_for_winograd_alone(size: int, stride: int, converts: int) -> None:
    maker = GraphMaker()
    strides = (stride, stride)
    y = conv(maker, maker.input(1, 40, 8, 8), 24, size, strides=strides)  # type: ignore[arg-type]
    assert conversions(planned(maker.graph(y), **{y: 16})).count("to_blocked") == converts


@pytest.mark.parametrize(("channels", "block"), [(20, 20), (24, 12), (53, 16), (40, 8), (116, 32)])
def test_depthwise_runs_in_any_block(channels: int, block: int) -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(1, 8, 7, 7), channels, size=1)
    wise = conv(maker, y, channels, groups=channels, strides=(2, 2))  # type: ignore[arg-type]
    graph = maker.graph(conv(maker, wise, 24, size=1))
    result = planned(graph, **{wise: block})
    assert extracted(result)
    assert "from_blocked" not in operators(planned(graph, **{y: block, wise: block}))[:-1]


@pytest.mark.parametrize(
    ("groups", "channels", "outputs", "reads", "gives"),
    [(2, 24, 48, 12, 8), (4, 32, 16, 8, 4), (3, 12, 36, 4, 6)],
)
def test_groups_of_whole_blocks_run_blocked(
    groups: int, channels: int, outputs: int, reads: int, gives: int
) -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(1, 3, 5, 5), channels, size=1)
    grouped = conv(maker, y, outputs, groups=groups)
    graph = maker.graph(conv(maker, grouped, 8))
    assert conversions(planned(graph, **{y: reads, grouped: gives})) == ["from_blocked"]


def test_joined_values_lie_in_blocks() -> None:
    maker = GraphMaker()
    x = maker.input(1, 16, 6, 6)
    parts = [conv(maker, x, 20), conv(maker, x, 12)]
    joined = maker.node("concat", *parts, axis=1)
    graph = maker.graph(conv(maker, joined, 16))
    for block in (4, 8):  # which divides the parts' channels, or not
        result = planned(graph, **dict.fromkeys((*parts, joined), block))
        assert conversions(result) == ["to_blocked", "from_blocked"]
        assert_same_meaning(graph, result)


def test_transposed_convolution_runs_in_the_decided_block() -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(1, 8, 5, 5), 20)
    weight = maker.weights(20, 12, 2, 2, scale=0.1)
    wide = maker.node("conv_transpose", y, weight, strides=(2, 2), shape=(10, 10))
    graph = maker.graph(conv(maker, wide, 8))
    for block in (4, 12, 20):
        planned(graph, **{y: 20, wide: block})


def test_lanes_of_other_blocks_hold_zeros_again() -> None:
    """cos(0) is 1 in lanes that pad channels; a conversion leaves them out."""
    maker = GraphMaker()
    y = maker.node("cos", conv(maker, maker.input(1, 16, 6, 6), 20))
    pool = maker.node("average_pool", y, kernel=(3, 3), pads=(1, 1, 1, 1), shape=(6, 6))
    graph = maker.graph(conv(maker, pool, 20))
    planned(graph, **{y: 16, pool: 8})
    with pytest.raises(PlanError, match="'average_pool' cannot give its result so"):
        planned(graph, **{y: 16, pool: 16})
    assert planned(graph, **{y: 20, pool: 20})  # nothing is padded


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_narrow_floats_take_decided_blocks_too(dtype: DType) -> None:
    maker = GraphMaker()
    x = maker.input(1, 20, 6, 5, dtype=dtype)
    weight = maker.constant((maker.rng.standard_normal((24, 20, 1, 1)) / 8).astype(dtype.numpy))
    graph = maker.graph(maker.node("relu", maker.node("conv", x, weight)))
    value = graph.nodes[0].output
    result = choose_layouts.run(graph, LANES, GraphPlan((Layout(value, 24),)))
    inputs = random_inputs(graph)
    (expected,), (found,) = evaluate_graph(graph, inputs), evaluate_graph(result, inputs)
    np.testing.assert_allclose(
        found.astype(np.float32), expected.astype(np.float32), rtol=4 * dtype.epsilon, atol=0.02
    )


def test_whole_networks_mean_the_same_in_drawn_layouts() -> None:
    maker = GraphMaker()
    x = conv(maker, maker.input(1, 3, 12, 12), 20, strides=(2, 2))  # type: ignore[arg-type]
    y = conv(maker, maker.node("relu", x), 40, size=1)
    y = conv(maker, maker.node("relu", y), 40, groups=40)
    y = maker.node("add", conv(maker, maker.node("relu", y), 20, size=1), x)
    pooled = maker.node("reduce_mean", y, axes=(2, 3), keepdims=False)
    graph = maker.graph(pooled, conv(maker, y, 53))
    inputs = random_inputs(graph)
    expected = evaluate_graph(graph, inputs)
    shapes = {node.output: graph.types[node.output].shape for node in graph.nodes}
    images = [value for value, shape in shapes.items() if len(shape) == 4]
    for seed in range(12):
        rng = np.random.default_rng(seed)
        decided = tuple(
            Layout(value, int(rng.choice([PLAIN, 4, 8, 16, shapes[value][1]])))
            for value in images
            if rng.random() < 0.8
        )
        optimised = optimise(graph, LANES, plan=GraphPlan(decided))
        assert_close(evaluate_graph(optimised, inputs), expected, 1e-4)
        assert_close(evaluate_program(extracted(optimised), inputs), expected, 1e-4)
        assert all(
            consumers(optimised).get(node.output) or node.output in optimised.outputs
            for node in optimised.nodes
        )


REFUSED: dict[str, tuple[Callable[[GraphMaker], str], int, str]] = {
    "a matrix": (lambda m: m.node("relu", m.input(4, 16)), 8, "no channels that could be blocked"),
    "wide numbers": (
        lambda m: m.node("abs", m.input(1, 16, 4, 4, dtype=DType.I64)),
        8,
        "no channels that could be blocked",
    ),
    "mostly padding": (lambda m: conv(m, m.input(1, 16, 4, 4), 24), 65, "blocks have 64 at most"),
    "rows of pixels": (
        lambda m: m.node("softmax", m.input(1, 16, 4, 4), axis=3),
        8,
        "'softmax' cannot give its result so",
    ),
    "groups that share a block": (
        lambda m: conv(m, m.input(1, 24, 4, 4), 24, groups=4),
        24,
        "'conv' cannot give its result so",
    ),
    "one channel that nothing has in blocks": (
        lambda m: m.node("neg", m.input(1, 1, 4, 4)),
        8,
        "'neg' cannot give its result so",
    ),
    "weights at run time": (
        lambda m: m.node("conv", m.input(1, 16, 4, 4), m.input(16, 16, 1, 1)),
        16,
        "'conv' cannot give its result so",
    ),
}


@pytest.mark.parametrize(("build", "block", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_layout_that_a_value_cannot_have_is_refused(
    build: Callable[[GraphMaker], str], block: int, message: str
) -> None:
    maker = GraphMaker()
    value = build(maker)
    graph = maker.graph(value)
    with pytest.raises(PlanError, match=message):
        choose_layouts.run(graph, LANES, GraphPlan((Layout(value, block),)))


def test_what_is_decided_of_unknown_values_or_without_vectors_is_refused() -> None:
    graph, (one, _) = chain(8, 8, 8)
    with pytest.raises(PlanError, match="no node computes 'absent'"):
        choose_layouts.run(graph, LANES, GraphPlan((Layout("absent", 8),)))
    with pytest.raises(PlanError, match="no vectors to block channels for"):
        choose_layouts.run(graph, None, GraphPlan((Layout(one, 8),)))
    plain = choose_layouts.run(graph, None, GraphPlan((Layout(one, PLAIN),)))
    assert plain == graph


def test_slices_of_channels_are_blocked_where_a_plan_says_so() -> None:
    maker = GraphMaker()
    whole = conv(maker, maker.input(1, 16, 6, 5), 28)
    steps = (1, 1, 1, 1)
    first = maker.node("slice", whole, starts=(0, 0, 0, 0), steps=steps, shape=(1, 16, 6, 5))
    last = maker.node("slice", whole, starts=(0, 16, 1, 0), steps=steps, shape=(1, 12, 4, 5))
    graph = maker.graph(conv(maker, first, 8), conv(maker, last, 8))
    ends = ["to_blocked", "from_blocked", "from_blocked"]
    assert conversions(planned(graph, **{first: 8, last: 8})) == ends
    assert len(conversions(planned(graph))) == 6
    assert conversions(planned(graph, **{whole: 4, first: 4, last: 4}))[0] == "to_blocked"
    with pytest.raises(PlanError, match="cannot give its result so"):
        planned(graph, **{first: 12})
