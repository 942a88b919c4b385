"""How earlier versions searched: every schedule measured alone, the lowest median believed.

What was "unstable" was measured once more when it promised to be the best, else it was lost. In
the end the three fastest within 10 % met the default schedule. Kept to be compared with.
"""

from __future__ import annotations

import math
from collections import deque

from tests.measure.absolute_measuring import Absolute, AbsoluteMachine
from tests.measure.wandering_clock import WanderingClock
from tests.tuner.recorded import RecordedKernel
from tunefarm.compiler.schedule.space import Candidate
from tunefarm.measure.measurement import Status
from tunefarm.tuner.model.cost_model import BoostedTrees, Scores, TrainingData
from tunefarm.tuner.model.features import FeatureExtractor
from tunefarm.tuner.model.lessons import Lesson, Trainer, data_of
from tunefarm.tuner.model.packed_space import Rows
from tunefarm.tuner.search.strategy import SearchProblem, make_strategy
from tunefarm.tuner.search.tasks import TaskSearch

BATCH = 8
FINALISTS = 3
WITHIN = 1.10  # of the fastest


class FormerSearch:
    """A search of a recorded kernel on a simulated core, a measurement at a time."""

    def __init__(self, item: RecordedKernel, clock: WanderingClock, seed: int) -> None:
        self.trials = 0  # measurements, repeated ones and lost ones included
        self.lost = 0  # to noise
        self.measured: dict[int, float] = {}  # seconds of each schedule, as measured in full
        self._item = item
        pairs = zip(item.schedules.tolist(), item.latencies.tolist(), strict=True)
        self._truths: dict[int, float] = dict(pairs)
        self._machine = AbsoluteMachine(clock)
        self._extract = FeatureExtractor(item.space, item.kernel, item.target)
        self._model = BoostedTrees(seed)
        self._trainer = Trainer(self._model, background=False)
        strategy = make_strategy("cost_model", SearchProblem(item.space, self._score, seed))
        self._search = TaskSearch(item.space, strategy, first=[item.space.default()])
        self._queue: deque[tuple[Candidate, bool]] = deque()  # and whether for the second time
        self._known: dict[int, float] = {}  # seconds of each schedule, infinity for no answer
        self._taught: list[tuple[Candidate, Lesson]] = []

    @property
    def best(self) -> float:
        """The lowest median, of those that were given up early too."""
        return min(self._known.values(), default=math.inf)

    @property
    def confirmed(self) -> float:
        """What the finalists would come to if they met now: true seconds, infinity for none."""
        ranked = sorted(self.measured.items(), key=lambda entry: entry[1])[:FINALISTS]
        return min(
            (self._truths[schedule] for schedule, time in ranked if time <= WITHIN * ranked[0][1]),
            default=math.inf,
        )

    @property
    def nominee(self) -> float:
        """The true seconds of the schedule with the lowest median; infinity for none."""
        fastest = min(self._known, key=self._known.__getitem__, default=-1)
        return self._truths.get(fastest, math.inf)

    def step(self) -> bool:
        """Measure the next schedule; False when there is none left."""
        while not self._queue:
            self._trainer.offer(len(self._taught), self._data)
            asked = self._search.ask(BATCH if self.trials else 1)
            if not asked:
                return False
            for candidate in asked:
                self._plan(candidate)
        candidate, again = self._queue.popleft()
        self._measure(candidate, again)
        return True

    def _plan(self, candidate: Candidate) -> None:
        """Queue a candidate, unless its schedule is one that is known or queued."""
        schedule = self._schedule(candidate)
        if schedule in self._known:
            self._search.tell(candidate, self._known[schedule])
        elif all(self._schedule(other) != schedule for other, _ in self._queue):
            self._queue.append((candidate, False))

    def _measure(self, candidate: Candidate, again: bool) -> None:
        self.trials += 1
        schedule, seconds = self._schedule(candidate), self._item.latency(candidate)
        answer = self._machine.measure(seconds, self.best) if math.isfinite(seconds) else None
        if answer is not None and answer.unstable:
            self.lost += 1
            if not again and answer.median < self.best:
                self._queue.appendleft((candidate, True))
                return
        status, latency = _judged(answer)
        self._known[schedule] = latency
        if status is Status.OK and answer is not None and not answer.censored:
            self.measured[schedule] = latency
        self._search.tell(candidate, latency)
        conditions = {} if answer is None else {"anchor_seconds": answer.yardstick}
        lesson = Lesson.of(status, latency, 0.0, conditions)
        if lesson is not None:
            self._taught.append((candidate, lesson))

    def _schedule(self, candidate: Candidate) -> int:
        return int(self._item.schedules[self._item.space.number(candidate)])

    def _score(self, rows: Rows) -> Scores:
        return self._model.predict(self._extract.of_rows(rows))

    def _data(self) -> TrainingData:
        candidates = [candidate for candidate, _ in self._taught]
        return data_of(self._extract(candidates), [lesson for _, lesson in self._taught], 0)


def _judged(answer: Absolute | None) -> tuple[Status, float]:
    """The status of a measurement and its latency; of None, a schedule that does not work."""
    if answer is None:
        return Status.CRASHED, math.inf
    if answer.unstable:
        return Status.UNSTABLE, math.inf
    return Status.OK, answer.median
