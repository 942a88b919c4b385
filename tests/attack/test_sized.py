"""The attack with drawn sizes finds padding that is read, and says it with few nodes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.attack import sized
from tests.attack.attack import Outcome
from tests.attack.sized import SAME, WRONG, Sized, draw
from tests.attack.sized_drawing import SizedDrawing, SizedDrawn
from tunefarm.compiler.operators.types import Types

KINDS = 50
SEEDS = range(30)
SEED = 7


def _forget(types: Types, operand: int, axis: int, value: str) -> None:
    """Planted: padding stays as it is where it has to be something else."""


def small(seed: int) -> SizedDrawn:
    """The greatest of numbers as many as two symbols say, with nodes round it."""
    drawing = SizedDrawing.of(random.Random(seed))
    shape = [symbol.high for symbol in drawing.symbols]
    before = drawing.node("Tanh", drawing.input(drawing.array(shape) - 5))
    greatest = drawing.node("ReduceMax", before, keepdims=1)
    drawing.node("Sub", before, greatest)
    return drawing.finished()


def test_forgotten_padding_is_found_and_made_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sized, "draw", small)
    attack = Sized(tmp_path)
    assert attack.attempt(SEED) == Outcome(SAME)
    monkeypatch.setattr(Types, "fill", _forget)
    outcome = attack.attempt(SEED)
    assert (outcome.label, outcome.broke) == (WRONG, True)
    text = attack.minimise(SEED, outcome)
    assert "ReduceMax" in text and "bounds" in text
    assert "Tanh" not in text and "Sub" not in text


def test_a_model_depends_on_its_seed_alone() -> None:
    first, again, other = (draw(seed).proto().SerializeToString() for seed in (3, 3, 4))
    assert first == again != other


def test_many_kinds_of_operators_are_drawn_and_sizes_are_open() -> None:
    models = [draw(seed) for seed in SEEDS]
    assert len({node.op_type for drawn in models for node in drawn.nodes}) >= KINDS
    assert sum(bool(drawn.shapes()) for drawn in models) > len(models) * 0.8
    assert all(len(drawn.samples) == 5 for drawn in models)
