"""How far outputs are from a reference, and who classifies alike."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.tuner.commands.bench import MOST_INPUTS, References, error_of
from tunefarm.tuner.commands.engines import Inputs
from tunefarm.tuner.confirm.drawn_inputs import seeded_inputs

TYPES = {"x": TensorType(DType.F32, (2, 5))}


def scores(inputs: Inputs) -> dict[str, Array]:
    return {"y": inputs["x"]}


def test_error_is_the_largest_one_over_the_largest_element() -> None:
    expected = np.array([1.0, -8.0, 4.0], np.float32)
    assert error_of(expected.copy(), expected) == 0
    assert error_of(np.array([1.0, -8.0, 4.5], np.float32), expected) == 0.5 / 8
    narrow = expected.astype(DType.BF16.numpy)
    assert error_of(narrow, expected) == 0


def test_error_of_integers_is_the_share_that_differs() -> None:
    assert error_of(np.array([1, 2, 3, 5]), np.array([1, 2, 3, 4])) == 0.25


@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_what_is_finite_in_the_reference_alone_is_infinitely_far(wrong: float) -> None:
    expected = np.array([1.0, 2.0], np.float32)
    assert error_of(np.array([1.0, wrong], np.float32), expected) == math.inf
    assert error_of(expected, np.array([1.0, wrong], np.float32)) == 0


def test_runs_that_differ_in_the_best_class_do_not_classify_alike() -> None:
    references = References.of(scores, partial(seeded_inputs, TYPES))
    assert len(references.cases) == MOST_INPUTS
    same = references.compare(lambda inputs: {"y": np.multiply(inputs["x"], 3)})
    assert same.top1 == 1.0 and same.error == pytest.approx(2.0)
    assert references.compare(lambda inputs: {"y": np.multiply(inputs["x"], -1)}).top1 == 0.0


def test_outputs_that_are_no_scores_have_no_classes() -> None:
    references = References.of(lambda inputs: {"y": inputs["x"][0]}, partial(seeded_inputs, TYPES))
    assert references.compare(lambda inputs: {"y": inputs["x"][0]}).top1 is None
