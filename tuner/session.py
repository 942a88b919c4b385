"""TuningSession: searches the tasks of a model until the budget ends.

The loop keeps the runner's capacity filled, writes every result to the store before it is used,
and retrains the cost model right after new work was submitted, so that training and measuring
overlap.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from compiler.errors import MeasureError
from db.store import Store
from measure.job import MeasureRequest, MeasureResult, Status
from measure.runner import Runner
from tuner.budget import Budget, End
from tuner.cost_model import CostModel
from tuner.progress import Progress
from tuner.records import trial_record
from tuner.report import TaskStatus
from tuner.sampler import Proposal
from tuner.tasks import SAYS_LITTLE, Planned, TuningTask, training_data

POLL_SECONDS = 0.25  # longest wait for results, so that an interrupt is noticed soon
DRAIN_SECONDS = 3.0  # after an interrupt: wait so long for what is being measured
MAX_MACHINERY_FAILURES = 20  # in a row, without any other result
JOB_UPDATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session works; the options of a request are `measure.timer.TimingOptions`."""

    batch_size: int
    timing: Mapping[str, float | int]


@dataclass(frozen=True, slots=True)
class _Work:
    """A schedule that is queued or being measured; `again` for the second time."""

    task: TuningTask
    planned: Planned
    again: bool = False


class TuningSession:
    """One search over all tasks. `run` ends when the budget does, or after `stop`."""

    def __init__(
        self,
        tasks: Sequence[TuningTask],
        runner: Runner,
        store: Store,
        model: CostModel,
        budget: Budget,
        options: SessionOptions,
        *,
        job: str,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tasks = list(tasks)
        self.measured = 0  # results of this session
        self._runner = runner
        self._store = store
        self._model = model
        self._budget = budget
        self._options = options
        self._job = job
        self._progress = progress
        self._clock = clock
        self._started = clock()
        self._queue: deque[_Work] = deque()
        self._pending: dict[str, _Work] = {}
        self._untrained = sum(len(task.rows) for task in tasks)
        self._machinery_failures = 0
        self._stopped = False
        self._job_updated = clock()
        self._number = 0

    def stop(self) -> None:
        """Submit nothing more; safe to call from a signal handler."""
        self._stopped = True

    @property
    def elapsed(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._started

    @property
    def interrupted(self) -> bool:
        return self._stopped

    def statuses(self) -> list[TaskStatus]:
        """Where every task stands."""
        return [task.status(self._budget) for task in self.tasks]

    def run(self) -> End:
        """Search; returns why it ended. Raises MeasureError when measuring does not work at all."""
        self._train()
        while not self._stopped:
            self._fill()
            if not self._pending:
                break
            self._train()
            self._take(self._runner.results(POLL_SECONDS))
            self.show()
        if self._stopped:
            self._drain()
        self._abandon()
        self.show()
        if self._stopped:
            return End.INTERRUPTED
        return self._budget.end([task.progress for task in self.tasks], self.elapsed)

    def _fill(self) -> None:
        """Submit until the runner has all it can use."""
        while len(self._pending) < self._runner.capacity and not self._stopped:
            if not self._queue:
                self._propose()
            if not self._queue:
                return
            work = self._queue.popleft()
            request = self._request(work)
            self._pending[request.request_id] = work
            self._runner.submit(request)

    def _request(self, work: _Work) -> MeasureRequest:
        self._number += 1
        task = work.task
        timing = dict(self._options.timing)
        if math.isfinite(task.progress.best):
            timing["incumbent_seconds"] = task.progress.best
        return MeasureRequest(
            request_id=f"{self._job[:16]}-{self._number}",
            kernel=task.kernel_json,
            workload_key=task.key.workload,
            schedule=work.planned.schedule,
            threads=task.key.threads,
            options=timing,
        )

    def _propose(self) -> None:
        """Queue the next batch of the most promising task; nothing at the end of the budget."""
        progress = [task.progress for task in self.tasks]
        while not self._queue and not self._stopped:
            index = self._budget.next_task(progress, self.elapsed)
            if index is None:
                return
            task = self.tasks[index]
            count = self._budget.batch(progress, index, self._options.batch_size)
            for proposal in task.search.ask(count):
                self._plan(task, proposal)
            task.progress.exhausted = task.search.exhausted

    def _plan(self, task: TuningTask, proposal: Proposal) -> None:
        """Queue a proposal; one whose schedule is another candidate's too shares its result."""
        planned = task.plan(proposal.candidate)
        if planned.hash in task.known:
            task.search.tell(proposal.number, task.known[planned.hash])
            return
        if planned.hash in task.under_way:
            task.under_way[planned.hash].append(proposal.number)
            return
        task.under_way[planned.hash] = [proposal.number]
        task.progress.pending += 1
        self._queue.append(_Work(task, planned))

    def _take(self, results: Sequence[MeasureResult]) -> None:
        """Record results, all in one transaction, then learn from them."""
        works = [self._pending.pop(result.request_id) for result in results]
        self._store.record_trials(
            trial_record(
                work.task.key,
                result,
                sketch=work.planned.candidate.sketch,
                choices=work.task.space.choices(work.planned.candidate),
                schedule=work.planned.schedule,
                job=self._job,
            )
            for work, result in zip(works, results, strict=True)
        )
        for work, result in zip(works, results, strict=True):
            self._learn(work, result)

    def _learn(self, work: _Work, result: MeasureResult) -> None:
        task, planned = work.task, work.planned
        task.progress.pending -= 1
        self.measured += 1
        if result.status is Status.INFRASTRUCTURE:
            self._machinery_failed(work, result)
            return
        self._machinery_failures = 0
        if result.status is Status.UNSTABLE and not work.again and self._promises(task, result):
            task.progress.pending += 1
            self._queue.appendleft(_Work(task, planned, again=True))
            return
        for number in task.under_way.pop(planned.hash):
            task.search.tell(number, result.latency)
        trains = result.status not in SAYS_LITTLE
        task.learn(planned.candidate if trains else None, planned.hash, result.latency)
        self._untrained += trains

    def _promises(self, task: TuningTask, result: MeasureResult) -> bool:
        """Whether an unstable measurement may hide a new best."""
        return bool(result.samples) and median(result.samples) < task.progress.best

    def _machinery_failed(self, work: _Work, result: MeasureResult) -> None:
        for number in work.task.under_way.pop(work.planned.hash):
            work.task.search.forget(number)
        self._machinery_failures += 1
        if self._machinery_failures >= MAX_MACHINERY_FAILURES:
            reason = result.error.strip().splitlines()[-1] if result.error.strip() else "no reason"
            raise MeasureError(f"measuring does not work on this machine: {reason}")

    def _train(self) -> None:
        """Retrain when enough is new; the more is known, the more must be new."""
        known = sum(len(task.rows) for task in self.tasks)
        if self._untrained < max(1, min(self._options.batch_size, known), known // 20):
            return
        self._untrained = 0
        self._model.fit(*training_data(self.tasks))

    def _drain(self) -> None:
        """Take what finishes soon after an interrupt."""
        deadline = self._clock() + DRAIN_SECONDS
        while self._pending and self._clock() < deadline:
            self._take(self._runner.results(POLL_SECONDS))

    def _abandon(self) -> None:
        """Give up what was proposed and not measured; a later run may propose it again."""
        for work in (*self._queue, *self._pending.values()):
            work.task.progress.pending -= 1
            work.task.under_way.clear()
        self._queue.clear()
        self._pending.clear()

    def show(self) -> None:
        """Update the progress display and, now and then, the job's record."""
        statuses = self.statuses()
        self._progress.update(statuses, self.elapsed, self._time_left())
        now = self._clock()
        if now - self._job_updated >= JOB_UPDATE_SECONDS:
            self._job_updated = now
            self._store.update_job(self._job, job_progress(statuses))

    def _time_left(self) -> float | None:
        """Seconds until the time limit or, if sooner, until the trials are used up at this pace."""
        estimates = []
        if self._budget.limits.minutes is not None:
            estimates.append(max(0.0, 60.0 * self._budget.limits.minutes - self.elapsed))
        left = self._budget.trials_left([task.progress for task in self.tasks])
        if left is not None and self.measured >= 4:
            waiting = left + len(self._pending) + len(self._queue)
            estimates.append(waiting * self.elapsed / self.measured)
        return min(estimates, default=None)


def job_progress(statuses: Sequence[TaskStatus]) -> dict[str, int | float]:
    """The job's progress as recorded with it."""
    return {
        "tasks": len(statuses),
        "trials": sum(status.trials for status in statuses),
        "failures": sum(status.failures for status in statuses),
    }
