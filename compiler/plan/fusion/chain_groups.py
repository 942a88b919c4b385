"""Chains: groups of a contraction or pool joined with the group of what reads its result.

    conv1 clip1 | conv2 clip2 | conv3 add     with conv1 and conv2 chained: one group

The kernel of such a group has several reductions. What each of them gives, with its epilogue, is
`stored`: whoever schedules the kernel computes tiles of it where the next one reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.loop_regions import loop_regions
from tunefarm.compiler.graph.rewriter import consumers
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.plan.fusion.fuse import Group
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.signature import ResultSource

POOLS = ("max_pool", "average_pool", "sum_pool")
MOST_PARTS = 3


def chain_groups(
    graph: Graph, groups: Sequence[Group], chains: Collection[str]
) -> tuple[Group, ...]:
    """As `GroupChains.joined`."""
    return GroupChains(graph, groups).joined(chains) if chains else tuple(groups)


class GroupChains:
    """Chains of one graph's groups, which are in execution order; what is asked is not kept."""

    def __init__(self, graph: Graph, groups: Sequence[Group]) -> None:
        self.graph = graph
        self.groups = tuple(groups)
        self._producers = {node.output: node for node in graph.nodes}
        self._readers = consumers(graph)
        self._loops = loop_regions(graph)
        self._dynamic: Collection[str] | None = None

    def joined(self, chains: Collection[str]) -> tuple[Group, ...]:
        """The groups in execution order, joined where the result of a group's core is in `chains`.

        Raises VerifyError for a chain that does not fit.
        """
        groups = list(self.groups)
        for value in sorted(chains):
            if not self._join(groups, self._producers[value]):
                raise VerifyError(f"{value!r} cannot be computed in its reader's kernel")
        return tuple(groups)

    def can_join(self, node: Node) -> bool:
        """Whether what the node gives may be chained, alone."""
        return self._join(list(self.groups), node)

    def _join(self, groups: list[Group], node: Node) -> bool:
        """Join the node's group with that of the one contraction or pool that reads its result as
        data, if that is possible."""
        if not is_part(self.graph, node):
            return False
        place, group = _group_of(groups, node)
        value = group.output
        if group.core is not node or not self._is_read_once(value):
            return False
        number, reader = _group_of(groups, self._readers[value][0])
        first = _first_core(self.graph, reader)
        if first is None or first.inputs[0] != value or first.inputs.count(value) > 1:
            return False
        if any(value in other.inputs for other in reader.nodes if other is not first):
            return False
        stored = (*group.stored, value, *reader.stored)
        nodes = (*group.nodes, *reader.nodes)
        runs_alike = len({self._loops.get(item.output, ()) for item in nodes}) == 1
        if len(stored) >= MOST_PARTS or not runs_alike:
            return False
        joined = {id(item) for item in nodes}
        ordered = tuple(item for item in self.graph.nodes if id(item) in joined)
        groups[number] = Group(ordered, reader.core, stored)
        del groups[place]
        return True

    def _is_read_once(self, value: str) -> bool:
        """Whether the value is static, and there for one node alone."""
        if self._dynamic is None:
            self._dynamic = _dynamic_values(self.graph)
        if value in self._dynamic or value in self.graph.outputs:
            return False
        return len(self._readers.get(value, [])) == 1


def _group_of(groups: Sequence[Group], node: Node) -> tuple[int, Group]:
    return next((at, group) for at, group in enumerate(groups) if node in group.nodes)


def _first_core(graph: Graph, group: Group) -> Node | None:
    """The first contraction or pool of a group."""
    return next((node for node in group.nodes if is_part(graph, node)), None)


def _dynamic_values(graph: Graph) -> Collection[str]:
    """Values whose kernels may end at sizes that only a run knows, which chains cannot.

    With dynamic inputs all do. A size that the graph computes is no extent of what it is computed
    from: the convolutions before a NonMaxSuppression are as static as without it.
    """
    signature = graph.signature
    values = {node.output for node in graph.nodes}
    if signature.sizes:
        return values
    found: set[str] = set()
    results = (source for source in signature.sources if isinstance(source, ResultSource))
    for size in {*graph.computed_sizes, *(source.output for source in results)}:
        needed = {size}
        for node in reversed(graph.nodes):
            if node.output in needed:
                needed.update(node.inputs)
        found |= values - needed
    return found


def is_part(graph: Graph, node: Node) -> bool:
    """Whether a node may be a part of a chain: in f32, a convolution or pool on blocked data, or a
    product with a constant."""
    attributes, types = complete_attributes(node), graph.types
    types_of = [types[name] for name in (*node.inputs, node.output) if name]
    if any(type.dtype is not DType.F32 for type in types_of):
        return False
    if node.operator in POOLS:
        return attributes["layout"] != "NCHW"
    if node.operator == "conv":
        groups = attributes.integer("groups")
        weight = types[node.inputs[1]].shape
        depthwise = groups > 1 and weight[1] == 1
        known = all(name in graph.constants for name in node.inputs[1:] if name)
        return known and attributes["layout"] != "NCHW" and (groups == 1 or depthwise)
    if node.operator == "matmul":
        right = types[node.inputs[1]].shape
        turned = attributes.flag("transpose_a") or attributes.flag("transpose_b")
        return len(right) == 2 and not turned and node.inputs[1] in graph.constants
    return False
