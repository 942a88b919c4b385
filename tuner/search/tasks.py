"""TuningTask: one distinct kernel of a model while it is tuned, and its search by any strategy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.compiler.target import Target
from tunefarm.db.records import BestRecord, TaskKey, TrialRecord, hash_json
from tunefarm.measure.compare import LogRatio
from tunefarm.measure.measurement import LOST_TO_NOISE, Status
from tunefarm.measure.placement import Placement
from tunefarm.tuner.model.cost_model import Outcome, TrainingData
from tunefarm.tuner.model.features import FeatureExtractor, FeatureMatrix
from tunefarm.tuner.model.lessons import Lesson, data_of
from tunefarm.tuner.records.estimates import UNCONFIRMED_MARGIN, recorded_pair
from tunefarm.tuner.records.trials import best_record, is_confirmed, latency_of
from tunefarm.tuner.reports.report import TaskStatus
from tunefarm.tuner.search.budget import Budget, TaskProgress
from tunefarm.tuner.search.posterior import Posterior
from tunefarm.tuner.search.ranking import Ranking
from tunefarm.tuner.search.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Planned:
    """A candidate with the schedule that it stands for, ready to be measured."""

    candidate: Candidate
    schedule: list[Any]  # JSON
    hash: str


@dataclass(slots=True)
class TuningTask:
    """A kernel, its space, its search and what was measured of it.

    `candidates` and `lessons` are the training data of the cost model. `known` maps the hash of
    every measured schedule to its latency (infinity for a failure), `plans` that of every one of
    the space that works to the one who measures it again, `under_way` that of every schedule being
    measured to the candidates that wait for it. `confirmed_latency` is that of the record to apply,
    infinity when the search expects another schedule to beat it. `placements` are where the model's
    calls have the kernel's buffers, `cache_state` are options of a request: what the calls find in
    the caches. `target` is what the CPU is called, in a job for several; `sizes` are those that the
    kernel is tuned for, in words, where a model has a range of them and these are not the maximum.
    `nodes` names the model's nodes that it computes.
    """

    kernel: FusedKernel
    kernel_json: Any
    key: TaskKey
    space: ScheduleSpace
    extract: FeatureExtractor
    search: TaskSearch
    progress: TaskProgress
    default: Planned
    placements: tuple[Placement, ...] = ()
    cache_state: Mapping[str, int] = field(default_factory=dict)
    target: str = ""
    sizes: str = ""
    nodes: str = ""
    candidates: list[Candidate] = field(default_factory=list)
    lessons: list[Lesson] = field(default_factory=list)
    known: dict[str, float] = field(default_factory=dict)
    plans: dict[str, Planned] = field(default_factory=dict)
    under_way: dict[str, list[Candidate]] = field(default_factory=dict)
    ranking: Ranking = field(init=False)
    _features: FeatureMatrix = field(init=False)
    _rows: dict[str, int] = field(default_factory=dict)  # of schedules in `lessons`
    seeded: bool = False  # whether its relatives' best schedules were put in front of the search
    failures: int = 0
    scattered: int = 0  # trials discarded as too noisy
    confirmed_latency: float = math.inf
    confirmed_interval: tuple[float, float] | None = None  # of a latency that a job has settled

    def __post_init__(self) -> None:
        self._features = self.extract([])
        self.ranking = Ranking(self.default.hash)
        self.plans[self.default.hash] = self.default

    @property
    def name(self) -> str:
        """What the kernel is called, for people."""
        return f"{self.kernel.name} at {self.sizes}" if self.sizes else self.kernel.name

    @property
    def default_latency(self) -> float:
        """Seconds per call with the default schedule; infinity where that is not known."""
        return self.progress.default

    @property
    def built_as(self) -> str:
        """The workload key that the kernel has in a build, for which no sizes are said."""
        return workload_key(replace(self.kernel, sizes=())) if self.sizes else self.key.workload

    @property
    def timed_at(self) -> tuple[list[int], ...]:
        """The placements of a request: that of the first call, none where it is not known."""
        return tuple(placement.to_json() for placement in self.placements[:1])

    def plan(self, candidate: Candidate) -> Planned:
        """The candidate's schedule."""
        return plan(self.space, candidate)

    @property
    def beliefs(self) -> Posterior | None:
        """What the search believes of the fastest schedules; None before it measured any."""
        return self.ranking.beliefs

    @property
    def waits(self) -> bool:
        """Whether the default schedule is being measured, which all others are measured by."""
        return math.isnan(self.ranking.scale) and self.default.hash in self.under_way

    def resume(self, records: Iterable[TrialRecord], settled: TrialRecord | None = None) -> None:
        """Take over what was measured in earlier runs, in the order of the records.

        `settled` is the trial that a job has settled on, if one has.
        """
        records = list(records)
        self.ranking.prepare(records)
        for record in records:
            if says_something(record):
                self.take_over(record, believe=False)
        self._believe()
        best = settled or best_record(records)
        if best is not None:
            self.confirmed_latency = latency_of(best)

    def settle(self, best: BestRecord) -> None:
        """Take over what a job has settled: the latency of what is applied, in the task's scale."""
        if not math.isfinite(self.default_latency):
            self.progress.default = best.default_latency
        self.confirmed_latency = self.default_latency * best.ratio
        self.confirmed_interval = self.default_latency * best.low, self.default_latency * best.high

    def take_over(self, record: TrialRecord, *, believe: bool = True) -> None:
        """Learn from a trial of another job, an earlier one or one of the same time.

        Without `believe` what it makes of the task's expectations is left for later.
        """
        hash = record.schedule_hash
        candidate = self.space.find(record.sketch, record.choices)
        if is_confirmed(record):
            self.refute(hash)
            return
        latency = math.inf
        if record.is_ok and not self.ranking.references.is_refuted(hash):
            self.ranking.prepare([record])
            latency = self.ranking.take_over(record, eligible=candidate is not None)
            if candidate is not None:
                self.plans[hash] = Planned(candidate, record.schedule, hash)
        pair = recorded_pair(record)
        deviation = None if pair is None else pair.deviation
        taught = latency
        if record.status in LOST_TO_NOISE and pair is not None:
            taught = self.beside(record.reference, pair)
        lesson = Lesson.of(record.status, taught, record.run_seconds, record.conditions, deviation)
        seconds = record.build_seconds + record.check_seconds + record.run_seconds
        self.learn(candidate, hash, latency, lesson, seconds, record.status, believe=believe)
        if candidate is not None:
            self.search.add(candidate, self.known[hash])

    def beside(self, reference: str | None, pair: LogRatio) -> float:
        """Seconds of what takes so much longer than a reference; infinity if that has no place."""
        return math.inf if reference is None else pair.ratio * self.ranking.latency(reference)

    def learn(
        self,
        candidate: Candidate | None,
        hash: str,
        latency: float,
        lesson: Lesson | None,
        seconds: float,
        status: str,
        *,
        believe: bool = True,
    ) -> None:
        """Count a trial that took `seconds`; keep its lesson for the cost model.

        `candidate` is None for a schedule that is no point of the space any more.
        """
        is_lost = status in LOST_TO_NOISE
        self.scattered += is_lost
        self.failures += not is_lost and not math.isfinite(latency)
        if not is_lost or hash not in self.known:
            self.known[hash] = latency
        if hash == self.default.hash and not math.isfinite(self.default_latency):
            self.progress.default = latency
        if believe:
            self.progress.record(self.ranking.expected, seconds)
            self._believe()
        else:
            self.progress.record(min(self.progress.best, latency), seconds)
        if candidate is None or lesson is None:
            return
        row = self._rows.setdefault(hash, len(self.lessons))
        if row == len(self.lessons):
            self.candidates.append(candidate)
            self.lessons.append(lesson)
        elif not is_lost:
            self.lessons[row] = lesson

    def _believe(self) -> None:
        """Work out what the task's nominee is expected to take, from all that was placed."""
        beliefs = self.ranking.beliefs
        if beliefs is None:
            return
        self.progress.expect(self.ranking.expected, beliefs.promise)
        if self.progress.best < (1.0 - UNCONFIRMED_MARGIN) * self.confirmed_latency:
            self.confirmed_latency = math.inf

    def refute(self, hash: str) -> bool:
        """A schedule fails, whatever was measured of it. Whether that was not known before."""
        self.known[hash] = math.inf
        self.plans.pop(hash, None)
        return self.ranking.refute(hash)

    @property
    def best_candidate(self) -> Candidate | None:
        """The candidate expected to be the fastest, None before there is one."""
        beliefs = self.ranking.beliefs
        return None if beliefs is None else self.plans[beliefs.nominee].candidate

    def training_data(self, number: int) -> TrainingData:
        """Everything measured, as the task with this number; features are computed once.

        Latencies of pairs are where the schedules stand now.
        """
        fresh = self.candidates[len(self._features) :]
        if fresh:
            self._features = np.concatenate([self._features, self.extract(fresh)])
        data = data_of(self._features, self.lessons, number)
        paired = [hash for hash in self._rows if self.ranking.is_paired(hash)]
        rows = np.array([self._rows[hash] for hash in paired], np.int64)
        seconds, deviations = self.ranking.estimates(paired)
        standing = np.isfinite(seconds) & (data.outcomes[rows] == Outcome.MEASURED)
        data.latencies[rows[standing]] = seconds[standing]
        data.deviations[rows[standing]] = deviations[standing]
        return data

    def status(self, budget: Budget | None = None) -> TaskStatus:
        """Where the task stands; `budget` tells why it ended."""
        ended = ""
        if budget is not None and self.progress.pending == 0:
            ended = budget.reason(self.progress)
        is_confirmed = math.isfinite(self.confirmed_latency)
        expected, interval = self.progress.best, self.ranking.interval
        if is_confirmed and self.confirmed_interval is not None:
            expected, interval = self.confirmed_latency, self.confirmed_interval
        known = math.isfinite(expected)
        return TaskStatus(
            kernel=self.name,
            key=self.key.workload,
            occurrences=self.progress.occurrences,
            trials=self.progress.trials,
            failures=self.failures,
            default=self.default_latency,
            best=self.confirmed_latency if is_confirmed else self.progress.best,
            ended=ended,
            scattered=self.scattered,
            expected=expected if known else math.nan,
            low=interval[0] if known else math.nan,
            high=interval[1] if known else math.nan,
            target=self.target,
            sizes=self.sizes,
            nodes=self.nodes,
        )


def tasks_for(tasks: Iterable[TuningTask], target: Target) -> list[TuningTask]:
    """Those of a job's tasks that are for one of its targets."""
    return [task for task in tasks if task.key.target == target.key]


def plan(space: ScheduleSpace, candidate: Candidate) -> Planned:
    """The candidate's schedule as JSON, with its hash."""
    schedule = space.schedule(candidate).to_json()
    return Planned(candidate, schedule, hash_json(schedule))


def says_something(record: TrialRecord) -> bool:
    """Whether a search learns from a trial: not from a finalist that works, which its own meeting
    judges, and not from failures of the machinery."""
    if record.status == Status.INFRASTRUCTURE:
        return False
    return not is_confirmed(record) or (
        not record.is_ok and record.status not in (*LOST_TO_NOISE, Status.QUARANTINED)
    )


class TaskSearch:
    """The search of one task: candidates are asked for in batches and their latencies told.

    No candidate is proposed twice, nor one that was added as known. The same strategy, seeds and
    answers give the same proposals.
    """

    def __init__(
        self, space: ScheduleSpace, strategy: Strategy, *, first: Iterable[Candidate] = ()
    ) -> None:
        """`first` are proposed before any of the strategy's own (the default, known good ones)."""
        self._space = space
        self._strategy = strategy
        self._known: set[Candidate] = set()
        self._first = list(dict.fromkeys(first))

    @property
    def exhausted(self) -> bool:
        """Whether every candidate of the space has been proposed."""
        return len(self._known) >= self._space.size

    @property
    def headroom(self) -> float:
        """log2 of the speed-up that the strategy still thinks possible; infinity if unknown."""
        return self._strategy.headroom

    def propose_first(self, candidates: Iterable[Candidate]) -> None:
        """Propose these before any of the strategy's own, after those that already wait."""
        self._first = list(dict.fromkeys((*self._first, *candidates)))

    def add(self, candidate: Candidate, latency: float) -> None:
        """A result from elsewhere (an earlier run); infinity for a failure."""
        if candidate not in self._known:
            self._take(candidate)
        self.tell(candidate, latency)

    def ask(self, count: int) -> list[Candidate]:
        """Up to `count` new candidates; fewer, or none, when the space is exhausted."""
        asked: list[Candidate] = []
        while self._first and len(asked) < count:
            candidate = self._first.pop(0)
            if candidate not in self._known:
                asked.append(self._take(candidate))
        proposals = islice(self._strategy.propose(count), count - len(asked))
        asked += map(self._take, proposals)
        return asked

    def tell(self, candidate: Candidate, latency: float) -> None:
        """The latency of a candidate in seconds, again when it is known better; infinity for a
        failure."""
        self._strategy.learn(candidate, latency)

    def forget(self, candidate: Candidate) -> None:
        """A candidate that was never measured, through no fault of its own."""
        self._strategy.learn(candidate, None)

    def _take(self, candidate: Candidate) -> Candidate:
        self._known.add(candidate)
        self._strategy.take(candidate)
        return candidate
