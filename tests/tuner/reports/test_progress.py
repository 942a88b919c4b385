"""The line of a job that runs: what has failed, and what only noise has hidden."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from tests.tuner.fleet import record_kernel
from tests.tuner.setting import Setting
from tests.tuner.synthetic import TARGET, matmul_kernel, small_space
from tunefarm.db.records import TrialRecord
from tunefarm.measure.measurement import Status
from tunefarm.tuner.model.cost_model import BoostedTrees
from tunefarm.tuner.reports.progress import PlainProgress, status_line
from tunefarm.tuner.reports.report import format_counts, task_to_json
from tunefarm.tuner.reports.task_table import TaskTable
from tunefarm.tuner.reports.terminal import console
from tunefarm.tuner.result import TrialCounts
from tunefarm.tuner.search.budget import Budget, Limits
from tunefarm.tuner.search.tasks import plan

LOST, BROKEN = 247, 2


def setting_with_trials(path: Path) -> Setting:
    """A task whose trials were unstable, as earlier versions called them, but for two that broke
    and one that went well."""
    setting, kernel, space = Setting(path), matmul_kernel(), small_space(LOST + BROKEN + 1)
    key = record_kernel(setting.store, kernel, TARGET, version="1")
    statuses = [Status.UNSTABLE] * LOST + [Status.CRASHED, Status.WRONG_RESULT, Status.OK]
    setting.store.add(
        TrialRecord(
            key,
            "r",
            "only",
            {},
            plan(space, space.candidate(number)).schedule,
            status.value,
            latency=1e-3 if status is Status.OK else None,
        )
        for number, status in enumerate(statuses)
    )
    setting.tasks(BoostedTrees(0), (kernel, space, 1))
    return setting


def test_unstable_measurements_are_no_failures_anywhere(tmp_path: Path) -> None:
    setting = setting_with_trials(tmp_path / "t.db")
    statuses = [task.status(Budget(Limits())) for task in setting.made]
    line = status_line(statuses, 0.0, None)
    assert line.startswith(
        f"{LOST + BROKEN + 1} trials ({BROKEN} failed, {LOST} discarded as too noisy), "
    )
    value = task_to_json(statuses[0])
    assert (value["failures"], value["scattered"]) == (BROKEN, LOST)
    counts = TrialCounts.of(statuses)
    assert (counts.failures, counts.scattered) == (BROKEN, LOST)
    stream = io.StringIO()
    console(stream).print(TaskTable(statuses))
    heads, cells = (
        [cell.strip() for cell in stream.getvalue().splitlines()[row].replace("┃", "│").split("│")]
        for row in (1, 3)
    )
    row = dict(zip(heads, cells, strict=True))
    assert (row["failed"], row["too noisy"]) == (str(BROKEN), str(LOST))


def test_what_did_not_happen_is_not_mentioned() -> None:
    assert format_counts("5 trials", 0, 0) == "5 trials"
    assert format_counts("5 trials", 0, 3) == "5 trials (3 discarded as too noisy)"
    assert format_counts("5 trials", 1, 0) == "5 trials (1 failed)"


def test_plain_progress_prints_the_line_now_and_then(tmp_path: Path) -> None:
    setting = setting_with_trials(tmp_path / "t.db")
    status = replace(setting.made[0].status(Budget(Limits())), failures=0)
    moment, stream = [0.0], io.StringIO()
    progress = PlainProgress(stream, lambda: moment[0])
    progress.start()
    for moment[0] in (0.0, 1.0, 11.0):
        progress.update([status], moment[0], None)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert all("failed" not in line and "discarded as too noisy" in line for line in lines)
