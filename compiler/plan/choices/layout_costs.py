"""What the kernels of a graph cost in given layouts: a fusion group at a time, each kernel once.

A group is taken out of the graph, its operands in the layouts that they are to have, and the
layout pass and extraction make of it what they would make of it in the whole graph. Conversions of
operands are told apart: several readers share them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import frozen
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.plan.decisions.graph_plan import PLAIN
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.fusion.fuse import Group
from tunefarm.compiler.plan.layouts.blocked_emission import BlockedEmitter, same_memory
from tunefarm.compiler.plan.layouts.blocked_forms import blocked_forms
from tunefarm.compiler.plan.layouts.choose_layouts import with_kept_dimensions
from tunefarm.compiler.plan.sizes import trim_sums
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, TensorType

Seconds: TypeAlias = Callable[[FusedKernel], tuple[float, float]]
"""A kernel's seconds a run, and by what factor they may be wrong, as a natural logarithm."""

SMALL_CONSTANT = 4096
"""Elements of a constant whose values may decide how a node runs; of others only shapes matter."""
_CONVERSIONS = ("to_blocked", "from_blocked")


@dataclass(frozen=True, slots=True)
class AskedKernel:
    """A kernel whose cost was asked for, in seconds, with the uncertainty of its logarithm."""

    kernel: FusedKernel
    seconds: float
    log_uncertainty: float


@dataclass(frozen=True, slots=True)
class GroupCost:
    """Seconds of a group without conversions of operands, those by value and block asked for, and
    the keys of its kernels. Infinite seconds: it cannot run so."""

    seconds: float
    conversions: tuple[tuple[str, int], ...] = ()
    kernels: tuple[str, ...] = ()


@dataclass(slots=True)
class LayoutCosts:
    """Answers what groups and conversions cost; `asked` are the kernels behind all answers."""

    graph: Graph
    lanes: int
    seconds: Seconds
    asked: dict[str, AskedKernel] = field(default_factory=dict)  # by workload key
    _known: dict[object, GroupCost] = field(default_factory=dict)
    _turns: dict[object, float] = field(default_factory=dict)

    def group(self, group: Group, blocks: Mapping[str, int]) -> GroupCost:
        """The cost of a group whose values, and those it reads, lie in these blocks.

        Values that are not named lie as the rules decide, or in rows where they are read.
        """
        look, names = _look(self.graph, group, blocks)
        known = self._known.get(look)
        if known is None:
            known = self._group(group, blocks)
            numbers = {name: str(number) for number, name in enumerate(names)}
            conversions = tuple((numbers[name], block) for name, block in known.conversions)
            self._known[look] = known = replace(known, conversions=conversions)
        conversions = tuple((names[int(number)], block) for number, block in known.conversions)
        return replace(known, conversions=conversions)

    def conversion(
        self,
        type: TensorType,
        before: int,
        after: int,
        made: tuple[Group, Mapping[str, int]] | None = None,
    ) -> float:
        """Seconds that it takes to bring a value of this plain type from one block to another.

        Where nothing else reads it, it may be fused with the group that has `made` it in blocks.
        """
        look = None if made is None else _look(self.graph, *made)[0]
        key = (type, before, after, look)
        if key not in self._turns:
            self._turns[key] = self._conversion(type, before, after, made)
        return self._turns[key]

    def _group(self, group: Group, blocks: Mapping[str, int]) -> GroupCost:
        found = self._cut_out(group, blocks)
        if found is None:
            return GroupCost(math.inf)
        cut, conversions = found
        total, keys = self._kernels(cut) if not _is_join(self.graph, group) else (0.0, ())
        return GroupCost(total, conversions, keys)

    def _cut_out(
        self, group: Group, blocks: Mapping[str, int]
    ) -> tuple[Graph, tuple[tuple[str, int], ...]] | None:
        """The group as a graph in these layouts, and the conversions that are left out of it."""
        part, held = _part(self.graph, group)
        part = with_kept_dimensions(part)
        given = {name: blocks[name] for name in held if blocks.get(name)}
        wanted = {node.output: blocks[node.output] for node in group.nodes if node.output in blocks}
        found = blocked_forms(part, self.lanes, wanted, (), given)
        for name, block in wanted.items():
            if block != (found.forms[name].gives if name in found.forms else PLAIN):
                return None
        emitted = BlockedEmitter(part, found.forms, found.fills, found.folds).run()
        return _cut(trim_sums.run(emitted), held)

    def _conversion(
        self,
        type: TensorType,
        before: int,
        after: int,
        made: tuple[Group, Mapping[str, int]] | None,
    ) -> float:
        if before == after or all(same_memory(type.shape, b) for b in (before, after) if b):
            return 0.0
        found = None if made is None else self._cut_out(*made)
        if found is None:
            lying = _blocked_type(type, before) if before else type
            alone = Graph("part", ("x",), ("x",), (), {"x": lying}, {})
            return self._kernels(_converted(alone, type, before, after))[0]
        graph = found[0]
        together = self._kernels(_converted(graph, type, before, after))[0]
        return together - self._kernels(graph)[0]

    def _kernels(self, graph: Graph) -> tuple[float, tuple[str, ...]]:
        """Seconds and keys of a graph's kernels."""
        total, keys = 0.0, []
        for call in extract_kernels(graph).calls:
            if not isinstance(call, KernelCall):
                continue
            if call.key not in self.asked:
                seconds, uncertainty = self.seconds(call.kernel)
                self.asked[call.key] = AskedKernel(call.kernel, seconds, uncertainty)
            total += self.asked[call.key].seconds
            keys.append(call.key)
        return total, tuple(keys)


def _is_join(graph: Graph, group: Group) -> bool:
    """A concat whose operands are written where they lie in it, as share_memory has it."""
    node = group.nodes[-1]
    if len(group.nodes) > 1 or node.operator != "concat":
        return False
    shape = graph.types[node.output].shape
    return math.prod(shape[: complete_attributes(node).axis("axis", len(shape))]) == 1


def _node(operator: str, source: str, output: str, **attributes: int) -> Node:
    return Node(operator, (source,), output, MappingProxyType(dict(attributes)))


def _blocked_type(type: TensorType, block: int) -> TensorType:
    batch, channels, *plane = type.shape
    return TensorType(type.dtype, (batch, -(-channels // block), *plane, block))


def _look(
    graph: Graph, group: Group, blocks: Mapping[str, int]
) -> tuple[tuple[object, ...], list[str]]:
    """What decides the group's cost, with its values by number; equal layers look alike."""
    names: dict[str, int] = {}
    nodes = []
    for node in group.nodes:
        values = [*node.inputs, node.output]
        numbers = [names.setdefault(name, len(names)) if name else -1 for name in values]
        attributes = tuple(sorted((key, str(value)) for key, value in node.attributes.items()))
        nodes.append((node.operator, attributes, tuple(numbers)))
    known = tuple(
        (str(graph.types[name]), blocks.get(name), _of_constant(graph.constants.get(name)))
        for name in names
    )
    outputs = tuple(names[node.output] for node in group.nodes if node.output in graph.outputs)
    return (tuple(nodes), known, outputs), list(names)


def _of_constant(array: Array | None) -> object:
    if array is None or array.size > 1:
        return array is not None
    return array.item()


def _converted(graph: Graph, type: TensorType, before: int, after: int) -> Graph:
    """The graph with its result, of this plain type, in another block."""
    (name,) = graph.outputs
    nodes, types = [*graph.nodes], dict(graph.types)
    if before:
        nodes.append(_node("from_blocked", name, f"{name}_turned", channels=type.shape[1]))
        name = f"{name}_turned"
        types[name] = type
    if after:
        nodes.append(_node("to_blocked", name, f"{name}_turned", block=after))
        name = f"{name}_turned"
        types[name] = _blocked_type(type, after)
    return replace(graph, outputs=(name,), nodes=tuple(nodes), types=types)


def _part(graph: Graph, group: Group) -> tuple[Graph, list[str]]:
    """A graph of the group's nodes; what they read is held by copies, so that it has a layout."""
    inside = {node.output for node in group.nodes}
    read = dict.fromkeys(name for node in group.nodes for name in node.inputs if name)
    held = [name for name in read if name not in inside and name not in graph.constants]
    constants = {name: _shape_of(graph.constants[name]) for name in read if name in graph.constants}
    copies = tuple(_node("copy", f"{name}_outside", name) for name in held)
    types = {name: graph.types[name] for name in (*read, *inside)}
    types |= {f"{name}_outside": graph.types[name] for name in held}
    inputs = tuple(f"{name}_outside" for name in held)
    nodes = (*copies, *group.nodes)
    return Graph("part", inputs, (group.output,), nodes, types, constants), held


def _shape_of(array: Array) -> Array:
    """The array, or ones of its type and shape where its values cannot matter."""
    if array.size <= SMALL_CONSTANT:
        return array
    return frozen(np.ones(array.shape, array.dtype))


def _cut(graph: Graph, held: list[str]) -> tuple[Graph, tuple[tuple[str, int], ...]]:
    """The graph that begins with the held values, in each form that is asked for, and ends before
    its result is converted; and the conversions that are left out, by value and block."""
    forms: dict[str, str] = {}  # in the new graph -> the held value that it is a form of
    conversions: list[tuple[str, int]] = []
    nodes: list[Node] = []
    outside = set(graph.inputs)
    for node in graph.nodes:
        source = node.inputs[0] if node.inputs else ""
        if node.operator == "copy" and (source in outside or source in forms):
            plain = node.output in held
            forms[node.output] = node.output if plain else node.output.removesuffix("_blocked")
            continue
        if node.operator in (*_CONVERSIONS, "reshape") and source in outside:
            outside.add(node.output)
            continue
        if node.operator in _CONVERSIONS and source in forms:
            forms[node.output] = forms[source]
            after = node.attributes.get("block", PLAIN)
            assert isinstance(after, int)
            conversions.append((forms[source], after))
            continue
        nodes.append(node)
    (output,) = graph.outputs
    if nodes and nodes[-1].output == output and nodes[-1].operator == "from_blocked":
        output = nodes.pop().inputs[0]
    inputs, read = tuple(forms), {name for node in nodes for name in (*node.inputs, node.output)}
    types = {name: graph.types[name] for name in (*inputs, *read, output) if name}
    cut = replace(graph, inputs=inputs, outputs=(output,), nodes=tuple(nodes), types=types)
    return cut, tuple(conversions)
