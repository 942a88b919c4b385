"""The steps of a program: what they give, how it lies, and what they read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.plan.choices.program_steps import program_steps
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, PLAIN, GraphPlan, Layout
from tunefarm.compiler.plan.decisions.plan_names import is_blocked, plain_name
from tunefarm.compiler.target import host_target

TARGET = replace(host_target(), vector_bytes=64)


def network() -> Graph:
    """conv_0, max_pool_1 and conv_2, all of 32 channels, and a view of the last."""
    maker = GraphMaker()
    y = maker.node("conv", maker.input(1, 32, 12, 12), maker.weights(32, 32, 3, 3), pads=(1,) * 4)
    y = maker.node("max_pool", y, kernel=(2, 2), strides=(2, 2), shape=(6, 6))
    y = maker.node("conv", y, maker.weights(32, 32, 3, 3), pads=(1,) * 4)
    y = maker.node("reshape", y, shape=(1, 32, 36))
    return maker.graph(maker.node("softmax", y, axis=2))


def in_blocks(block: int) -> GraphPlan:
    return GraphPlan(tuple(Layout(name, block) for name in ("conv_0", "max_pool_1", "conv_2")))


@pytest.mark.parametrize(
    ("plan", "layout"),
    [(DEFAULT_PLAN, "NCHW16c"), (in_blocks(8), "NCHW8c"), (in_blocks(32), "NHWC")],
)
def test_steps_say_how_their_results_lie(plan: GraphPlan, layout: str) -> None:
    steps = program_steps(kernels_of(network(), TARGET, plan=plan))
    found = [(step.operators, step.value, step.layout) for step in steps]
    assert found == [
        (("to_blocked",), "x0", layout),
        (("conv",), "conv_0", layout),
        (("max_pool",), "max_pool_1", layout),
        (("conv",), "conv_2", layout),
        (("from_blocked",), "conv_2", "plain"),
        (("softmax",), "softmax_4", "plain"),
    ]


def test_plain_steps_read_through_views() -> None:
    program = kernels_of(network(), TARGET, plan=in_blocks(PLAIN))
    steps = program_steps(program)
    assert [step.layout for step in steps] == ["plain"] * 4
    assert [step.reads for step in steps] == [(), (0,), (1,), (2,)]
    assert [step.key for step in steps] == [
        call.key for calls in program.kernel_calls().values() for call in calls
    ]


@pytest.mark.parametrize(
    ("name", "value", "blocked"),
    [
        ("conv", "conv", False),
        ("conv_blocked", "conv", True),
        ("conv_blocked_2", "conv", True),
        ("conv_blocked_bf16", "conv", True),
        ("conv_bf16", "conv", False),
        ("blocked", "blocked", False),
    ],
)
def test_forms_of_values_are_told_by_their_names(name: str, value: str, blocked: bool) -> None:
    assert (plain_name(name), is_blocked(name)) == (value, blocked)
