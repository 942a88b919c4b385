"""TuningSession: searches the tasks of a model until the budget ends.

The loop keeps the runner's capacity filled and writes every result to the store before it is used;
the cost model is retrained by a thread of its own meanwhile.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.schedule.space import Candidate
from tunefarm.db import queries
from tunefarm.db.records import TrialRecord
from tunefarm.db.store import Store
from tunefarm.db.work import Claim
from tunefarm.measure.compare import LogRatio, pair_of
from tunefarm.measure.farm.runner import Runner
from tunefarm.measure.measurement import LOST_TO_NOISE, MeasureRequest, MeasureResult, Status
from tunefarm.tuner.model.cost_model import CostModel, TrainingData
from tunefarm.tuner.model.history import relatives_bests
from tunefarm.tuner.model.lessons import Trainer
from tunefarm.tuner.records.trials import trial_record
from tunefarm.tuner.reports.progress import Progress
from tunefarm.tuner.reports.report import TaskStatus
from tunefarm.tuner.search.budget import Budget, End
from tunefarm.tuner.search.job_coordination import JobCoordination, Pauses
from tunefarm.tuner.search.monitor import Monitor
from tunefarm.tuner.search.tasks import Planned, TuningTask, says_something

# --- Work: a schedule of a task that is queued or being measured, and what its answer means ------


NOBODYS_FAULT = frozenset((Status.OK, Status.INFRASTRUCTURE, *LOST_TO_NOISE))
FAILED = {
    Status.CRASHED: "crashed",
    Status.RUN_TIMEOUT: "hung",
    Status.WRONG_RESULT: "gave a wrong result",
    Status.BUILD_ERROR: "does not build any more",
    Status.BUILD_TIMEOUT: "takes too long to build",
    Status.OUT_OF_MEMORY: "ran out of memory",
}
"""What became of a reference, in words."""


@dataclass(frozen=True, slots=True)
class Work:
    """A schedule that is queued or being measured, next to a reference that is chosen at the last
    moment unless it is given.

    `again`: it has a latency, which is to be known better. `retried`: it was too noisy.
    """

    task: TuningTask
    planned: Planned
    reference: str | None = None
    again: bool = False
    retried: bool = False

    @property
    def claim(self) -> Claim:
        """What no other job measures meanwhile."""
        return self.task.key, self.planned.hash

    @property
    def is_fresh(self) -> bool:
        """Whether its schedule has not been measured yet."""
        return not (self.again or self.retried)

    def beside_the_reference(self) -> Work:
        """The work, to be measured next to the reference of its task unless one is given."""
        current = self.task.ranking.references.current
        if self.reference is not None or current == self.planned.hash:
            return self
        return replace(self, reference=current)

    def request(
        self, request_id: str, timing: Mapping[str, float | int], seed: int
    ) -> MeasureRequest:
        """What a runner is asked for; a new schedule may be given up when it is clearly slower."""
        schedules, options = [self.planned.schedule], dict(timing)
        if self.reference is not None:
            schedules.append(self.task.plans[self.reference].schedule)
            options["give_up"] = int(not self.again)
        return self.task.request(request_id, schedules, options, seed)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a measurement came to: `latency` in the task's scale, infinity for a failure."""

    work: Work
    result: MeasureResult
    pair: LogRatio | None
    latency: float

    @staticmethod
    def of(work: Work, result: MeasureResult) -> Answer:
        """The answer to some work; its schedule gets its place among the task's."""
        task, hash = work.task, work.planned.hash
        pair = None if work.reference is None else pair_of(result)
        latency = math.inf
        if result.status is Status.OK:
            task.plans.setdefault(hash, work.planned)
            latency = task.ranking.add(hash, result.latency, work.reference, pair)
        return Answer(work, result, pair, latency)

    @property
    def is_lost(self) -> bool:
        """Whether it says too little, for noise."""
        return self.result.status in LOST_TO_NOISE

    @property
    def blames_reference(self) -> bool:
        """Whether a pair failed, and that is the reference's fault."""
        is_failure = self.result.status not in NOBODYS_FAULT
        return is_failure and self.work.reference is not None and self.result.culprit == 1

    @property
    def refutes(self) -> bool:
        """Whether a schedule failed that had a latency."""
        is_failure = self.result.status not in (*NOBODYS_FAULT, Status.QUARANTINED)
        return self.work.again and is_failure

    def record(self, job: str) -> TrialRecord:
        """What is recorded of it."""
        return record_of(
            self.work.task,
            self.work.planned,
            self.result,
            job,
            refuted=self.refutes,
            reference=self.work.reference,
            latency=self.latency,
        )

    def learn(self) -> None:
        """Count the trial; have the cost model and, unless it is tried once more, the search know
        of it."""
        work, planned = self.work, self.work.planned
        work.task.learn(
            planned.candidate,
            planned.hash,
            self.latency,
            self.result,
            self.result.machine,
            pair=self.pair,
            reference=work.reference,
        )

    @property
    def calls_for_another(self) -> bool:
        """Whether it was too noisy, for the first time, and may be the best."""
        first = not self.work.again and not self.work.retried
        ranking = self.work.task.ranking
        return self.is_lost and first and ranking.may_be_best(self.work.reference, self.pair)


def record_of(
    task: TuningTask,
    planned: Planned,
    result: MeasureResult,
    job: str,
    *,
    refuted: bool = False,
    reference: str | None = None,
    latency: float | None = None,
) -> TrialRecord:
    """The record of a measurement; one that refutes what was measured before counts as a
    finalist's, so that the schedule is not applied."""
    return trial_record(
        task.key,
        result,
        sketch=planned.candidate.sketch,
        choices=task.space.choices(planned.candidate),
        schedule=planned.schedule,
        job=job,
        confirmed=refuted,
        reference=reference,
        latency=latency,
    )


def refuted_reference(task: TuningTask, result: MeasureResult) -> str:
    """The line that says what became of a reference and who took over."""
    heir = task.ranking.references.current
    others = "by themselves"
    if heir is not None:
        is_default = heir == task.default.hash
        others = f"against {'the default schedule' if is_default else 'another schedule'}"
    lines = result.error.strip().splitlines()
    reason = f" ({lines[-1]})" if lines else ""
    happened = FAILED.get(result.status, "failed")
    return f"the reference of {task.name} {happened}{reason}: candidates are measured {others} now"


POLL_SECONDS = 0.25  # longest wait for results, so that an interrupt is noticed soon
GATHER = 3  # results, for which a commit waits
GATHER_SECONDS = 0.1  # at most so long
DRAIN_SECONDS = 3.0  # after an interrupt: wait so long for what is being measured
LATE_SECONDS = 60.0  # after the time limit: the same, where another process may have the cores
MAX_MACHINERY_FAILURES = 20  # in a row, without any other result
LEAST_SPARE = 2.0  # seconds that others can spare, for which a search goes on
SPARE_SHARE = 0.5  # of these at once: meanwhile more tasks may need them


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session works; the options of a request are
    `tunefarm.measure.worker.timer.TimingOptions`.

    `background` trains the cost model in a thread; without it, equal answers in equal order give
    equal proposals.
    """

    batch_size: int
    timing: Mapping[str, float | int]
    background: bool = True


@dataclass(slots=True)
class Overhead:
    """Processor seconds that a search takes for itself."""

    propose: float = 0.0
    train: float = 0.0
    record: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the search itself."""
        return self.propose + self.train + self.record

    def plus(self, other: Overhead) -> Overhead:
        """Both together."""
        sums = self.propose + other.propose, self.train + other.train, self.record + other.record
        return Overhead(*sums)


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
        monitor: Monitor | None = None,
        clock: Callable[[], float] = time.monotonic,
        background: Sequence[TrainingData] = (),
        seen: int | None = None,
        pauses: Pauses | None = None,
        number: int = 0,
        spare: Callable[[], float] | None = None,
    ) -> None:
        """`background` is what is known of other kernels, for the cost model to start from; `seen`
        the number of the last trial that the tasks know of (None: the newest). `number` is that of
        the last request of the job's sessions before this one. `spare` tells, once the time is used
        up, how many seconds what comes afterwards can do without."""
        self.tasks = list(tasks)
        self.number = number  # of the last request
        self.measured = 0  # results of this session
        self.overhead = Overhead()
        self._background = list(background)
        self._runner = runner
        self._store = store
        self._trainer = Trainer(model, background=options.background)
        self._budget = budget
        self._options = options
        self._job = job
        self._progress = progress
        self._monitor = Monitor() if monitor is None else monitor
        self._clock = clock
        self._started = clock()
        self._queue: deque[Work] = deque()
        self._pending: dict[str, Work] = {}
        self._elsewhere: dict[Claim, Work] = {}  # what other jobs have claimed
        self._heard: set[str] = set()  # other jobs' trials that were learnt from
        seen = queries.last_trial(store) if seen is None else seen
        self._pauses = pauses or Pauses()
        self._spare = spare
        keys = [task.key for task in self.tasks]
        self._others = JobCoordination(store, job, keys, seen, clock)
        self._machinery_failures = 0
        self._stopped = False

    def stop(self) -> None:
        """Submit nothing more; safe to call from a signal handler."""
        self._stopped = True

    @property
    def elapsed(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._started

    def statuses(self) -> list[TaskStatus]:
        """Where every task stands."""
        return [task.status(self._budget) for task in self.tasks]

    def run(self) -> End:
        """Search; returns why it ended. Raises MeasureError when measuring does not work at all."""
        try:
            if self._background:
                self._trainer.teach(self._lessons, self._training_data)
            self._train()
            while not self._stopped:
                self._extend()
                self._fill()
                if not self._pending and not self._elsewhere:
                    break
                if self._budget.is_late(self.elapsed - LATE_SECONDS):
                    break
                self._train()
                if self._pending:
                    results = self._gather()
                    self._take(results)
                elif self._budget.is_late(self.elapsed):
                    break
                else:
                    time.sleep(POLL_SECONDS)
                self._look_around()
                self.show()
            if self._stopped:
                self._drain()
        finally:
            self._trainer.close()
            self.overhead.train = self._trainer.seconds
        self._abandon()
        self.show()
        if self._stopped:
            return End.INTERRUPTED
        return self._budget.end([task.progress for task in self.tasks], self.elapsed)

    def _extend(self) -> None:
        """Once the time is used up, take on what others can spare, if that is worth it."""
        if self._spare is None or not self._budget.is_late(self.elapsed):
            return
        if (spare := self._spare()) >= LEAST_SPARE:
            minutes = (self.elapsed + SPARE_SHARE * spare) / 60.0
            self._budget.limits = replace(self._budget.limits, minutes=minutes)

    def _fill(self) -> None:
        """Submit until the runner has all it can use, for each kind of its nodes."""
        capacities = self._runner.capacities
        for target, capacity in capacities.items():
            self._fill_for(target if len(capacities) > 1 else None, capacity)

    def _fill_for(self, target: str | None, capacity: int) -> None:
        """Submit until so many requests for the target are under way; None: for any."""
        under_way = sum(_is_for(work, target) for work in self._pending.values())
        while under_way < capacity and not self._stopped:
            if not any(_is_for(work, target) for work in self._queue):
                self._propose(target)
            places = (n for n, work in enumerate(self._queue) if _is_for(work, target))
            place = next(places, None)
            if place is None:
                return
            work = self._queue[place].beside_the_reference()
            del self._queue[place]
            self.number += 1
            request_id = f"{self._job[:16]}-{self.number}"
            request = work.request(request_id, self._options.timing, seed=self.number)
            self._pending[request.request_id] = work
            self._runner.submit(request)
            under_way += 1

    def _propose(self, target: str | None) -> None:
        """Queue the next batch of the target's most promising task; nothing at the budget's end."""
        begin = time.thread_time()
        progress = [task.progress for task in self.tasks]
        while not self._stopped and not any(_is_for(work, target) for work in self._queue):
            for task in self.tasks:
                task.progress.waits = task.waits or target not in (None, task.key.target)
            index = self._budget.next_task(progress, self.elapsed)
            if index is None:
                break
            task = self.tasks[index]
            count = self._budget.batch(progress, index, self._options.batch_size)
            if task.known and not task.seeded:
                task.seeded = True
                task.search.propose_first(relatives_bests(task, self.tasks))
            for candidate in task.search.ask(count):
                self._plan(task, candidate)
            self._claim()
            task.progress.exhausted = task.search.exhausted
            task.progress.headroom = task.search.headroom
        self.overhead.propose += time.thread_time() - begin

    def _plan(self, task: TuningTask, candidate: Candidate) -> None:
        """Queue a candidate; one whose schedule is another one's too shares its result."""
        planned = task.plan(candidate)
        if planned.hash in task.known:
            task.search.tell(candidate, task.known[planned.hash])
            return
        if planned.hash in task.under_way:
            task.under_way[planned.hash].append(candidate)
            return
        task.under_way[planned.hash] = [candidate]
        task.progress.pending += 1
        self._queue.append(Work(task, planned))

    def _claim(self) -> None:
        """Leave what other jobs measure, or have measured, to them."""
        granted = self._others.claim(work.claim for work in self._queue)
        for work in self._queue:
            if work.claim not in granted:
                self._elsewhere[work.claim] = work
        self._queue = deque(work for work in self._queue if work.claim in granted)

    def _look_around(self) -> None:
        """Learn from what other jobs have measured; measure what they have given up."""
        begin = time.thread_time()
        for record in self._others.news():
            self._learn_from(record)
        if self._elsewhere and self._others.may_retry():
            for task in self.tasks:
                hashes = [hash for key, hash in self._elsewhere if key == task.key]
                for record in self._others.results(task.key, hashes) if hashes else ():
                    self._learn_from(record)
            granted = self._others.claim(self._elsewhere)
            self._queue.extend(self._elsewhere.pop(claim) for claim in sorted_claims(granted))
        self.overhead.record += time.thread_time() - begin

    def _learn_from(self, record: TrialRecord) -> None:
        """Take over another job's trial, unless it is under way here."""
        task = next((task for task in self.tasks if task.key == record.key), None)
        hash = record.schedule_hash
        if task is None or record.request_id in self._heard or not says_something(record):
            return
        work = self._elsewhere.pop((task.key, hash), None)
        if work is None and hash in task.under_way:
            return
        if work is not None:
            task.progress.pending -= 1
        self._heard.add(record.request_id)
        candidates = task.under_way.pop(hash, ())
        task.take_over(record)
        for candidate in candidates:
            task.search.tell(candidate, task.known[hash])

    def _gather(self) -> list[MeasureResult]:
        """What is ready, and what is ready a moment later: a commit costs more than a record."""
        results = list(self._runner.results(POLL_SECONDS))
        if results and len(results) < GATHER and self._runner.pending > 0:
            results += self._runner.results(GATHER_SECONDS)
        self._go_on()
        return results

    def _go_on(self) -> None:
        """After a pause, leave to other jobs what they have taken over meanwhile."""
        if not self._pauses.has_been():
            return
        fresh = [work for work in self._queue if work.is_fresh]
        asked = {request: work for request, work in self._pending.items() if work.is_fresh}
        taken = self._others.go_on(work.claim for work in (*fresh, *asked.values()))
        self._elsewhere |= {work.claim: work for work in fresh if work.claim in taken}
        self._queue = deque(work for work in self._queue if work.claim not in self._elsewhere)
        for request, work in asked.items():
            if work.claim in taken:  # its answer says nothing that they do not
                self._elsewhere[work.claim] = self._pending.pop(request)

    def _take(self, results: Sequence[MeasureResult]) -> None:
        """Record results, all in one transaction, then learn from them."""
        begin = time.thread_time()
        ours = [result for result in results if result.request_id in self._pending]
        answers = [Answer.of(self._pending.pop(result.request_id), result) for result in ours]
        failed = [answer for answer in answers if answer.blames_reference]
        answers = [answer for answer in answers if not answer.blames_reference]
        records = [answer.record(self._job) for answer in answers]
        records += [record for answer in failed for record in self._reference_failed(answer)]
        self._store.add(records)
        self._monitor.count(result.status for result in results)
        for answer in answers:
            self._learn(answer)
        for task in {id(answer.work.task): answer.work.task for answer in answers}.values():
            self._measure_again(task)
        self.overhead.record += time.thread_time() - begin

    def _learn(self, answer: Answer) -> None:
        work, result = answer.work, answer.result
        task, planned = work.task, work.planned
        task.progress.pending -= 1
        self.measured += 1
        if result.status is Status.INFRASTRUCTURE:
            self._machinery_failed(work, result)
            return
        self._machinery_failures = 0
        reference = task.ranking.references.current
        if answer.refutes and task.refute(planned.hash) and reference == planned.hash:
            self._progress.message(refuted_reference(task, result))
        answer.learn()
        if answer.calls_for_another:
            self._queue_first(replace(work, reference=None, retried=True))
            return
        self._others.measured([work.claim])
        waiting = [] if work.again else task.under_way.pop(planned.hash, [])
        for candidate in waiting or [planned.candidate]:
            task.search.tell(candidate, task.known[planned.hash])

    def _measure_again(self, task: TuningTask) -> None:
        """Queue what is worth measuring again, if anything is."""
        left = self._budget.left([each.progress for each in self.tasks])
        if self._stopped or left == 0 or self._budget.task_end(task.progress) is not None:
            return
        under_way = (*self._queue, *self._pending.values())
        if any(work.again and work.task is task for work in under_way):
            return
        wanted = task.ranking.again(task.progress.trials)
        if wanted is not None and wanted[1] in task.plans:
            schedule, reference = wanted
            self._queue_first(Work(task, task.plans[schedule], reference, again=True))

    def _reference_failed(self, answer: Answer) -> list[TrialRecord]:
        """Another reference takes over, and the candidate is measured next to that; what is to be
        recorded of the one that failed."""
        work, result = answer.work, answer.result
        task, reference = work.task, work.reference
        assert reference is not None, "otherwise it is not to blame"
        task.progress.pending -= 1
        if not work.again:
            self._queue_first(replace(work, reference=None))
        planned = task.plans.get(reference)
        if planned is None or not task.refute(reference):
            return []  # another answer has told so before
        self._progress.message(refuted_reference(task, result))
        failed = replace(result, request_id=f"{result.request_id}-reference", samples=(), rivals=())
        return [record_of(task, planned, failed, self._job, refuted=True)]

    def _queue_first(self, work: Work) -> None:
        work.task.progress.pending += 1
        self._queue.appendleft(work)

    def _machinery_failed(self, work: Work, result: MeasureResult) -> None:
        if not work.again:
            self._others.measured([work.claim])
            for candidate in work.task.under_way.pop(work.planned.hash):
                work.task.search.forget(candidate)
        self._machinery_failures += 1
        if self._machinery_failures >= MAX_MACHINERY_FAILURES:
            reason = result.error.strip().splitlines()[-1] if result.error.strip() else "no reason"
            raise MeasureError(f"measuring does not work on this machine: {reason}")

    def _train(self) -> None:
        """Retrain when enough is new."""
        self._trainer.offer(self._lessons, self._training_data)

    @property
    def _lessons(self) -> int:
        return sum(len(task.lessons) for task in self.tasks)

    def _training_data(self) -> TrainingData:
        parts = [task.training_data(number) for number, task in enumerate(self.tasks)]
        return TrainingData.joined([*self._background, *parts])

    def _drain(self) -> None:
        """Take what finishes soon after an interrupt."""
        deadline = self._clock() + DRAIN_SECONDS
        while self._pending and self._clock() < deadline:
            self._take(self._runner.results(POLL_SECONDS))

    def _abandon(self) -> None:
        """Give up what was proposed and not measured; a later run may propose it again."""
        for work in (*self._queue, *self._pending.values(), *self._elsewhere.values()):
            work.task.progress.pending -= 1
            work.task.under_way.clear()
        self._queue.clear()
        self._pending.clear()
        self._elsewhere.clear()
        self._others.leave()

    def show(self) -> None:
        """Update the progress display and, now and then, the job's record."""
        statuses, left = self.statuses(), self._time_left()
        self._progress.update(statuses, self.elapsed, left)
        workers, busy = self._runner.capacity, len(self._pending)
        self._monitor.update(statuses, left, workers=workers, busy=busy)

    def _time_left(self) -> float | None:
        """Seconds until the time limit or, if sooner, until the trials are used up at this pace."""
        estimates = []
        if self._budget.limits.minutes is not None:
            estimates.append(max(0.0, 60.0 * self._budget.limits.minutes - self.elapsed))
        left = self._budget.left([task.progress for task in self.tasks])
        if left is not None and self.measured >= 4:
            waiting = left + len(self._pending) + len(self._queue)
            estimates.append(waiting * self.elapsed / self.measured)
        return min(estimates, default=None)


def _is_for(work: Work, target: str | None) -> bool:
    """Whether the work is to be measured for this target, by its key; None: for any."""
    return target is None or work.task.key.target == target


def sorted_claims(claims: Iterable[Claim]) -> list[Claim]:
    """In an order that does not depend on hashes of strings."""
    return sorted(claims, key=lambda claim: (claim[0].workload, claim[1]))
