"""Emits a graph in which chosen nodes run on blocked data (the second half of choose_layouts)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.blocked import BLOCKED, PLAIN_TO_BLOCKED, BlockedLayout
from tunefarm.compiler.operators.registry import Pattern, complete_attributes, operator
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.padded_shape import is_unpadded, whole
from tunefarm.compiler.types.tensor_type import Array, Attribute


def has_channels(shape: tuple[int, ...], channels: int) -> bool:
    """Does an operand of this shape vary over the channel axis of a 4-D result?"""
    return len(shape) >= 3 and shape[-3] == channels and channels > 1


class BlockedEmitter:
    """Rewrites the nodes in `forms` (by output); converts values where another form is asked for.

    `fills` has, for pointwise nodes, the number that pads their per-channel constants (0 unless
    given). Nodes in `folds` fold the channels of blocked data; their results are plain. Each value
    is converted at most once into each form.
    """

    def __init__(
        self,
        graph: Graph,
        forms: Mapping[str, BlockedLayout],
        fills: Mapping[str, float],
        folds: Collection[str] = (),
    ) -> None:
        self.graph = graph
        self.forms = forms
        self.fills = fills
        self.folds = folds
        self.rewriter = Rewriter(graph)
        self.blocked_names: dict[tuple[str, int], str] = {}  # value and block -> in the new graph
        self.plain_names = {*graph.inputs, *graph.constants}  # values whose plain form exists

    def run(self) -> Graph:
        """The rewritten graph."""
        for node in self.graph.nodes:
            form = self.forms.get(node.output)
            if node.output in self.folds:
                self._emit_fold(node)
            elif form is None:
                for name in node.inputs:
                    self._plain(name, node)
                self.rewriter.keep(node)
                self.plain_names.add(node.output)
            else:
                self._emit_blocked(node, form)
        producers = {node.output: node for node in self.graph.nodes}
        for name in self.graph.outputs:
            if name in producers:
                self._plain(name, producers[name])
        return self.rewriter.finish()

    # --- conversions ----------------------------------------------------------------------------

    def _plain(self, name: str, reader: Node) -> str:
        """The plain form, which keeps the value's name."""
        if name and name not in self.plain_names:
            shape, block = self.graph.types[name].shape, self.forms[name].gives
            operator_name: str = "from_blocked"
            attributes: dict[str, Attribute] = {"channels": shape[1]}
            if same_memory(shape, block):
                operator_name, attributes = "reshape", {"shape": shape}
            source = (self.blocked_names[name, block],)
            self.rewriter.emit(operator_name, source, attributes, like=reader, output=name)
            self.plain_names.add(name)
        return name

    def _blocked(self, name: str, block: int, reader: Node) -> str:
        """The form of a 4-D value in blocks of so many channels."""
        if (name, block) in self.blocked_names:
            return self.blocked_names[name, block]
        self._plain(name, reader)
        new_name = self.rewriter.fresh(f"{name}_blocked")
        shape = self.graph.types[name].shape
        operator_name: str = "to_blocked"
        attributes: dict[str, Attribute] = {"block": block}
        if same_memory(shape, block):
            blocked_shape = (shape[0], shape[1] // block, 1, 1, block)
            operator_name, attributes = "reshape", {"shape": blocked_shape}
        self.rewriter.emit(operator_name, (name,), attributes, like=reader, output=new_name)
        self.blocked_names[name, block] = new_name
        return new_name

    # --- nodes ----------------------------------------------------------------------------------

    def _emit_fold(self, node: Node) -> None:
        """The node over blocked data: the axis within the blocks is folded with the channels."""
        name, type = node.inputs[0], self.graph.types[node.output]
        source = self.blocked_names[name, self.forms[name].gives]
        axes = complete_attributes(node).integers("axes")
        attributes: dict[str, Attribute] = {**node.attributes, "keepdims": False}
        attributes["axes"] = (*axes, len(self.graph.types[name].shape))
        folded = self.rewriter.emit(node.operator, (source,), attributes, like=node)
        shape = {"shape": type.shape}
        self.rewriter.emit("reshape", (folded,), shape, like=node, output=node.output)
        self.plain_names.add(node.output)

    def _emit_blocked(self, node: Node, form: BlockedLayout) -> None:
        attributes: dict[str, Attribute] = dict(node.attributes)
        definition = operator(node.operator)
        if "layout" in definition.attributes:
            attributes["layout"] = form.layout
        if form.reads != form.gives:
            attributes["block"] = form.gives
        if node.operator == "conv" and form.layout == BLOCKED:
            channels = self.graph.types[node.inputs[0]].shape[1]
            attributes |= {"channels": channels} if channels % form.reads else {}
        if definition.blocked is not None and definition.blocked.adapted is not None:
            shapes = [self.graph.types[name].shape for name in node.inputs if name]
            complete = complete_attributes(node)
            attributes |= definition.blocked.adapted(complete, shapes, form.gives)
        if definition.pattern is Pattern.ELEMENTWISE:
            inputs = tuple(
                name if position == definition.looked_up else self._operand(name, node, form.gives)
                for position, name in enumerate(node.inputs)
            )
        elif definition.blocked is not None and definition.blocked.joins:
            inputs = tuple(self._blocked(name, form.reads, node) for name in node.inputs)
        else:
            inputs = (self._data(node, form), *self._padded_constants(node, form))
        name = self.rewriter.fresh(f"{node.output}_blocked")
        self.rewriter.emit(node.operator, inputs, attributes, like=node, output=name)
        self.blocked_names[node.output, form.gives] = name
        dims = self.graph.unread.get(node.output)
        if dims is not None and is_unpadded(dims[1]):
            blocks = (whole(self.rewriter.types[name].shape[1]), *dims[2:], whole(form.gives))
            self.rewriter.note_unread(name, (dims[0], *blocks))

    def _data(self, node: Node, form: BlockedLayout) -> str:
        """The first operand in the form in which the node reads it."""
        if form.layout == PLAIN_TO_BLOCKED:
            return self._plain(node.inputs[0], node)
        return self._blocked(node.inputs[0], form.reads, node)

    def _padded_constants(self, node: Node, form: BlockedLayout) -> list[str]:
        """The constants behind the data, in the shapes that the node's blocked form needs."""
        rule, names = operator(node.operator).blocked, [name for name in node.inputs[1:] if name]
        if rule is None or rule.padded is None:
            return names
        arrays = [self.graph.constants[name] for name in names]
        given = [array.shape for array in arrays]
        shapes = rule.padded(complete_attributes(node), given, form)
        return [
            self._constant(_padded(array, shape), name)
            for array, shape, name in zip(arrays, shapes, names, strict=True)
        ]

    def _operand(self, name: str, node: Node, block: int) -> str:
        """An operand of a pointwise node in a form that broadcasts to the blocked result."""
        if name in self.forms:
            return self._blocked(name, block, node)
        type = self.graph.types[name]
        if type.size == 1:
            return self._plain(name, node)
        shape = (1,) * (4 - len(type.shape)) + type.shape
        channels = self.graph.types[node.output].shape[1]
        constant = self.graph.constants.get(name)
        if not has_channels(type.shape, channels):
            spread = (shape[0], 1, *shape[2:], 1)
            if constant is not None:
                return self._constant(constant.reshape(spread), name)
            return self._reshaped(name, spread, node)
        if constant is not None:
            fill = self.fills.get(node.output, 0.0)
            return self._constant(_block_array(constant.reshape(shape), block, fill), name)
        if type.shape == shape:
            return self._blocked(name, block, node)
        aligned = self._reshaped(name, shape, node)
        return self.rewriter.emit("to_blocked", (aligned,), {"block": block}, like=node)

    def _reshaped(self, name: str, shape: tuple[int, ...], node: Node) -> str:
        return self.rewriter.emit(
            "reshape", (self._plain(name, node),), {"shape": shape}, like=node
        )

    def _constant(self, array: Array, hint: str) -> str:
        return self.rewriter.constant(array, f"{hint}_blocked")


def same_memory(shape: tuple[int, ...], block: int) -> bool:
    """With one pixel and whole blocks, both layouts are the same bytes: a reshape will do."""
    return shape[2:] == (1, 1) and shape[1] % block == 0


def _block_array(array: Array, block: int, fill: float) -> Array:
    """[N, C, H, W] as [N, ceil(C/b), H, W, b], the tail of the channels filled with `fill`."""
    batch, channels, height, width = array.shape
    blocks = -(-channels // block)
    padded = np.full((batch, blocks * block, height, width), fill, array.dtype)
    padded[:, :channels] = array
    split = padded.reshape(batch, blocks, block, height, width)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))


def _padded(array: Array, shape: tuple[int, ...]) -> Array:
    """The array with zeros behind it along each axis; itself if it has the shape."""
    if array.shape == shape:
        return array
    padded = np.zeros(shape, array.dtype)
    padded[tuple(map(slice, array.shape))] = array
    return padded
