"""Narrow types where sizes are open: compiled, called after data that is not finite or huge."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.frontend.sized_cases import CASES, Case
from tests.compiler.frontend.sized_model_cases import MORE_CASES
from tests.compiler.frontend.sized_quantised_cases import QUANTISED_CASES
from tests.onnxruntime_session import assert_agrees
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto

NARROW = [
    *(("bf16", name) for name in ("conv", "conv_stride", "lstm", "causal")),
    *(("f16", name) for name in ("conv", "matmul_inner")),
]


def _check(case: Case, numerics: str, huge: float, tolerance: float) -> None:
    """Within a tolerance, of the largest output or 1, of what onnxruntime has in f32."""
    built = compiler.build(import_model_proto(case.proto, case.shapes), numerics=numerics)
    *_, last = case.calls()
    built.run({name: np.full_like(array, huge) for name, array in last.items()})
    limits = {"rtol": 0, "atol": tolerance, "of_largest": tolerance}
    assert_agrees(built.run, case.proto, *case.calls(), **limits)


@pytest.mark.parametrize(("numerics", "name"), NARROW)
def test_narrow_floats_are_right_whatever_was_there_before(numerics: str, name: str) -> None:
    _check((CASES | MORE_CASES)[name], numerics, float("nan"), 0.03)


@pytest.mark.parametrize("name", QUANTISED_CASES)
def test_integers_are_right_whatever_was_there_before(name: str) -> None:
    _check(QUANTISED_CASES[name], "default", 1e6, 0.02)
