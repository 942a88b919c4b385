"""Trials go where the whole model gains most, within the limits."""

from __future__ import annotations

import math

import pytest

from tunefarm.tuner.search.budget import Budget, End, Limits, TaskProgress


def progress(occurrences: int, *bests: float) -> TaskProgress:
    """After trials each of which left the best latency at this."""
    task = TaskProgress(occurrences)
    for best in bests:
        task.record(best)
    return task


def test_untried_tasks_come_first() -> None:
    tasks = [progress(9, 1.0), progress(1)]
    assert Budget(Limits()).next_task(tasks, 0.0) == 1


def test_first_trials_go_where_most_time_is_estimated() -> None:
    tasks = [TaskProgress(9, cycles=10.0), TaskProgress(1, cycles=1e6), TaskProgress(4, cycles=1e3)]
    order = []
    for _ in tasks:
        index = Budget(Limits()).next_task(tasks, 0.0)
        assert index is not None
        order.append(index)
        tasks[index].pending += 1
    assert order == [1, 2, 0]


def test_pending_trials_count_as_tried() -> None:
    tasks = [TaskProgress(1, pending=8), TaskProgress(1)]
    assert Budget(Limits()).next_task(tasks, 0.0) == 1


def test_the_larger_share_of_the_model_gets_more() -> None:
    tasks = [progress(1, *[1.0] * 20), progress(3, *[1.0] * 20)]
    assert Budget(Limits()).next_task(tasks, 0.0) == 1


def test_recent_improvement_attracts_trials() -> None:
    flat = progress(1, *[1.0] * 20)
    falling = progress(1, *[2.0 - 0.05 * i for i in range(20)])
    assert Budget(Limits()).next_task([flat, falling], 0.0) == 1


def test_a_task_hardly_tried_is_not_given_up() -> None:
    long_tried = progress(2, *[1.0] * 100)
    hardly_tried = progress(1, *[1.0] * 4)
    assert Budget(Limits()).next_task([long_tried, hardly_tried], 0.0) == 1


def test_trials_are_split_by_share_in_the_long_run() -> None:
    budget = Budget(Limits(trials=400))
    tasks = [TaskProgress(1), TaskProgress(4)]
    while (index := budget.next_task(tasks, 0.0)) is not None:
        tasks[index].record(1.0)
    assert tasks[0].trials + tasks[1].trials == 400
    assert 3 <= tasks[1].trials / tasks[0].trials <= 5


def test_total_trials_include_earlier_and_pending_ones() -> None:
    budget = Budget(Limits(trials=10))
    tasks = [progress(1, 1.0, 1.0, 1.0), TaskProgress(1, pending=4)]
    assert budget.batch(tasks, 0, 8) == 3
    tasks[1].pending = 7
    assert budget.next_task(tasks, 0.0) is None
    assert budget.job_end(tasks, 0.0) is End.TOTAL_TRIALS


def test_what_one_task_leaves_is_for_the_others() -> None:
    budget = Budget(Limits(trials_per_task=4, patience=2))
    tasks = [progress(1, 1.0, 1.0, 1.0), progress(1, 2.0, 1.5, 1.2)]
    assert budget.task_end(tasks[0]) is End.PATIENCE
    assert budget.next_task(tasks, 0.0) == 1
    assert budget.batch(tasks, 1, 8) == 2
    tasks[1].record(1.1)
    tasks[1].record(1.0)
    assert [task.trials for task in tasks] == [3, 5]
    assert budget.next_task(tasks, 0.0) is None
    assert budget.end(tasks, 0.0) is End.TOTAL_TRIALS


def test_the_lower_limit_of_trials_holds() -> None:
    task = progress(1, 1.0)
    assert Budget(Limits(trials=9, trials_per_task=4)).left([task, task]) == 6
    assert Budget(Limits(trials=5, trials_per_task=4)).left([task, task]) == 3
    assert Budget(Limits()).left([task]) is None


def test_a_task_without_improvement_ends_by_patience() -> None:
    budget = Budget(Limits(patience=5))
    task = progress(1, 2.0, 1.0, 1.0, 1.0, 1.0, 0.999)
    assert budget.task_end(task) is None
    task.record(1.0)
    assert budget.task_end(task) is End.PATIENCE


def test_what_was_believed_too_much_may_be_gained_again() -> None:
    """The best latency rises when luck is taken off it; a fall from there is a gain."""
    task = progress(1, 2.0, 1.0, 1.2, 1.2, 1.2)
    assert task.stale == 3
    task.record(1.1)
    assert task.stale == 0
    assert task.best == 1.1


def test_a_task_waits_for_its_default_schedule() -> None:
    tasks = [TaskProgress(9, waits=True, pending=1), progress(1, 1.0)]
    assert Budget(Limits()).next_task(tasks, 0.0) == 1
    tasks[1].waits = True
    assert Budget(Limits()).next_task(tasks, 0.0) is None
    assert Budget(Limits()).task_end(tasks[0]) is None


def promising(trials: int, promise: float, headroom: float) -> TaskProgress:
    task = progress(1, *[1.0] * trials)
    task.promise, task.headroom = promise, headroom
    return task


def test_a_task_ends_when_nothing_is_to_be_won() -> None:
    budget = Budget(Limits(nothing_to_win=0.02))
    task = promising(40, 0.01, 0.01)
    assert budget.task_end(task) is End.NOTHING_TO_WIN
    assert budget.reason(task) == "within 2 % of the best of this space, 40 measured"
    assert budget.reason(promising(4, 0.01, 0.01)) == ""
    task.record(0.9)
    assert budget.task_end(task) is None  # the last trials have gained


@pytest.mark.parametrize(
    "task",
    [promising(31, 0.01, 0.01), promising(40, 0.03, 0.01), promising(40, 0.01, 0.1)],
    ids=["too few trials", "the fast end is thin", "the model expects more"],
)
def test_a_task_that_may_win_goes_on(task: TaskProgress) -> None:
    assert Budget(Limits(nothing_to_win=0.02)).task_end(task) is None


def test_a_task_may_go_on_whatever_is_to_be_won() -> None:
    assert Budget(Limits(nothing_to_win=0.0)).task_end(promising(400, 0.0, 0.0)) is None


def test_time_ends_the_job() -> None:
    budget = Budget(Limits(minutes=1.5))
    assert budget.next_task([TaskProgress(1)], 89.0) == 0
    assert budget.next_task([TaskProgress(1)], 90.0) is None


def test_a_task_in_which_everything_fails_does_not_starve_the_others() -> None:
    budget = Budget(Limits(failing_after=48))
    tasks = [TaskProgress(1), TaskProgress(1)]
    for _ in range(40):
        index = budget.next_task(tasks, 0.0)
        assert index is not None
        tasks[index].record(math.inf if index == 0 else 1.0)
    assert tasks[1].trials >= 15


def test_a_task_in_which_everything_fails_is_given_up() -> None:
    budget = Budget(Limits(failing_after=6))
    task = progress(1, *[math.inf] * 6)
    assert budget.task_end(task) is End.FAILING
    task.record(1.0)
    assert budget.task_end(task) is None


def test_an_exhausted_task_gets_nothing() -> None:
    task = progress(1, 1.0)
    task.exhausted = True
    assert Budget(Limits()).next_task([task], 0.0) is None


def test_time_goes_where_a_second_gains_most() -> None:
    """Equal in all but the time that a trial takes."""
    tasks = [progress(1, *[1.0] * 20), progress(1, *[1.0] * 20)]
    tasks[0].seconds, tasks[1].seconds = 20 * 0.5, 20 * 0.1
    assert Budget(Limits()).next_task(tasks, 0.0) == 1


def test_what_the_model_predicts_attracts_trials() -> None:
    tasks = [progress(1, *[1.0] * 20), progress(1, *[1.0] * 20)]
    tasks[0].headroom, tasks[1].headroom = 0.01, 0.2
    assert Budget(Limits()).next_task(tasks, 0.0) == 1


def test_a_task_ends_when_little_was_gained_and_little_is_predicted() -> None:
    budget = Budget(Limits(min_gain=0.01))
    task = progress(1, 2.0, *[1.0] * 32)
    assert budget.task_end(task) is None  # the first trial's 2.0 is in the window still
    task.record(0.995)
    assert budget.task_end(task) is None  # the model was never asked
    task.headroom = 0.2
    assert budget.task_end(task) is None
    task.headroom = 0.01
    assert budget.task_end(task) is End.CONVERGED
    task.record(0.9)
    assert budget.task_end(task) is None


def test_failures_alone_do_not_converge() -> None:
    task = progress(1, *[math.inf] * 40)
    task.headroom = 0.0
    assert Budget(Limits(min_gain=0.01, failing_after=48)).task_end(task) is None


def test_gains_are_relative() -> None:
    task = progress(1, 2.0)
    assert task.recent_gain == 1.0
    assert task.predicted_gain == 1.0
    for _ in range(32):
        task.record(1.5, seconds=0.5)
    assert task.recent_gain == 0.25
    assert task.trial_seconds == 16 / 33
    task.headroom = 1.0
    assert task.predicted_gain == 0.5
    task.headroom = -1.0
    assert task.predicted_gain == 0.0
