"""The attack on builds finds what is planted in them, and lets through what is refused well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.attack.growing_models import growing_model
from tests.attack.models import Case, Models
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend import model_importer
from tunefarm.compiler.frontend.converter import find_converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode

CONVOLUTION = Case("convolution")


def _raises(node: OnnxNode, graph: GraphBuilder) -> Value:
    raise RuntimeError("planted")


def _says_nothing(node: OnnxNode, graph: GraphBuilder) -> Value:
    raise ImportModelError("")


def _takes_memory(node: OnnxNode, graph: GraphBuilder) -> Value:
    return graph.constant(np.ones(8 << 30, np.uint8)[:4])


def _never_ends(node: OnnxNode, graph: GraphBuilder) -> Value:
    while True:
        pass


def _crashes(node: OnnxNode, graph: GraphBuilder) -> Value:
    import ctypes

    return graph.scalar(ctypes.string_at(0)[0], node.input(0).dtype)


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"), seconds=20.0)


@pytest.mark.parametrize(
    ("fault", "label"),
    [
        (_raises, "traceback RuntimeError"),
        (_says_nothing, "bad message"),
        (_takes_memory, "out of memory"),
        (_crashes, "crash"),
    ],
)
def test_fault_in_a_converter_is_found(
    fault: Callable[[OnnxNode, GraphBuilder], Value],
    label: str,
    attack: Models,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_importer, "find_converter", lambda *_: fault)
    outcome = attack.try_content(CONVOLUTION.content())
    assert (outcome.label, outcome.broke) == (label, True)


def test_converter_that_never_ends_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = Models(tmp_path, seconds=1.0)
    monkeypatch.setattr(model_importer, "find_converter", lambda *_: _never_ends)
    outcome = attack.try_content(CONVOLUTION.content())
    assert (outcome.label, outcome.broke) == ("hang", True)


@pytest.mark.parametrize(
    ("content", "label"),
    [
        (CONVOLUTION.content(), "built"),
        (b"", "refused: ImportModelError"),
        (CONVOLUTION.content()[:-20], "refused: ImportModelError"),
    ],
    ids=["intact", "empty", "cut"],
)
def test_what_is_built_or_refused_is_no_finding(content: bytes, label: str, attack: Models) -> None:
    outcome = attack.try_content(content)
    assert (outcome.label, outcome.broke) == (label, False)


def test_finding_is_shown_with_fewer_changes_and_nodes(
    attack: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("attention", (1, 2, 3, 4))
    monkeypatch.setattr(Case, "of", lambda seed: case)

    def planted(domain: str, operator: str, version: int) -> object:
        return _raises if operator == "Transpose" else find_converter(domain, operator, version)

    monkeypatch.setattr(model_importer, "find_converter", planted)
    outcome = attack.try_content(Case("attention").content())
    assert outcome.label == "traceback RuntimeError"
    text = attack.minimise(0, outcome)
    assert "attention with changed fields: []" in text
    assert "Transpose" in text
    assert "MatMul" not in text


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5, 7])
def test_growing_models_are_built_or_refused(seed: int, attack: Models) -> None:
    name, model = growing_model(Random(seed))
    outcome = attack.try_content(model.SerializeToString())
    assert not outcome.broke, f"{name}: {outcome}"
