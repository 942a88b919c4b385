"""Finalists: the best of a search meet the incumbent, side by side, before one of them is believed.

The lowest of hundreds of noisy ratios is partly luck. So those that may be the best of a task, the
schedule that is applied so far and the default one race in fresh processes, and
`tunefarm.tuner.confirm.verdict` says who wins. Who fails here is out, however fast the search found
it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, median

from tunefarm.db import queries
from tunefarm.db.records import BestRecord, TaskKey, TrialRecord
from tunefarm.db.store import Store
from tunefarm.measure.compare import pair_of
from tunefarm.measure.farm.runner import Runner
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.tuner.confirm.verdict import EFFECT, LEAST_PAIRS, Meeting, judge, standing
from tunefarm.tuner.records.trials import is_censored, is_confirmed, search_trials, trial_record
from tunefarm.tuner.search.measuring import TIMING_SHARE
from tunefarm.tuner.search.monitor import FINAL
from tunefarm.tuner.search.pairwise_estimates import BETWEEN_RUNS, Estimate
from tunefarm.tuner.search.posterior import Posterior
from tunefarm.tuner.search.tasks import TuningTask

# Contenders: who of a task may be the best, by what the search believes, and so meets the rest.


LEAST_CHANCE = 0.04  # of being the best, of those who meet from the beginning
STARTERS = 6  # of these at most, apart from the incumbent and the default
WAITING = 8  # who are kept in case the first disappoint


@dataclass(frozen=True, slots=True)
class Contender:
    """A schedule that may be the best of its task: a trial of it, and its log of time over the
    default's as the search expects it."""

    trial: TrialRecord
    expected: Estimate

    @property
    def hash(self) -> str:
        """The hash of its schedule."""
        return self.trial.schedule_hash


@dataclass(frozen=True, slots=True)
class Lineup:
    """The contenders of one task: the incumbent, then who meets it from the beginning (the default
    schedule among them, if it works), then who waits, the most promising first."""

    contenders: tuple[Contender, ...]
    starters: int
    default: str  # hash of the default schedule

    @property
    def default_number(self) -> int | None:
        """Where the default schedule is among the contenders; None if it does not work."""
        hashes = [contender.hash for contender in self.contenders]
        return hashes.index(self.default) if self.default in hashes else None

    @property
    def claimed(self) -> Estimate:
        """What the search expects of the schedule that will be applied: its nominee, if that is
        expected to gain enough to replace the incumbent."""
        incumbent, *rivals = [contender.expected for contender in self.contenders]
        nominee = min(rivals, default=incumbent)
        return nominee if nominee.mean < incumbent.mean + math.log1p(-EFFECT) else incumbent

    def without(self, hash: str) -> Lineup | None:
        """The lineup after one has failed; None if there is nobody left to compare.

        The default takes the place of an incumbent, and where it fails itself, the most promising.
        """
        left = [contender for contender in self.contenders if contender.hash != hash]
        if len(left) < 2:
            return None
        starters = sum(contender.hash != hash for contender in self.contenders[: self.starters])
        if self.contenders[0].hash == hash:
            left.sort(key=lambda contender: contender.hash != self.default)
        return Lineup(tuple(left), max(2, starters), self.default)


def lineup_of(store: Store, task: TuningTask, beliefs: Posterior | None) -> Lineup | None:
    """Who of a task should meet, by what is believed; None if there is no choice, or all met.

    The incumbent is what a job of this database has settled on, else the default schedule, else the
    nominee.
    """
    if beliefs is None:
        return None
    records = queries.trials(store, task.key)
    refuted = {r.schedule_hash for r in records if is_confirmed(r) and not r.is_ok}
    trials = {
        r.schedule_hash: r
        for r in search_trials(records)
        if r.is_ok and not is_censored(r) and r.schedule_hash not in refuted
    }
    likely = _likely(beliefs, trials)
    found = queries.best(store, task.key, queries.own(store))
    if found is not None and all(contender.hash in found[0].met for contender in likely):
        return None
    expected = dict(zip(beliefs.schedules, _expectations(beliefs), strict=True))
    trial = trials.get(task.default.hash)
    default = None if trial is None else Contender(trial, Estimate(0.0, 0.0))
    incumbent = default or (likely[0] if likely else None)
    if found is not None and found[1].schedule_hash not in refuted:
        incumbent = _settled(*found, expected)
    if incumbent is None:
        return None
    waiting = [Contender(trials[h], e) for h, e in expected.items() if h in trials]
    return _lineup(incumbent, default, likely, waiting, task.default.hash)


def contested(store: Store, tasks: Sequence[TuningTask]) -> int:
    """Of how many tasks somebody is expected to replace the incumbent."""
    lineups = (lineup_of(store, task, task.beliefs) for task in tasks)
    return sum(
        lineup is not None and lineup.claimed != lineup.contenders[0].expected for lineup in lineups
    )


def _likely(beliefs: Posterior, trials: dict[str, TrialRecord]) -> list[Contender]:
    """Who may be the best with more than `LEAST_CHANCE`, the most promising first."""
    chances = beliefs.probabilities()
    pairs = zip(beliefs.schedules, _expectations(beliefs), strict=True)
    found = [
        Contender(trials[hash], expected)
        for hash, expected in pairs
        if hash in trials and chances[hash] >= LEAST_CHANCE
    ]
    return found[:STARTERS]


def _expectations(beliefs: Posterior) -> list[Estimate]:
    variances = beliefs.covariance.diagonal().tolist()
    return [
        Estimate(mean, math.sqrt(variance))
        for mean, variance in zip(beliefs.means.tolist(), variances, strict=True)
    ]


def _settled(best: BestRecord, trial: TrialRecord, expected: dict[str, Estimate]) -> Contender:
    """What a job has settled on, as the incumbent of another meeting."""
    known = Estimate(math.log(best.ratio), math.log(best.high / best.low) / (2.0 * 1.96))
    return Contender(trial, expected.get(best.schedule_hash, known))


def _lineup(
    incumbent: Contender,
    default: Contender | None,
    likely: Sequence[Contender],
    waiting: Sequence[Contender],
    default_hash: str,
) -> Lineup | None:
    """All in their order, nobody twice; None if the incumbent is alone."""
    ordered = {incumbent.hash: incumbent}
    for contender in (*likely, *([] if default is None else [default])):
        ordered.setdefault(contender.hash, contender)
    starters = len(ordered)
    if all(c.hash == incumbent.hash for c in likely):
        return None
    for contender in waiting:
        if len(ordered) < starters + WAITING:
            ordered.setdefault(contender.hash, contender)
    return Lineup(tuple(ordered.values()), starters, default_hash)


# --- Race: which of several schedules of a kernel is the fastest, settled process by process -----
#
# A state machine of numbers: 0 is the incumbent, another may be the default schedule, the rest are
# rivals. `next` says who meets in the next process, `add` takes what was timed there. Who clearly
# loses to the leader leaves; while the leader may still be beaten there is another process; when
# the search expects more of one who waits than the leader has shown, that one joins. (Racing:
# Maron and Moore, "Hoeffding races", NIPS 1994.) The incumbent and the default take part in every
# process: the first is who must be beaten, the second what speed-ups are told against. It knows
# neither schedules nor runners; who wins in the end is up to `tunefarm.tuner.confirm.verdict`.


SAME = 0.02  # a rival that cannot be faster than the leader by more than this is not waited for
LOST = 0.01  # chance of being the faster one after all below which a rival leaves
DOUBT = 0.05  # chance of being faster by enough from which on the race goes on
PRECISE = 0.006  # deviation of the leader's ratio that satisfies those who have the time

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class RaceOptions:
    """How many meet, and how often.

    At most `contenders` rivals take part at a time, each in `processes` processes at least before
    anything is settled, and in `most` at most since somebody joined: twice as many in all.
    `rounds` are those of a process.
    """

    contenders: int = 6
    processes: int = 2
    most: int = 4
    rounds: int = 16


class Race:
    """One race. Numbers are positions in `expected`; the incumbent's is 0."""

    def __init__(
        self,
        expected: Sequence[Estimate],
        *,
        starters: int,
        default: int | None = None,
        options: RaceOptions | None = None,
    ) -> None:
        """`expected` of each, as log(time over the default's). The first `starters` meet from the
        beginning, the others wait for their chance; `default` is the default's number."""
        self._expected = expected
        self._options = RaceOptions() if options is None else options
        self._anchor = 0 if default is None else default
        self._always = {0, self._anchor}
        self._racing = {number for number in range(len(expected)) if number < starters}
        self._racing |= self._always
        waiting = set(range(len(expected))) - self._racing
        self._waiting = sorted(waiting, key=lambda number: expected[number])
        self._tries = 0  # processes since somebody joined, those in vain included
        self.meetings: list[Meeting] = []

    @property
    def racing(self) -> list[int]:
        """Who is still in the race."""
        return sorted(self._racing)

    @property
    def leader(self) -> int:
        """The fastest so far of those who are in the race."""
        return min(self._racing, key=lambda number: (self._against(number, 0).mean, number))

    def next(self, *, thorough: bool = False) -> list[int]:
        """Who meets in the next process, the incumbent first; nobody when the race is over.

        `thorough`: it goes on until the leader's speed is known precisely, too.
        """
        most = self._options.most
        if len(self._racing) < 2 or self._tries >= most or len(self.meetings) >= 2 * most:
            return []
        if self.is_young or self._is_open():
            return self.racing
        leader = self.leader
        vague = leader != self._anchor and self._against(leader, self._anchor).deviation > PRECISE
        return sorted(self._always | {leader}) if thorough and vague else []

    @property
    def is_young(self) -> bool:
        """Whether somebody has met the others less often than asked for, or too few pairs."""
        return any(
            self._met(number) < self._options.processes or self._pairs(number) < LEAST_PAIRS
            for number in self._racing
        )

    def add(self, meeting: Meeting) -> None:
        """Take in what a process timed; who clearly lost leaves, who is due joins."""
        self._tries += 1
        self.meetings.append(meeting)
        leader = self.leader
        for number in self._racing - self._always - {leader}:
            if self._met(number) and self._chance(number, leader, 0.0) < LOST:
                self._racing.discard(number)
        if not self.is_young or self._racing == self._always:
            self._call(leader)

    def miss(self) -> None:
        """A process ended without samples, through nobody's fault."""
        self._tries += 1

    def refute(self, number: int) -> None:
        """A schedule failed: it is out, and the race goes on without what it was timed for.

        Without the incumbent or the default the race is over.
        """
        self._racing.discard(number)
        self.meetings = [
            {who: samples for who, samples in meeting.items() if who != number}
            for meeting in self.meetings
        ]
        if number in self._always:
            self._racing.clear()
        elif self._waiting:
            self._join(self._waiting.pop(0))

    def _call(self, leader: int) -> None:
        """Those who wait join if more is expected of them than the leader has shown."""
        shown = self._against(leader, self._anchor).mean + self._expected[self._anchor].mean
        room = self._options.contenders - len(self._racing - self._always)
        while self._waiting and room > 0:
            if self._expected[self._waiting[0]].mean >= shown + math.log1p(-_enough(leader)):
                return
            self._join(self._waiting.pop(0))
            room -= 1

    def _join(self, number: int) -> None:
        self._racing.add(number)
        self._tries = 0

    def _is_open(self) -> bool:
        """Whether somebody may still be faster than the leader by enough to matter, or the leader
        may or may not be faster than the incumbent by enough."""
        leader = self.leader
        rivals = self._racing - self._always - {leader}
        if any(self._chance(number, leader, _enough(leader)) > DOUBT for number in rivals):
            return True
        if leader in self._always:
            return leader != 0 and self._may_or_may_not(leader)
        return self._may_or_may_not(leader)

    def _may_or_may_not(self, leader: int) -> bool:
        return DOUBT < self._chance(leader, 0, EFFECT) < 1.0 - DOUBT

    def _chance(self, one: int, other: int, gain: float) -> float:
        """Probability that `one` is faster than `other` by more than `gain`."""
        estimate = self._against(one, other)
        return _NORMAL.cdf((math.log1p(-gain) - estimate.mean) / estimate.deviation)

    def _against(self, one: int, other: int) -> Estimate:
        """What the meetings say of two, else what was expected of them."""
        if one == other:
            return Estimate(0.0, BETWEEN_RUNS)  # so that no chance is certain
        found = standing(self.meetings, one, other)
        if found is not None:
            return found
        a, b = self._expected[one], self._expected[other]
        return Estimate(a.mean - b.mean, math.hypot(a.deviation, b.deviation, BETWEEN_RUNS))

    def _met(self, number: int) -> int:
        return sum(number in meeting for meeting in self.meetings)

    def _pairs(self, number: int) -> int:
        return sum(len(meeting.get(number, ())) for meeting in self.meetings)


def _enough(leader: int) -> float:
    """By how much the leader must be beaten for it to matter: a change must gain more."""
    return SAME if leader else EFFECT


POLL_SECONDS = 0.25
SLICE_SECONDS = 0.25  # of all slices of one schedule in a process, at most
MEETING_SECONDS = 1.0  # of one process, before any was seen
_NOBODYS_FAULT = (Status.INFRASTRUCTURE, Status.QUARANTINED, Status.UNSTABLE, Status.SCATTERED)


@dataclass(frozen=True, slots=True)
class Settled:
    """What the finalists of a task came to: the best to apply, and what to keep if the whole model
    does not confirm it. `claimed` is what the search expected of its nominee before they met, as
    log of time over the default's."""

    task: TuningTask
    best: BestRecord
    incumbent: BestRecord
    claimed: Estimate

    @property
    def changes(self) -> bool:
        """Another schedule than before is to be applied."""
        return self.best.schedule_hash != self.incumbent.schedule_hash


@dataclass(slots=True)
class _Final:
    """The race of one task; numbers are those of its lineup's contenders."""

    task: TuningTask
    lineup: Lineup
    claimed: Estimate
    options: RaceOptions
    race: Race = field(init=False)
    due: list[int] = field(init=False)  # who meets next
    trials: dict[int, TrialRecord] = field(init=False)  # the newest of each that has met
    alone: list[int] = field(init=False)  # who is still to be tried alone, to find who fails
    under_way: int = 0  # requests without an answer

    def __post_init__(self) -> None:
        self.start(self.lineup)

    def start(self, lineup: Lineup) -> None:
        """A race from its beginning."""
        self.lineup = lineup
        self.race = Race(
            [contender.expected for contender in lineup.contenders],
            starters=lineup.starters,
            default=lineup.default_number,
            options=self.options,
        )
        self.trials, self.alone = {}, []
        self.due = self.race.next()


class Finalists:
    """Lets the contenders of all tasks race; `stop` ends it early."""

    def __init__(
        self,
        store: Store,
        *,
        job: str,
        seed: int,
        options: RaceOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
        number: int = 0,
    ) -> None:
        """`number` is that of the last request of the job's races before these."""
        self.measured = 0  # schedules, once for each process
        self.settled: list[Settled] = []
        self.claims: dict[TaskKey, Estimate] = {}  # of the tasks that have contenders
        self._store = store
        self._job = job
        self._seed = seed
        self._options = RaceOptions() if options is None else options
        self._clock = clock
        self.number = number  # of the last request
        self._finals: list[_Final] = []
        self._pending: dict[str, tuple[_Final, list[int], float]] = {}
        self._seconds: list[float] = []  # that requests took to be answered
        self._thorough = False
        self._stopped = False

    def stop(self) -> None:
        """Submit nothing more; safe to call from a signal handler."""
        self._stopped = True

    def wanted(self, tasks: Sequence[TuningTask]) -> bool:
        """Whether any task has contenders that have not met yet."""
        return any(lineup_of(self._store, task, task.beliefs) for task in tasks)

    def run(
        self,
        tasks: Sequence[TuningTask],
        runner: Runner,
        timing: Mapping[str, float | int],
        out_of_time: Callable[[float], bool],
        show: Callable[[], None],
        *,
        thorough: bool = False,
    ) -> None:
        """Settle the best of each task, while there is time; where most is to be won, first.

        `out_of_time` tells whether so many seconds from now is too late; what is being measured
        then is given up. `thorough`: the winners' speeds are to be known precisely. A task whose
        contenders have all met before is left alone. What comes out is in `settled`; the store has
        the measurements, not the verdicts.
        """
        rounds = {"samples": self._options.rounds, "fresh_process": 1}
        self._thorough = thorough
        for task in tasks:
            lineup = lineup_of(self._store, task, task.beliefs)
            if lineup is not None:
                self.claims[task.key] = lineup.claimed
                self._finals.append(_Final(task, lineup, lineup.claimed, self._options))
        self._finals.sort(key=_most_to_win_first)
        while not self._stopped:
            while len(self._pending) < runner.capacity and not out_of_time(self._meeting_seconds):
                request = self._next({**timing, **rounds})
                if request is None:
                    break
                runner.submit(request)
            if not self._pending or out_of_time(0.0):
                break
            for result in runner.results(POLL_SECONDS):
                self._take(result)
            show()
        for final in self._finals:
            self._conclude(final)

    @property
    def _meeting_seconds(self) -> float:
        return median(self._seconds) if self._seconds else MEETING_SECONDS

    def _next(self, options: Mapping[str, float | int]) -> MeasureRequest | None:
        """The next process: of who has met too seldom, else of who is undecided."""
        found = next((final for final in self._finals if final.alone), None)
        if found is not None:
            return self._request(found, [found.alone.pop()], options)
        idle = [final for final in self._finals if final.due and not final.under_way]
        if not idle:
            return None
        found = min(idle, key=lambda final: not final.race.is_young)
        return self._request(found, found.due, options)

    def _request(
        self, final: _Final, numbers: list[int], options: Mapping[str, float | int]
    ) -> MeasureRequest:
        self.measured += len(numbers)
        self.number += 1
        schedules = (final.lineup.contenders[number].trial.schedule for number in numbers)
        longest = TIMING_SHARE * options.get("run_timeout", math.inf)
        seconds = min(SLICE_SECONDS * len(numbers), longest)
        request = final.task.request(
            f"{self._job[:16]}{FINAL}{self.number}",
            schedules,
            {**options, "max_seconds": seconds},
            self._seed + self.number,
        )
        self._pending[request.request_id] = final, numbers, self._clock()
        final.under_way += 1
        return request

    def _take(self, result: MeasureResult) -> None:
        final, numbers, begin = self._pending.pop(result.request_id)
        self._seconds.append(self._clock() - begin)
        final.under_way -= 1
        failed = result.status is not Status.OK and result.status not in _NOBODYS_FAULT
        if failed and len(numbers) == 1:
            self._refute(final, result, numbers[0])
        elif failed and result.culprit is not None:
            self._refute(final, result, numbers[result.culprit])
        elif failed:
            final.alone, final.due = list(numbers), []
            final.race.meetings.clear()  # whoever is to blame took part in them
        elif len(numbers) > 1 and len(result.rivals) == len(numbers) - 1 and result.samples:
            self._keep(final, result, numbers)
        elif len(numbers) > 1:
            final.race.miss()
            final.due = final.race.next(thorough=self._thorough)

    def _keep(self, final: _Final, result: MeasureResult, numbers: Sequence[int]) -> None:
        """Record the samples of one process, a trial for each that took part, and go on."""
        meeting = dict(zip(numbers, (result.samples, *result.rivals), strict=True))
        default = final.lineup.default_number
        for number, samples in meeting.items():
            one = replace(result, status=Status.OK, error="", samples=samples, rivals=())
            if default is not None and number != default:
                one = replace(one, rivals=(meeting[default],))
            final.trials[number] = self._record(final, one, number)
        final.race.add(meeting)
        final.due = final.race.next(thorough=self._thorough)

    def _record(self, final: _Final, result: MeasureResult, number: int) -> TrialRecord:
        """Record a finalist's trial, measured next to the default schedule."""
        trial = final.lineup.contenders[number].trial
        scale = final.task.default_latency
        pair = pair_of(result)
        ratio = math.nan if pair is None else pair.ratio
        if number == final.lineup.default_number:
            ratio = 1.0  # all latencies are measured by its first one
        record = trial_record(
            final.task.key,
            result,
            sketch=trial.sketch,
            choices=trial.choices,
            schedule=trial.schedule,
            job=self._job,
            confirmed=True,
            reference=None if pair is None else final.lineup.default,
            latency=scale * ratio if math.isfinite(scale * ratio) else None,
        )
        self._store.add([record])
        return record

    def _refute(self, final: _Final, result: MeasureResult, number: int) -> None:
        """Record the failure of a contender, and go on without it, if there is anybody left."""
        failed = self._record(final, result, number)
        final.task.refute(failed.schedule_hash)
        final.alone = []
        left = final.lineup.without(failed.schedule_hash)
        if number in (0, final.lineup.default_number) and left is not None:
            final.start(left)
            return
        final.race.refute(number)
        final.trials.pop(number, None)
        final.due = final.race.next(thorough=self._thorough)

    def _conclude(self, final: _Final) -> None:
        """The verdict, if there are pairs enough; else a later run tries again."""
        met = {number for meeting in final.race.meetings for number in meeting}
        if len(met) < 2:
            return
        hashes = {number: final.lineup.contenders[number].hash for number in sorted(met)}
        verdict = judge(final.race.meetings, final.lineup.default_number or 0)
        if verdict is None:
            return

        scale = final.task.default_latency

        def best(number: int) -> BestRecord:
            compared = verdict.against_default[number]
            return BestRecord(
                key=final.task.key,
                schedule_hash=hashes[number],
                request_id=final.trials[number].request_id,
                default_latency=scale if math.isfinite(scale) else verdict.default_latency,
                ratio=compared.ratio,
                low=compared.low,
                high=compared.high,
                met=tuple(hashes.values()),
                job=self._job,
            )

        settled = Settled(final.task, best(verdict.winner), best(0), final.claimed)
        self.settled.append(settled)


def refresh(tasks: Sequence[TuningTask], store: Store) -> None:
    """Take over what was settled: the latency of the schedule to apply, in the task's scale."""
    for task in tasks:
        found = queries.best(store, task.key)
        if found is not None:
            task.settle(found[0])


def _most_to_win_first(final: _Final) -> tuple[float, float]:
    """By the seconds of the model that the claim is worth, then by those of the kernel."""
    cost = final.task.progress.cost
    cost = cost if math.isfinite(cost) else 0.0
    return -cost * math.expm1(-final.claimed.mean), -cost
