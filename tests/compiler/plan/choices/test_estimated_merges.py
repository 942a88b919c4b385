from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, random_inputs
from tests.targets import target_named
from tunefarm.compiler.graph.evaluate_graph import evaluate_graph
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.limits import Limits, ResourceBudget
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.plan.choices.estimated_merges import estimated_merges
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, Merged
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.types.numerics import NUMERICS

SPACES = SpaceCache(target_named("sapphirerapids"))


def heads(extent: int, channels: int, *branches: int, window: int = 3, stride: int = 1) -> Graph:
    """Convolutions of one image, each with a convolution of its own behind it."""
    maker = GraphMaker()

    def conv(data: str, inputs: int, outputs: int, size: int, step: int = 1) -> str:
        weight = maker.weights(outputs, inputs, size, size, scale=0.1)
        pads = (size // 2,) * 4
        bias = maker.weights(outputs)
        return maker.node(
            "relu", maker.node("conv", data, weight, bias, pads=pads, strides=(step,) * 2)
        )

    image = conv(maker.input(1, 16, extent, extent), 16, channels, 1)
    made = [conv(image, channels, outputs, window, stride) for outputs in branches]
    results = [conv(value, outputs, 16, 1) for value, outputs in zip(made, branches, strict=True)]
    return maker.graph(*results)


def test_narrow_branches_share_the_transform_of_their_data() -> None:
    (decision,) = estimated_merges(heads(28, 32, 16, 32), SPACES).of(Merged)
    assert len(decision.values) == 2


def test_what_is_decided_stays() -> None:
    graph = heads(28, 32, 16, 32)
    merged = estimated_merges(graph, SPACES)
    assert estimated_merges(graph, SPACES, plan=merged) == merged


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(heads(28, 32, 16, 32, window=1), id="no windows"),
        pytest.param(heads(28, 32, 16, 32, stride=2), id="windows with gaps"),
        pytest.param(heads(5, 64, 24, 126), id="direct by default"),
        pytest.param(heads(14, 128, 128, 128), id="transforms of results weigh more"),
    ],
)
def test_what_saves_little_stays_apart(graph: Graph) -> None:
    assert estimated_merges(graph, SPACES) == DEFAULT_PLAN


def test_only_what_was_measured_is_weighed() -> None:
    graph = heads(28, 32, 16, 32)
    narrow = SpaceCache(SPACES.target, 1, NUMERICS["bf16"])
    assert estimated_merges(graph, narrow) == DEFAULT_PLAN
    strict = SpaceCache(SPACES.target, 1, NUMERICS["strict"])
    assert estimated_merges(graph, strict) == DEFAULT_PLAN
    assert estimated_merges(graph, SpaceCache(SPACES.target, 2)) == DEFAULT_PLAN
    limited = ResourceBudget(replace(Limits(), arena=1 << 30))
    assert estimated_merges(graph, SPACES, limited) == DEFAULT_PLAN


def test_model_without_a_plan_computes_the_same() -> None:
    graph = heads(12, 16, 16, 24)
    inputs = dict(zip(graph.inputs, random_inputs(graph).values(), strict=True))
    found = Executable(compile_model(graph, plan=None).spec).run(inputs)
    expected = evaluate_graph(graph, inputs)
    for name, array in found.items():
        assert np.allclose(array, np.asarray(expected[name], np.float32), rtol=1e-3, atol=1e-3)
