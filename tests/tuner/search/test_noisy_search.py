"""Searches on simulated cores whose speed wanders: as good as on a still one, and honest.

The figures of 20 seeds are printed by `python -m tests.benchmarks.search noisy`; here are a few.
"""

from __future__ import annotations

from statistics import mean

import pytest

from tests.benchmarks.noisy_search import (
    FORMER_LIMIT,
    HONEST,
    LOST_LIMIT,
    STILL_LIMIT,
    Course,
    former,
    paired,
)
from tests.measure.wandering_clock import NOISY, STILL
from tests.tuner.recorded import RecordedKernel, load

KERNELS = {item.name: item for item in load()}
CONV, DEPTHWISE = KERNELS["conv3x3 256x14"], KERNELS["depthwise 144x56"]
FEW = 40  # trials


def test_a_course_tells_when_it_was_good_enough() -> None:
    course = Course((False, True, False, True, True), 0)
    assert (course.first, course.for_good) == (2, 4)
    assert (Course((True, True), 0).first, Course((True, True), 0).for_good) == (1, 1)
    assert (Course((False,), 0).first, Course((False,), 0).for_good) == (2, 2)
    assert Course((True, False), 0).for_good == 3


@pytest.mark.parametrize("kind", [NOISY[0], NOISY[-1]])
def test_a_search_on_a_noisy_clock_is_the_same_to_the_bit(kind: str) -> None:
    assert paired(DEPTHWISE, kind, 2, 16) == paired(DEPTHWISE, kind, 2, 16)
    assert former(DEPTHWISE, kind, 2, 16) == former(DEPTHWISE, kind, 2, 16)


@pytest.mark.parametrize("item", [CONV, DEPTHWISE], ids=lambda item: item.name)
@pytest.mark.parametrize("kind", NOISY)
def test_a_search_on_a_noisy_clock_finds_what_is_fast_and_says_how_fast(
    item: RecordedKernel, kind: str
) -> None:
    course = paired(item, kind, 0, FEW)
    assert course.for_good <= FEW
    assert HONEST[0] < course.claimed / course.true < HONEST[1]
    assert course.lost <= LOST_LIMIT * FEW


@pytest.mark.parametrize("kind", NOISY)
def test_the_former_way_claimed_the_luck_of_the_clock(kind: str) -> None:
    """What the simulated clocks must be able to show."""
    courses = [former(CONV, kind, seed, 2 * FEW) for seed in range(3)]
    assert mean(course.claimed / course.true for course in courses) < 0.99
    assert sum(course.lost for course in courses) > 2 * LOST_LIMIT * 3 * 2 * FEW


@pytest.mark.nightly
@pytest.mark.parametrize("kind", NOISY)
def test_noise_costs_next_to_no_trials(kind: str) -> None:
    """Of 20 seeds, two kernels: against a still clock, and the former way on the same one."""
    noise, still, before = 0.0, 0.0, 0.0
    for item in (CONV, DEPTHWISE):
        noise += mean(paired(item, kind, seed).for_good for seed in range(20))
        still += mean(paired(item, STILL, seed).for_good for seed in range(20))
        before += mean(former(item, kind, seed).for_good for seed in range(20))
    assert noise <= STILL_LIMIT * still
    assert noise <= FORMER_LIMIT * before
