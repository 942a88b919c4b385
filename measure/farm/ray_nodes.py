"""The nodes of a Ray cluster: what each says that it is, and those that stand for a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from compiler.errors import MeasureError
from compiler.target import Target
from measure.farm.overlap import settle_overlap
from measure.farm.runner import RunnerOptions
from measure.farm.slots import SlotPlan, plan_slots
from measure.machine import available_cores
from measure.sandbox.node_kind import kind_of, this_node

_INSPECT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node says of itself; `refusal` is why it has no plan."""

    target: Target
    cores: tuple[int, ...]
    plan: SlotPlan | None
    refusal: str = ""


def inspect_task(
    threads: int, slots: int, builders: int | None, overlap: str, probe: str
) -> NodeFacts:
    """What this node is, and how its cores are divided."""
    target, cores = this_node(probe), available_cores()
    try:
        plan = plan_slots(cores, threads, slots=slots, builders=builders)
    except MeasureError as error:
        return NodeFacts(target, cores, None, error.message)
    return NodeFacts(target, cores, settle_overlap(plan, overlap))


@dataclass(frozen=True, slots=True)
class Node:
    """A node, its cores, and the target that it measures for."""

    id: str
    plan: SlotPlan
    target: Target


def find_nodes(wanted: Sequence[Target], options: RunnerOptions) -> list[Node]:
    """The cluster's nodes that stand for a wanted target, each divided into builders and slots."""
    inspect = ray.remote(inspect_task)
    ids = live_nodes()
    references = [
        inspect.options(
            num_cpus=0,
            max_retries=1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(options.threads, options.slots, options.builders, options.overlap, options.probe)
        for node in ids
    ]
    try:
        facts: list[NodeFacts] = ray.get(references, timeout=_INSPECT_SECONDS)
    except RayError as error:
        raise MeasureError(
            f"the cluster's nodes do not answer: {str(error).strip().splitlines()[-1]}",
            hint="tunefarm must be installed on every node",
        ) from error
    nodes = []
    refusals: dict[str, str] = {}
    for node, fact in zip(ids, facts, strict=True):
        target = kind_of(fact.target, wanted)
        if target is not None and fact.plan is not None:
            nodes.append(Node(node, fact.plan, target))
        elif target is not None:
            refusals[target.key] = fact.refusal
    missing = [target for target in wanted if target not in {node.target for node in nodes}]
    if missing and missing[0].key in refusals:
        raise MeasureError(f"no node of the cluster can measure: {refusals[missing[0].key]}")
    if missing:
        found = ", ".join(sorted({fact.target.key for fact in facts}))
        lacking = " or a ".join(target.key for target in missing)
        raise MeasureError(
            f"no node of the cluster is a {lacking} (there are: {found})",
            hint="start Ray on such a machine, or leave the target out",
        )
    return nodes


def live_nodes() -> list[str]:
    entries: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [entry["NodeID"] for entry in entries if entry["Alive"]]
