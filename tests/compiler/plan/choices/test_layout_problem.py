"""Layouts as a problem: its costs are those of the kernels that its choices lead to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, conv
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.plan.choices.layout_problem import LayoutProblem, layout_problem
from tunefarm.compiler.plan.choices.solver import solve
from tunefarm.compiler.plan.decisions.graph_plan import PLAIN, GraphPlan, Layout
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.optimise import optimise

LANES = 16


def conv_relu(maker: GraphMaker, x: str, outputs: int, size: int = 3, **attributes: int) -> str:
    return maker.node("relu", conv(maker, x, outputs, size, **attributes))


def residuals() -> Graph:
    """Convolutions of odd channels, a depthwise one and a sum."""
    maker = GraphMaker()
    first = conv_relu(maker, maker.input(1, 3, 8, 8), 20)
    inner = conv_relu(maker, conv_relu(maker, first, 24, size=1), 24, groups=24)
    total = maker.node("add", conv_relu(maker, inner, 20, size=1), first)
    return maker.graph(conv_relu(maker, total, 53))


def with_rows() -> Graph:
    """A value that a softmax needs plain as well, and one that is an output."""
    maker = GraphMaker()
    first = conv_relu(maker, maker.input(1, 3, 8, 8), 20)
    pooled = maker.node("max_pool", first, kernel=(2, 2), strides=(2, 2), shape=(4, 4))
    rows = maker.node("softmax", first, axis=3)
    second = conv_relu(maker, pooled, 24)
    return maker.graph(second, rows, conv_relu(maker, second, 20, size=1))


def with_mean() -> Graph:
    """A global pool, whose result of one pixel is left to the rules."""
    maker = GraphMaker()
    first = conv_relu(maker, maker.input(2, 3, 8, 8), 24)
    second = conv_relu(maker, first, 32)
    return maker.graph(maker.node("reduce_mean", second, axes=(2, 3), keepdims=True))


def drawn_seconds(kernel: FusedKernel) -> tuple[float, float]:
    """A number that a kernel has for good, and no other one."""
    digest = hashlib.sha256(workload_key(kernel).encode()).digest()
    return 1.0 + int.from_bytes(digest[:4], "big") / 2**32, 0.5


def seconds_of(graph: Graph, plan: GraphPlan) -> float:
    """All kernels of the graph under a plan."""
    program = extract_kernels(optimise(graph, LANES, plan=plan))
    return sum(
        drawn_seconds(call.kernel)[0] for call in program.calls if isinstance(call, KernelCall)
    )


@pytest.mark.parametrize("build", [residuals, with_rows, with_mean])
def test_costs_are_those_of_the_kernels_under_the_plan(build: Callable[[], Graph]) -> None:
    graph = build()
    found = layout_problem(graph, LANES, drawn_seconds)
    names, candidates = found.problem.names, found.problem.candidates
    rng = np.random.default_rng(0)
    differences = []
    for _ in range(10):
        positions = [int(rng.integers(len(each))) for each in candidates]
        chosen = {name: candidates[at][positions[at]] for at, name in enumerate(names)}
        plan = GraphPlan(found.decisions(chosen))
        differences.append(seconds_of(graph, plan) - found.problem.cost_of(chosen))
    np.testing.assert_allclose(differences, differences[0], rtol=0, atol=1e-6)


def test_the_solution_is_a_plan_that_means_the_same() -> None:
    graph = residuals()
    found = layout_problem(graph, LANES, work)
    plan = GraphPlan(found.decisions(solve(found.problem)))
    assert_same_meaning(graph, optimise(graph, LANES, plan=plan))


def work(kernel: FusedKernel) -> tuple[float, float]:
    """Products, those with padding too: what is blocked by vectors costs more than NHWC."""
    anchor = kernel.stage(kernel.anchor)
    extents = [axis.extent for axis in (*anchor.axes, *anchor.reduce_axes)]
    return 1e-9 * float(np.prod(extents)), 0.0


def test_padding_is_avoided_where_it_costs() -> None:
    found = layout_problem(residuals(), LANES, work)
    chosen = solve(found.problem)
    padded = {"NCHW16c"} & set(chosen.values())
    assert not padded
    assert set(found.by_rules.values()) == {"NCHW16c"}


def test_equal_kernels_are_asked_for_once() -> None:
    maker = GraphMaker()
    y = maker.input(1, 20, 8, 8)
    for _ in range(6):
        y = conv_relu(maker, y, 20)
    asked: list[str] = []

    def seconds(kernel: FusedKernel) -> tuple[float, float]:
        asked.append(workload_key(kernel))
        return 1.0, 0.0

    found = layout_problem(maker.graph(y), LANES, seconds)
    assert len(asked) == len(set(asked)) == len(found.asked)
    assert len(asked) <= 4 * 4 + 2 * 4  # pairs of layouts, and conversions


def test_decisions_name_every_value_of_a_class() -> None:
    graph = residuals()
    found = layout_problem(graph, LANES, work)
    first = found.classes[0]
    chosen = dict.fromkeys(found.problem.names, "NCHW")
    chosen[first.name] = f"NCHW{20}c"
    decisions = found.decisions(chosen)
    assert {item.value for item in decisions if item.block == 20} == set(first.values)
    assert all(item.block == PLAIN for item in decisions if item.value not in first.values)
    assert Layout(first.name, 20) in decisions


def test_a_graph_without_images_has_no_variables() -> None:
    maker = GraphMaker()
    found: LayoutProblem = layout_problem(
        maker.graph(maker.node("softmax", maker.input(4, 8), axis=1)), LANES, work
    )
    assert found.classes == () and found.problem.names == ()
