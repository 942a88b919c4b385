"""The order of builds and timed runs, without processes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tunefarm.measure.farm.dispatch import Action, Dispatcher, Phase
from tunefarm.measure.farm.slots import SlotPlan
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.worker.build_candidate import BuildResult

SPLIT = SlotPlan((0,), ((1,),))
SHARED = SlotPlan((0, 1), ((0, 1),), alternates=True)
HELPING = SlotPlan((0, 1), ((1,),))
BUILT = BuildResult(Status.OK, b"code", "", 0.25)


def request(number: int) -> MeasureRequest:
    return MeasureRequest(str(number), {}, "key", [], 1)


def dispatcher(*plans: SlotPlan, requests: int = 0) -> Dispatcher:
    result = Dispatcher(plans)
    for number in range(requests):
        result.add(request(number))
    return result


def ids(actions: list[Action]) -> list[tuple[str, str]]:
    return [(action.phase.value, action.job.request.request_id) for action in actions]


def test_next_candidate_is_built_while_one_is_timed() -> None:
    subject = dispatcher(SPLIT, requests=2)
    (build,) = subject.next_actions()
    assert subject.build_done(build, BUILT) is None
    assert ids(subject.next_actions()) == [("time", "0"), ("build", "1")]
    assert subject.next_actions() == []


@pytest.mark.parametrize("plans", [(SPLIT, SPLIT, HELPING), (SHARED, SPLIT, SHARED)])
def test_requests_stay_on_nodes_of_their_kind(plans: tuple[SlotPlan, ...]) -> None:
    kinds = ("a", "b", "a")
    subject = Dispatcher(plans, kinds=kinds)
    assert sum(subject.capacities.values()) == subject.capacity
    for number in range(40):
        subject.add(replace(request(number), target="ab"[number % 2]))
    running: list[Action] = []
    done = 0
    while done < 40:
        running += subject.next_actions()
        action = running.pop(0)
        assert action.job.request.target == kinds[action.node]
        if action.phase is Phase.BUILD:
            assert subject.build_done(action, BUILT) is None
        else:
            subject.time_done(action)
            done += 1


def test_what_waits_for_a_kind_that_is_gone_fails_and_the_others_go_on() -> None:
    subject = Dispatcher((SPLIT, SPLIT), kinds=("a", "b"))
    for number in range(4):
        subject.add(replace(request(number), target="ab"[number % 2]))
    subject.remove(Phase.TIME, 1, 0)
    assert [result.request_id for result in subject.take_failed()] == ["1", "3"]
    assert ids(subject.next_actions()) == [("build", "0")]
    assert subject.take_failed() == []


def test_failed_build_is_the_result() -> None:
    subject = dispatcher(SPLIT, requests=1)
    (build,) = subject.next_actions()
    failure = BuildResult(Status.BUILD_ERROR, b"", "no such axis", 0.5)
    expected = MeasureResult("0", Status.BUILD_ERROR, (), "no such axis", 0.5)
    assert subject.build_done(build, failure) == expected
    assert subject.next_actions() == []


def test_shared_cores_build_a_batch_then_time_it() -> None:
    subject = dispatcher(SHARED, requests=20)
    order: list[str] = []
    running: list[Action] = []
    while len(order) < 40:
        running += subject.next_actions()
        kinds = {action.phase for action in running}
        assert len(kinds) == 1, "building and timing share the cores"
        action = running.pop(0)
        order.append("b" if action.phase is Phase.BUILD else "t")
        if action.phase is Phase.BUILD:
            assert subject.build_done(action, BUILT) is None
        else:
            subject.time_done(action)
    text = "".join(order)
    assert text.count("b") == text.count("t") == 20
    assert text.count("bt") <= 3


def test_the_core_of_a_slot_builds_while_nothing_waits_to_be_timed() -> None:
    subject = dispatcher(HELPING, requests=4)
    first, second = subject.next_actions()
    assert (first.index, second.index) == (0, 1)
    subject.build_done(first, BUILT)
    (third,) = subject.next_actions()  # the slot's core is still building
    assert (third.phase, third.index) == (Phase.BUILD, 0)
    subject.build_done(second, BUILT)
    (timing,) = subject.next_actions()
    assert ids([timing]) == [("time", "0")]
    subject.time_done(timing)
    assert ids(subject.next_actions()) == [("time", "1")]  # rather than the last build


def test_lost_worker_means_another_try_then_infrastructure() -> None:
    subject = dispatcher(SPLIT, requests=1)
    for _ in range(2):
        (build,) = subject.next_actions()
        assert subject.lost(build, "did not start", reached=False) is None
    (build,) = subject.next_actions()
    result = subject.lost(build, "did not start", reached=False)
    assert result == MeasureResult("0", Status.INFRASTRUCTURE, (), "did not start")


def test_request_that_loses_two_workers_is_quarantined() -> None:
    subject = dispatcher(SPLIT, requests=1)
    (build,) = subject.next_actions()
    assert subject.lost(build, "killed") is None
    (build,) = subject.next_actions()
    result = subject.lost(build, "killed again")
    assert result is not None and result.status is Status.QUARANTINED
    assert result.error.startswith("2 workers were lost") and "killed again" in result.error


def test_request_that_lost_its_worker_goes_elsewhere() -> None:
    subject = dispatcher(SlotPlan((0,), ((1,), (2,))), requests=1)
    (build,) = subject.next_actions()
    subject.build_done(build, BUILT)
    (timing,) = subject.next_actions()
    assert subject.lost(timing, "killed") is None
    (again,) = subject.next_actions()
    assert again.index != timing.index


def test_a_dead_node_gets_no_more_work_and_costs_no_request_its_tries() -> None:
    subject = dispatcher(SPLIT, SPLIT, requests=12)
    finished: list[str] = []
    failed_on_first = 0
    while actions := subject.next_actions():
        for action in actions:
            if action.node == 0:
                failed_on_first += 1
                assert subject.lost(action, "the node is gone", reached=False) is None
            elif action.phase is Phase.BUILD:
                assert subject.build_done(action, BUILT) is None
            else:
                subject.time_done(action)
                finished.append(action.job.request.request_id)
    assert sorted(finished, key=int) == [str(number) for number in range(12)]
    assert failed_on_first == 3


def test_the_last_node_is_tried_until_the_requests_fail() -> None:
    subject = dispatcher(SPLIT, requests=2)
    results: list[MeasureResult] = []
    while actions := subject.next_actions():
        for action in actions:
            result = subject.lost(action, "does not start", reached=False)
            results += [result] if result else []
    assert [result.status for result in results] == [Status.INFRASTRUCTURE] * 2


def test_lost_timed_run_is_not_built_again() -> None:
    subject = dispatcher(SPLIT, requests=1)
    (build,) = subject.next_actions()
    subject.build_done(build, BUILT)
    (timing,) = subject.next_actions()
    assert subject.lost(timing, "killed") is None
    assert ids(subject.next_actions()) == [("time", "0")]


def test_everything_that_waits_fails_when_the_last_slot_is_gone() -> None:
    subject = dispatcher(SPLIT, SlotPlan((0,), ((1,),)), requests=3)
    subject.remove(Phase.TIME, 0, 0)
    assert len(subject.next_actions()) == 2
    assert subject.take_failed() == []
    subject.remove(Phase.TIME, 1, 0)
    (result,) = subject.take_failed()
    assert (result.request_id, result.status) == ("2", Status.INFRASTRUCTURE)


def test_build_that_ends_after_the_last_slot_is_gone_fails_too() -> None:
    subject = dispatcher(SPLIT, requests=1)
    (build,) = subject.next_actions()
    subject.remove(Phase.TIME, 0, 0)
    assert subject.build_done(build, BUILT) is None
    (result,) = subject.take_failed()
    assert (result.status, result.build_seconds) == (Status.INFRASTRUCTURE, 0.25)


def test_every_request_ends_exactly_once_whatever_happens() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        subject = dispatcher(*rng.sample([SPLIT, SHARED, HELPING], 2), requests=25)
        running: list[Action] = []
        finished: list[str] = []
        while actions := subject.next_actions() + running:
            rng.shuffle(actions)
            action, *running = actions
            result: MeasureResult | None = None
            if rng.random() < 0.2:
                result = subject.lost(action, "killed")
            elif action.phase is Phase.BUILD:
                status = rng.choice([Status.OK, Status.OK, Status.BUILD_ERROR])
                result = subject.build_done(action, BuildResult(status, b"", ""))
            else:
                subject.time_done(action)
                finished.append(action.job.request.request_id)
            if result is not None:
                finished.append(result.request_id)
        assert sorted(finished, key=int) == [str(number) for number in range(25)]


def test_capacity_keeps_builders_and_slots_busy() -> None:
    assert dispatcher(SPLIT).capacity == 4
    assert dispatcher(SHARED).capacity == 16
    assert dispatcher(SPLIT, SPLIT).capacity == 8
