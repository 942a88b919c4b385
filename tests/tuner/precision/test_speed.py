"""Times of contractions from uniform builds, and what conversions between precisions cost."""

from __future__ import annotations

import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, random_inputs
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.plan.apply_precisions import prepare
from tunefarm.compiler.plan.precision.contractions import contractions
from tunefarm.compiler.types.precision import Precision
from tunefarm.tuner.precision.model import conversions, marked, uniform_times

F32, BF16, INT8 = Precision.F32, Precision.BF16, Precision.INT8


def network() -> Graph:
    """y = relu(x a), which a product and an addition read; z = y b + y, log_softmax(z) c."""
    maker = GraphMaker()
    y = maker.node("relu", maker.node("matmul", maker.input(4, 8), maker.weights(8, 8)))
    z = maker.node("add", maker.node("matmul", y, maker.weights(8, 8)), y)
    norm = maker.node("log_softmax", z, axis=1)
    return prepare(maker.graph(maker.node("matmul", norm, maker.weights(8, 3))))


def test_every_contraction_has_a_time_in_each_build() -> None:
    graph = network()
    builds = {kind: compile_model(marked(graph)) for kind in (F32, BF16)}
    times = uniform_times(builds, random_inputs(graph))
    names = {item.identity for item in contractions(graph)}
    for found in times.values():
        assert set(found.contractions) == names
        assert found.rest > 0  # log_softmax


@pytest.mark.parametrize(
    ("kinds", "moved"),
    [
        ((F32, F32, F32), 0),
        ((F32, INT8, F32), 0),  # the addition reads 8 bits, too
        ((F32, BF16, F32), 4 * 8 * 6),  # the addition needs f32
        ((BF16, F32, BF16), 4 * 8 * 0),  # x and softmax are converted where they are made
        ((INT8, INT8, INT8), 0),
    ],
)
def test_a_value_that_is_read_in_two_forms_is_converted(
    kinds: tuple[Precision, ...], moved: int
) -> None:
    graph = network()
    names = [item.identity for item in contractions(graph)]
    assignment = dict(zip(names, kinds, strict=True))
    assert sum(item.seconds(assignment, 1.0) for item in conversions(graph)) == moved


def test_contractions_of_a_chain_share_its_time() -> None:
    maker = GraphMaker()
    first = maker.node("matmul", maker.input(64, 8), maker.weights(8, 16))
    y = maker.node("matmul", maker.node("relu", first), maker.weights(16, 8))
    graph = prepare(maker.graph(y))
    built = compile_model(marked(graph), chains=(first,))
    assert len(built.program.kernel_calls()) == 1
    found = uniform_times({F32: built}, random_inputs(graph))[F32]
    one, other = (found.contractions[item.identity] for item in contractions(graph))
    assert one == other > 0
