"""Finalists: the best of a search meet the incumbent, side by side, before one of them is believed.

The lowest of hundreds of noisy ratios is partly luck. So those that may be the best of a task
(`tunefarm.tuner.confirm.contenders`), the schedule that is applied so far and the default one race
in fresh processes (`tunefarm.tuner.confirm.race`), and `tunefarm.tuner.confirm.verdict` says who
wins. Who fails here is out, however fast the search found it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from tunefarm.db import queries
from tunefarm.db.records import BestRecord, TaskKey, TrialRecord
from tunefarm.db.store import Store
from tunefarm.measure.compare import pair_of
from tunefarm.measure.farm.runner import Runner
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.tuner.confirm.contenders import Lineup, lineup_of
from tunefarm.tuner.confirm.race import Race, RaceOptions
from tunefarm.tuner.confirm.verdict import judge
from tunefarm.tuner.records.trials import trial_record
from tunefarm.tuner.search.measuring import TIMING_SHARE
from tunefarm.tuner.search.monitor import FINAL
from tunefarm.tuner.search.pairwise_estimates import Estimate
from tunefarm.tuner.search.tasks import TuningTask

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
        schedules = [final.lineup.contenders[number].trial.schedule for number in numbers]
        longest = TIMING_SHARE * options.get("run_timeout", math.inf)
        request = MeasureRequest(
            request_id=f"{self._job[:16]}{FINAL}{self.number}",
            kernel=final.task.kernel_json,
            workload_key=final.task.key.workload,
            schedule=schedules[0],
            threads=final.task.key.threads,
            options={
                **options,
                **final.task.cache_state,
                "max_seconds": min(SLICE_SECONDS * len(numbers), longest),
            },
            rivals=tuple(schedules[1:]),
            seed=self._seed + self.number,
            placements=final.task.timed_at,
            target=final.task.key.target,
            numerics=final.task.key.numerics,
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
