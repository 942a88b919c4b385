"""What reads a dynamic size is right at every size, whether an input has it or the run computes it.

Sizes are 0, 1, those around tiles and vectors, and the bound; onnxruntime says what is right.
"""

from __future__ import annotations

import pytest

from tests.compiler.bounded_models import KINDS, SOURCES, bounded_model
from tests.onnxruntime_session import assert_agrees
from tunefarm import compiler

BOUND = 50
SIZES = (1, 2, 7, 15, 16, 17, 33, 48, BOUND)
OF_NONE = ("leaky relu", "product", "layer norm", "quantized product")
"""Kinds that may have no elements in onnxruntime too."""


def check(source: str, kind: str, sizes: tuple[int, ...], least: int = 1) -> None:
    proto, graph, feed = bounded_model(source, kind, BOUND, least=least)
    run, calls = compiler.build(graph).run, map(feed, sizes)
    assert_agrees(run, proto, *calls, atol=2e-5, of_largest=2e-5)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("durations", "vocoder"),
        ("durations", "attention"),
        ("durations", "interleaved conv"),
        ("shape", "strided conv"),
        ("shape", "pairs' maximum"),
        ("condition", "transposed conv by 3"),
        ("condition", "softmax"),
        ("input", "transposed conv by 2"),
    ],
)
def test_results_are_right_at_every_size(source: str, kind: str) -> None:
    check(source, kind, SIZES)


@pytest.mark.nightly
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_right_at_every_size(source: str, kind: str) -> None:
    check(source, kind, SIZES)


@pytest.mark.parametrize("source", ["input", "durations", "shape"])
@pytest.mark.parametrize("kind", OF_NONE)
def test_a_size_may_be_0(source: str, kind: str) -> None:
    check(source, kind, (0, 1, 17), least=0)
