"""The attack with drawn models finds what is planted, and says it with one node."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.attack.attack import Outcome
from tests.attack.graphs import CRASH, REFUSED, SAME, WRONG, Graphs, draw
from tunefarm.compiler.errors import UnsupportedOperatorError
from tunefarm.compiler.frontend import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode

PLANTED = "Abs"
KINDS = 30
SEEDS = range(12)


def _wrong(node: OnnxNode, graph: GraphBuilder) -> Value:
    return graph.emit("neg", node.input(0))


def _refuses(node: OnnxNode, graph: GraphBuilder) -> Value:
    raise UnsupportedOperatorError("planted")


def _crashes(node: OnnxNode, graph: GraphBuilder) -> Value:
    os.kill(os.getpid(), signal.SIGSEGV)
    return node.input(0)


@pytest.mark.parametrize(
    ("planted", "label"), [(_wrong, WRONG), (_refuses, REFUSED), (_crashes, CRASH)]
)
def test_planted_converter_is_found_and_made_small(
    planted: converter.Converter, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = Graphs(tmp_path)
    seed = _seed_with(PLANTED)
    assert attack.attempt(seed) == Outcome(SAME)
    versions = converter._CONVERTERS["", PLANTED]
    monkeypatch.setitem(converter._CONVERTERS, ("", PLANTED), dict.fromkeys(versions, planted))
    outcome = attack.attempt(seed)
    assert (outcome.label, outcome.broke) == (label, True)
    text = attack.minimise(seed, outcome)
    assert PLANTED in text
    assert text.count(" = ") <= 6  # the node, its attribute, and what it reads


def test_a_model_depends_on_its_seed_alone() -> None:
    first, again, other = (draw(seed).proto().SerializeToString() for seed in (3, 3, 4))
    assert first == again != other


def test_many_kinds_of_operators_are_drawn() -> None:
    drawn = {node.op_type for seed in SEEDS for node in draw(seed).nodes}
    assert len(drawn) >= KINDS


def _seed_with(kind: str) -> int:
    """A seed whose model is small and has such a node among its last ones."""
    for seed in range(1000):
        drawn = draw(seed)
        ends = [node for node in drawn.nodes if node.output[0] in drawn.outputs]
        if len(drawn.nodes) <= 5 and any(node.op_type == kind for node in ends):
            return seed
    raise AssertionError(f"no small model ends with {kind}")
