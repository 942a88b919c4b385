"""What `tune status`, `stop` and `resume` do and say."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rich.table import Table

from tunefarm.configs.errors import DatabaseError, DatabaseMovedError, DatabaseUnavailableError
from tunefarm.db import queries
from tunefarm.db.records import JobRecord
from tunefarm.db.store import Store
from tunefarm.db.work import ask
from tunefarm.tuner.building.model_file import ModelStamp
from tunefarm.tuner.records.job_command import JobCommand, ended
from tunefarm.tuner.records.jobs import find_job, short_id
from tunefarm.tuner.reports.gains import ModelGain
from tunefarm.tuner.reports.job_state import JobState
from tunefarm.tuner.reports.progress import Progress
from tunefarm.tuner.reports.report import (
    format_duration,
    format_latency,
    format_seconds,
    format_time,
)
from tunefarm.tuner.reports.task_table import TaskTable

RUNNING = "running"
_POLL_SECONDS = 0.25


def status_table(jobs: Sequence[JobRecord]) -> Table:
    """A row per job, the newest first: the whole model once it was measured, untuned and tuned, and
    the sum of kernels, untuned and as it is expected."""
    table = Table(header_style="bold")
    table.add_column("job", no_wrap=True)
    table.add_column("model", overflow="ellipsis", no_wrap=True)
    for name in ("state", "began (UTC)"):
        table.add_column(name, no_wrap=True)
    for name in (
        "took",
        "left",
        "trials",
        "failed",
        "noisy",
        "untuned",
        "tuned",
        "speed-up",
        "sum of kernels",
        "expected",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for job in jobs:
        state = JobState.of(job.progress)
        left = time_left(job, state)
        table.add_row(
            short_id(job, jobs),
            job.model_name,
            state_text(job, state),
            format_time(job.started),
            format_duration(time_taken(job)),
            "-" if left is None else format_duration(left),
            str(state.trials),
            str(state.failures),
            str(state.scattered),
            format_seconds(state.model.untuned),
            format_seconds(state.model.tuned),
            state.model.gain,
            format_seconds(state.untuned),
            format_latency(state.expected),
        )
    return table


def status_to_json(jobs: Iterable[JobRecord]) -> list[dict[str, Any]]:
    """The same as JSON values; what is not known is null.

    What begins with `model_` is of the whole model as the job confirmed it. The rest are sums of
    kernels: `expected_seconds` is what is expected of them, `speed_up` null while it may be noise.
    """
    return [_job_to_json(job) for job in jobs]


def _job_to_json(job: JobRecord) -> dict[str, Any]:
    state = JobState.of(job.progress)
    command = JobCommand.of(job)
    expected = state.expected
    return {
        "job": job.id,
        "model": job.model_name,
        "state": job.state,
        "phase": state.phase if job.state == RUNNING else "",
        "started": job.started,
        "finished": job.finished,
        "seconds": time_taken(job),
        "seconds_left": time_left(job, state),
        "kernels": len(job.tasks),
        "kernels_measured": sum(task.is_measured for task in state.tasks),
        "trials": state.trials,
        "failures": state.failures,
        "scattered": state.scattered,
        **_model_to_json(state.model),
        "untuned_seconds": _finite(state.untuned),
        "expected_seconds": _finite(expected.value),
        "low_seconds": _finite(expected.low),
        "high_seconds": _finite(expected.high),
        "speed_up": _finite(state.speed_up),
        "command": None if command is None else list(command.arguments),
        "folder": None if command is None else command.folder,
    }


def _model_to_json(model: ModelGain) -> dict[str, Any]:
    """The whole model; `model_gain` is its speed-up in words, or that there is none."""
    return {
        "model_untuned_seconds": _finite(model.untuned),
        "model_tuned_seconds": _finite(model.tuned),
        "model_speed_up": _finite(1.0 / model.ratio),
        "model_speed_up_low": _finite(1.0 / model.high),
        "model_speed_up_high": _finite(1.0 / model.low),
        "model_gain": model.gain if model.is_known else None,
    }


def state_text(job: JobRecord, state: JobState) -> str:
    """The job's state, and of a running one what it is doing."""
    return state.phase if job.state == RUNNING and state.phase else job.state


def time_taken(job: JobRecord) -> float:
    """Seconds from the job's beginning to its end, or to now."""
    if job.state != RUNNING:
        return max(0.0, ended(job) - job.started)
    state = JobState.of(job.progress)
    return state.elapsed + max(0.0, time.time() - (state.at or job.started))


def time_left(job: JobRecord, state: JobState) -> float | None:
    """Seconds until a running job's end, at most; None if it has no limit, or has ended."""
    if job.state != RUNNING or state.left is None:
        return None
    return max(0.0, state.left - max(0.0, time.time() - state.at))


def stop_job(store: Store, name: str, seconds: float, typed_db: str) -> str:
    """Ask a job to stop, and wait so long for its end; what to say of it.

    Raises DatabaseError for a job that has ended, whose process is gone, or that does not end.
    """
    job = find_job(store, name)
    again = _again(job, typed_db)
    if not ask(store, job.id, "stop"):
        raise DatabaseError(_nobody(find_job(store, job.id)), hint=f"{again} continues it")
    end = time.monotonic() + seconds
    while (job := find_job(store, job.id)).state == RUNNING and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)  # polls what another process writes
    text = f"{short_id(job)} ({job.model_name})"
    if job.state == RUNNING:
        raise DatabaseError(
            f"job {text} was asked to stop and has not ended within {seconds:g} s",
            hint="tune status shows when it has",
        )
    trials = JobState.of(job.progress).trials
    return f"job {text}: {job.state}, {trials} trials are kept. To continue: {again}"


def _nobody(job: JobRecord) -> str:
    """Why a job cannot be asked for anything."""
    text = f"job {short_id(job)} ({job.model_name})"
    if job.state in (RUNNING, "lost"):
        return f"{text} is lost: its process has ended, there is nothing to stop"
    return f"{text} has already ended: {job.state}"


def resuming(
    store: Store, name: str, database: str, *, minutes: float | None, trials: int | None
) -> tuple[JobCommand, list[str]]:
    """The command of a job, and the arguments that go on with it within what is left of its limits,
    or within the given ones.

    Raises DatabaseError for a job that runs, that is done, that has no time left, that was begun
    from Python or whose model is another one now.
    """
    job = find_job(store, name)
    text = f"job {short_id(job)} ({job.model_name})"
    if job.state == RUNNING:
        raise DatabaseError(f"{text} is running", hint=f"tune watch {short_id(job)} follows it")
    command = JobCommand.of(job)
    if command is None:
        call = f'tunefarm.tune("{job.model_name}", db="{store.name}")'
        raise DatabaseError(
            f"{text} was started from Python, or by an older version: no command is recorded",
            hint=f"{call} or tune MODEL continues from what it measured",
        )
    if job.state == "finished" and minutes is None and trials is None:
        raise DatabaseError(f"{text} has finished", hint="--minutes M or --trials N extends it")
    stamp = ModelStamp.of_job(job)
    if stamp is not None and (difference := stamp.difference()):
        raise DatabaseError(
            f"{text} read another file: {stamp.path} has changed ({difference})",
            hint="restore that file; or tune MODEL tunes the new one, and continues from the "
            "records of kernels that both have",
        )
    left = command.minutes_left(job) if minutes is None else minutes
    if left == 0.0:
        raise DatabaseError(
            f"{text} has used its {command.minutes:g} minutes", hint="--minutes M extends it"
        )
    return command, command.again(database=database, minutes=left, trials=trials)


def _again(job: JobRecord, typed_db: str) -> str:
    database = ["--db", typed_db] if typed_db else []
    return shlex.join(["tune", "resume", short_id(job), *database])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# `tune watch`: the table of a running job in another terminal; it only reads.

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
