"""The tool of the passes: copies a graph node by node while values are replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from tunefarm.compiler.graph.infer_types import node_type, same_types
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.large_arrays import kept
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.padded_shape import PaddedShape, shared_padding
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType


class Rewriter:
    """Builds the graph that takes `graph`'s place.

    A pass walks `graph.nodes` in order and for each node calls `keep`, `emit` or `forward`. Inputs
    and outputs of the graph keep their names and types; `finish` drops what became unused among
    constants and types.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types: dict[str, TensorType] = dict(graph.types)
        self.constants: dict[str, Array] = dict(graph.constants)
        self.nodes: list[Node] = []
        self.producers: dict[str, Node] = {}
        self._unread: dict[str, PaddedShape] = dict(graph.unread)
        self._zeros: dict[str, PaddedShape] = dict(graph.zeros)
        self._forwarded: dict[str, str] = {}
        self._taken = set(graph.types)
        self._old = {id(node) for node in graph.nodes}

    def value(self, name: str) -> str:
        """The name that stands for the old graph's value `name` by now."""
        return self._forwarded.get(name, name)

    def resolve(self, node: Node) -> Node:
        """The node with its inputs replaced by what stands for them."""
        inputs = tuple(self.value(name) for name in node.inputs)
        return node if inputs == node.inputs else replace(node, inputs=inputs)

    def keep(self, node: Node) -> str:
        """Append the node with its inputs replaced; the result's type is inferred anew.

        Unless nothing it follows from has changed: the old graph was verified.
        """
        node = self.resolve(node)
        if not (id(node) in self._old and same_types(node, self.types, self.graph.types)):
            type, before = node_type(node, self.types), self.types.get(node.output)
            self.types[node.output] = before if type == before and before is not None else type
        self._taken.add(node.output)
        self.nodes.append(node)
        self.producers[node.output] = node
        return node.output

    def emit(
        self,
        operator: str,
        inputs: tuple[str, ...],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        like: Node,
        output: str = "",
    ) -> str:
        """Append a new node with the source of `like`; returns its output, a fresh name if ""."""
        return self.keep(
            Node(
                operator,
                inputs,
                output or self.fresh(f"{like.output}_{operator}"),
                MappingProxyType(dict(attributes or {})),
                like.source,
            )
        )

    def forward(self, old: str, new: str) -> None:
        """From now on `new` stands for the old graph's value `old`."""
        self._forwarded[old] = new = self.value(new)
        self.constants.pop(old, None)
        self._share_unread(old, new)

    def note_unread(self, name: str, dims: PaddedShape) -> None:
        """Nobody reads what lies behind the true sizes of a new value."""
        self._unread[name] = dims

    def _share_unread(self, old: str, new: str) -> None:
        """What nobody reads of a value is what neither its own readers do nor those of another."""
        first, second = self._unread.pop(old, None), self._unread.pop(new, None)
        dims = None if first is None or second is None else shared_padding(first, second)
        if dims is not None:
            self._unread[new] = dims

    def constant(self, array: Array, hint: str) -> str:
        """Add a constant under a fresh name."""
        name = self.fresh(hint)
        self.constants[name] = kept(frozen(array))
        self.types[name] = TensorType(DType.from_numpy(array.dtype), array.shape)
        return name

    def replace_by_constant(self, node: Node, array: Array) -> None:
        """The node's output becomes a constant of the same name."""
        self.constants[node.output] = kept(frozen(array))

    def fresh(self, hint: str) -> str:
        """A name like `hint` that no value has."""
        name, count = hint, 0
        while name in self._taken:
            count += 1
            name = f"{hint}_{count}"
        self._taken.add(name)
        return name

    def finish(self) -> Graph:
        """The new graph. An output that was forwarded takes its name along, or is an identity."""
        self._name_outputs()
        graph = self.graph
        used = {*graph.inputs, *graph.outputs}
        for node in self.nodes:
            used.update((*node.inputs, node.output))
        types = {name: type for name, type in self.types.items() if name in used}
        constants = {name: array for name, array in self.constants.items() if name in used}
        return replace(
            graph,
            nodes=tuple(self.nodes),
            types=types,
            constants=constants,
            unread={name: dims for name, dims in self._unread.items() if name in used},
            zeros={name: dims for name, dims in self._zeros.items() if name in used},
        )

    def _name_outputs(self) -> None:
        renamed: dict[str, str] = {}
        copies: list[Node] = []
        for name in dict.fromkeys(self.graph.outputs):
            source = self.value(name)
            if source == name:
                continue
            taken = source in renamed or source in self.graph.outputs
            if source in self.producers and not taken:
                renamed[source] = name
                for known in (self._unread, self._zeros):
                    if source in known:
                        known[name] = known[source]
            else:
                copies.append(Node("identity", (source,), name))
            self.types[name] = self.types[source]
        if not renamed and not copies:
            return  # the nodes stay the same objects, which nobody has to look at again
        self.nodes = [
            replace(
                node,
                inputs=tuple(renamed.get(name, name) for name in node.inputs),
                output=renamed.get(node.output, node.output),
            )
            for node in (*self.nodes, *copies)
        ]


def frozen(array: Array) -> Array:
    """A read-only, C-contiguous version of the array (a copy unless it is one already)."""
    if array.flags.c_contiguous and not array.flags.writeable:
        return array
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy


def consumers(graph: Graph) -> dict[str, list[Node]]:
    """The nodes that read each value, in order, each once."""
    users: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            if name:
                users.setdefault(name, []).append(node)
    return users


def use_counts(graph: Graph) -> Counter[str]:
    """How often each value is read by nodes, plus once per appearance among the outputs."""
    counts: Counter[str] = Counter(graph.outputs)
    for node in graph.nodes:
        counts.update(name for name in node.inputs if name)
    return counts
