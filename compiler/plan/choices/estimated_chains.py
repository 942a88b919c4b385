"""Chains that a build has by estimates: values that are computed in their reader's kernel.

A chain changes no other kernel than those that it joins, so that each candidate is the difference
of a few estimates. Layouts change more.

Candidates are found by footprints alone. A value that stays in the second-level cache from the
kernel that writes it to the one that reads it saves nothing; the rows that a block of the reader's
rows needs have to fit, and the weights, which each block reads again. What has a better algorithm
in a kernel of its own stays there.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import consumers
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.operators.windows import read_windows
from tunefarm.compiler.plan.choices.estimate import Estimator
from tunefarm.compiler.plan.fusion.chain_groups import POOLS, GroupChains, is_part
from tunefarm.compiler.plan.fusion.fuse import Group, fuse
from tunefarm.compiler.plan.fusion.group_kernels import GroupKernels
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node

LEAST_GAIN = 0.03
"""Of the time of the kernels that a chain joins, which it must be expected to save."""

LEAST_ROWS = 4  # of the reader, that a tile has at least: with fewer the halo costs too much
BLOCKS = 4  # of channels that are filtered at a time
LEAST_SHARE = 4  # of the second-level cache: less stays there between kernels, besides weights
SHARE = 2  # the part of the second-level cache that is left to what lies between kernels


@frozen
class _Weighed:
    """A chain, what it saves, and the groups that it joins, by their outputs."""

    chains: tuple[str, ...]
    gain: float
    joined: frozenset[str]


def estimated_chains(kernels: GroupKernels, spaces: SpaceCache) -> tuple[str, ...]:
    """The chains that are expected to save most together, as for `GroupChains.joined`.

    `kernels` are those of the graph that is extracted from.
    """
    estimate = Estimator(spaces)
    candidates = chain_candidates(kernels, estimate)
    if not candidates:
        return ()
    weigh = _Scales(GroupChains(kernels.graph, fuse(kernels.graph)), kernels, estimate)
    taken: set[str] = set()
    chosen: list[str] = []
    for item in sorted(map(weigh, candidates), key=lambda item: -item.gain):
        if item.gain > 0.0 and not item.joined & taken:
            taken |= item.joined
            chosen += item.chains
    return tuple(chosen)


def chain_candidates(kernels: GroupKernels, estimate: Estimator) -> tuple[tuple[str, ...], ...]:
    """The chains of two parts that may pay, then those of three, each in execution order.

    `kernels` are those of the graph that is extracted from.
    """
    graph, target = kernels.graph, estimate.spaces.target
    groups, readers = fuse(graph), consumers(graph)
    chains = GroupChains(graph, groups)
    found: dict[str, tuple[Group, Node]] = {}  # by the result of the core
    for group in groups:
        read_by = readers.get(group.output, [])
        if group.core is None or len(read_by) != 1 or not chains.can_join(group.core):
            continue
        reader = read_by[0]
        alone = _is_faster_alone(graph, group.core) or _is_faster_alone(graph, reader)
        if alone or _weights(graph, group.core, reader) > target.l2_bytes // SHARE:
            continue
        if may_pay(graph, group.output, reader, target):
            found[group.core.output] = group, reader
    offered: list[tuple[str, ...]] = [(value,) for value in found]
    for value, (_, reader) in found.items():
        offered += [(value, name) for name, (other, _) in found.items() if reader in other.nodes]
    return tuple(item for item in offered if _is_one(chains, kernels, item, estimate))


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


def _is_one(
    chains: GroupChains, kernels: GroupKernels, values: Collection[str], estimate: Estimator
) -> bool:
    """Whether it is one kernel, all of whose parts have register tiles in their layouts."""
    (group,) = (item for item in chains.joined(values) if item.stored)
    made = kernels.of(group)
    return len(made) == 1 and estimate(made[0].kernel, made[0].key).kind == "chain"


@frozen
class _Scales:
    """Weighs chains of the groups that there are without them."""

    groups: GroupChains
    kernels: GroupKernels
    estimate: Estimator

    def __call__(self, chains: tuple[str, ...]) -> _Weighed:
        (made,) = (group for group in self.groups.joined(chains) if group.stored)
        if _sums_windows(self.kernels.graph, made):
            return _Weighed(chains, 0.0, frozenset())
        outputs = {*made.stored, made.output}
        parts = [group for group in self.groups.groups if group.output in outputs]
        apart = sum(map(self._seconds, parts))
        gain = (1.0 - LEAST_GAIN) * apart - self._seconds(made)
        return _Weighed(chains, gain, frozenset(group.output for group in parts))

    def _seconds(self, group: Group) -> float:
        made = self.kernels.of(group)
        return sum(self.estimate(item.kernel, item.key).seconds for item in made)


def _sums_windows(graph: Graph, group: Group) -> bool:
    """Whether a part sums windows over the channels of what another part gives.

    Such chains were measured to take up to 1.5 times as long as their parts (3x3 on 3x3, both of
    stride 2), which their loops do not tell.
    """
    _, *later = (node for node in group.nodes if is_part(graph, node))
    return any(
        node.operator == "conv"
        and complete_attributes(node).integer("groups") == 1
        and math.prod(graph.types[node.inputs[1]].shape[2:4]) > 1
        for node in later
    )
