"""The nodes of a Ray cluster: what each says that it is, and those that stand for a target.

A node that `tune farm` has started bears labels: how many cores it keeps for timed runs, and the
niceness that was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.target import Target
from tunefarm.measure.cpus import usable_cpus
from tunefarm.measure.farm.farm_process import NICENESS_LABEL, SLOTS_LABEL
from tunefarm.measure.farm.farm_versions import differences, versions
from tunefarm.measure.farm.overlap import settle_overlap
from tunefarm.measure.farm.ray_start import draining_nodes
from tunefarm.measure.farm.runner import RunnerOptions
from tunefarm.measure.farm.slots import SlotPlan, plan_slots
from tunefarm.measure.sandbox.node_kind import kind_of, this_node

_INSPECT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A node that lives, as Ray lists it. `leaves`: it was told to, and ends what it has."""

    id: str
    address: str
    cores: int
    labels: Mapping[str, str]
    leaves: bool

    def number(self, label: str) -> int | None:
        """The number that a label of `tune farm` says."""
        text = self.labels.get(label, "")
        return int(text) if text.removeprefix("-").isdecimal() else None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node says of itself; `refusal` is why it has no plan."""

    target: Target
    cores: tuple[int, ...]
    plan: SlotPlan | None
    refusal: str = ""


def inspect_task(
    threads: int,
    slots: int,
    builders: int | None,
    overlap: str,
    probe: str,
    drivers: Mapping[str, str],
) -> NodeFacts:
    """What this node is, and how its cores are divided; `drivers` are the versions there."""
    target, cpus = this_node(probe), usable_cpus()
    if different := differences(drivers, versions()):
        return NodeFacts(target, cpus.cores, None, different)
    try:
        plan = plan_slots(cpus, threads, slots=slots, builders=builders)
    except MeasureError as error:
        return NodeFacts(target, cpus.cores, None, error.message)
    return NodeFacts(target, cpus.cores, settle_overlap(plan, overlap))


@dataclass(frozen=True, slots=True)
class Node:
    """A node, its cores, and the target that it measures for; `niceness` is what was asked for."""

    id: str
    plan: SlotPlan
    target: Target
    niceness: int = 0
    address: str = ""


def find_nodes(wanted: Sequence[Target], options: RunnerOptions) -> list[Node]:
    """The cluster's nodes that stand for a wanted target, each divided into builders and slots."""
    answers = _answers([entry for entry in node_entries() if not entry.leaves], options)
    nodes = []
    refusals: dict[str, str] = {}
    for entry, fact in answers:
        target = kind_of(fact.target, wanted)
        node = node_of(entry, fact, wanted)
        if node is not None:
            nodes.append(node)
        elif target is not None:
            refusals[target.key] = fact.refusal
    missing = [target for target in wanted if target not in {node.target for node in nodes}]
    if missing and missing[0].key in refusals:
        raise MeasureError(f"no node of the cluster can measure: {refusals[missing[0].key]}")
    if missing:
        found = ", ".join(sorted({fact.target.key for _, fact in answers}))
        lacking = " or a ".join(target.key for target in missing)
        raise MeasureError(
            f"no node of the cluster is a {lacking} (there are: {found})",
            hint="start Ray on such a machine, or leave the target out",
        )
    return nodes


def _answers(
    entries: Sequence[NodeEntry], options: RunnerOptions
) -> list[tuple[NodeEntry, NodeFacts]]:
    """What each node says of itself; those are passed over that do not answer, as one that is lost
    meanwhile. Raises MeasureError if none does."""
    references = [begin_inspection(entry, options) for entry in entries]
    end = time.monotonic() + _INSPECT_SECONDS
    found: list[tuple[NodeEntry, NodeFacts]] = []
    silence: RayError | None = None
    for entry, reference in zip(entries, references, strict=True):
        try:
            found.append((entry, ray.get(reference, timeout=max(0.0, end - time.monotonic()))))
        except RayError as error:
            silence = error
    if silence is not None and not found:
        raise MeasureError(
            f"the cluster's nodes do not answer: {str(silence).strip().splitlines()[-1]}",
            hint="tunefarm must be installed on every node",
        ) from silence
    return found


def begin_inspection(entry: NodeEntry, options: RunnerOptions) -> Any:
    """Ask a node what it is; the reference of its `NodeFacts`."""
    slots = entry.number(SLOTS_LABEL)
    of_node = options.slots if slots is None else max(1, slots // options.threads)
    task: Any = ray.remote(inspect_task)
    return task.options(
        num_cpus=0,
        max_retries=1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(entry.id, soft=False),
    ).remote(options.threads, of_node, options.builders, options.overlap, options.probe, versions())


def node_of(entry: NodeEntry, facts: NodeFacts, wanted: Sequence[Target]) -> Node | None:
    """The node to measure on; None if it stands for no wanted target, or cannot measure."""
    target = kind_of(facts.target, wanted)
    if target is None or facts.plan is None:
        return None
    asked = entry.number(NICENESS_LABEL) or 0
    return Node(entry.id, facts.plan, target, asked, entry.address)


def node_entries() -> list[NodeEntry]:
    """The nodes that live."""
    table: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    leaving = draining_nodes()
    return [
        NodeEntry(
            entry["NodeID"],
            entry["NodeManagerAddress"],
            int(entry["Resources"].get("CPU", 0)),
            dict(entry.get("Labels") or {}),
            entry["NodeID"] in leaving,
        )
        for entry in table
        if entry["Alive"]
    ]


def live_nodes() -> list[str]:
    """The ids of the nodes that are alive."""
    return [entry.id for entry in node_entries()]
