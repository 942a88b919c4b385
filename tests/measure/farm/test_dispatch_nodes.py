"""Nodes that come and go, as the dispatcher sees it."""

from __future__ import annotations

import random

from tunefarm.measure.farm.dispatch import MOST_HAND_BACKS, Action, Dispatcher, Phase
from tunefarm.measure.farm.slots import SlotPlan
from tunefarm.measure.measurement import MeasureRequest, Status
from tunefarm.measure.worker.build_candidate import BuildResult

SPLIT = SlotPlan((0,), ((1,),))
TWO = SlotPlan((0,), ((1,), (2,)))
SHARED = SlotPlan((0, 1), ((0, 1),), alternates=True)
BUILT = BuildResult(Status.OK, b"code", "", 0.25)


def dispatcher(*plans: SlotPlan, requests: int = 0) -> Dispatcher:
    result = Dispatcher(plans)
    for number in range(requests):
        result.add(MeasureRequest(str(number), {}, "key", [], 1))
    return result


def finish(subject: Dispatcher, action: Action) -> list[str]:
    """Have an action end well; the id of a request that was answered."""
    if action.phase is Phase.BUILD:
        assert subject.build_done(action, BUILT) is None
        return []
    return [action.job.request.request_id] if subject.time_done(action) else []


def test_a_node_that_joins_is_used_and_adds_to_the_capacity() -> None:
    subject = dispatcher(SPLIT, requests=4)
    before = subject.capacity
    assert {action.node for action in subject.next_actions()} == {0}
    assert subject.add_node(SPLIT) == 1
    assert subject.capacity == 2 * before
    assert {action.node for action in subject.next_actions()} == {1}


def test_a_node_that_leaves_ends_what_it_has_and_gets_nothing_more() -> None:
    subject = dispatcher(SPLIT, SPLIT, requests=6)
    first = [action for action in subject.next_actions() if action.node == 0]
    subject.retire_node(0)
    assert not subject.is_idle(0)
    for action in first:
        finish(subject, action)
    assert subject.is_idle(0)
    assert all(action.node == 1 for action in subject.next_actions())
    assert subject.capacity == dispatcher(SPLIT).capacity


def test_what_a_lost_node_had_is_done_elsewhere_and_its_late_answers_count_no_more() -> None:
    subject = dispatcher(SPLIT, SPLIT, requests=2)
    running = subject.next_actions()
    late = next(action for action in running if action.node == 0)
    subject.lose_node(0)
    subject.lose_node(0)
    assert subject.take_failed() == []
    assert late.job.kills == late.job.losses == 0
    answered: list[str] = []
    running = [action for action in running if action.node == 1]
    while running:
        answered += finish(subject, running.pop())
        running += subject.next_actions()
    assert sorted(answered) == ["0", "1"]
    assert subject.build_done(late, BUILT) is None
    assert subject.lost(late, "the node is gone") is None
    assert subject.next_actions() == [] and subject.waiting == 0


def test_workers_lost_on_a_node_that_leaves_are_nobodys_fault() -> None:
    """As when a machine is shut down, which ends every process of it."""
    subject = dispatcher(*[SPLIT] * 5, requests=1)
    for _ in range(4):
        (action,) = subject.next_actions()
        subject.retire_node(action.node)
        assert subject.lost(action, "killed from outside by SIGTERM") is None
    (action,) = subject.next_actions()
    assert (action.job.kills, action.job.losses) == (0, 0)


def test_a_request_that_every_node_is_lost_with_is_given_up_without_blame() -> None:
    subject = dispatcher(SPLIT, requests=1)
    for number in range(MOST_HAND_BACKS):
        assert len(subject.next_actions()) == 1
        subject.lose_node(number)
        subject.add_node(SPLIT)
    (result,) = subject.take_failed()
    assert result.status is Status.INFRASTRUCTURE
    assert subject.next_actions() == []


def test_requests_wait_for_a_node_to_join_before_they_fail() -> None:
    subject = dispatcher(SPLIT, requests=3)
    subject.lose_node(0)
    assert subject.capacity == 1
    assert subject.take_failed(100.0, patience=60.0) == []
    assert subject.take_failed(150.0, patience=60.0) == []
    subject.add_node(SPLIT)
    assert subject.take_failed(170.0, patience=60.0) == []
    subject.lose_node(1)
    assert subject.take_failed(180.0, patience=60.0) == []
    failed = subject.take_failed(240.0, patience=60.0)
    assert [result.request_id for result in failed] == ["0", "1", "2"]
    assert {result.status for result in failed} == {Status.INFRASTRUCTURE}


def test_every_request_ends_exactly_once_while_nodes_come_and_go() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        subject = dispatcher(*rng.choices([SPLIT, SHARED, TWO], k=2), requests=25)
        nodes, running, late = [0, 1], [], []
        finished: list[str] = []
        while subject.waiting:
            running += subject.next_actions()
            if rng.random() < 0.1 or not running:
                nodes.append(subject.add_node(rng.choice([SPLIT, SHARED, TWO])))
                continue
            if rng.random() < 0.1 and len(nodes) > 1:
                gone = nodes.pop(rng.randrange(len(nodes)))
                if rng.random() < 0.5:
                    subject.retire_node(gone)
                else:
                    subject.lose_node(gone)
                    given_up = subject.take_failed(patience=1.0)
                    finished += [result.request_id for result in given_up]
                    late += [action for action in running if action.node == gone]
                    running = [action for action in running if action.node != gone]
            elif late and rng.random() < 0.2:
                assert finish(subject, late.pop()) == []
            elif running:
                finished += finish(subject, running.pop(rng.randrange(len(running))))
        assert sorted(finished, key=int) == [str(number) for number in range(25)]
