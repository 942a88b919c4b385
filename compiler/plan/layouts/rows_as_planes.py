"""Pass: convolutions along one axis, as convolutions of planes that are one row high.

    conv(x[N, C, W])   ->   conv(x[N, C, 1, W])

Blocked layouts are of planes. Dot products of bytes run along channels, which lie next to each
other in these alone, and so do vectors of many channels of floats, which dilation moves no further
apart. What lies between such convolutions becomes one with them, so that only the
ends of a region are reshaped, which moves nothing. A minimum or maximum of all elements, as
dynamic quantisation has them, is one of the planes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.registry import Pattern, complete_attributes, operator
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.padded_shape import whole
from tunefarm.compiler.types.tensor_type import Attribute

_ONES = {"strides": 1, "dilations": 1}
_WHOLE = {"starts": 0, "steps": 1, "shape": 1}  # what a slice has for each axis
_FOLLOW = frozenset(("conv", "border", "pad", "fill", "slice", "concat"))
_FLOATS = frozenset((DType.F32, DType.F16, DType.BF16))
LEAST_BLOCKS = 2  # of channels of floats that are read, and of those that are given
LEAST_COLUMNS = 4  # vectors in a row: of less, blocking and unblocking takes what it saves


def run(graph: Graph, block: int | None) -> Graph:
    """The graph with such planes; as it is for a target without vectors to block channels for."""
    if block is None or block < 2:
        return graph
    planes = {n.output for n in graph.nodes if n.operator == "conv" and _is_plane(n.output, graph)}
    squeezed = any(node.inputs[:1] and node.inputs[0] in planes for node in graph.nodes)
    if not squeezed and not any(_starts(node, graph, block) for node in graph.nodes):
        return graph
    return _Lifter(graph, block).run()


def _is_plane(name: str, graph: Graph) -> bool:
    """A value [N, C, 1, W], as exporters make of rows to convolve them."""
    shape = graph.types[name].shape
    return len(shape) == 4 and shape[2] == 1


def _starts(node: Node, graph: Graph, block: int) -> bool:
    if node.operator != "conv" or len(graph.types[node.inputs[0]].shape) != 3:
        return False
    attributes = complete_attributes(node)
    if attributes["accumulator"]:
        return True
    data, weight, result = (graph.types[n] for n in (*node.inputs[:2], node.output))
    channels, columns = min(weight.shape[:2]), min(data.shape[2], result.shape[2])
    many = channels >= LEAST_BLOCKS * block and columns >= LEAST_COLUMNS * block
    return many and attributes["groups"] == 1 and data.dtype in _FLOATS


class _Lifter:
    """Emits nodes on planes; a value's own shape is made where another node reads it."""

    def __init__(self, graph: Graph, block: int) -> None:
        self.graph, self.block = graph, block
        self.rewriter = Rewriter(graph)
        self.planes: dict[str, str] = {}  # value -> the plane that holds it
        self.made = {*graph.inputs, *graph.constants}  # values that are there in their own shape

    def run(self) -> Graph:
        """The rewritten graph."""
        for node in self.graph.nodes:
            if self._is_same(node):
                continue
            follows = any(name in self.planes for name in node.inputs) and self._may_follow(node)
            if _starts(node, self.graph, self.block) or follows:
                self._emit(node)
                continue
            if node.inputs[:1] and node.inputs[0] in self.planes and self._folds_all(node):
                self._emit_folded(node)
                continue
            for name in node.inputs:
                self._own(name, node)
            self.rewriter.keep(node)
            self.made.add(node.output)
        producers = {node.output: node for node in self.graph.nodes}
        for name in self.graph.outputs:
            if name in producers:
                self._own(name, producers[name])
        return self.rewriter.finish()

    def _is_same(self, node: Node) -> bool:
        """Whether a node makes rows of a plane that a convolution gives, or a plane of such rows.

        Then both are the plane.
        """
        if operator(node.operator).pattern is not Pattern.VIEW or len(node.inputs) != 1:
            return False
        source, types = node.inputs[0], self.graph.types
        rows, plane = types[source].shape, types[node.output].shape
        if _is_plane(node.output, self.graph) and source in self.planes and len(rows) == 3:
            if plane != (*rows[:2], 1, rows[2]):
                return False
            self.rewriter.forward(node.output, self.planes[source])
            self.made.add(node.output)
            return True
        producer = self.rewriter.producers.get(self.rewriter.value(source))
        given = producer is not None and producer.operator == "conv"
        if not given or not _is_plane(source, self.graph):
            return False
        if plane != (*rows[:2], rows[3]):
            return False
        self.planes[node.output] = self.rewriter.value(source)
        return True

    def _may_follow(self, node: Node) -> bool:
        if len(self.graph.types[node.output].shape) != 3:
            return False
        if node.operator in _FOLLOW:
            read = node.inputs if node.operator == "concat" else node.inputs[:1]
            return any(name in self.planes for name in read) and (
                node.operator != "conv" or _starts(node, self.graph, self.block)
            )
        return operator(node.operator).pattern is Pattern.ELEMENTWISE

    def _folds_all(self, node: Node) -> bool:
        """Whether a node makes a scalar of all elements, which planes have as well."""
        if not operator(node.operator).folds_axes or len(node.inputs) != 1:
            return False
        rank, attributes = len(self.graph.types[node.inputs[0]].shape), complete_attributes(node)
        return len(attributes.integers("axes")) == rank and not attributes["keepdims"]

    def _emit_folded(self, node: Node) -> None:
        plane = self.planes[node.inputs[0]]
        axes = tuple(range(1 + len(self.graph.types[node.inputs[0]].shape)))
        attributes = {**node.attributes, "axes": axes}
        self.rewriter.emit(node.operator, (plane,), attributes, like=node, output=node.output)
        self.made.add(node.output)

    def _emit(self, node: Node) -> None:
        elementwise = operator(node.operator).pattern is Pattern.ELEMENTWISE
        lifts_all = elementwise or node.operator == "concat"
        looked_up = operator(node.operator).looked_up
        inputs = []
        for position, name in enumerate(node.inputs):
            lifted = position in (0, 1) if node.operator == "conv" else lifts_all or not position
            is_lifted = bool(name) and lifted and position != looked_up
            inputs.append(self._plane(name, node) if is_lifted else self._own(name, node))
        plane = self.rewriter.fresh(f"{node.output}_plane")
        self.rewriter.emit(node.operator, tuple(inputs), _lifted(node), like=node, output=plane)
        self.planes[node.output] = plane
        if (dims := self.graph.unread.get(node.output)) is not None:
            self.rewriter.note_unread(plane, (*dims[:-1], whole(1), dims[-1]))

    def _plane(self, name: str, reader: Node) -> str:
        """A value with one more axis in front of its last: itself if it has no other axes."""
        if name in self.planes:
            return self.planes[name]
        shape = self.graph.types[name].shape
        if len(shape) < 2:
            return self._own(name, reader)
        plane = (*shape[:-1], 1, shape[-1])
        if name in self.graph.constants:
            array = self.graph.constants[name].reshape(plane)
            self.planes[name] = self.rewriter.constant(array, f"{name}_plane")
        else:
            source = (self._own(name, reader),)
            given: dict[str, Attribute] = {"shape": plane}
            self.planes[name] = self.rewriter.emit("reshape", source, given, like=reader)
        return self.planes[name]

    def _own(self, name: str, reader: Node) -> str:
        """The value in its own shape, under its own name."""
        if name and name not in self.made:
            given: dict[str, Attribute] = {"shape": self.graph.types[name].shape}
            self.rewriter.emit("reshape", (self.planes[name],), given, like=reader, output=name)
            self.made.add(name)
        return name


def _lifted(node: Node) -> Mapping[str, Attribute]:
    """A node's attributes with those of the row in front of what they say of the last axis."""
    attributes: dict[str, Attribute] = dict(node.attributes)
    for name, one in _ONES.items():
        if attributes.get(name):
            attributes[name] = (one, *complete_attributes(node).integers(name))
    if node.operator == "concat" and attributes["axis"] in (2, -1):
        attributes["axis"] = 3
    if node.operator == "slice":
        for name, one in _WHOLE.items():
            own = complete_attributes(node).integers(name)
            attributes[name] = (*own[:-1], one, own[-1])
    if attributes.get("pads"):
        pads = complete_attributes(node).integers("pads")
        half = len(pads) // 2  # all axes' of pad, that of the last axis else
        attributes["pads"] = (*pads[: half - 1], 0, *pads[half - 1 : -1], 0, pads[-1])
    if "axis" in attributes:  # of fill, or of parameters along one
        axis = int(complete_attributes(node).integer("axis"))
        attributes["axis"] = 3 if axis in (2, -1) else axis
    return attributes
