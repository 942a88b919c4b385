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

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.target import Target
from tunefarm.measure.cpus import usable_cpus
from tunefarm.measure.farm.farm_process import NICENESS_LABEL, SLOTS_LABEL
from tunefarm.measure.farm.node_watch import Node
from tunefarm.measure.farm.overlap import resolve_overlap
from tunefarm.measure.farm.ray_calls import begin_call, expect_same, opened
from tunefarm.measure.farm.ray_launch import happens_in_time, refusal
from tunefarm.measure.farm.ray_start import draining_nodes
from tunefarm.measure.farm.runner import RunnerOptions
from tunefarm.measure.farm.slots import SlotPlan, plan_slots
from tunefarm.measure.sandbox.node_kind import kind_of, this_node
from tunefarm.measure.sandbox.versions import installation

_INSPECT_SECONDS = 60.0
_WORKER_SECONDS = 10.0  # of a worker here, which starts within 1 to 3


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


def inspect_here(
    threads: int, slots: int, builders: int | None, overlap: str, probe: str
) -> NodeFacts:
    """What this node is, and how its cores are divided."""
    target, cpus = this_node(probe), usable_cpus()
    try:
        plan = plan_slots(cpus, threads, slots=slots, builders=builders)
    except MeasureError as error:
        return NodeFacts(target, cpus.cores, None, error.message)
    return NodeFacts(target, cpus.cores, resolve_overlap(plan, overlap))


def find_nodes(wanted: Sequence[Target], options: RunnerOptions) -> list[Node]:
    """The cluster's nodes that stand for a wanted target, each divided into builders and slots."""
    answers = _answers([entry for entry in node_entries() if not entry.leaves], options)
    nodes = []
    refusals: dict[str, str] = {}
    others = [facts for _, facts in answers if isinstance(facts, str)]
    known = [(entry, facts) for entry, facts in answers if isinstance(facts, NodeFacts)]
    for entry, facts in known:
        target = kind_of(facts.target, wanted)
        node = node_of(entry, facts, wanted)
        if node is not None:
            nodes.append(node)
        elif target is not None:
            refusals[target.key] = facts.refusal
    missing = [target for target in wanted if target not in {node.target for node in nodes}]
    if missing and (missing[0].key in refusals or others):
        reason = refusals.get(missing[0].key) or others[0]
        raise MeasureError(f"no node of the cluster can measure: {reason}")
    if missing:
        found = ", ".join(sorted({facts.target.key for _, facts in known}))
        lacking = " or a ".join(target.key for target in missing)
        raise MeasureError(
            f"no node of the cluster is a {lacking} (there are: {found})",
            hint="start Ray on such a machine, or leave the target out",
        )
    return nodes


def expect_own_code(asked: Any, tag: str, folder: str) -> None:
    """Raise MeasureError unless a worker of an embedded Ray answers, and has what this process has.

    `asked` is what `begin_call` has returned. `tag` is of Ray's processes and `folder` has their
    logs, where this process has started them.
    """
    seconds = _WORKER_SECONDS if tag else _INSPECT_SECONDS
    if not happens_in_time(lambda piece: bool(ray.wait([asked], timeout=piece)[0]), seconds, tag):
        raise refusal(f"its workers do not answer within {seconds:g} s", folder)
    try:
        there, _ = opened(ray.get(asked))
    except RayError as error:
        raise refusal(str(error).strip().splitlines()[-1], folder) from error
    expect_same(there)


def _answers(
    entries: Sequence[NodeEntry], options: RunnerOptions
) -> list[tuple[NodeEntry, NodeFacts | str]]:
    """What each node says of itself; those are passed over that do not answer, as one that is lost
    meanwhile. Raises MeasureError if none does."""
    references = [begin_inspection(entry, options) for entry in entries]
    end = time.monotonic() + _INSPECT_SECONDS
    found: list[tuple[NodeEntry, NodeFacts | str]] = []
    silence: RayError | None = None
    for entry, reference in zip(entries, references, strict=True):
        try:
            answer = ray.get(reference, timeout=max(0.0, end - time.monotonic()))
        except RayError as error:
            silence = error
        else:
            found.append((entry, facts_of(answer)))
    if silence is not None and not found:
        raise MeasureError(
            f"the cluster's nodes do not answer: {str(silence).strip().splitlines()[-1]}",
            hint="tunefarm must be installed on every node",
        ) from silence
    return found


def begin_inspection(entry: NodeEntry, options: RunnerOptions) -> Any:
    """Ask a node what it is; the reference of what `facts_of` takes."""
    slots = entry.number(SLOTS_LABEL)
    of_node = options.slots if slots is None else max(1, slots // options.threads)
    arguments = (options.threads, of_node, options.builders, options.overlap, options.probe)
    return begin_call(f"{__name__}:inspect_here", arguments, entry.id, max_retries=1)


def facts_of(answer: Any) -> NodeFacts | str:
    """What an inspected node is; in what its versions differ from those here, if they do."""
    there, facts = opened(answer)
    return facts if isinstance(facts, NodeFacts) else installation().difference(there)


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
