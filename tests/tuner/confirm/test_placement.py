"""Whether where its buffers lie alone moves a kernel: the winner against itself elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuner.setting import OTHER, TILES, Setting, SyntheticRunner
from tunefarm.measure.compare import LogRatio
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.placement import Placement, buffer_sizes
from tunefarm.tuner.confirm.placement import PlacementCheck, moved_lines, moves, two_placements
from tunefarm.tuner.search.budget import Limits


class PlacedRunner(SyntheticRunner):
    """The kernel takes `slower` times as long at the second placement of a request."""

    slower = 1.0
    status = Status.OK

    def answer(self, request: MeasureRequest) -> MeasureResult:
        found = super().answer(request)
        if len(request.placements) < 2:
            return found
        (rival,) = found.rivals
        slower = tuple(self.slower * seconds for seconds in rival)
        return replace(found, rivals=(slower,), status=self.status)


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path / "tuning.db")
    made.runner = PlacedRunner()
    made.run(Limits(), TILES, OTHER)
    yield made
    made.store.close()


def check(setting: Setting, *, late: bool = False, stopped: bool = False) -> PlacementCheck:
    settled = setting.confirm().settled
    assert len(settled) == 2
    made = PlacementCheck(setting.store, job=setting.job, seed=0)
    if stopped:
        made.stop()
    made.run(settled, setting.runner, {}, lambda seconds: late)
    return made


def test_each_winner_meets_itself_at_two_placements(setting: Setting) -> None:
    found = check(setting)
    requests = [r for r in setting.runner.requests if len(r.placements) == 2]
    assert [request.rivals for request in requests] == [(r.schedule,) for r in requests]
    assert all(len({tuple(place) for place in r.placements}) == 2 for r in requests)
    costs = {task.key.workload: task.progress.cost for task in setting.made}
    asked = [costs[request.workload_key] for request in requests]
    assert asked == sorted(costs.values(), reverse=True)
    assert set(found.ratios) == {task.key for task in setting.made}


def test_a_kernel_that_moves_is_named_and_others_are_not(setting: Setting) -> None:
    assert isinstance(setting.runner, PlacedRunner)
    setting.runner.slower = 1.08
    ratios = check(setting).ratios
    first, second = setting.made
    steady = LogRatio(0.02, 0.002, 28)
    tasks = [
        replace(first.status(), placement=ratios[first.key]),
        replace(second.status(), placement=steady),
        second.status(),
    ]
    name = f"{first.kernel.name} ({first.key.workload[:8]})"
    assert moved_lines(tasks) == [f"where its buffers lie alone moves {name} by 8 %"]


@pytest.mark.parametrize(
    ("mean", "deviation", "moved"),
    [
        (0.06, 0.01, True),
        (-0.06, 0.01, True),
        (0.06, 0.02, False),
        (0.025, 0.001, False),
        (-0.025, 0.001, False),
    ],
)
def test_a_move_is_beyond_doubt_above_three_per_cent(
    mean: float, deviation: float, moved: bool
) -> None:
    assert moves(LogRatio(mean, deviation, 28)) is moved


@pytest.mark.parametrize("status", [Status.SCATTERED, Status.CRASHED])
def test_what_fails_or_scatters_is_left_out(setting: Setting, status: Status) -> None:
    assert isinstance(setting.runner, PlacedRunner)
    setting.runner.status = status
    assert check(setting).ratios == {}


@pytest.mark.parametrize("reason", ["late", "stopped"])
def test_nothing_is_measured_when_there_is_no_time(setting: Setting, reason: str) -> None:
    found = check(setting, **{reason: True})
    assert found.ratios == {}
    assert all(len(request.placements) < 2 for request in setting.runner.requests)


def test_the_other_placement_is_that_of_another_call_or_all_moved(setting: Setting) -> None:
    task = setting.made[0]
    sizes = buffer_sizes(task.kernel)
    packed, moved = two_placements(task)
    assert packed == Placement.packed(sizes)
    base, after = packed.spans(sizes, 100), moved.spans(sizes, 100)
    apart = [b.begin - a.begin for a, b in zip(base[:-1], after[:-1], strict=True)]
    assert len(set(apart)) == len(sizes) and all(distance % 128 for distance in apart[::2])
    task.placements = (moved, packed)
    assert two_placements(task) == (moved, packed)
