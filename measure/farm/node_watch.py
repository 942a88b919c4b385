"""Watches the nodes of a cluster while a job runs: who joins, who leaves.

A thread of its own looks every second. A node that joins is asked what it is and then used; one
that has to leave gets nothing more, ends what it has, and is let go; what a lost one had goes
to others. What it knows of the cluster comes from a `Cluster`, so that it is tested without one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol

from tunefarm.measure.farm.pipeline_runner import Crew
from tunefarm.measure.farm.slots import SlotPlan

POLL_SECONDS = 1.0


class Recruit(Protocol):
    """A node that can measure, as its inspection tells."""

    @property
    def plan(self) -> SlotPlan:
        """The cores that it times on and builds on."""

    @property
    def address(self) -> str:
        """Where it is reached."""


class Cluster(Protocol):
    """What is to be known of a cluster, and done with its nodes.

    `hire` and `drop` are called within the runner's thread, the rest by the watch. `look` raises an
    exception when the cluster does not answer for a moment.
    """

    def look(self) -> Mapping[str, bool]:
        """The ids of the nodes that live, and whether they leave."""

    def inspect(self, node: str) -> Future[Recruit | str]:
        """What a node is: one to measure on, or why it is not."""

    def hire(self, node: str, recruit: Recruit) -> tuple[int, str]:
        """Have the workers of a node ready; its number, and the key of its target."""

    def drop(self, number: int) -> None:
        """End the workers of a node, if it is there. Idempotent."""


class NodeWatch:
    """Keeps a runner's nodes as the cluster is."""

    def __init__(
        self,
        cluster: Cluster,
        known: Mapping[str, int],
        change: Callable[[Callable[[Crew], None]], None],
        notify: Callable[[str], None] | None = None,
    ) -> None:
        """`known` are the numbers of the nodes that the runner has already, `change` has a function
        called within the runner's thread."""
        self._cluster = cluster
        self._numbers = dict(known)
        self._change = change
        self._notify = notify or (lambda _: None)
        self._asked: dict[str, Future[Recruit | str]] = {}
        self._refused: set[str] = set()
        self._retired: set[str] = set()
        self._lost: set[str] = set()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look every second from now on, in a thread."""
        self._thread = threading.Thread(target=self._watch, name="tunefarm-nodes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more. Idempotent."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(POLL_SECONDS)

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
        self._change(lambda crew: None)  # time passes for what waits for a node

    def _watch(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - the head is busy or away: look again
                continue

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
            self._hire(node, found)

    def _hire(self, node: str, recruit: Recruit) -> None:
        self._numbers[node] = -1  # until the runner's thread has numbered it

        def hire(crew: Crew) -> None:
            number, kind = self._cluster.hire(node, recruit)
            given = crew.add_node(recruit.plan, kind)
            assert number == given, "the backend and the dispatcher count alike"
            self._numbers[node] = number

        self._change(hire)
        slots = len(recruit.plan.slots)
        self._notify(f"a node has joined: {slots} slot{'s' * (slots > 1)} at {recruit.address}")

    def _retire(self, node: str) -> None:
        number = self._numbers.get(node, -1)
        if number < 0 or node in self._lost:
            return
        if node not in self._retired:
            self._retired.add(node)
            self._change(lambda crew: crew.retire_node(number))
            self._notify("a node leaves: it ends what it has, and gets nothing more")

        def drop_if_idle(crew: Crew) -> None:
            if crew.is_idle(number):
                self._cluster.drop(number)

        self._change(drop_if_idle)

    def _lose(self, node: str) -> None:
        number = self._numbers[node]
        if number < 0 or node in self._lost:
            return
        self._lost.add(node)

        def lose(crew: Crew) -> None:
            crew.lose_node(number)
            self._cluster.drop(number)

        self._change(lose)
        if node not in self._retired:
            self._notify("a node is lost: what it had is measured by others")
