"""Finalists: the best of a search meet again, side by side, before one of them is believed.

The lowest of hundreds of noisy medians is partly luck. So the fastest few of a task and its default
schedule are measured anew in interleaved rounds, and the best is chosen by the medians of those.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from db import queries
from db.records import TrialRecord
from db.store import Store
from measure.job import MeasureRequest, MeasureResult
from measure.runner import Runner
from tuner.records import (
    best_record,
    confirmations,
    latency_of,
    search_trials,
    trial_record,
)
from tuner.tasks import TuningTask

POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class FinalistOptions:
    """How many meet, how close to the best a nominee must be, and how often each is measured."""

    top: int = 3
    within: float = 0.10
    rounds: int = 3


def nominees(
    records: Sequence[TrialRecord], default_hash: str, options: FinalistOptions
) -> list[TrialRecord]:
    """The fastest distinct schedules of a task's search, and the default one if it works."""
    ranked = sorted((r for r in search_trials(records) if r.is_ok), key=latency_of)
    if not ranked:
        return []
    limit = (1.0 + options.within) * latency_of(ranked[0])
    chosen = [record for record in ranked[: options.top] if latency_of(record) <= limit]
    if all(record.schedule_hash != default_hash for record in chosen):
        chosen += [record for record in ranked if record.schedule_hash == default_hash]
    return chosen


class Finalists:
    """Measures the nominees of all tasks; `stop` ends it early."""

    def __init__(
        self,
        store: Store,
        *,
        job: str,
        seed: int,
        options: FinalistOptions | None = None,
    ) -> None:
        self.measured = 0
        self._store = store
        self._job = job
        self._rng = random.Random(seed)
        self._options = FinalistOptions() if options is None else options
        self._pending: dict[str, tuple[TuningTask, TrialRecord]] = {}
        self._stopped = False

    def stop(self) -> None:
        """Submit nothing more; safe to call from a signal handler."""
        self._stopped = True

    def wanted(self, tasks: Sequence[TuningTask]) -> bool:
        """Whether any task has nominees that have not met yet."""
        return any(self._unconfirmed(task) for task in tasks)

    def run(
        self,
        tasks: Sequence[TuningTask],
        runner: Runner,
        timing: Mapping[str, float | int],
        out_of_time: Callable[[], bool],
        show: Callable[[], None],
    ) -> None:
        """Confirm the best of each task, the costliest task first, while there is time.

        A task whose nominees have all been confirmed is left alone.
        """
        waiting: deque[tuple[TuningTask, TrialRecord]] = deque()
        for task in sorted(tasks, key=_costliest_first):
            waiting.extend((task, nominee) for nominee in self._rounds(task))
        while not self._stopped:
            while waiting and len(self._pending) < runner.capacity and not out_of_time():
                runner.submit(self._request(*waiting.popleft(), timing))
            if not self._pending:
                break
            for result in runner.results(POLL_SECONDS):
                self._take(result)
            show()

    def _rounds(self, task: TuningTask) -> list[TrialRecord]:
        """The nominees in the order to measure them: each once a round, rounds in random order."""
        chosen = self._unconfirmed(task)
        rounds = range(self._options.rounds)
        return [record for _ in rounds for record in self._rng.sample(chosen, len(chosen))]

    def _unconfirmed(self, task: TuningTask) -> list[TrialRecord]:
        """The nominees of a task; none if there is no choice, or if all were confirmed before."""
        records = queries.trials(self._store, task.key)
        chosen = nominees(records, task.default.hash, self._options)
        known = confirmations(records)
        rounds = self._options.rounds
        if all(len(known.get(record.schedule_hash, ())) >= rounds for record in chosen):
            return []
        return chosen if len(chosen) > 1 else []

    def _request(
        self, task: TuningTask, nominee: TrialRecord, timing: Mapping[str, float | int]
    ) -> MeasureRequest:
        self.measured += 1
        request = MeasureRequest(
            request_id=f"{self._job[:16]}-final-{self.measured}",
            kernel=task.kernel_json,
            workload_key=task.key.workload,
            schedule=nominee.schedule,
            threads=task.key.threads,
            options=timing,
        )
        self._pending[request.request_id] = task, nominee
        return request

    def _take(self, result: MeasureResult) -> None:
        task, nominee = self._pending.pop(result.request_id)
        record = trial_record(
            task.key,
            result,
            sketch=nominee.sketch,
            choices=nominee.choices,
            schedule=nominee.schedule,
            job=self._job,
            confirmed=True,
        )
        self._store.record_trials([record])


def refresh(tasks: Sequence[TuningTask], store: Store) -> None:
    """Take over the latencies of the records that will be applied, and of the confirmed default."""
    for task in tasks:
        records = queries.trials(store, task.key)
        best = best_record(records)
        if best is None:
            continue
        task.confirmed_latency = latency_of(best)
        default = [r for r in records if r.schedule_hash == task.default.hash]
        confirmed_default = best_record(default)
        if confirmed_default is not None:
            task.default_latency = latency_of(confirmed_default)


def _costliest_first(task: TuningTask) -> float:
    cost = task.progress.cost
    return -cost if math.isfinite(cost) else 0.0
