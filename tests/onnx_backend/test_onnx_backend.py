"""The onnx package's backend tests: recorded cases pass, and no case is wrong or crashes."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.onnx_backend.scoreboard import (
    RECORD,
    STATUSES,
    Result,
    compare,
    load_cases,
    reason_class,
    report,
    run_cases,
)

RECORDED = [tuple(line.split()) for line in RECORD.read_text().splitlines()]

pytestmark = pytest.mark.slow


@pytest.fixture(
    scope="module",
    params=[
        "some",
        pytest.param("all", marks=pytest.mark.nightly),
    ],
)
def results(
    request: pytest.FixtureRequest, folder_of_the_run: Path
) -> Mapping[tuple[str, str], Result]:
    """The results of one case of so many, by night of all, in machine code: the first of the test
    processes runs them for the others."""
    file = folder_of_the_run / f"onnx-backend-{request.param}.json"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            day = request.param == "some"
            cases = request.getfixturevalue("some_cases")["compiled"] if day else load_cases()
            found = [asdict(r) for r in run_cases(cases, "compiled", workers=2)]
            file.write_text(json.dumps(found))
    known = [Result(**values) for values in json.loads(file.read_text())]
    return {(result.kind, result.name): result for result in known}


def test_recorded_cases_pass(results: Mapping[tuple[str, str], Result]) -> None:
    known = [
        (status, results[kind, name]) for status, kind, name in RECORDED if (kind, name) in results
    ]
    worse = [
        result for status, result in known if STATUSES.index(result.status) > STATUSES.index(status)
    ]
    assert len(known) >= max(60, 0.9 * len(results))
    assert not worse, report(worse)


def test_every_case_is_passed_or_refused(results: Mapping[tuple[str, str], Result]) -> None:
    bad = [result for result in results.values() if result.status in ("WRONG", "CRASHED")]
    assert not bad, report(bad)


def test_refusals_have_a_reason(results: Mapping[tuple[str, str], Result]) -> None:
    refused = [result for result in results.values() if result.status == "refused"]
    assert refused
    assert all(len(result.reason) > len("ShapeError: ") for result in refused)


def test_comparison_notices_values_shapes_and_types() -> None:
    import numpy as np

    one = np.ones(3, np.float32)
    assert compare([one], [one], 1e-3, 1e-7) == ""
    assert "shape" in compare([one], [one.reshape(3, 1)], 1e-3, 1e-7)
    assert "float32 instead of float64" in compare([one], [one.astype(np.float64)], 1e-3, 1e-7)
    assert compare([one], [one * 1.01], 1e-3, 1e-7) != ""
    assert compare([one], [], 1e-3, 1e-7) != ""


def test_reason_classes_leave_names_out() -> None:
    first = reason_class("ShapeError: Reshape node 'a': 3 elements")
    second = reason_class("ShapeError: Reshape node 'b': 12 elements")
    assert first == second
