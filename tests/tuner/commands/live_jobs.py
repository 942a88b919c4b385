"""Jobs for the tests of what follows them: their records are written, nothing is measured."""

from __future__ import annotations

from tunefarm.db.store import Store
from tunefarm.tuner.reports.job_state import JobState
from tunefarm.tuner.reports.report import TaskStatus

NAME = "<b>conv</b>\x1b[31m"
"""Of a kernel, as a model may have it."""


def task(trials: int, best: float = 1e-3) -> TaskStatus:
    return TaskStatus(
        NAME, "0123456789", 1, trials, 0, 2e-3, best, expected=best, low=0.9 * best, high=1.1 * best
    )


def state(trials: int, *, left: float | None = 60.0) -> JobState:
    tasks = (task(trials),)
    return JobState(tasks=tasks, phase="searching", elapsed=3.0, left=left, workers=4, at=1.0)


def begin(store: Store, model: str = "net.onnx") -> str:
    """A running job of this process; its id."""
    return store.start_job(model, "h", {}).id
