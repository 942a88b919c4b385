"""Nodes that join and leave while requests run, on a cluster that is made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future

from tunefarm.compiler.target import host_target
from tunefarm.measure.farm.dispatch import Action, Dispatcher
from tunefarm.measure.farm.node_watch import Node, NodeWatch
from tunefarm.measure.farm.slots import SlotPlan
from tunefarm.measure.measurement import MeasureRequest

PLAN = SlotPlan((0,), ((1,),))


SECOND = Node("second", PLAN, host_target(), address="10.0.0.7")


class MadeUp:
    """A cluster with a dispatcher; a dead head raises what Ray does."""

    def __init__(self) -> None:
        self.nodes: dict[str, bool] = {"first": False}
        self.answers: dict[str, Future[Node | str]] = {}
        self.hired: list[str] = ["first"]
        self.dropped: list[int] = []
        self.dispatcher = Dispatcher([PLAN], kinds=[SECOND.target.key])
        self.told: list[str] = []
        self.watch = NodeWatch(self, {"first": 0}, self.change, self.told.append)

    def change(self, change: Callable[[Dispatcher], None]) -> None:
        change(self.dispatcher)

    def look(self) -> Mapping[str, bool]:
        return dict(self.nodes)

    def inspect(self, node: str) -> Future[Node | str]:
        return self.answers.setdefault(node, Future())

    def hire(self, node: Node) -> int:
        self.hired.append(node.id)
        return len(self.hired) - 1

    def drop(self, number: int) -> None:
        self.dropped.append(number)

    def start(self, count: int) -> list[Action]:
        for number in range(count):
            self.dispatcher.add(MeasureRequest(str(number), {}, "key", [], 1))
        return self.dispatcher.next_actions()


def test_a_node_that_joins_is_asked_what_it_is_and_then_used() -> None:
    made = MadeUp()
    made.nodes["second"] = False
    made.watch.look()
    assert set(made.answers) == {"second"} and made.hired == ["first"]
    made.answers["second"].set_result(SECOND)
    made.watch.look()
    made.watch.look()
    assert made.hired == ["first", "second"]
    assert {action.node for action in made.start(8)} == {0, 1}
    assert made.told == ["a node has joined: 1 slot at 10.0.0.7"]


def test_a_node_that_cannot_measure_is_told_of_once_and_one_of_another_kind_never() -> None:
    made = MadeUp()
    made.nodes |= {"old": False, "other": False, "broken": False}
    made.watch.look()
    made.answers["old"].set_result("the compiler is 5 here and 4 there")
    made.answers["other"].set_result("")
    made.answers["broken"].set_exception(ModuleNotFoundError("no module named tuner"))
    for _ in range(3):
        made.watch.look()
    assert made.hired == ["first"]
    assert made.told == [
        "a node that has joined is not used: the compiler is 5 here and 4 there",
        "a node that has joined is not used: no module named tuner",
    ]


def test_a_node_that_is_told_to_leave_is_let_go_when_it_has_nothing_left() -> None:
    made = MadeUp()
    actions = made.start(1)
    made.nodes["first"] = True
    made.watch.look()
    assert made.dropped == []
    for action in actions:
        assert made.dispatcher.lost(action, "killed from outside by SIGTERM") is None
    made.watch.look()
    assert made.dropped == [0]
    del made.nodes["first"]
    made.watch.look()
    assert made.told == ["a node leaves: it ends what it has, and gets nothing more"]
    assert made.dispatcher.waiting == 1 and made.dispatcher.next_actions() == []


def test_what_a_lost_node_had_goes_to_one_that_joins() -> None:
    made = MadeUp()
    made.start(2)
    made.nodes = {"second": False}
    made.watch.look()
    assert made.dropped == [0] and made.dispatcher.take_failed(0.0, patience=60.0) == []
    made.answers["second"].set_result(SECOND)
    made.watch.look()
    actions = made.dispatcher.next_actions()
    assert actions and {action.node for action in actions} == {1}
    assert made.told[0] == "a node is lost: what it had is measured by others"
