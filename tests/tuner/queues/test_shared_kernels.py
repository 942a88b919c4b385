"""Entries of a queue that share kernels: what one has measured no other one measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.tuner.setting import OTHER, TILES, Setting, SyntheticRunner
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.db import queries
from tunefarm.measure.measurement import MeasureRequest
from tunefarm.tuner.search.budget import Limits

SHARED = workload_key(TILES[0])
SCHEDULES = 9  # of the shared kernel


class BeginningRunner(SyntheticRunner):
    """Does something when its first request comes."""

    def __init__(self, begin: Callable[[], object]) -> None:
        super().__init__(1)
        self._begin = begin

    def submit(self, request: MeasureRequest) -> None:
        if not self.requests:
            self._begin()
        super().submit(request)


def measured(setting: Setting) -> list[str]:
    """The schedules of the shared kernel that its runner was asked for."""
    return [
        str(request.schedules[0])
        for request in setting.runner.requests
        if request.workload_key == SHARED
    ]


def test_the_second_entry_takes_over_what_the_first_has_measured(tmp_path: Path) -> None:
    first, second = Setting(tmp_path / "tuning.db"), Setting(tmp_path / "tuning.db")
    first.run(Limits(trials=5), TILES)
    second.run(Limits(), TILES, OTHER)
    assert len(measured(first)) == 5
    assert len(measured(second)) == SCHEDULES - 5
    assert not set(measured(first)) & set(measured(second))


def test_what_is_recorded_while_the_second_search_begins_is_not_measured_there(
    tmp_path: Path,
) -> None:
    """After it has read the records, and before it has asked for anything."""
    path, scout = tmp_path / "tuning.db", Setting(tmp_path / "scout.db")
    scout.run(Limits(), TILES)
    first, second = Setting(path), Setting(path)
    job = first.store.start_job("model", "hash", {}).id
    theirs = queries.trials(scout.store, scout.made[0].key)[3:7]
    second.runner = BeginningRunner(
        lambda: first.store.add(replace(record, job=job) for record in theirs)
    )
    second.run(Limits(), TILES)
    assert len(measured(second)) == SCHEDULES - len(theirs)
    assert second.made[0].progress.trials == SCHEDULES
