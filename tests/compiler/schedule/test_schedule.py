"""Schedules as records: JSON there and back, and clear refusals of what is not understood."""

from __future__ import annotations

import json

import pytest

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Parallelize
from tunefarm.compiler.schedule.steps.packing import PackLayout
from tunefarm.compiler.schedule.steps.step import STEPS
from tunefarm.compiler.schedule.steps.tiles import Fuse, Tile

SCHEDULE = Schedule(
    (
        Tile("conv", "ow", 7, "shift"),
        Fuse("conv", ("n", "oh"), "parallel"),
        Parallelize("conv", "parallel", 4),
        PackLayout("in1", ((0, 8), (1, 8)), (0, 2, 4, 5, 3, 1)),
    )
)


def test_json_names_the_step_and_its_arguments() -> None:
    assert SCHEDULE.to_json()[:2] == [
        ["Tile", "conv", "ow", 7, "shift"],
        ["Fuse", "conv", ("n", "oh"), "parallel"],
    ]
    assert Schedule.from_json(json.loads(json.dumps(SCHEDULE.to_json()))) == SCHEDULE
    assert hash(Schedule.from_json(SCHEDULE.to_json())) == hash(SCHEDULE)


def test_arguments_with_a_default_may_be_missing() -> None:
    """Records of an older version, from before an argument existed, still replay."""
    assert Schedule.from_json([["Tile", "y", "i", 4]]) == Schedule((Tile("y", "i", 4),))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([["Teleport", "y"]], "unknown schedule step ['Teleport', 'y']"),
        (["Tile"], "unknown schedule step 'Tile'"),
        ([[]], "unknown schedule step []"),
        ([None], "unknown schedule step None"),
        ([["Inline", "y", 1, 2]], "schedule step Inline has too many arguments"),
        ([["Tile", "y", "i", "4"]], "factor cannot be '4'"),
        ([["Tile", "y", "i", 4.0]], "factor cannot be 4.0"),
        ([["Unroll", "y", "i", 1]], "edges cannot be 1"),
        ([["Fuse", "y", "ij", "f"]], "axes cannot be 'ij'"),
        ([["Partition", "y", "i", 1, 1, [[0, 2]]]], "cuts cannot be ((0, 2),)"),
        ([["PackLayout", "in0", [[0]], [0, 2, 1]]], "splits cannot be ((0,),)"),
        ([["Tile", "y"]], "missing 2 required positional arguments"),
    ],
)
def test_what_is_no_step_is_refused(data: list[object], message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        Schedule.from_json(data)
    assert message in caught.value.message


def test_every_step_shows_a_loop_nest_in_its_docstring() -> None:
    for name, step in STEPS.items():
        assert step.__name__ == name
        assert step.__doc__ is not None and "->" in step.__doc__, name


def test_a_schedule_prints_one_step_per_line() -> None:
    lines = str(SCHEDULE).split("\n")
    assert lines[0] == "Tile(stage='conv', axis='ow', factor=7, tail='shift')"
    assert len(lines) == len(SCHEDULE.steps)
