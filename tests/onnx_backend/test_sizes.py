"""Backend cases with open sizes: what is there is right, whatever is in the padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from onnx.backend.test.case.test_case import TestCase

from tests.onnx_backend.scoreboard import load_cases
from tests.onnx_backend.sizes import open_cases, report, run_open


def test_open_sizes_are_right_or_refused(some_cases: Mapping[str, Sequence[TestCase]]) -> None:
    """Of some; `python -m tests.onnx_backend.sizes` tries all."""
    pytest.importorskip("onnxruntime")
    results = [run_open(item) for case in some_cases["sizes"] for item in open_cases(case)]
    assert sum(result.status in ("passed", "fixed") for result in results) > len(results) / 2
    bad = [result for result in results if result.status in ("WRONG", "CRASHED")]
    assert not bad, report(bad)


@pytest.mark.nightly
def test_all_open_sizes_are_right_or_refused() -> None:
    pytest.importorskip("onnxruntime")
    cases = load_cases(("node",))
    results = [run_open(item) for case in cases for item in open_cases(case)]
    bad = [result for result in results if result.status in ("WRONG", "CRASHED")]
    assert not bad, report(bad)
