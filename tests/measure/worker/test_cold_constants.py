"""Copies of constants that timed runs take turns with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.loops.constant_layout import ConstantLayout
from measure.worker.reference import ensure_reference
from measure.worker.workload import Workload, copies_needed
from tests.compiler.schedule.small_kernels import f32, kernel_of

LAYOUT = ConstantLayout(((1, 8),), (1, 0, 2))
MEGABYTE = 1 << 20


@pytest.fixture
def workload(tmp_path: Path) -> Iterator[Workload]:
    kernel = kernel_of(
        [f32(3, 64), f32(64, 48), f32(48)],
        [("matmul", ["x0", "x1"], {}), ("add", ["v0", "x2"], {})],
        ["x1", "x2"],
    )
    found = Workload(kernel, ensure_reference(kernel, "key", tmp_path))
    yield found
    found.close()


def test_every_copy_of_the_constants_is_one_of_its_own(workload: Workload) -> None:
    copies = workload.copies({"in1": LAYOUT})
    begins = [copy["in1"] for copy in copies.addresses(3)]
    assert len(set(begins)) == 3
    assert copies.addresses(2) == copies.addresses(3)[:2]
    assert workload.copies({"in1": LAYOUT}) is copies
    assert workload.copies({}) is not copies
    assert copies.changed() == ""


def test_constants_of_a_copy_follow_each_other_at_cache_lines(workload: Workload) -> None:
    first, second = workload.copies({"in1": LAYOUT}).addresses(2)
    assert first["in1"] % 4096 == 0
    assert first["in2"] == first["in1"] + 64 * 48 * 4
    assert second["in1"] == first["in2"] + 48 * 4


def test_copies_are_dropped_with_the_constants(workload: Workload) -> None:
    held = workload.nbytes
    workload.copies({}).addresses(16)
    assert workload.nbytes >= held + 16 * 64 * 48 * 4
    workload.drop_constants()
    assert workload.nbytes == held


@given(st.lists(st.integers(1, 300 * MEGABYTE), min_size=1, max_size=4))
def test_every_schedule_has_as_many_copies_without_taking_all_memory(sizes: list[int]) -> None:
    count = copies_needed(sizes)
    assert 1 <= count <= 16
    assert count == 1 or count * max(sizes) <= 64 * MEGABYTE + max(64 * MEGABYTE, max(sizes))
    assert copies_needed([*sizes, *sizes]) == count


def test_without_constants_nothing_is_copied() -> None:
    assert copies_needed([0, 0]) == 0
