"""Pass: run convolutions and what lies between them on blocked data.

An NCHW value becomes [N, ceil(C/b), H, W, b]. b is the target's lanes of f32 and i32, in which
products are summed; narrower types have blocks of as many channels. Weights and per-channel
constants are padded with zeros. A value that is needed plain and in blocks is converted once, and
only where a consumer asks for it.

These nodes run blocked (in f32, and on what narrow products read and give):

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

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.blocked import (
    BLOCKED,
    PLAIN_TO_BLOCKED,
    BlockedLayout,
    BlockedRule,
    BlockedUse,
)
from tunefarm.compiler.operators.conv import may_be_winograd
from tunefarm.compiler.operators.evaluate_node import evaluate_node
from tunefarm.compiler.operators.registry import (
    Pattern,
    complete_attributes,
    multiplications,
    operator,
)
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.plan.layouts.blocked_emission import BlockedEmitter, has_channels
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType

# --- Which nodes run on blocked data, and in which blocks (the first half of choose_layouts) -----


# f64 is what QLinearConv rounds its sums from.
BLOCKED_TYPES = (
    *(DType.F32, DType.F64, DType.F16, DType.BF16),
    *(DType.I32, DType.I16, DType.I8, DType.U8),
)
"""Types of values that may be blocked."""


@dataclass(slots=True)
class BlockedForms:
    """Which nodes run blocked, by output: how, and what ties them into regions."""

    forms: dict[str, BlockedLayout] = field(default_factory=dict)
    fills: dict[str, float] = field(default_factory=dict)  # padding of per-channel constants
    lanes: dict[str, float] = field(default_factory=dict)  # value in the padding lanes
    to_blocked: dict[str, list[str]] = field(default_factory=dict)  # value -> blocked readers
    from_blocked: set[str] = field(default_factory=set)
    folds: set[str] = field(default_factory=set)  # plain, of blocked data
    copies: set[str] = field(default_factory=set)  # blocked for readers that are, too
    edges: list[tuple[str, str]] = field(default_factory=list)  # blocked value, its blocked reader


def blocked_forms(
    graph: Graph,
    block: int,
    wanted: Collection[str] = (),
    rejected: Collection[str] = (),
) -> BlockedForms:
    """How the nodes run whose results are `wanted` in blocks, or which pay for themselves.

    Those that are `rejected` run plain.
    """
    return _Planner(graph, block, wanted, rejected).plan()


class _Planner:
    def __init__(
        self, graph: Graph, block: int, wanted: Collection[str], rejected: Collection[str]
    ) -> None:
        self.graph = graph
        self.block = block
        self.wanted = wanted
        self.rejected = rejected
        self.result = BlockedForms()

    def plan(self) -> BlockedForms:
        for node in self.graph.nodes:
            form = self._form(node)
            if form is not None:
                self._take(node, form)
            elif self._folds(node):
                self.result.folds.add(node.output)
            else:
                self._need_plain(*node.inputs)
        self._need_plain(*self.graph.outputs)
        return self.result

    def _take(self, node: Node, form: BlockedLayout) -> None:
        plan = self.result
        plan.forms[node.output] = form
        operands = [] if form.layout == PLAIN_TO_BLOCKED else self._blocked_operands(node)
        for name in operands:
            if name in plan.forms:
                plan.edges.append((name, node.output))
            elif name not in self.graph.constants:
                plan.to_blocked.setdefault(name, []).append(node.output)

    def _folds(self, node: Node) -> bool:
        """Whether the node reads what is blocked as it lies, though its result is plain."""
        rule, data = operator(node.operator).blocked, node.inputs[0] if node.inputs else ""
        if rule is None or rule.folds is None or data not in self.result.forms:
            return False
        return rule.folds(self._use(node, rule))

    def _need_plain(self, *names: str) -> None:
        self.result.from_blocked.update(name for name in names if name in self.result.forms)

    def _blocked_operands(self, node: Node) -> list[str]:
        rule = operator(node.operator).blocked
        if rule is not None:
            return list(node.inputs if rule.joins else node.inputs[:1])
        channels = self._shape(node.output)[1]
        return [name for name in node.inputs if self._has_channels(name, channels)]

    def _form(self, node: Node) -> BlockedLayout | None:
        """How the node runs on blocked data, None if it runs plain. Records lanes and fills."""
        definition, plan = operator(node.operator), self.result
        rule = definition.blocked
        reads_blocked = any(name in plan.forms for name in node.inputs)
        if node.output in self.rejected:
            return None
        if not (node.output in self.wanted or reads_blocked or (rule and rule.starts)):
            return None
        data = [name for at, name in enumerate(node.inputs) if name and at != definition.looked_up]
        if any(self._type(name).dtype not in BLOCKED_TYPES for name in (*data, node.output)):
            return None
        if definition.pattern is Pattern.ELEMENTWISE and rule is None:
            is_blocked = self._elementwise(node)
            return BlockedLayout(BLOCKED, self.block, self.block) if is_blocked else None
        if rule is None:
            return None
        form = rule.form(self._use(node, rule))
        if form is None or (rule.joins and not self._blocking_is_cheaper(node)):
            return None
        plan.lanes[node.output] = form.lane
        if form.copies:
            plan.copies.add(node.output)
        reads = 0 if form.layout == PLAIN_TO_BLOCKED else self.block
        return BlockedLayout(form.layout, reads, self.block)

    def _use(self, node: Node, rule: BlockedRule) -> BlockedUse:
        decided = node.output in self.wanted
        lanes = [self.result.lanes.get(name) for name in node.inputs]
        if decided and not rule.starts:  # plain operands are converted
            lanes = [0.0 if lane is None else lane for lane in lanes]
        return BlockedUse(
            complete_attributes(node),
            Types(self._type(name) if name else None for name in node.inputs),
            self._type(node.output),
            tuple(lanes),
            tuple(not name or name in self.graph.constants for name in node.inputs),
            self.block,
            decided,
        )

    # --- pointwise operators --------------------------------------------------------------------

    def _elementwise(self, node: Node) -> bool:
        shape = self._shape(node.output)
        if len(shape) != 4:
            return False
        blocked = [name for name in node.inputs if name in self.result.forms]
        if any(self._shape(name)[1] != shape[1] for name in blocked):
            return False  # its channel axis would have to broadcast
        if not self._blocked_operands(node):
            return False  # of one channel, which nothing has in blocks: the result would not either
        if not self._blocking_is_cheaper(node):
            return False
        if shape[1] % self.block == 0:
            return self._accept(node, 0.0)
        for fill in (0.0, 1.0):
            lane = self._elementwise_lane(node, fill)
            if lane is not None and math.isfinite(lane):
                self.result.fills[node.output] = fill
                return self._accept(node, lane)
        return False

    def _elementwise_lane(self, node: Node, fill: float) -> float | None:
        """The result in a padding lane; None when it is not one known number."""
        channels = self._shape(node.output)[1]
        operands: list[Array] = []
        for position, name in enumerate(node.inputs):
            lane: float | None = None
            constant = self.graph.constants.get(name)
            if position == operator(node.operator).looked_up and constant is not None:
                operands.append(constant)
                continue
            if name in self.result.forms:
                lane = self.result.lanes[name]
            elif constant is not None and constant.size == 1:
                lane = float(constant.reshape(-1)[0])
            elif self._has_channels(name, channels):
                lane = 0.0 if constant is None else fill
            if lane is None:
                return None
            operands.append(np.array(lane, dtype=self._type(name).dtype.numpy))
        with np.errstate(all="ignore"):
            return float(evaluate_node(node, tuple(operands)))

    def _accept(self, node: Node, lane: float) -> bool:
        self.result.lanes[node.output] = lane
        return True

    def _blocking_is_cheaper(self, node: Node) -> bool:
        """Compare the bytes of operands to convert if the node runs blocked, and if plain."""
        plan = self.result
        channels, rule = self._shape(node.output)[1], operator(node.operator).blocked
        if_blocked = if_plain = 0
        for name in dict.fromkeys(node.inputs):
            if name in plan.forms:
                if_plain += 0 if name in plan.from_blocked else self._type(name).bytes
            elif name in self.graph.constants or name in plan.to_blocked:
                continue
            elif (rule and rule.joins) or self._has_channels(name, channels):
                if_blocked += self._type(name).bytes
        return if_blocked <= if_plain

    # --- shapes ---------------------------------------------------------------------------------

    def _type(self, name: str) -> TensorType:
        return self.graph.types[name]

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.graph.types[name].shape

    def _has_channels(self, name: str, channels: int) -> bool:
        return has_channels(self._shape(name), channels) or name in self.result.forms


# A blocked convolution saves some 15 ns per thousand operations against a plain one; a conversion
# reads and writes a value, some 0.25 ns per byte.
FLOPS_PER_CONVERTED_BYTE = 16


def run(graph: Graph, block: int | None) -> Graph:
    """The graph with blocked layouts where they pay; `block` is the number of lanes.

    With fewer than two, or None, it stays as it is.
    """
    if block is None or block < 2:
        return graph
    prepared = with_kept_dimensions(graph)
    slices = () if graph.is_fixed else _slices_in_blocks(prepared, block)
    forms = _worthwhile_forms(prepared, block, slices)
    if not forms.forms:
        return graph
    return BlockedEmitter(prepared, forms.forms, forms.fills, forms.folds).run()


def _slices_in_blocks(graph: Graph, block: int) -> set[str]:
    """Slices of whole blocks of what is blocked.

    Of one image a slice of plain data is no copy. Of a dynamic batch it is one, next to those that
    convert what it reads, and its result.
    """
    found = blocked_forms(graph, block)
    chosen: set[str] = set()
    for node in graph.nodes:
        data = node.inputs[0] if node.operator == "slice" else ""
        if data not in found.forms:
            continue
        starts, taken = complete_attributes(node).integers("starts"), graph.types[node.output].shape
        if starts[1] % block == 0 and taken[1] % block == 0:
            chosen.add(node.output)
    return chosen


def _worthwhile_forms(graph: Graph, block: int, wanted: Collection[str]) -> BlockedForms:
    rejected: set[str] = set()
    while True:
        forms = blocked_forms(graph, block, wanted, rejected)
        read = {value for value, _ in forms.edges}
        worthless = _worthless_convolutions(graph, forms) | forms.copies - read
        if not worthless:
            return forms
        rejected |= worthless


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
