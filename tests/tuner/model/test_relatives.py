"""Relatives: kernels of the same kind lend each other their best schedules."""

from __future__ import annotations

from tests.compiler.schedule.test_nest_shape import kernel_of
from tests.tuner.synthetic import TARGET, matmul_kernel, small_space, tile_space
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.tuner.model.history import Known, carried_over, distance, is_related, nearest_bests


def known(kernel: FusedKernel, tile: tuple[int, int], chunk: int = 64) -> Known:
    return Known(kernel, "packed", {"tile": tile, "chunk": chunk, "unroll": 2})


def test_the_nearest_kernels_come_first() -> None:
    space = tile_space()
    kernel = matmul_kernel(32, 48, 64)
    found = nearest_bests(
        kernel,
        space,
        [
            known(matmul_kernel(1, 1000, 512), (1, 1)),
            known(matmul_kernel(32, 48, 128), (6, 2)),
            known(matmul_kernel(28, 48, 64), (8, 1)),
        ],
    )
    assert [space.choices(candidate)["tile"] for candidate in found] == [(8, 1), (6, 2)]


def test_kernels_with_equal_bests_count_once() -> None:
    space = tile_space()
    others = [known(matmul_kernel(31 - i, 48, 64), (6, 2)) for i in range(4)]
    others.append(known(matmul_kernel(1, 2, 3), (1, 1)))
    assert len(nearest_bests(matmul_kernel(), space, others)) == 2


def test_kernels_of_another_kind_are_no_relatives() -> None:
    product, softmax = matmul_kernel(), kernel_of("softmax")
    assert is_related(product, matmul_kernel(7, 13, 97))
    assert not is_related(product, softmax)
    assert nearest_bests(softmax, tile_space(), [known(product, (6, 2))]) == []


def test_distances_are_symmetric_and_zero_for_equals() -> None:
    a, b = matmul_kernel(32, 48, 64), matmul_kernel(1, 48, 640)
    assert distance(a, a) == 0
    assert distance(a, b) == distance(b, a) > 1


def test_values_that_the_space_lacks_become_the_nearest() -> None:
    space = tile_space()
    candidate = carried_over("packed", {"tile": [7, 2], "chunk": 1000, "unroll": 2}, space)
    assert candidate is not None
    assert space.choices(candidate) == {"tile": (8, 2), "chunk": 512, "unroll": 2}


def test_missing_choices_get_the_default() -> None:
    space = tile_space()
    candidate = carried_over("direct", {"tile": (4, 2), "order": "spiral"}, space)
    assert candidate is not None
    assert space.choices(candidate) == {
        "tile": (4, 2),
        "chunk": 64,
        "unroll": 2,
        "order": "nmk",
        "grain": 4,
    }


def test_a_sketch_that_the_space_lacks_carries_nothing_over() -> None:
    assert carried_over("direct", {}, small_space(3)) is None


def test_every_schedule_carried_over_is_legal() -> None:
    """From each of several products to the real space of another, whose tiles are others."""
    source = schedule_space(matmul_kernel(128, 768, 768), TARGET)
    target = schedule_space(matmul_kernel(7, 24, 13), TARGET)
    for number in range(0, source.size, 97):
        candidate = source.candidate(number)
        found = carried_over(candidate.sketch, source.choices(candidate), target)
        assert found is not None
        assert target.find(found.sketch, target.choices(found)) == found
        target.schedule(found)
