"""Quantised models give, to the bit, what ONNX's reference evaluator gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.attack.drawn_quantised import DrawnModel, Values, draw
from tests.compiler.graph.graph_helpers import evaluate_program
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.optimise import optimise


def _check(drawn: DrawnModel, path: Path, run: Callable[[Path, DrawnModel], Values]) -> None:
    onnx.save(drawn.model, path)
    difference = drawn.difference(run(path, drawn))
    assert not difference


def _kernels(path: Path, drawn: DrawnModel) -> Values:
    """By the meaning of the model's kernels."""
    program = extract_kernels(optimise(import_onnx(path, None), 16))
    return np.asarray(evaluate_program(program, drawn.inputs)[0])


def _executable(path: Path, drawn: DrawnModel) -> Values:
    return np.asarray(compiler.build(path).run(drawn.inputs)["y"])


@pytest.mark.parametrize("first", range(0, 108, 18))
def test_kernels_of_drawn_quantised_models_agree_to_the_bit(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 18):
        _check(draw(seed), tmp_path / "drawn.onnx", _kernels)


@pytest.mark.parametrize("first", range(0, 36, 18))
def test_drawn_quantised_models_agree_to_the_bit(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 18):
        _check(draw(seed), tmp_path / "drawn.onnx", _executable)
