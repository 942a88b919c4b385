"""Why a schedule is faster: the choices in which it differs from the default one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.setting import Setting
from tests.tuner.synthetic import matmul_kernel, tile_space
from tunefarm.db.records import TrialRecord
from tunefarm.tuner.job import reason
from tunefarm.tuner.model.cost_model import BoostedTrees
from tunefarm.tuner.search.tasks import TuningTask


@pytest.fixture
def task(tmp_path: Path) -> Iterator[TuningTask]:
    """The default schedule: tile (4, 2), chunk 64, unroll 2, order nmk, grain 4."""
    setting = Setting(tmp_path / "tuning.db")
    setting.tasks(BoostedTrees(0), (matmul_kernel(), tile_space(), 1))
    yield setting.made[0]
    setting.store.close()


def choices(task: TuningTask, **changed: Any) -> dict[str, Any]:
    return {**task.space.choices(task.default.candidate), **changed}


def trial(task: TuningTask, choices: dict[str, Any], sketch: str = "direct") -> TrialRecord:
    found = task.space.find(sketch, choices)
    assert found is not None
    planned = task.plan(found)
    recorded = {n: list(v) if isinstance(v, tuple) else v for n, v in choices.items()}  # as JSON
    return TrialRecord(task.key, "r", sketch, recorded, planned.schedule, "ok", latency=1e-3)


def known(task: TuningTask, seconds: float, **changed: Any) -> None:
    task.known[trial(task, choices(task, **changed)).schedule_hash] = seconds


def test_choices_that_differ_are_named_with_both_values(task: TuningTask) -> None:
    applied = trial(task, choices(task, tile=(6, 4)))
    assert reason(task, applied) == "tile 6x4 instead of 4x2"


def test_what_costs_most_where_it_was_measured_comes_first(task: TuningTask) -> None:
    applied = trial(task, choices(task, tile=(6, 4), unroll=4, grain=8))
    task.known[applied.schedule_hash] = 1.0
    known(task, 1.25, tile=(6, 4), unroll=4)  # the grain is the default's
    known(task, 1.02, unroll=4, grain=8)
    assert reason(task, applied) == (
        "grain 8 instead of 4 (25 % slower without), tile 6x4 instead of 4x2 (2 % slower without), "
        "unroll 4 instead of 2"
    )


def test_what_failed_or_makes_no_difference_says_nothing(task: TuningTask) -> None:
    applied = trial(task, choices(task, unroll=4, grain=8))
    task.known[applied.schedule_hash] = 1.0
    known(task, float("inf"), unroll=4)
    known(task, 1.001, grain=8)
    assert reason(task, applied).count("instead of") == 2
    assert "slower" not in reason(task, applied)


def test_many_choices_are_counted(task: TuningTask) -> None:
    applied = trial(task, choices(task, tile=(6, 4), chunk=128, unroll=4, order="mnk", grain=8))
    assert reason(task, applied).endswith(", 2 more")


def test_another_sketch_is_the_reason(task: TuningTask) -> None:
    own = {"tile": (4, 2), "chunk": 64, "unroll": 2}
    assert reason(task, trial(task, own, "packed")) == "packed instead of direct"


def test_the_default_schedule_and_what_is_no_point_have_none(task: TuningTask) -> None:
    assert reason(task, trial(task, choices(task))) == ""
    gone = TrialRecord(task.key, "r", "direct", {"tile": 99}, ["gone"], "ok", latency=1e-3)
    assert reason(task, gone) == ""
