"""Finalists: the best of a search meet the incumbent, side by side, before one of them is believed.

The lowest of hundreds of noisy medians is partly luck. So the fastest few of a task, the schedule
that is applied so far and the default one are timed in turn, in random order, in fresh processes;
`tuner.confirm.verdict` says who wins. Who fails here is out, however fast the search found it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from db import queries
from db.records import BestRecord, TrialRecord
from db.store import Store
from measure.farm.runner import Runner
from measure.measurement import MeasureRequest, MeasureResult, Status
from tuner.confirm.verdict import judge
from tuner.records.trials import is_censored, latency_of, search_trials, trial_record
from tuner.search.tasks import TuningTask

POLL_SECONDS = 0.25
_NOBODYS_FAULT = (Status.INFRASTRUCTURE, Status.QUARANTINED, Status.UNSTABLE)


@dataclass(frozen=True, slots=True)
class FinalistOptions:
    """How many are nominated, how close to the best, and how often they meet.

    They meet in `processes` fresh processes, `rounds` times in each.
    """

    top: int = 3
    within: float = 0.10
    processes: int = 2
    rounds: int = 6


@dataclass(frozen=True, slots=True)
class Settled:
    """What the finalists of a task came to: the best to apply, and what to keep if the whole model
    does not confirm it."""

    task: TuningTask
    best: BestRecord
    incumbent: BestRecord

    @property
    def changes(self) -> bool:
        """Another schedule than before is to be applied."""
        return self.best.schedule_hash != self.incumbent.schedule_hash


@dataclass(slots=True)
class _Meeting:
    """The finalists of one task; the incumbent comes first."""

    task: TuningTask
    finalists: list[TrialRecord]
    waiting: int = 0  # requests without an answer
    samples: list[list[float]] = field(default_factory=list)  # of each finalist
    trials: list[TrialRecord] = field(default_factory=list)  # the newest of each finalist
    alone: bool = False  # each is measured by itself, to find who spoils the meeting

    def start(self) -> None:
        self.samples = [[] for _ in self.finalists]
        self.trials = list(self.finalists)


def nominees(
    records: Sequence[TrialRecord], default_hash: str, options: FinalistOptions
) -> list[TrialRecord]:
    """The fastest distinct schedules of a task's search, and the default one if it works."""
    ranked = sorted((r for r in search_trials(records) if r.is_ok), key=latency_of)
    full = [record for record in ranked if not is_censored(record)]
    if not full:
        return []
    limit = (1.0 + options.within) * latency_of(full[0])
    chosen = [record for record in full[: options.top] if latency_of(record) <= limit]
    if all(record.schedule_hash != default_hash for record in chosen):
        chosen += [record for record in ranked if record.schedule_hash == default_hash]
    return chosen


class Finalists:
    """Brings the finalists of all tasks together; `stop` ends it early."""

    def __init__(
        self,
        store: Store,
        *,
        job: str,
        seed: int,
        options: FinalistOptions | None = None,
    ) -> None:
        self.measured = 0  # schedules, once for each process
        self._number = 0
        self.settled: list[Settled] = []
        self._store = store
        self._job = job
        self._seed = seed
        self._options = FinalistOptions() if options is None else options
        self._pending: dict[str, tuple[_Meeting, list[int]]] = {}
        self._requests: deque[tuple[_Meeting, list[int]]] = deque()
        self._stopped = False

    def stop(self) -> None:
        """Submit nothing more; safe to call from a signal handler."""
        self._stopped = True

    def wanted(self, tasks: Sequence[TuningTask]) -> bool:
        """Whether any task has finalists that have not met yet."""
        return any(self._finalists(task) for task in tasks)

    def run(
        self,
        tasks: Sequence[TuningTask],
        runner: Runner,
        timing: Mapping[str, float | int],
        out_of_time: Callable[[], bool],
        show: Callable[[], None],
    ) -> None:
        """Settle the best of each task, the costliest task first, while there is time.

        A task whose finalists have all met before is left alone. What comes out is in `settled`;
        the store has the measurements, not the verdicts.
        """
        options = {**timing, "samples": self._options.rounds, "min_samples": 1, "fresh_process": 1}
        for task in sorted(tasks, key=_costliest_first):
            finalists = self._finalists(task)
            if finalists:
                self._meet(_Meeting(task, finalists))
        while not self._stopped:
            while self._requests and len(self._pending) < runner.capacity and not out_of_time():
                meeting, numbers = self._requests.popleft()
                request = self._request(meeting, numbers, options)
                self._pending[request.request_id] = meeting, numbers
                runner.submit(request)
            if not self._pending:
                break
            for result in runner.results(POLL_SECONDS):
                self._take(result)
            show()

    def _finalists(self, task: TuningTask) -> list[TrialRecord]:
        """Who meets, the incumbent first; nobody if there is no choice or all met before."""
        records = queries.trials(self._store, task.key)
        chosen = nominees(records, task.default.hash, self._options)
        if not chosen:
            return []
        defaults = [r for r in chosen if r.schedule_hash == task.default.hash]
        incumbent = (defaults or chosen)[0]
        found = queries.best(self._store, task.key)
        if found is not None:
            settled, incumbent = found
            if all(record.schedule_hash in settled.met for record in chosen):
                return []
        rivals = [r for r in chosen if r.schedule_hash != incumbent.schedule_hash]
        return [incumbent, *rivals] if rivals else []

    def _meet(self, meeting: _Meeting) -> None:
        """Queue the comparisons, or the verdict on who is left over."""
        meeting.start()
        everyone = list(range(len(meeting.finalists)))
        if len(everyone) < 2:
            return
        meeting.waiting = self._options.processes
        self._requests.extend([(meeting, everyone)] * self._options.processes)

    def _request(
        self, meeting: _Meeting, numbers: Sequence[int], options: Mapping[str, float | int]
    ) -> MeasureRequest:
        self.measured += len(numbers)
        self._number += 1
        schedules = [meeting.finalists[number].schedule for number in numbers]
        return MeasureRequest(
            request_id=f"{self._job[:16]}-final-{self._number}",
            kernel=meeting.task.kernel_json,
            workload_key=meeting.task.key.workload,
            schedule=schedules[0],
            threads=meeting.task.key.threads,
            options=options,
            rivals=tuple(schedules[1:]),
            seed=self._seed + self._number,
            placements=meeting.task.timed_at,
        )

    def _take(self, result: MeasureResult) -> None:
        meeting, numbers = self._pending.pop(result.request_id)
        meeting.waiting -= 1
        if result.status is Status.OK and not meeting.alone:
            self._keep(meeting, result)
        elif len(numbers) == 1:
            if result.status is not Status.OK and result.status not in _NOBODYS_FAULT:
                self._refute(meeting, result, numbers[0])
        elif result.status not in _NOBODYS_FAULT and not meeting.alone:
            self._find_culprit(meeting, result)
        if meeting.waiting == 0:
            self._conclude(meeting)

    def _keep(self, meeting: _Meeting, result: MeasureResult) -> None:
        """Record the samples of one process, a trial for each finalist."""
        for number, samples in enumerate((result.samples, *result.rivals)):
            one = replace(result, samples=samples, rivals=())
            meeting.samples[number] += samples
            meeting.trials[number] = self._record(meeting, one, number)

    def _record(self, meeting: _Meeting, result: MeasureResult, number: int) -> TrialRecord:
        finalist = meeting.finalists[number]
        record = trial_record(
            meeting.task.key,
            result,
            sketch=finalist.sketch,
            choices=finalist.choices,
            schedule=finalist.schedule,
            job=self._job,
            confirmed=True,
        )
        self._store.add([record])
        return record

    def _refute(self, meeting: _Meeting, result: MeasureResult, number: int) -> None:
        """Record the failure of a finalist; it has no samples from now on."""
        self._record(meeting, result, number)
        meeting.samples[number] = [math.inf]

    def _find_culprit(self, meeting: _Meeting, result: MeasureResult) -> None:
        """A comparison failed: one finalist is known to be to blame, or all are tried alone."""
        pending = [(m, n) for m, n in self._requests if m is meeting]
        for entry in pending:
            self._requests.remove(entry)
        meeting.waiting -= len(pending)
        meeting.alone = True
        if result.culprit is not None:
            self._refute(meeting, result, result.culprit)
            return
        meeting.waiting += len(meeting.finalists)
        self._requests.extend((meeting, [number]) for number in range(len(meeting.finalists)))

    def _conclude(self, meeting: _Meeting) -> None:
        """All answers are there: the verdict, or another meeting of those who are left."""
        if meeting.alone:
            left = [
                finalist
                for finalist, samples in zip(meeting.finalists, meeting.samples, strict=True)
                if math.inf not in samples
            ]
            if len(left) == len(meeting.finalists):
                left = left[:1]  # nobody is to blame for certain: no rival can be trusted
            self._meet(_Meeting(meeting.task, left))
            return
        hashes = [finalist.schedule_hash for finalist in meeting.finalists]
        default = meeting.task.default.hash
        verdict = judge(meeting.samples, hashes.index(default) if default in hashes else 0)
        if verdict is None:
            return  # too few pairs, because workers were lost: a later run tries again

        def best(number: int) -> BestRecord:
            compared = verdict.against_default[number]
            return BestRecord(
                key=meeting.task.key,
                schedule_hash=hashes[number],
                request_id=meeting.trials[number].request_id,
                default_latency=verdict.default_latency,
                ratio=compared.ratio,
                low=compared.low,
                high=compared.high,
                met=tuple(hashes),
                job=self._job,
            )

        self.settled.append(Settled(meeting.task, best(verdict.winner), best(0)))


def refresh(tasks: Sequence[TuningTask], store: Store) -> None:
    """Take over the latencies that were settled: of the record to apply and of the default."""
    for task in tasks:
        found = queries.best(store, task.key)
        if found is not None:
            best, trial = found
            task.confirmed_latency = latency_of(trial)
            task.default_latency = task.confirmed_latency / best.ratio  # of paired runs


def _costliest_first(task: TuningTask) -> float:
    cost = task.progress.cost
    return -cost if math.isfinite(cost) else 0.0
