from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.runtime.sized_graphs import rows_graph
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import (
    graph_from_structure,
    graph_to_json,
    structural_hash,
    structurally_equal,
    structure_to_json,
)
from tunefarm.compiler.graph.verify import verify_graph


def example(prefix: str = "", weight: float = 1.0, alpha: float = 0.1) -> Graph:
    maker = GraphMaker()
    x = maker.input(2, 3)
    w = maker.constant(np.full((3,), weight, np.float32))
    left = maker.node("leaky_relu", x, alpha=alpha)
    right = maker.node("clip", x, min=-math.inf, max=None)
    graph = maker.graph(maker.node("add", maker.node("mul", left, w), right))
    if not prefix:
        return graph

    def rename(name: str) -> str:
        return f"{prefix}{name}"

    return Graph(
        "other",
        tuple(map(rename, graph.inputs)),
        tuple(map(rename, graph.outputs)),
        tuple(
            replace(node, inputs=tuple(map(rename, node.inputs)), output=rename(node.output))
            for node in graph.nodes
        ),
        {rename(name): type for name, type in graph.types.items()},
        {rename(name): array for name, array in graph.constants.items()},
    )


def test_round_trip_through_strict_json() -> None:
    graph = example()
    written = json.loads(json.dumps(graph_to_json(graph), allow_nan=False))
    back = graph_from_structure(written, graph.constants)
    verify_graph(back)
    assert back.nodes == graph.nodes
    assert (back.inputs, back.outputs, back.types) == (graph.inputs, graph.outputs, graph.types)
    assert structurally_equal(back, graph)
    digest = hashlib.sha256(graph.constants["c0"].tobytes()).hexdigest()
    assert written["constants"] == {"c0": {"sha256": digest}}


@pytest.mark.parametrize("damage", [None, [], {}, {"format": 2}, {"format": 1, "types": 3}])
def test_damaged_json_is_one_readable_error(damage: object) -> None:
    with pytest.raises(TunefarmError, match="graph JSON"):
        graph_from_structure(damage, {})


def test_structure_does_not_depend_on_names_sources_or_order() -> None:
    graph = example()
    other = example(prefix="layer/")
    assert structural_hash(other) == structural_hash(graph)
    left, right, mul, add = graph.nodes
    reordered = replace(graph, nodes=(right, left, mul, replace(add, source="elsewhere")))
    assert structurally_equal(reordered, graph)


def test_structure_depends_on_constants_attributes_and_sharing() -> None:
    graph = example()
    assert not structurally_equal(example(weight=2.0), graph)
    assert not structurally_equal(example(alpha=0.2), graph)
    assert structural_hash(example(weight=2.0)) != structural_hash(graph)
    maker = GraphMaker()
    x = maker.input(4)
    shared = maker.node("exp", x)
    once = maker.graph(maker.node("add", shared, shared))
    twice = maker.graph(maker.node("add", shared, maker.node("exp", x)))
    assert structural_hash(once) != structural_hash(twice)


def test_signature_survives_the_round_trip_and_counts() -> None:
    graph = rows_graph()
    stored = json.loads(json.dumps(structure_to_json(graph)))
    assert graph_from_structure(stored, graph.constants) == graph
    other = replace(graph, dynamic=replace(graph.signature, equalities=()))
    assert structural_hash(other) == structural_hash(graph)
    fixed = replace(graph, dynamic=None)
    assert structural_hash(fixed) != structural_hash(graph)


def test_padded_axes_survive_the_round_trip_and_count() -> None:
    graph = rows_graph()
    port = graph.signature.outputs[0]
    axes = {port.name: port.padded}
    for known in (replace(graph, unread=axes), replace(graph, zeros=axes)):
        stored = json.loads(json.dumps(structure_to_json(known)))
        assert graph_from_structure(stored, graph.constants) == known
        assert structural_hash(known) != structural_hash(graph)
