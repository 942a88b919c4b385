"""Calls of kernels in one run, those in loops as often as there are rounds."""

from __future__ import annotations

from tests.compiler.frontend.loop_models import CASES
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.calls_in_run import GUESSED_ROUNDS, calls_in_run
from tunefarm.compiler.pipeline import kernels_of


def test_a_kernel_in_a_loop_is_called_in_each_round() -> None:
    program = kernels_of(import_model_proto(CASES["two hundred rows"].proto))
    assert set(calls_in_run(program).values()) == {200}


def test_rounds_that_are_not_known_are_guessed_in_loops_of_loops_too() -> None:
    program = kernels_of(import_model_proto(CASES["a loop in a loop"].proto))
    counts = set(calls_in_run(program).values())
    assert {1, GUESSED_ROUNDS, GUESSED_ROUNDS**2} <= counts
