"""Kernels of fusion groups: groups of a graph that look alike have one, since layers repeat."""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.expr.nodes import Const, const
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.canonicalise import canonicalise, with_literals
from tunefarm.compiler.kernels.count_work import written_size
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, Tensor
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.operators.registry import Pattern, add_expression, operator
from tunefarm.compiler.plan.fusion.fuse import Group
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node

# A group whose expression is longer where it is written out is not fused after all: each node that
# reads its operand twice doubles what lies before it. Groups of networks have about a hundred.
WRITTEN_LIMIT = 8192


@frozen
class GroupKernel:
    """The verified kernel of a group, its workload key, and the graph's values that it reads."""

    group: Group
    kernel: FusedKernel
    key: str
    inputs: tuple[str, ...]


@frozen
class _Made:
    """A kernel and its key, and which of its group's values are its inputs, by number."""

    kernel: FusedKernel
    key: str
    inputs: tuple[int, ...]


class GroupKernels:
    """Makes the kernels of one graph's groups, each once.

    `rounds_each` is that of the precision.
    """

    def __init__(self, graph: Graph, rounds_each: bool = False) -> None:
        self.graph = graph
        self.rounds_each = rounds_each
        self._made: dict[str, _Made | None] = {}  # by what groups look like; None: too long

    def of(self, group: Group) -> tuple[GroupKernel, ...]:
        """The group's kernel; those of its nodes where it would be too long."""
        look, values = _look(self.graph, group)
        if look not in self._made:
            self._made[look] = self._make(group, values)
        made = self._made[look]
        if made is None:
            return tuple(item for node in group.nodes for item in self.of(Group((node,), None)))
        inputs = tuple(values[number] for number in made.inputs)
        return (GroupKernel(group, made.kernel, made.key, inputs),)

    def _make(self, group: Group, values: tuple[str, ...]) -> _Made | None:
        kernel, inputs = _group_kernel(self.graph, group, self.rounds_each)
        if len(group.nodes) > 1 and written_size(kernel) > WRITTEN_LIMIT:
            return None
        verify_kernel(kernel)
        return _Made(kernel, workload_key(kernel), tuple(map(values.index, inputs)))


def _look(graph: Graph, group: Group) -> tuple[str, tuple[str, ...]]:
    """All that a group's kernel is made of, whatever values are called; and these values.

    A value is its number in them, and what it is where it is met first: its type, the element of a
    constant that has but one, and whether it is a constant.
    """
    numbers: dict[str, int] = {"": -1}
    facts: list[object] = []
    for node in group.nodes:
        for name in (*node.inputs, node.output):
            if name in numbers:
                continue
            numbers[name] = len(numbers) - 1
            array = graph.constants.get(name)
            literal = array.tobytes() if array is not None and array.size == 1 else None
            facts.append((str(graph.types[name]), array is not None, literal))
        operands = [numbers[name] for name in node.inputs]
        facts.append((node.operator, dict(node.attributes), operands, numbers[node.output]))
    facts.append([numbers[name] for name in group.stored])
    return repr(facts), tuple(numbers)[1:]


def _group_kernel(
    graph: Graph, group: Group, rounds_each: bool
) -> tuple[FusedKernel, tuple[str, ...]]:
    """The canonical kernel of a fusion group and the graph values that are its inputs.

    A constant of one element becomes a literal, unless a contraction reads it. Behind sums of
    integers floats stay operands: each layer has other scales, and else the same kernel. With
    `rounds_each` what one node gives to the next one is rounded to its type, see
    `Numerics.rounds_each`.
    """
    builder = KernelBuilder()
    tensors: dict[str, Tensor] = {}
    values: list[str] = []
    in_contraction: set[str] = set()
    inside = {node.output for node in group.nodes}
    for node in group.nodes:
        node = _inside_first(node, inside)
        for name in node.inputs:
            if name and name not in tensors:
                tensors[name] = builder.input(graph.types[name], name in graph.constants)
                values.append(name)
        if operator(node.operator).pattern is Pattern.CONTRACTION:
            in_contraction.update(node.inputs)
        operands = tuple(tensors[name] if name else None for name in node.inputs)
        result = add_expression(builder, node, operands, graph.types[node.output])
        tensors[node.output] = replace(result, exact=None) if rounds_each else result
    name = "_".join(node.operator for node in group.nodes)
    inputs, stages = tuple(builder.inputs), tuple(builder.stages)
    of_integers = any(node.attributes.get("accumulator") == "i32" for node in group.nodes)
    literals: dict[str, Const] = {}
    for buffer, value in zip(inputs, values, strict=True):
        array = graph.constants.get(value)
        scale = of_integers and buffer.dtype.is_float
        if array is not None and array.size == 1 and not scale and value not in in_contraction:
            literals[buffer.name] = const(array.reshape(-1)[0].item(), buffer.dtype)
    made = FusedKernel(name, inputs, stages, stages[-1].name, leaves_rest=builder.leaves_rest)
    kernel = with_literals(made, literals)
    stored = [tensors[value].name for value in group.stored]
    canonical, kept = canonicalise(kernel, stored)
    by_buffer = dict(zip((buffer.name for buffer in inputs), values, strict=True))
    return canonical, tuple(by_buffer[buffer] for buffer in kept)


def _inside_first(node: Node, inside: set[str]) -> Node:
    """Commuting operators with the group's own value on the left: x + conv is conv + x."""
    if not operator(node.operator).commutes:
        return node
    left, right = node.inputs
    if right in inside and left not in inside:
        return replace(node, inputs=(right, left))
    return node
