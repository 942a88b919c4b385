"""Quantised models give, to the bit, what ONNX's reference evaluator gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import compiler
from compiler.errors import ImportModelError
from compiler.frontend.import_onnx import import_onnx
from compiler.plan.extract_kernels import extract_kernels
from compiler.plan.optimise import optimise
from tests.compiler.drawn_quantised import DrawnModel, Values, draw
from tests.compiler.graph.graph_helpers import evaluate_program


def _check(drawn: DrawnModel, path: Path, run: Callable[[Path, DrawnModel], Values]) -> None:
    """Bit-equal; but where floats were rounded before, a number in the middle may go either way."""
    onnx.save(drawn.model, path)
    expected, found = drawn.expected(), run(path, drawn)
    assert found.dtype == expected.dtype, drawn.kind
    assert found.shape == expected.shape, drawn.kind
    differs = found != expected
    if differs.any() and drawn.before:
        differs &= ~drawn.near_ties()
    assert not differs.any(), f"{drawn.kind}: {found[differs][:8]} is not {expected[differs][:8]}"


def _kernels(path: Path, drawn: DrawnModel) -> Values:
    """By the meaning of the model's kernels."""
    program = extract_kernels(optimise(import_onnx(path, None), 16))
    return np.asarray(evaluate_program(program, drawn.inputs)[0])


def _executable(path: Path, drawn: DrawnModel) -> Values:
    return np.asarray(compiler.build(path).run(drawn.inputs)["y"])


@pytest.mark.parametrize("first", range(0, 96, 12))
def test_kernels_of_drawn_quantised_models_agree_to_the_bit(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 12):
        _check(draw(seed), tmp_path / "drawn.onnx", _kernels)


@pytest.mark.parametrize("first", range(0, 36, 12))
def test_drawn_quantised_models_agree_to_the_bit(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 12):
        _check(draw(seed), tmp_path / "drawn.onnx", _executable)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_two_thousand_quantised_models_agree_to_the_bit(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 100):
        _check(draw(seed), tmp_path / "drawn.onnx", _executable)


def test_a_scale_of_zero_or_less_is_refused(tmp_path: Path) -> None:
    for scale in ("0.0", "-0.5", "nan"):
        model = onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (uint8[2] y) '
            f"<float s = {{{scale}}}> {{ y = QuantizeLinear (x, s) }}"
        )
        path = tmp_path / "wrong.onnx"
        onnx.save(model, path)
        with pytest.raises(ImportModelError, match=r"the scale .* is not a positive"):
            import_onnx(path, None)
