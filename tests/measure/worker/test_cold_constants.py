"""Copies of constants that timed runs take turns with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tunefarm.compiler.loops.constant_layout import ConstantLayout
from tunefarm.compiler.target import host_target
from tunefarm.measure.sandbox.guarded import view
from tunefarm.measure.worker.reference import ensure_reference
from tunefarm.measure.worker.workload import Workload, copies_needed, outputs_needed

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
    (copies,) = workload.copies([{"in1": LAYOUT}])
    begins = [copy["in1"] for copy in copies.addresses(3)]
    assert len(set(begins)) == 3
    assert copies.addresses(2) == copies.addresses(3)[:2]
    same, other = workload.copies([{"in1": LAYOUT}, {}])
    assert same is copies
    assert other is not copies
    assert copies.changed() == ""


def test_a_changed_copy_is_found_and_mended(workload: Workload) -> None:
    (copies,) = workload.copies([{"in1": LAYOUT}])
    first, second, _ = copies.addresses(3)
    view(first["in1"] + 100, 1)[0] ^= 1
    view(second["in2"], 1)[0] ^= 1
    assert copies.changed() == "in1"
    copies.mend()
    assert copies.changed() == ""
    assert view(first["in2"], 4 * 48).tobytes() == view(second["in2"], 4 * 48).tobytes()


def test_constants_of_a_copy_follow_each_other_at_cache_lines(workload: Workload) -> None:
    (copies,) = workload.copies([{"in1": LAYOUT}])
    first, second = copies.addresses(2)
    assert first["in1"] % 4096 == 0
    assert first["in2"] == first["in1"] + 64 * 48 * 4
    assert second["in1"] == first["in2"] + 48 * 4


def test_layouts_that_are_not_needed_leave_their_memory_to_others(workload: Workload) -> None:
    layouts = [{"in1": ConstantLayout(((1, width),), (1, 0, 2))} for width in (4, 6, 8, 12, 16)]
    for layout in layouts:
        (copies,) = workload.copies([layout])
        copies.addresses(3)
        held = workload.nbytes
    workload.copies(layouts[:1])[0].addresses(3)
    assert workload.nbytes <= held
    together = workload.copies(layouts)
    assert len({id(one) for one in together}) == len(layouts)
    assert all(one.addresses(2) and not one.changed() for one in together)


def test_trimming_spares_the_constants_that_are_needed(workload: Workload) -> None:
    held = workload.nbytes
    needed: dict[str, ConstantLayout] = {"in1": LAYOUT}
    kept = dict(workload.arguments(needed))["in1"]
    workload.copies([{}])[0].addresses(16)
    workload.trim(0, [needed])
    assert workload.nbytes <= held + 2 * 2 * kept.nbytes
    assert workload.changed_constant(needed) == ""
    assert dict(workload.arguments(needed))["in1"] is kept


@given(st.lists(st.integers(1, 300 * MEGABYTE), min_size=1, max_size=4))
def test_every_schedule_has_as_many_copies_without_taking_all_memory(sizes: list[int]) -> None:
    count = copies_needed(sizes)
    assert 1 <= count <= 64
    assert count == 1 or count * max(sizes) <= 64 * MEGABYTE + max(64 * MEGABYTE, max(sizes))
    assert copies_needed([*sizes, *sizes]) == count


def test_copies_are_clearly_larger_than_the_last_cache() -> None:
    last_cache = min(host_target().l3_bytes, 48 * MEGABYTE)
    for divisor in (3, 8, 16, 48):
        size = last_cache // divisor
        assert copies_needed([size]) * size >= 1.2 * last_cache


def test_without_constants_nothing_is_copied() -> None:
    assert copies_needed([0, 0]) == 0


def test_constants_are_no_colder_than_a_small_model_makes_them() -> None:
    own = min(host_target().l3_bytes, 64 * MEGABYTE) // 4
    sizes = [own // 5]
    assert copies_needed(sizes, own) == -(-own // sizes[0])
    assert copies_needed(sizes, own // 10) == 1
    assert copies_needed(sizes, 2 * own) == copies_needed(sizes), "others may use the cache as well"


def test_outputs_are_as_cold_as_the_model_makes_them() -> None:
    l2, l3 = host_target().l2_bytes, min(host_target().l3_bytes, 64 * MEGABYTE)
    assert outputs_needed([100, l2 // 4], 0, l2) == 1, "what is used at once is warm"
    output = l3 // 8
    assert outputs_needed([0, output], 0, 4 * output) == 5
    assert outputs_needed([output, output], 0, 4 * output) == 4, "the input is touched as well"
    assert outputs_needed([0, output], output, 4 * output) == 3, "and so are constants"
    assert outputs_needed([0, output], 0, 1000 * l3) == outputs_needed([0, output], 0, l3)
    assert outputs_needed([10 * l3, output], 0, l3) == 1
    assert outputs_needed([4, 4], 0, l3) == 64
    assert outputs_needed([4, 0], 0, l3) == 1
