"""What a kernel against itself says of a machine: on recorded clocks, and how it is measured."""

from __future__ import annotations

import pytest

from tests.instant_runner import InstantRunner
from tests.measure.clock_traces import against_itself
from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.target import host_target
from tunefarm.measure.farm.noise import FEWEST, Noise, Verdict, measure_itself, noise_of
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status

PAIRS = 14


def recorded(scale: float = 1.0, count: int = 100) -> list[MeasureResult]:
    """Measurements on a recorded clock of a shared core, its wandering made `scale` times as much
    on the logarithm."""
    first, second = against_itself("quiet", PAIRS, count, 0)
    machine = {"steal_seconds": 0.001, "queued_seconds": 0.01}
    return [
        MeasureResult(
            str(number),
            Status.OK,
            samples=tuple(a**scale),
            rivals=(tuple(b**scale),),
            run_seconds=0.1,
            machine=machine,
        )
        for number, (a, b) in enumerate(zip(first, second, strict=True))
    ]


def noise(scale: float = 1.0, count: int = 100) -> Noise:
    found = noise_of(recorded(scale, count), {})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("scale", "verdict"), [(0.2, Verdict.QUIET), (3.0, Verdict.NOISY), (8.0, Verdict.BUSY)]
)
def test_the_verdict_follows_from_the_scatter(scale: float, verdict: Verdict) -> None:
    assert noise(scale).verdict is verdict


def test_smaller_differences_need_more_pairs() -> None:
    found = noise()
    assert found.pairs_for(0.01) > found.pairs_for(0.02) > found.pairs_for(0.05) >= 1
    assert found.pairs_for(0.01) == pytest.approx(4 * found.pairs_for(0.02), rel=0.1)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    assert 0.85 <= noise(count=400).covered <= 1.0


def test_what_disturbs_is_a_share_of_the_timed_seconds() -> None:
    found = noise()
    assert found.steal == pytest.approx(0.01)
    assert found.queued == pytest.approx(0.1)


def test_few_measurements_and_failures_are_not_judged() -> None:
    assert noise_of(recorded(count=FEWEST - 1), {}) is None
    assert noise_of([MeasureResult(str(n), Status.CRASHED) for n in range(50)], {}) is None


class OneAtATime(InstantRunner):
    """Answers requests with one status."""

    def __init__(self, status: Status = Status.OK) -> None:
        super().__init__(1)
        self._status = status

    def answer(self, request: MeasureRequest) -> MeasureResult:
        return MeasureResult(request.request_id, self._status)


def test_both_sides_are_one_schedule_and_at_least_one_measurement_is_taken() -> None:
    runner = OneAtATime()
    assert len(measure_itself(runner, host_target(), 1, {}, 0.0)) == 1
    (request,) = runner.requests
    assert request.rivals == (request.schedule,)


def test_a_runner_whose_machinery_fails_is_asked_once() -> None:
    runner = OneAtATime(Status.INFRASTRUCTURE)
    assert len(measure_itself(runner, host_target(), 1, {}, 60.0)) == 1


def test_a_runner_that_does_not_answer_is_given_up() -> None:
    class Silent(OneAtATime):
        def results(self, timeout: float | None = None) -> list[MeasureResult]:
            return []

    with pytest.raises(MeasureError, match="not answered"):
        measure_itself(Silent(), host_target(), 1, {}, 60.0)
