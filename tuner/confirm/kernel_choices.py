"""KernelChoices: the records by which each kernel of a model gets one schedule or another, once the
whole model has said which is faster in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tunefarm.db import queries
from tunefarm.db.records import BestRecord, TaskKey, TrialRecord
from tunefarm.db.store import Store
from tunefarm.measure.compare import Comparison
from tunefarm.tuner.confirm.exchange import DEFAULT, FORMER, TUNED, InModel
from tunefarm.tuner.confirm.finalists import Settled
from tunefarm.tuner.records.trials import record_to_apply
from tunefarm.tuner.search.tasks import TuningTask

_UNCHANGED = Comparison(1.0, 1.0, 1.0, 0)


def defaults_for_claims(
    store: Store, tasks: Iterable[TuningTask], settled: Iterable[Settled], job: str | None
) -> tuple[BestRecord, ...]:
    """That kernels keep the default schedule of which the search claims that another is faster, but
    whose finalists have not met, in this job or before; they may still meet in the next one."""
    met = {item.task.key for item in settled}
    records = []
    for task in tasks:
        applied = None if task.key in met else record_to_apply(store, task.key)
        if applied is None or applied[1] or applied[0].schedule_hash == task.default.hash:
            continue
        trial = _of_default(store, task)
        if trial is not None and trial.latency is not None:
            hash, request = trial.schedule_hash, trial.request_id
            records.append(
                BestRecord(task.key, hash, request, trial.latency, 1.0, 1.0, 1.0, (hash,), job)
            )
    return tuple(records)


def _of_default(store: Store, task: TuningTask) -> TrialRecord | None:
    """The newest trial in which the default schedule worked."""
    found = queries.trials_of_schedules(store, task.key, [task.default.hash])
    return next((trial for trial in reversed(found) if trial.is_ok), None)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A task, what finalists settled of it, and the trial of the schedule that each build has."""

    task: TuningTask
    settled: Settled | None
    trials: Mapping[int, TrialRecord]


class KernelChoices:
    """The records of a model's kernels, by workload key and the number of a build."""

    def __init__(
        self,
        store: Store,
        tasks: Iterable[TuningTask],
        settled: Iterable[Settled],
        *,
        job: str | None = None,
    ) -> None:
        """`settled` is what the finalists of the tasks came to, not in the store yet."""
        self._store, self._job = store, job
        known = {item.task.key: item for item in settled}
        self._kernels = {
            task.key.workload: _Kernel(task, known.get(task.key), self._trials(task, known))
            for task in tasks
        }

    def _trials(
        self, task: TuningTask, settled: Mapping[TaskKey, Settled]
    ) -> dict[int, TrialRecord]:
        found: dict[int, TrialRecord | None] = {}
        own = settled.get(task.key)
        if own is not None:
            found[TUNED] = queries.trial_of(self._store, own.best)
            found[FORMER] = queries.trial_of(self._store, own.incumbent)
        elif (applied := record_to_apply(self._store, task.key)) is not None:
            found[TUNED] = found[FORMER] = applied[0]
        found[DEFAULT] = _of_default(self._store, task)
        return {number: trial for number, trial in found.items() if trial is not None}

    def bests(
        self, fastest: Mapping[str, int], found: Mapping[str, InModel]
    ) -> tuple[BestRecord, ...]:
        """What is to be recorded so that the kernels, by workload key, are built as they are in the
        builds of these numbers; what the finalists settled where nothing is said.

        `found` has what the running model showed of them, which is what is confirmed then.
        """
        records = []
        for workload, kernel in self._kernels.items():
            number, verdict = fastest.get(workload), found.get(workload)
            record = None
            if number is not None:
                shown = None if verdict is None else verdict.over_default.get(number)
                record = self._record(kernel, number, shown)
            if record is None and kernel.settled is not None:
                record = kernel.settled.best
            if record is not None:
                records.append(record)
        return tuple(records)

    def untuned(self) -> tuple[BestRecord, ...]:
        """What is to be recorded so that each kernel has its default schedule."""
        tuned = [w for w, kernel in self._kernels.items() if TUNED in kernel.trials]
        return self.bests(dict.fromkeys(tuned, DEFAULT), {})

    def _record(self, kernel: _Kernel, number: int, shown: Comparison | None) -> BestRecord | None:
        """That the kernel has the schedule of a build, and what the model showed of it; None where
        no trial of that schedule is known, or it is what was settled and nothing was shown."""
        trial, task = kernel.trials.get(number), kernel.task
        if number == DEFAULT or (trial is not None and trial.schedule_hash == task.default.hash):
            shown, trial = _UNCHANGED, trial or kernel.trials.get(DEFAULT)
        if trial is None or shown is None:
            return None
        return BestRecord(
            key=task.key,
            schedule_hash=trial.schedule_hash,
            request_id=trial.request_id,
            default_latency=self._default_latency(kernel, trial),
            ratio=shown.ratio,
            low=shown.low,
            high=shown.high,
            met=self._met(kernel),
            job=self._job if kernel.settled is None else kernel.settled.best.job,
        )

    def _default_latency(self, kernel: _Kernel, trial: TrialRecord) -> float:
        """Seconds of the default schedule in the task's scale."""
        if kernel.settled is not None:
            return kernel.settled.best.default_latency
        if math.isfinite(kernel.task.default_latency):
            return kernel.task.default_latency
        default = kernel.trials.get(DEFAULT, trial)
        assert default.latency is not None, "the trial is ok"
        return default.latency

    def _met(self, kernel: _Kernel) -> tuple[str, ...]:
        """The schedules that were compared: also those that the finalists compared before."""
        met: Sequence[str] = ()
        if kernel.settled is not None:
            met = kernel.settled.best.met
        elif (before := queries.best(self._store, kernel.task.key)) is not None:
            met = before[0].met
        shown = (trial.schedule_hash for trial in kernel.trials.values())
        return tuple(dict.fromkeys((*met, *shown)))
