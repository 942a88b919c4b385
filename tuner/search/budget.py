"""Splits the time of a job over its tasks: the next batch goes where the model gains most.

The gain expected of a second spent on a task is its share of the model's latency (occurrences x
best latency) times the relative improvement per trial, over the seconds that its trials take. That
improvement is the larger of what the task's last trials showed and of what may still be hoped for:
what the cost model predicts (the headroom), at most an optimistic guess, and both fall with the
number of trials. When both are small the task ends; so it does when the fast end of what was
measured is so dense that no more draws from it would gain much. The trials that it has not used go
to the tasks that still gain, until the job ends. (The idea of a gradient over tasks:
Zheng et al., "Ansor", OSDI 2020, section 6.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

RATE_WINDOW = 16  # trials over which the recent improvement rate is taken
GAIN_WINDOW = 32  # trials that must have gained little before a task ends for it
FIRST_BATCH = 1  # a task's first trial is its default schedule: it shows what the task weighs
OPTIMISM = 0.3  # the relative gain hoped for from doubling the trials of a task
LEAST_TRIALS = 32  # of a task, before it may end because nothing is to be won
NOTEWORTHY = 0.002  # a fall of the expected latency by less is no gain, but better knowledge


class End(StrEnum):
    """Why a task, or the job, gets no more trials."""

    NOTHING_TO_WIN = "nothing more to win"
    CONVERGED = "little gained lately and little more predicted"
    PATIENCE = "no gain lately"
    EXHAUSTED = "space exhausted"
    TOTAL_TRIALS = "all trials used up"
    TIME = "time used up"
    TARGET_GAIN = "the target gain was confirmed"
    FAILING = "no schedule works"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a job may use; None is unlimited."""

    trials: int | None = None  # of all tasks together, those known from earlier runs included
    trials_per_task: int | None = None  # on average: what a task leaves is for the others
    minutes: float | None = None
    gain: float | None = None  # expected of the sum of kernels, at which the model is measured
    patience: int | None = None  # trials of a task without a better latency
    min_gain: float = 0.0  # relative gain below which recent and predicted gain are small
    nothing_to_win: float = 0.0  # share of its time below which a task's expected gain ends it
    failing_after: int = 48  # a task without any success is given up after so many trials


@dataclass(slots=True)
class TaskProgress:
    """What the budget knows of one task.

    `best` is the latency that the task's nominee is expected to have when it is confirmed: it rises
    when a schedule was believed too much. `cycles` are those that a call is estimated to take with
    the default schedule, infinity where nothing estimates them. `weight` is what a second of it is
    worth next to one of the model at its maximum sizes: a model that is to be fast at small sizes
    is so by shares.
    """

    occurrences: int
    best: float = math.inf  # seconds per call
    default: float = math.inf  # the same with the default schedule
    trials: int = 0  # finished, those of earlier runs included
    pending: int = 0  # submitted, not yet answered
    stale: int = 0  # trials since the best latency last fell noticeably
    mark: float = math.inf  # the best latency from which that is counted
    exhausted: bool = False
    waits: bool = False  # nothing is proposed before what is under way is answered
    promise: float = 1.0  # share of its time that as many trials again gain by luck of the draw
    headroom: float = math.inf  # log2 of the speed-up that the cost model thinks possible
    seconds: float = 0.0  # spent on building, checking and timing
    history: list[float] = field(default_factory=list)  # best latency after each trial
    weight: float = 1.0
    cycles: float = math.inf

    def record(self, best: float, seconds: float = 0.0) -> None:
        """Count a finished trial that took `seconds`, after which the best latency is this."""
        self.trials += 1
        self.seconds += seconds
        self.stale += 1
        self.history.append(best)
        self.expect(best, self.promise)

    def expect(self, best: float, promise: float) -> None:
        """Correct the best latency after the last trial, and what more of them promise."""
        if best < (1.0 - NOTEWORTHY) * self.mark:
            self.stale, self.mark = 0, best
        else:
            self.mark = max(self.mark, best)
        self.best, self.promise = best, promise
        if self.history:
            self.history[-1] = best

    @property
    def cost(self) -> float:
        """Seconds that the model spends in this kernel with the best schedule so far, weighted."""
        return self.weight * self.occurrences * self.best

    @property
    def cost_cycles(self) -> float:
        """Cycles that the model is estimated to spend in this kernel, weighted."""
        return self.weight * self.occurrences * self.cycles

    @property
    def recent_rate(self) -> float:
        """Relative improvement per trial over the last `RATE_WINDOW` trials."""
        window = self.history[-RATE_WINDOW - 1 :]
        if len(window) < 2 or not math.isfinite(window[0]):
            return 0.0
        return max(0.0, 1.0 - window[-1] / window[0]) / (len(window) - 1)

    @property
    def recent_gain(self) -> float:
        """Relative improvement over the last `GAIN_WINDOW` trials; 1 while there are fewer."""
        window = self.history[-GAIN_WINDOW - 1 :]
        if len(window) <= GAIN_WINDOW or not math.isfinite(window[0]):
            return 1.0
        return 1.0 - window[-1] / window[0]

    @property
    def predicted_gain(self) -> float:
        """Relative improvement that the cost model thinks possible; 1 while it knows nothing."""
        return 1.0 - math.exp2(-max(0.0, self.headroom))

    @property
    def trial_seconds(self) -> float:
        """Seconds that a trial takes."""
        return self.seconds / self.trials if self.trials else 0.0

    def expected_gain(self, unknown_cost: float, usual_seconds: float = 1.0) -> float:
        """Seconds of the model's latency expected from one more second of tuning.

        `unknown_cost` stands for the cost of a task in which nothing has succeeded yet,
        `usual_seconds` for what a trial takes where that is not known.
        """
        tried = self.trials + self.pending
        if tried == 0:
            return math.inf
        cost = self.cost if math.isfinite(self.best) else unknown_cost
        hope = min(OPTIMISM, self.predicted_gain) / (tried + 1)
        return cost * max(self.recent_rate, hope) / (self.trial_seconds or usual_seconds)


def expected_gain(tasks: Sequence[TaskProgress]) -> float:
    """The speed-up that is expected of the sum of kernels; NaN before all were measured."""
    defaults = math.fsum(task.weight * task.occurrences * task.default for task in tasks)
    costs = math.fsum(task.cost for task in tasks)
    return defaults / costs if costs > 0 and math.isfinite(defaults + costs) else math.nan


class Budget:
    """Chooses the task of the next batch until the limits are reached."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def task_end(self, task: TaskProgress) -> End | None:
        """Why this task gets no more trials, or None."""
        if task.exhausted:
            return End.EXHAUSTED
        failing = not math.isfinite(task.best)
        if failing and task.trials + task.pending >= self.limits.failing_after:
            return End.FAILING
        if not failing and task.trials >= LEAST_TRIALS and self._is_nothing_to_win(task):
            return End.NOTHING_TO_WIN
        least = self.limits.min_gain
        if not failing and task.recent_gain < least and task.predicted_gain < least:
            return End.CONVERGED
        patience = self.limits.patience
        if patience is not None and not failing and task.stale + task.pending >= patience:
            return End.PATIENCE
        return None

    def _is_nothing_to_win(self, task: TaskProgress) -> bool:
        """Neither what was measured nor what the model expects of the rest promises a gain, and the
        last trials brought none."""
        gains = (task.promise, task.predicted_gain, RATE_WINDOW * task.recent_rate)
        return max(gains) < self.limits.nothing_to_win

    def reason(self, task: TaskProgress) -> str:
        """Why this task gets no more trials, for people; empty while it does."""
        end = self.task_end(task)
        if end is End.NOTHING_TO_WIN:
            share = 100.0 * self.limits.nothing_to_win
            return f"within {share:.3g} % of the best of this space, {task.trials} measured"
        return "" if end is None else end.value

    def job_end(self, tasks: Sequence[TaskProgress], seconds: float) -> End | None:
        """Why the job submits no more trials `seconds` after its start, or None."""
        if self.is_late(seconds):
            return End.TIME
        if self.left(tasks) == 0:
            return End.TOTAL_TRIALS
        if self.limits.gain is not None and expected_gain(tasks) >= self.limits.gain:
            return End.TARGET_GAIN
        return None

    def is_late(self, seconds: float) -> bool:
        """Whether a job has no time left `seconds` after its start."""
        minutes = self.limits.minutes
        return minutes is not None and seconds >= 60.0 * minutes

    def end(self, tasks: Sequence[TaskProgress], seconds: float) -> End:
        """Why a job without anything left to do has ended."""
        ends = (self.job_end(tasks, seconds), *map(self.task_end, tasks))
        return next((end for end in ends if end is not None), End.EXHAUSTED)

    def left(self, tasks: Sequence[TaskProgress]) -> int | None:
        """Trials that may still be submitted, of all tasks together, or None for no limit."""
        average = self.limits.trials_per_task
        limits = (self.limits.trials, None if average is None else average * len(tasks))
        known = [limit for limit in limits if limit is not None]
        if not known:
            return None
        return max(0, min(known) - sum(task.trials + task.pending for task in tasks))

    def next_task(self, tasks: Sequence[TaskProgress], seconds: float) -> int | None:
        """Index of the task whose next trials are expected to gain most, or None at the end.

        Tasks that were never tried come first, of these the ones that are estimated to take
        longest: a job may be too short for all of them.
        """
        if self.job_end(tasks, seconds) is not None:
            return None
        open_tasks = [
            i for i, task in enumerate(tasks) if not task.waits and self.task_end(task) is None
        ]
        if not open_tasks:
            return None

        unknown_cost = max((t.cost for t in tasks if math.isfinite(t.best)), default=1.0)
        trials = sum(task.trials for task in tasks)
        usual = (sum(task.seconds for task in tasks) / trials if trials else 0.0) or 1.0

        def priority(i: int) -> tuple[float, int, float, int]:
            task = tasks[i]
            gain = task.expected_gain(unknown_cost, usual)
            return (gain, -(task.trials + task.pending), task.cost_cycles, -i)

        return max(open_tasks, key=priority)

    def batch(self, tasks: Sequence[TaskProgress], index: int, size: int) -> int:
        """How many of `size` trials the task may get within the limits."""
        task = tasks[index]
        left = self.left(tasks)
        size = size if task.trials + task.pending else min(size, FIRST_BATCH)
        return size if left is None else min(size, left)
