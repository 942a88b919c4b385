"""Pass: run convolutions and what lies between them on blocked data.

An NCHW value becomes [N, ceil(C/b), H, W, b]. A plan says which b a value gets, or that it stays
plain; elsewhere rules do, and b is the target's lanes of f32 and i32, in which products are summed;
narrower types have blocks of as many channels. With a block of all channels the layout is NHWC,
and nothing is padded; else weights and per-channel constants are padded with zeros. A value that is
needed in several forms is converted once for each, and only where a consumer asks for it.

By the rules these nodes run blocked (in f32, and on what narrow products read and give):

- Convolutions, which start regions, as far as their rules (`OperatorDefinition.blocked`) say so.
- Pointwise operators, and others whose rules do, when an operand is blocked already. If other
  operands are plain, the side with fewer bytes is converted.

Padding lanes hold one and the same number in the whole tensor, known when compiling: 0 after a
convolution or conversion, f(0) after a pointwise f, and so on. An operator whose result would not
be a known finite number there runs plain: the next convolution multiplies these lanes with zero
weights, and 0 * inf would leak as NaN. Tensors whose channels fill whole blocks have no such lanes.

A convolution that is alone in its region stays plain unless Winograd's algorithm may serve it,
which needs blocks: its tiles read any layout, and conversions cost it more than they save. Another
region of connected blocked nodes is kept if it does `FLOPS_PER_CONVERTED_BYTE` floating point
operations in convolutions per byte that enters or leaves by a conversion; else it stays plain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.conv import may_be_winograd
from tunefarm.compiler.operators.registry import complete_attributes, multiplications, operator
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, PLAIN, GraphPlan, Layout
from tunefarm.compiler.plan.decisions.plan_names import unknown_value
from tunefarm.compiler.plan.layouts.blocked_emission import BlockedEmitter
from tunefarm.compiler.plan.layouts.blocked_forms import BLOCKED_TYPES, BlockedForms, blocked_forms
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute

# A blocked convolution saves some 15 ns per thousand operations against a plain one; a conversion
# reads and writes a value, some 0.25 ns per byte.
FLOPS_PER_CONVERTED_BYTE = 16

WIDEST_BLOCK: Final = 64
"""Channels of a block that is wider than the value it holds, at most: the rest is padding."""


def run(graph: Graph, block: int | None, decided: GraphPlan = DEFAULT_PLAN) -> Graph:
    """The graph with blocked layouts where they pay; `block` is the number of lanes.

    With fewer than two, or None, it stays as it is. What is `decided` goes before the rules. Raises
    `PlanError` for a decision about a value that no node computes, or that cannot lie so.
    """
    wanted = {decision.value: decision.block for decision in decided.of(Layout)}
    _check_decisions(graph, block, decided)
    if block is None or block < 2:
        return graph
    prepared = with_kept_dimensions(graph)
    by_rules = {} if graph.signature is None else _slices_in_blocks(prepared, block, wanted)
    forms = _worthwhile_forms(prepared, block, by_rules | wanted)
    _check_followed(graph, forms, decided)
    if not forms.forms:
        return graph
    return BlockedEmitter(prepared, forms.forms, forms.fills, forms.folds).run()


def _slices_in_blocks(graph: Graph, block: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """Slices of whole blocks of what is blocked, with their blocks.

    Of one image a slice of plain data is no copy. Of a dynamic batch it is one, next to those that
    convert what it reads, and its result.
    """
    found = blocked_forms(graph, block, wanted)
    chosen: dict[str, int] = {}
    for node in graph.nodes:
        data = node.inputs[0] if node.operator == "slice" else ""
        if data not in found.forms:
            continue
        size = found.forms[data].gives
        starts, taken = complete_attributes(node).integers("starts"), graph.types[node.output].shape
        if starts[1] % size == 0 and taken[1] % size == 0:
            chosen[node.output] = size
    return chosen


def _worthwhile_forms(graph: Graph, block: int, wanted: Mapping[str, int]) -> BlockedForms:
    rejected: set[str] = set()
    while True:
        forms = blocked_forms(graph, block, wanted, rejected)
        worthless = _worthless_convolutions(graph, forms) - wanted.keys()
        if not worthless:
            return forms
        rejected |= worthless


def _check_decisions(graph: Graph, block: int | None, decided: GraphPlan) -> None:
    """Raise `PlanError` for decisions that no rule of an operator is needed to refuse."""
    computed = {node.output for node in graph.nodes}
    for decision in decided.of(Layout):
        if decision.value not in computed:
            raise unknown_value(decision, decision.value, computed)
        if decision.block == PLAIN:
            continue
        if block is None or block < 2:
            raise PlanError(f"{decision}: the target has no vectors to block channels for")
        type = graph.types[decision.value]
        if len(type.shape) != 4 or type.dtype not in BLOCKED_TYPES:
            raise PlanError(f"{decision}: {type} has no channels that could be blocked")
        most = max(type.shape[1], WIDEST_BLOCK)
        if decision.block > most:
            raise PlanError(f"{decision}: of {type.shape[1]} channels, blocks have {most} at most")


def _check_followed(graph: Graph, found: BlockedForms, decided: GraphPlan) -> None:
    """Raise `PlanError` for the first value that does not lie as decided."""
    for decision in decided.of(Layout):
        form = found.forms.get(decision.value)
        if decision.block != (PLAIN if form is None else form.gives):
            producers = {node.output: node for node in graph.nodes}
            name = producers[decision.value].operator
            raise PlanError(f"{decision}: {name!r} cannot give its result so")


def with_kept_dimensions(graph: Graph) -> Graph:
    """The graph with global pools that drop H and W as pools that keep them and a reshape."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        attributes = complete_attributes(node)
        folds = operator(node.operator).folds_axes and len(graph.types[node.inputs[0]].shape) == 4
        if not folds or attributes["keepdims"] or set(attributes.integers("axes")) != {2, 3}:
            rewriter.keep(node)
            continue
        kept: dict[str, Attribute] = {**attributes, "keepdims": True}
        pooled = rewriter.emit(node.operator, node.inputs, kept, like=node)
        shape = {"shape": graph.types[node.output].shape}
        rewriter.emit("reshape", (pooled,), shape, like=node, output=node.output)
    return rewriter.finish()


def _worthless_convolutions(graph: Graph, plan: BlockedForms) -> set[str]:
    """Convolutions of regions in which conversions cost more than blocking saves."""
    connected = connected_values(plan.forms, plan.edges)
    region = {name: values[0] for values in connected for name in values}
    flops: dict[str, int] = {}
    moved: dict[str, int] = {}
    convolutions: dict[str, set[str]] = {}
    producers = {node.output: node for node in graph.nodes}
    for node in graph.nodes:
        count = 2 * multiplications(node, graph.types)
        if node.output in plan.forms and count:
            key = region[node.output]
            flops[key] = flops.get(key, 0) + count
            convolutions.setdefault(key, set()).add(node.output)
    for name, readers in plan.to_blocked.items():
        for key in {region[reader] for reader in readers}:
            moved[key] = moved.get(key, 0) + graph.types[name].bytes
    for name in plan.from_blocked:
        key = region[name]
        moved[key] = moved.get(key, 0) + graph.types[name].bytes
    return {
        output
        for key, outputs in convolutions.items()
        if flops[key] < FLOPS_PER_CONVERTED_BYTE * moved.get(key, 0)
        for output in outputs
    } | {
        output
        for key, outputs in convolutions.items()
        for output in outputs
        if len(outputs) == 1 and moved.get(key) and not _needs_blocks(producers[output], graph)
    }


def _needs_blocks(node: Node, graph: Graph) -> bool:
    """Nothing but blocked data serves the node's best algorithm."""
    attributes = complete_attributes(node)
    if node.operator != "conv" or attributes["accumulator"]:
        return True
    return may_be_winograd(attributes, graph.types[node.inputs[1]].shape[2:])


def connected_values(
    values: Iterable[str], ties: Iterable[tuple[str, str]]
) -> list[tuple[str, ...]]:
    """The values in groups that ties connect (union-find), in their order, by their first value.

    Both values of a tie are among the `values`.
    """
    parent = {name: name for name in values}

    def find(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for one, other in ties:
        parent[find(one)] = find(other)
    groups: dict[str, list[str]] = {}
    for name in parent:
        groups.setdefault(find(name), []).append(name)
    return [tuple(group) for group in groups.values()]
