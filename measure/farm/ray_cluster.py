"""A Ray cluster as `tunefarm.measure.farm.node_watch` sees it: its nodes, and the board of the
drivers."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import ray

from tunefarm.compiler.target import Target
from tunefarm.measure.farm.fair_share import Beat, FairShare, Part
from tunefarm.measure.farm.node_watch import Recruit
from tunefarm.measure.farm.ray_board import Board, beats_of
from tunefarm.measure.farm.ray_nodes import (
    Node,
    NodeEntry,
    begin_inspection,
    facts_of,
    node_entries,
    node_of,
)
from tunefarm.measure.farm.runner import RunnerOptions


class Workers(Protocol):
    """What has the workers of nodes."""

    def hire(self, node: Node) -> int:
        """Have the workers of a node ready; its number."""

    def drop(self, number: int) -> None:
        """End the workers of a node."""


class RayCluster:
    """The cluster that this process has joined, for the driver of this name."""

    def __init__(
        self, workers: Workers, wanted: Sequence[Target], options: RunnerOptions, driver: str
    ) -> None:
        """`wanted` are the targets of the job."""
        self._wanted = wanted
        self._workers = workers
        self._options = options
        self._driver = driver
        self._board = Board(ray.get_runtime_context().gcs_address)
        self._entries: dict[str, NodeEntry] = {}
        self._said = 0
        self._about = {
            "host": platform.node(),
            "process": os.getpid(),
            "threads": options.threads,
        }

    def look(self) -> Mapping[str, bool]:
        self._entries = {entry.id: entry for entry in node_entries()}
        return {entry.id: entry.leaves for entry in self._entries.values()}

    def inspect(self, node: str) -> Future[Recruit | str]:
        entry = self._entries[node]
        answer: Future[Recruit | str] = Future()
        asked: Future[Any] = begin_inspection(entry, self._options).future()
        asked.add_done_callback(partial(self._inspected, entry, answer))
        return answer

    def _inspected(
        self, entry: NodeEntry, answer: Future[Recruit | str], text: Future[Any]
    ) -> None:
        error = text.exception()
        if error is not None:
            answer.set_exception(error)
            return
        facts = facts_of(text.result())
        if isinstance(facts, str):
            answer.set_result(facts)
            return
        node = node_of(entry, facts, self._wanted)
        answer.set_result(facts.refusal if node is None else node)

    def hire(self, node: str, recruit: Recruit) -> tuple[int, str]:
        assert isinstance(recruit, Node)
        return self._workers.hire(recruit), recruit.target.key

    def drop(self, number: int) -> None:
        self._workers.drop(number)

    def find_part(self, wants: int, fair: FairShare) -> Part:
        self._said += 1
        self._board.say(self._driver, Beat(self._said, wants), self._about)
        part = fair.part(beats_of(self._board.drivers()), time.monotonic())
        for silent in fair.forgotten(time.monotonic()):
            self._board.forget(silent)
        return part

    def leave(self) -> None:
        self._board.forget(self._driver)
