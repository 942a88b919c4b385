"""The reference cache on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.measure.fault_kernels import make_kernel
from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.worker import reference
from tunefarm.measure.worker.reference import SEEDS, ensure_reference


def test_reference_holds_inputs_and_what_the_kernel_means(tmp_path: Path) -> None:
    result = ensure_reference(make_kernel(), "abc", tmp_path)
    assert len(result.cases) == len(SEEDS)
    for case in result.cases:
        assert np.array_equal(case.expected, 2 * case.inputs["in0"])
        assert isinstance(case.expected, np.memmap)
    assert not np.array_equal(result.cases[0].expected, result.cases[1].expected)


def test_reference_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure_reference(make_kernel(), "abc", tmp_path)
    monkeypatch.setattr(reference, "_compute", None)
    again = ensure_reference(make_kernel(), "abc", tmp_path)
    assert np.array_equal(first.cases[0].expected, again.cases[0].expected)


def test_half_written_reference_is_not_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", fail)
        with pytest.raises(OSError, match="disk full"):
            ensure_reference(make_kernel(), "abc", tmp_path)
    assert len(ensure_reference(make_kernel(), "abc", tmp_path).cases) == len(SEEDS)


def test_key_that_is_no_file_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasureError):
        ensure_reference(make_kernel(), "../escape", tmp_path)
