"""TuningTask: one distinct kernel of a model while it is tuned, and its search by any strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.compiler.target import Target
from tunefarm.db.records import BestRecord, TaskKey, TrialRecord, hash_json
from tunefarm.measure.compare import ALONE_DEVIATION, LogRatio
from tunefarm.measure.measurement import LOST_TO_NOISE, MeasureRequest, MeasureResult, Status
from tunefarm.measure.placement import Placement
from tunefarm.tuner.model.cost_model import Outcome, TrainingData
from tunefarm.tuner.model.features import FeatureExtractor, FeatureMatrix
from tunefarm.tuner.model.lessons import Lesson, data_of
from tunefarm.tuner.records.estimates import UNCONFIRMED_MARGIN, recorded_pair
from tunefarm.tuner.records.trials import best_record, is_confirmed, latency_of
from tunefarm.tuner.reports.report import TaskStatus
from tunefarm.tuner.search.budget import Budget, TaskProgress
from tunefarm.tuner.search.pairwise_estimates import Logs, PairwiseEstimates
from tunefarm.tuner.search.posterior import Posterior, posterior
from tunefarm.tuner.search.strategy import Strategy

# --- Ranking: what the measurements of one task come to: places, references, and beliefs ---------
#
# Every latency of a task is a time over the default schedule's, times one scale: the seconds that
# the default took when the database first saw it. So latencies are comparable across references,
# jobs and moods of the machine's clock.


GONE_DEVIATION = 0.02  # of a pair whose reference is not known here
AGAIN_SHARE = 0.2  # of a task's trials that measure again, at most
_NORMAL_95 = 1.96


class Ranking:
    """The ranking of one task's schedules, by their hashes. `default` is the default schedule."""

    def __init__(self, default: str) -> None:
        self.scale = math.nan  # seconds of the schedule that stands at 0
        self.replications = 0  # measurements of what had been measured
        self._default = default
        self._pairwise = PairwiseEstimates()
        self.references = References(self._pairwise)
        self._times: dict[str, int] = {}  # of each that works and may be the best: measurements
        self._paired: set[str] = set()
        self._beliefs: Posterior | None = None
        self._believed = False

    def knows(self, schedule: str) -> bool:
        """Whether a pair with this schedule as its reference has a place."""
        return self._pairwise.estimate(schedule) is not None

    def is_paired(self, schedule: str) -> bool:
        """Whether the schedule's place comes from pairs."""
        return schedule in self._paired

    def latency(self, schedule: str) -> float:
        """Seconds in the task's scale; infinity for what has no place, or failed."""
        if self.references.is_refuted(schedule):
            return math.inf
        found = self._pairwise.estimate(schedule)
        return math.inf if found is None else self._seconds(found.mean)

    def estimates(self, schedules: Iterable[str]) -> tuple[Logs, Logs]:
        """Seconds in the task's scale and deviations of their logs; NaN, infinity without place."""
        means, deviations = self._pairwise.estimates(schedules)
        return self.scale * np.exp(means), deviations

    def prepare(self, records: Sequence[TrialRecord]) -> None:
        """Find the scale of what was recorded before: what everything stands to, and its seconds.

        It is the default schedule's; where that never worked, the first other one's that did.
        """
        if math.isfinite(self.scale):
            return
        working = [r for r in records if r.is_ok and not is_confirmed(r)]
        own = [r for r in working if r.schedule_hash == self._default]
        pairs = [r for r in working if r.reference == self._default]
        if own:
            self._begin(self._default, latency_of(own[0]))
        elif pairs:
            self._begin(self._default, latency_of(pairs[0]) / (pairs[0].ratio or 1.0))
        elif working:
            self._begin(working[0].schedule_hash, latency_of(working[0]))

    def add(
        self,
        schedule: str,
        seconds: float,
        reference: str | None = None,
        pair: LogRatio | None = None,
        *,
        eligible: bool = True,
    ) -> float:
        """A right result: `seconds` alone, or a pair with a reference. Its latency in the scale.

        What is not `eligible` has a place and is never nominated.
        """
        self._count(schedule, eligible)
        if pair is not None and reference is not None:
            self._pairwise.add(schedule, reference, pair)
            self._paired.add(schedule)
        elif math.isnan(self.scale):
            self._begin(schedule, seconds)
        elif schedule != self._pairwise.root:
            self._pairwise.add_known(schedule, math.log(seconds / self.scale), ALONE_DEVIATION)
        return self.latency(schedule)

    def take_over(self, record: TrialRecord, *, eligible: bool = True) -> float:
        """The right result of another job or an earlier one. Its latency in the scale."""
        hash, reference = record.schedule_hash, record.reference
        pair = recorded_pair(record)
        if reference is not None and pair is not None and not self.knows(reference):
            self._count(hash, eligible)
            relative = math.log(latency_of(record) / self.scale)
            self._pairwise.add_known(hash, relative, math.hypot(GONE_DEVIATION, pair.deviation))
            self._paired.add(hash)
            return self.latency(hash)
        return self.add(hash, latency_of(record), reference, pair, eligible=eligible)

    def refute(self, schedule: str) -> bool:
        """The schedule fails, whatever was measured of it. Whether that was not known before."""
        beliefs = self.beliefs
        self._times.pop(schedule, None)
        self._believed = False
        return self.references.refute(schedule, () if beliefs is None else beliefs.schedules)

    @property
    def beliefs(self) -> Posterior | None:
        """What to believe of the fastest; None before anything has a place."""
        if not self._believed:
            self._beliefs = posterior(self._pairwise, self._times)
            self._believed = True
        return self._beliefs

    @property
    def expected(self) -> float:
        """Seconds that the nominee is expected to take when it is confirmed; infinity if none."""
        beliefs = self.beliefs
        return math.inf if beliefs is None else self._seconds(beliefs.expected.mean)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `expected`; NaN if there is none."""
        beliefs = self.beliefs
        if beliefs is None:
            return math.nan, math.nan
        mean, deviation = beliefs.expected
        half = _NORMAL_95 * deviation
        return self._seconds(mean - half), self._seconds(mean + half)

    def may_be_best(self, reference: str | None, pair: LogRatio | None) -> bool:
        """Whether a measurement that was too noisy may hide a schedule faster than the nominee."""
        beliefs = self.beliefs
        here = None if reference is None else self._pairwise.estimate(reference)
        if beliefs is None:
            return True
        if pair is None or here is None:
            return False
        return here.mean + math.log(pair.low) < beliefs.expected.mean

    def again(self, trials: int) -> tuple[str, str] | None:
        """The schedule worth measuring again after so many trials, and the reference next to it."""
        beliefs, current = self.beliefs, self.references.current
        if beliefs is None or current is None or self.replications + 1 > AGAIN_SHARE * trials:
            return None
        wanted = self.references.advance(beliefs, lambda schedule: self._times.get(schedule, 0))
        current, root = self.references.current, self.references.root
        assert current is not None, "a reference gives way only to another one"
        if wanted is not None:
            return wanted, current
        if root is not None and root != current and self.references.is_adrift:
            return current, root
        found = beliefs.again(without=[current])
        return None if found is None else (found, current)

    def _begin(self, root: str, seconds: float) -> None:
        self.scale = seconds
        self._pairwise.root = root

    def _count(self, schedule: str, eligible: bool) -> None:
        self._believed = False
        if eligible:
            times = self._times.get(schedule, 0)
            self._times[schedule] = times + 1
            self.replications += times > 0
            self.references.begin(schedule)

    def _seconds(self, mean: float) -> float:
        return self.scale * math.exp(mean)


_MARGIN = 0.02  # a new reference is expected to be faster by this share
_DOUBT = 1.645  # deviations from no difference: faster with a probability of 95 %
_RE_ANCHOR = 0.015  # deviation of a reference's place from which it is measured again


class References:
    """The references of one task, by the hashes of their schedules; `current` is the newest.

    `current` is None as long as nothing was measured. `root` is the schedule that stands at 0: at
    first the reference is the default schedule, later the fastest. Slower candidates are then given
    up after a few pairs, and the others are compared with it directly. A reference is changed only
    for one that is faster beyond doubt and was measured at least twice, because all that is
    measured against it hangs on its place. When its place has become uncertain it is measured
    against the default again. A reference that fails is refuted: the former one takes over.
    """

    def __init__(self, pairwise: PairwiseEstimates) -> None:
        self._pairwise = pairwise
        self._former: list[str] = []
        self._refuted: set[str] = set()
        self.current: str | None = None

    @property
    def root(self) -> str | None:
        """The first reference, unless it was refuted."""
        root = self._pairwise.root
        return None if root in self._refuted else root

    def is_refuted(self, schedule: str) -> bool:
        """Whether the schedule has failed after it had been measured."""
        return schedule in self._refuted

    def begin(self, schedule: str) -> None:
        """The first reference: the default schedule, or the first one that works."""
        if self.current is None and schedule not in self._refuted:
            self.current = schedule

    def advance(self, posterior: Posterior, times: Callable[[str], int]) -> str | None:
        """Make the nominee the reference if it is faster beyond doubt.

        One that is, but was measured only once (`times`), is returned: it is to be measured again.
        """
        nominee, current = posterior.nominee, self.current
        if current is None or nominee == current:
            return None
        found = self._pairwise.difference(nominee, current)
        here = self._pairwise.estimate(current)
        if found is None or here is None:
            return None
        expected = found.mean + posterior.expected.mean - self._observed(nominee)  # without luck
        if found.mean + _DOUBT * found.deviation >= 0 or expected > math.log(1.0 - _MARGIN):
            return None
        if times(nominee) < 2:
            return nominee
        self._former.append(current)
        self.current = nominee
        return None

    @property
    def is_adrift(self) -> bool:
        """Whether the reference is to be measured against the root again."""
        if self.current is None or self.root is None or self.current == self.root:
            return False
        here = self._pairwise.estimate(self.current)
        return here is not None and here.deviation > _RE_ANCHOR

    def refute(self, schedule: str, others: Iterable[str]) -> bool:
        """The schedule fails: it is no reference any more. Whether that was not known before.

        The newest of the former references takes over, else the root, else the first of `others`
        that was not refuted, else nobody.
        """
        if schedule in self._refuted:
            return False
        self._refuted.add(schedule)
        if schedule == self.current:
            root = [] if self.root is None else [self.root]
            heirs = (*reversed(self._former), *root, *others)
            self.current = next((heir for heir in heirs if heir not in self._refuted), None)
        return True

    def _observed(self, schedule: str) -> float:
        found = self._pairwise.estimate(schedule)
        return math.nan if found is None else found.mean


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

    def request(
        self,
        request_id: str,
        schedules: Iterable[list[Any]],
        options: Mapping[str, float | int],
        seed: int,
    ) -> MeasureRequest:
        """What a runner is asked for: the first of some schedules, timed next to the others."""
        first, *rivals = schedules
        return MeasureRequest(
            request_id=request_id,
            kernel=self.kernel_json,
            workload_key=self.key.workload,
            schedule=first,
            threads=self.key.threads,
            options={**options, **self.cache_state},
            rivals=tuple(rivals),
            seed=seed,
            placements=self.timed_at,
            target=self.key.target,
            numerics=self.key.numerics,
        )

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
        self.learn(
            candidate,
            hash,
            latency,
            record,
            record.conditions,
            pair=recorded_pair(record),
            reference=record.reference,
            believe=believe,
        )
        if candidate is not None:
            self.search.add(candidate, self.known[hash])

    def learn(
        self,
        candidate: Candidate | None,
        hash: str,
        latency: float,
        trial: MeasureResult | TrialRecord,
        conditions: Mapping[str, Any],
        *,
        pair: LogRatio | None,
        reference: str | None,
        believe: bool = True,
    ) -> None:
        """Count a trial of a schedule, under these conditions; keep its lesson for the cost model.

        `latency` is in the task's scale, infinity for a failure; `candidate` is None for a schedule
        that is no point of the space any more. A pair that was too noisy teaches what it says of
        the schedule next to its `reference`.
        """
        is_lost = trial.status in LOST_TO_NOISE
        taught, deviation = latency, None if pair is None else pair.deviation
        if is_lost and pair is not None:
            taught = math.inf
            if reference is not None:
                taught = pair.ratio * self.ranking.latency(reference)
        lesson = Lesson.of(trial.status, taught, trial.run_seconds, conditions, deviation)
        seconds = trial.build_seconds + trial.check_seconds + trial.run_seconds
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
