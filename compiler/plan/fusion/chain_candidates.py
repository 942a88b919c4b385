"""Candidates of chains: values that can be computed in their reader's kernel, where it may pay.

By footprints alone. A value that stays in the second-level cache from the kernel that writes it to
the one that reads it saves nothing; the rows that a block of the reader's rows needs have to fit,
and the weights, which each block reads again. What has a better algorithm in a kernel of its own
stays there. Whether a candidate is taken is for costs to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import consumers
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.operators.windows import read_windows
from tunefarm.compiler.plan.decisions.graph_plan import Chain, GraphPlan
from tunefarm.compiler.plan.decisions.plan_names import PlanNames
from tunefarm.compiler.plan.fusion.chain_groups import POOLS, GroupChains
from tunefarm.compiler.plan.fusion.fuse import Group, fuse
from tunefarm.compiler.plan.fusion.group_kernels import GroupKernels
from tunefarm.compiler.schedule.sketches.chain_context import has_chain_sketch
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.node import Node

LEAST_ROWS = 4  # of the reader, that a tile has at least: with fewer the halo costs too much
BLOCKS = 4  # of channels that are filtered at a time
LEAST_SHARE = 4  # of the second-level cache: less stays there between kernels, besides weights
SHARE = 2  # the part of the second-level cache that is left to what lies between kernels


@dataclass(frozen=True, slots=True)
class ChainCandidate:
    """Decisions that belong together, and the bytes that are neither written nor read then."""

    chains: tuple[Chain, ...]
    saved_bytes: int


def chain_candidates(
    kernels: GroupKernels,
    target: Target,
    known: Collection[str] | None = None,
    is_scheduled: Callable[[FusedKernel, str], bool] | None = None,
) -> tuple[ChainCandidate, ...]:
    """The chains of two parts that may pay, then those of three, each in execution order.

    `kernels` are those of the graph that is extracted from. `known` are the values that decisions
    can name, those of the graph before layouts; without them all that have a name here count.
    `is_scheduled` says of a kernel, with its workload key, whether the sketch of chains has it, if
    the caller comes to know that anyway.
    """
    graph = kernels.graph
    groups, names, readers = fuse(graph), PlanNames(graph), consumers(graph)
    chains = GroupChains(graph, groups)
    values = set(graph.types) if known is None else set(known)
    found: dict[str, tuple[Group, Node]] = {}  # by the value that the group gives
    for group in groups:
        read_by = readers.get(group.output, [])
        if group.core is None or len(read_by) != 1 or names.value(group.core, values) is None:
            continue
        reader = read_by[0]
        if not chains.can_join(group.core):
            continue
        alone = _is_faster_alone(graph, group.core) or _is_faster_alone(graph, reader)
        if alone or _weights(graph, group.core, reader) > target.l2_bytes // SHARE:
            continue
        if may_pay(graph, group.output, reader, target):
            found[group.output] = group, reader
    parts = [[group] for group, _ in found.values()]
    for group, reader in found.values():
        parts += [[group, other] for other, _ in found.values() if reader in other.nodes]
    made = (_candidate(graph, names, values, part) for part in parts)
    if is_scheduled is None:
        is_scheduled = _Sketches(target)
    return tuple(item for item in made if _is_one(chains, kernels, item, is_scheduled))


def may_pay(graph: Graph, value: str, reader: Node, target: Target) -> bool:
    """Whether the value leaves the cache on its way to the reader, and tiles of it would not."""
    type = graph.types[value]
    if type.bytes <= target.l2_bytes // LEAST_SHARE:
        return False
    blocked = reader.operator != "matmul"
    stack = type.shape[0] if blocked else 1
    height = type.shape[2] if blocked else math.prod(type.shape[:-1])
    row = type.bytes // (stack * height)
    if _filters(graph, reader):
        row = row * min(BLOCKS, type.shape[1]) // type.shape[1]
    return min(_rows_read(graph, reader), height) * row <= target.l2_bytes // SHARE


def _is_faster_alone(graph: Graph, node: Node) -> bool:
    """Whether a kernel of its own has a better algorithm: Winograd's, of 3x3 windows."""
    if node.operator != "conv" or _filters(graph, node):
        return False
    attributes, window = complete_attributes(node), graph.types[node.inputs[1]].shape[2:]
    windows = read_windows(attributes, window)
    return windows.kernel == (3, 3) and windows.strides == windows.dilations == (1, 1)


def _weights(graph: Graph, *nodes: Node) -> int:
    """Bytes of what is known when the model is built, which each block of rows reads again."""
    names = {name for node in nodes for name in node.inputs if name in graph.constants}
    return sum(graph.types[name].bytes for name in names)


def _rows_read(graph: Graph, reader: Node) -> int:
    """The rows of its data that the reader needs for as many of its own as are worth a tile."""
    attributes = complete_attributes(reader)
    if reader.operator in POOLS:
        kernel = attributes.integers("kernel")
    elif reader.operator == "conv":
        kernel = graph.types[reader.inputs[1]].shape[2:]
    else:
        return LEAST_ROWS
    return read_windows(attributes, kernel).reach(0, LEAST_ROWS)


def _filters(graph: Graph, reader: Node) -> bool:
    """Whether each channel is filtered by itself."""
    if reader.operator == "conv":
        return complete_attributes(reader).integer("groups") > 1
    return reader.operator in POOLS


def _candidate(
    graph: Graph, names: PlanNames, known: Collection[str], groups: Sequence[Group]
) -> ChainCandidate:
    values = (names.value(group.core, known) for group in groups if group.core is not None)
    saved = sum(2 * graph.types[group.output].bytes for group in groups)
    return ChainCandidate(tuple(Chain(value) for value in values if value is not None), saved)


def _is_one(
    chains: GroupChains,
    kernels: GroupKernels,
    candidate: ChainCandidate,
    is_scheduled: Callable[[FusedKernel, str], bool],
) -> bool:
    """Whether it is one kernel, all of whose parts have register tiles in their layouts."""
    joined = chains.joined(GraphPlan(candidate.chains))
    (group,) = (item for item in joined if item.stored)
    made = kernels.of(group)
    return len(made) == 1 and is_scheduled(made[0].kernel, made[0].key)


@dataclass(frozen=True, slots=True)
class _Sketches:
    """Answers whether kernels have the sketch of chains; of each kernel it is found once."""

    target: Target
    known: dict[str, bool] = field(default_factory=dict)  # by workload key

    def __call__(self, kernel: FusedKernel, key: str) -> bool:
        if key not in self.known:
            self.known[key] = has_chain_sketch(kernel, self.target)
        return self.known[key]
