"""Values that share a layout, and the blocks in which they may lie: variables of layout_problem.

Convolutions read one block and give another, so their data and results are in classes of their own.
All else that runs on blocked data gives its result as it reads its data: those values are tied.
Values of one pixel are left to the rules, since their forms hardly differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.operators.registry import Pattern, complete_attributes, operator
from tunefarm.compiler.operators.use import Types
from tunefarm.compiler.plan.decisions.graph_plan import PLAIN
from tunefarm.compiler.plan.layouts.blocked_forms import BLOCKED_TYPES, blocked_forms
from tunefarm.compiler.plan.layouts.connected_values import connected_values
from tunefarm.compiler.types.node import Node

WIDEST_NHWC = 256
"""Channels of values that may lie as NHWC: windows of more are far apart in memory."""
HALF_BLOCK = 8
"""The narrow block, where the lanes are more: it pads fewer channels."""


@dataclass(frozen=True, slots=True)
class LayoutClass:
    """Results that lie in blocks of equally many channels, and the choices: PLAIN is the first."""

    values: tuple[str, ...]
    blocks: tuple[int, ...]

    @property
    def name(self) -> str:
        """The first of its values."""
        return self.values[0]


def layout_classes(graph: Graph, lanes: int) -> tuple[LayoutClass, ...]:
    """The classes of a graph before layouts, in its order, for vectors of so many f32 lanes.

    Results that cannot be blocked, or of one pixel, are in none; without vectors there are none.
    """
    if lanes < 2:
        return ()
    images = [node for node in graph.nodes if _is_image(graph, node)]
    legal = _legal_blocks(graph, images, lanes)
    members = {node.output for node in images if lanes in legal[node.output]}
    ties = (
        (node.output, name)
        for node in images
        for name in tied_operands(graph, node)
        if {node.output, name} <= members
    )
    classes = []
    for values in connected_values((n.output for n in images if n.output in members), ties):
        shared = set.intersection(*(legal[value] for value in values))
        if shared:
            worth = _worth_a_try({graph.types[value].shape[1] for value in values}, lanes)
            classes.append(LayoutClass(values, (PLAIN, *(b for b in worth if b in shared))))
    return tuple(classes)


def _is_image(graph: Graph, node: Node) -> bool:
    """Its result may be blocked, and it or the data has more than a pixel."""
    type = graph.types[node.output]
    if len(type.shape) != 4 or type.dtype not in BLOCKED_TYPES or not node.inputs:
        return False
    return any(_pixels(graph, name) > 1 for name in (node.output, node.inputs[0]))


def _pixels(graph: Graph, name: str) -> int:
    shape = graph.types[name].shape if name else ()
    return math.prod(shape[2:]) if len(shape) == 4 else 0


def _worth_a_try(channels: set[int], lanes: int) -> tuple[int, ...]:
    """Vectors; half blocks where these pad less; all channels where they are not too many."""
    least, most = min(channels), max(channels)
    blocks = [lanes]
    if lanes > HALF_BLOCK and any(_padded(c, HALF_BLOCK) < _padded(c, lanes) for c in channels):
        blocks.append(HALF_BLOCK)
    if 1 < least == most <= WIDEST_NHWC and most not in blocks:
        blocks.append(most)
    return tuple(blocks)


def _padded(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _legal_blocks(graph: Graph, images: list[Node], lanes: int) -> dict[str, set[int]]:
    """The blocks in which each result may lie, where all around it lies alike."""
    legal: dict[str, set[int]] = {node.output: set() for node in images}
    for block in dict.fromkeys((lanes, HALF_BLOCK, PLAIN)):  # PLAIN stands for all channels
        wanted = {name: block or max(graph.types[name].shape[1], 2) for name in legal}
        found = blocked_forms(graph, lanes, wanted, ()).forms
        for name, size in wanted.items():
            if name in found and found[name].gives == size:
                legal[name].add(size)
    return legal


def tied_operands(graph: Graph, node: Node) -> list[str]:
    """The operands whose layout a node on blocked data gives its result."""
    definition = operator(node.operator)
    rule = definition.blocked
    if rule is None:
        if definition.pattern is not Pattern.ELEMENTWISE:
            return []
        shape = graph.types[node.output].shape
        return [name for name in node.inputs if name and graph.types[name].shape == shape]
    types = Types(graph.types[name] if name else None for name in node.inputs)
    if rule.reblocks is not None and rule.reblocks(complete_attributes(node), types):
        return []
    return list(node.inputs if rule.joins else node.inputs[:1])


def blocks_of(classes: Iterable[LayoutClass], chosen: Mapping[str, int]) -> dict[str, int]:
    """The block of each value, by those that are chosen for the classes' names."""
    return {value: chosen[each.name] for each in classes for value in each.values}
