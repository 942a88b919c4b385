"""`tune watch`: the table of a running job in another terminal; it only reads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tunefarm.configs.errors import DatabaseMovedError, DatabaseUnavailableError
from tunefarm.db import queries
from tunefarm.db.records import JobRecord
from tunefarm.db.store import Store
from tunefarm.tuner.commands.job_status import RUNNING, time_left, time_taken
from tunefarm.tuner.records.jobs import find_job, short_id
from tunefarm.tuner.reports.job_state import JobState
from tunefarm.tuner.reports.progress import Progress
from tunefarm.tuner.reports.report import (
    format_duration,
    format_latency,
    format_seconds,
)
from tunefarm.tuner.reports.task_table import TaskTable

POLL_SECONDS = 1.0


@dataclass(slots=True)
class Watch:
    """Follows a job of a database: the one that is named, else the one that runs or begins next.

    A database that cannot be read for a while is waited for.
    """

    store: Store
    progress: Progress
    name: str | None = None
    sleep: Callable[[float], None] = time.sleep
    _text: list[str] = field(default_factory=list)

    def follow(self) -> JobRecord:
        """Show the job until it ends; the job. Raises DatabaseError for a name that is none's."""
        job = self._patiently(self._find)
        again = partial(queries.job, self.store, job.id)
        if job.state == RUNNING:
            self.progress.start()
        try:
            while job.state == RUNNING:
                self._show(job)
                self.sleep(POLL_SECONDS)
                job = self._patiently(again)
        finally:
            self.progress.stop()
        return job

    def _find(self) -> JobRecord:
        if self.name is not None:
            return find_job(self.store, self.name)
        while True:
            running = [job for job in queries.jobs(self.store) if job.state == RUNNING]
            if running:
                return running[0]
            self._say(f"no job is running on {self.store.name}: waiting for one (Ctrl-C ends that)")
            self.sleep(POLL_SECONDS)

    def _show(self, job: JobRecord) -> None:
        state = JobState.of(job.progress)
        self._say(f"job {short_id(job)} ({job.model_name})")
        if state.phase:
            self._say(state.phase)
        self.progress.update(state.tasks, time_taken(job), time_left(job, state))

    def _say(self, text: str) -> None:
        """Once each."""
        if text not in self._text:
            self._text.append(text)
            self.progress.message(text)

    def _patiently(self, read: Callable[[], JobRecord]) -> JobRecord:
        while True:
            try:
                return read()
            except DatabaseMovedError:
                raise
            except DatabaseUnavailableError as error:
                self._say(f"{error.message}: waiting for it")
                self.sleep(POLL_SECONDS)


def end_parts(job: JobRecord) -> tuple[TaskTable, str]:
    """How a job ended: its table, and a line."""
    state = JobState.of(job.progress)
    line = f"job {short_id(job)} ({job.model_name}): {job.state} after "
    line += f"{format_duration(time_taken(job))}, {state.trials} trials"
    if state.model.is_known:
        line += f"; whole model: {state.model}"
    if state.expected.value > 0:
        line += f"; sum of kernels: {format_seconds(state.untuned)} untuned, "
        line += f"{format_latency(state.expected)} with the best schedules"
    if job.state != "finished":
        line += f". To continue: tune resume {short_id(job)}"
    return TaskTable(state.tasks, confirmed=job.state == "finished"), line
