"""Keeps a runner's nodes as the cluster is while a job runs: which join, which leave.

A node that joins is asked what it is and then used; one that has to leave gets nothing more, ends
what it has, and is let go; what a lost one had goes to others. What is known of the cluster comes
from a `Cluster`, so that this is tested without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from tunefarm.compiler.errors import with_count
from tunefarm.compiler.target import Target
from tunefarm.measure.farm.dispatch import Dispatcher
from tunefarm.measure.farm.slots import SlotPlan


@dataclass(frozen=True, slots=True)
class Node:
    """A node, its cores, and the target that it measures for; `niceness` is what was asked for."""

    id: str
    plan: SlotPlan
    target: Target
    niceness: int = 0
    address: str = ""


class Cluster(Protocol):
    """What is to be known of a cluster, and done with its nodes.

    `hire` and `drop` are called within the runner's thread, the rest by the watch. `look` raises an
    exception when the cluster does not answer for a moment.
    """

    def look(self) -> Mapping[str, bool]:
        """The ids of the nodes that live, and whether they leave."""

    def inspect(self, node: str) -> Future[Node | str]:
        """What a node is: one to measure on, or why it is not."""

    def hire(self, node: Node) -> int:
        """Have the workers of a node ready; its number."""

    def drop(self, number: int) -> None:
        """End the workers of a node, if it is there. Idempotent."""


class NodeWatch:
    """Keeps a runner's nodes as the cluster is."""

    def __init__(
        self,
        cluster: Cluster,
        known: Mapping[str, int],
        change: Callable[[Callable[[Dispatcher], None]], None],
        notify: Callable[[str], None] | None = None,
    ) -> None:
        """`known` are the numbers of the nodes that the runner has already, `change` has a function
        called within the runner's thread."""
        self._cluster = cluster
        self._numbers = dict(known)
        self._change = change
        self._notify = notify or (lambda _: None)
        self._asked: dict[str, Future[Node | str]] = {}
        self._refused: set[str] = set()
        self._retired: set[str] = set()
        self._lost: set[str] = set()

    def look(self) -> None:
        """Look once."""
        states = self._cluster.look()
        for node in [node for node in self._numbers if node not in states]:
            self._lose(node)
        for node, leaves in states.items():
            if leaves:
                self._retire(node)
            elif node not in self._numbers:
                self._meet(node)
        self._change(lambda dispatcher: None)  # time passes for what waits for a node

    def _meet(self, node: str) -> None:
        """Ask a new node what it is; use it once it has told."""
        if node in self._refused:
            return
        if node not in self._asked:
            self._asked[node] = self._cluster.inspect(node)
        elif self._asked[node].done():
            answer = self._asked.pop(node)
            found = str(answer.exception()) if answer.exception() else answer.result()
            if isinstance(found, str):
                self._refused.add(node)
                if found:
                    self._notify(f"a node that has joined is not used: {found.splitlines()[-1]}")
                return
            self._hire(found)

    def _hire(self, node: Node) -> None:
        self._numbers[node.id] = -1  # until the runner's thread has numbered it

        def hire(dispatcher: Dispatcher) -> None:
            number = self._cluster.hire(node)
            given = dispatcher.add_node(node.plan, node.target.key)
            assert number == given, "the backend and the dispatcher count alike"
            self._numbers[node.id] = number

        self._change(hire)
        slots = with_count(len(node.plan.slots), "slot")
        self._notify(f"a node has joined: {slots} at {node.address}")

    def _retire(self, node: str) -> None:
        number = self._numbers.get(node, -1)
        if number < 0 or node in self._lost:
            return
        if node not in self._retired:
            self._retired.add(node)
            self._change(lambda dispatcher: dispatcher.retire_node(number))
            self._notify("a node leaves: it ends what it has, and gets nothing more")

        def drop_if_idle(dispatcher: Dispatcher) -> None:
            if dispatcher.is_idle(number):
                self._cluster.drop(number)

        self._change(drop_if_idle)

    def _lose(self, node: str) -> None:
        number = self._numbers[node]
        if number < 0 or node in self._lost:
            return
        self._lost.add(node)

        def lose(dispatcher: Dispatcher) -> None:
            dispatcher.lose_node(number)
            self._cluster.drop(number)

        self._change(lose)
        if node not in self._retired:
            self._notify("a node is lost: what it had is measured by others")
