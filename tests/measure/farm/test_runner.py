"""Every build and timed run is told to who watches, with where and when it was."""

from __future__ import annotations

from tests.measure.farm.test_pipeline_runner import FakeBackend, run
from tunefarm.measure.farm.pipeline_runner import PipelineRunner
from tunefarm.measure.farm.runner import LOST, Step


def test_each_step_is_told_and_a_lane_has_one_at_a_time() -> None:
    steps: list[Step] = []
    backend = FakeBackend(slots=2, losses={"1": 1})
    with PipelineRunner(backend, 1) as runner:
        runner.watch = steps.append
        run(runner, 4)
    builds = [step for step in steps if step.is_build]
    times = [step for step in steps if not step.is_build]
    assert sorted(step.request_id for step in builds) == ["0", "1", "2", "3"]
    assert sorted(step.request_id for step in times) == ["0", "1", "1", "2", "3"]
    assert [step.request_id for step in times if step.status == LOST] == ["1"]
    assert {step.status for step in steps} == {"ok", LOST}
    lanes: dict[tuple[bool, int], float] = {}
    for step in steps:
        assert lanes.get((step.is_build, step.index), 0.0) <= step.began <= step.ended
        lanes[step.is_build, step.index] = step.ended
