"""Pass: convolutions that read the same data run as one, and so does what is alike behind them.

    relu(conv(x, w)), relu(conv(x, v))    ->   m = relu(conv(x, [w v])), and its channels

Constants are joined when the model is built. What each branch takes of the joint result lies in one
piece, as long as there is one image (`share_memory` has it read in place): its channels, from a
whole block on. Pointwise nodes whose other operands are constants are taken along as long as all
branches have the same ones; what differs follows the channels.

Products of matrices are not merged: it was measured to gain 1 % at most.

The joint convolution is called after the first value: "head0_merged".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from typing import Any

import numpy as np

from tunefarm.compiler.errors import PlanError, ShapeError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter, consumers
from tunefarm.compiler.operators.evaluate_node import evaluate_node
from tunefarm.compiler.operators.registry import Pattern, complete_attributes, infer_type, operator
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan, Layout, Merged
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, TensorType

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JointChannels:
    """Results of these shapes in one: side by side along the axis 1, each with so many `padded`
    channels behind it, which nobody reads."""

    shapes: tuple[Shape, ...]
    padded: tuple[int, ...]

    @staticmethod
    def of(shapes: Sequence[Shape], block: int | None) -> JointChannels:
        """With channels padded to whole blocks, but for the last branch, which ends at the end."""
        channels = [shape[1] for shape in shapes]
        whole = block if block and len(shapes[0]) == 4 else 1
        *padded, _ = (-count % whole for count in channels)
        return JointChannels(tuple(shapes), (*padded, 0))

    @property
    def shape(self) -> Shape:
        """With the channels of all branches and what pads them."""
        batch, _, *rest = self.shapes[0]
        return batch, sum(shape[1] for shape in self.shapes) + sum(self.padded), *rest

    def joined(self, arrays: Sequence[Array]) -> Array:
        """What convolutions multiply or add, an array a branch, with zeros between branches."""
        return _side_by_side(arrays, 0, self.padded, 0.0)

    def constant(self, arrays: Sequence[Array], fill: float) -> Array | None:
        """Operands of a pointwise node behind each branch as that of one behind all; None if there
        is none. Between branches they are `fill`."""
        return _broadcast(arrays, self.shapes, self.padded, fill)

    def between(self, arrays: Sequence[Array], fill: float) -> Array | None:
        """The number that such a constant has between branches, if it is one: `fill`, or what is
        the same in all branches."""
        first = arrays[0].reshape(-1)[:1]
        if all(array.size == 1 and array.reshape(-1) == first for array in arrays):
            return first.reshape(())
        rank = len(self.shapes[0])
        of_channels = all(_channels(array, rank) == array.size for array in arrays)
        return np.array(fill, first.dtype) if of_channels else None

    def emit_branch(
        self, rewriter: Rewriter, value: str, number: int, node: Node, lane: float
    ) -> None:
        """Emit what `node` gave, that of branch `number`, as channels of the joint `value`.

        `lane` is what lies between branches.
        """
        counts = [shape[1] for shape in self.shapes]
        ends = accumulate(map(sum, zip(counts, self.padded, strict=True)), initial=0)
        attributes = {
            "start": list(ends)[number],
            "count": counts[number],
            "padding": self.padded[number],
            "lane": lane,
        }
        rewriter.emit("channels", (value,), attributes, like=node, output=node.output)


def _side_by_side(arrays: Sequence[Array], axis: int, padded: Sequence[int], fill: float) -> Array:
    parts = []
    for array, count in zip(arrays, padded, strict=True):
        parts.append(array)
        if count:
            shape = (*array.shape[:axis], count, *array.shape[axis + 1 :])
            parts.append(np.full(shape, fill, array.dtype))
    return np.concatenate(parts, axis)


def _broadcast(
    arrays: Sequence[Array],
    shapes: Sequence[Shape],
    padded: Sequence[int],
    fill: float,
) -> Array | None:
    """Operands of nodes of these shapes as that of one node, side by side along their channels."""
    rank, axis = len(shapes[0]), 1
    if len({array.dtype for array in arrays}) != 1 or any(array.ndim > rank for array in arrays):
        return None
    aligned = [array.reshape((1,) * (rank - array.ndim) + array.shape) for array in arrays]
    if len({(*array.shape[:axis], *array.shape[axis + 1 :]) for array in aligned}) != 1:
        return None
    first = aligned[0]
    same = all(array.shape == first.shape and np.array_equal(array, first) for array in aligned)
    if same and first.shape[axis] == 1:
        return arrays[0]
    wide = [
        np.broadcast_to(array, (*array.shape[:axis], shape[axis], *array.shape[axis + 1 :]))
        for array, shape in zip(aligned, shapes, strict=True)
    ]
    return _side_by_side(wide, axis, padded, fill)


def _channels(array: Array, rank: int) -> int:
    """The extent of the axis 1 once the array has as many axes as `rank`."""
    return array.shape[1 - rank] if array.ndim >= rank - 1 else 1


def run(
    graph: Graph,
    block: int | None = None,
    plan: GraphPlan = DEFAULT_PLAN,
    joint: dict[str, str] | None = None,
) -> Graph:
    """The graph with the convolutions merged that `plan` says.

    Channels of a branch are padded to whole blocks of `block` where they may run on blocked data.
    `joint` comes to know what is computed for all branches and replaces a value that is not any
    more. Raises PlanError for what cannot be merged.
    """
    for decision in plan.of(Merged):
        graph = _merged(graph, decision, block, {} if joint is None else joint)
    return graph


def followed(plan: GraphPlan, joint: Mapping[str, str]) -> GraphPlan:
    """The plan for the graph after merging: what replaces several values lies as that of the first
    branch does."""
    if not joint:
        return plan
    layouts: dict[str, Layout] = {}
    own = sorted(plan.of(Layout), key=lambda item: not _is_first(item.value, joint))
    for decision in own:
        value = joint.get(decision.value, decision.value)
        layouts.setdefault(value, replace(decision, value=value))
    others = (item for item in plan.decisions if not isinstance(item, Layout))
    return GraphPlan((*others, *layouts.values()))


def _is_first(value: str, joint: Mapping[str, str]) -> bool:
    return value not in joint or joint[value] == _joint_name(value)


def _joint_name(first: str) -> str:
    """What is computed for all branches is called after the first one's value."""
    return f"{first}_merged"


def alike(graph: Graph, node: Node) -> tuple[object, ...]:
    """What has to be the same in all convolutions that are merged, but for their data: attributes,
    types, and the shapes of weights without their outputs."""
    weight = graph.types[node.inputs[1]]  # no bias is one of 0
    attributes = tuple(complete_attributes(node).items())
    return attributes, graph.types[node.output].dtype, weight.dtype, weight.shape[1:]


def unmergeable(graph: Graph, nodes: Sequence[Node]) -> str:
    """Why these nodes cannot be merged; "" if they can."""
    first = nodes[0]
    for node in nodes:
        if node.operator != "conv":
            return f"{node.output!r} is made by {node.operator}, which cannot be merged"
        if any(name and name not in graph.constants for name in node.inputs[1:]):
            return f"{node.output!r} is a product with something that is no constant"
        if node.inputs[0] != first.inputs[0]:
            return f"{first.output!r} and {node.output!r} are not made of the same data"
        if alike(graph, node) != alike(graph, first):
            return f"{first.output!r} and {node.output!r} are made in different ways"
    attributes = complete_attributes(first)
    if attributes["groups"] != 1 or attributes["layout"] != "NCHW":
        return f"{first.output!r} has groups, or a layout"
    return ""


# --- one decision -------------------------------------------------------------------------------


def _merged(graph: Graph, decision: Merged, block: int | None, names: dict[str, str]) -> Graph:
    producers = {node.output: (at, node) for at, node in enumerate(graph.nodes)}
    for value in decision.values:
        if value not in producers:
            raise PlanError(f"{decision}: no node computes {value!r}")
    nodes = tuple(producers[value][1] for value in decision.values)
    problem = unmergeable(graph, nodes)
    if problem:
        raise PlanError(f"{decision}: {problem}")
    joint = JointChannels.of([graph.types[node.output].shape for node in nodes], block)
    merger = _Merger(graph, nodes, joint, names)
    return merger.run(min(producers[value][0] for value in decision.values))


@dataclass(frozen=True, slots=True)
class _Step:
    """Nodes of all branches that are alike, as one: constants by the number of their operand."""

    nodes: tuple[Node, ...]
    constants: dict[int, Array]
    lane: float


class _Merger:
    """Emits the graph with the branches `nodes` as one convolution."""

    def __init__(
        self,
        graph: Graph,
        nodes: tuple[Node, ...],
        joint: JointChannels,
        names: dict[str, str],
    ) -> None:
        self.graph, self.nodes, self.joint, self.names = graph, nodes, joint, names
        self.readers = consumers(graph)

    def run(self, at: int) -> Graph:
        """The graph whose joint convolution stands where the node number `at` does."""
        steps = self._alike()
        gone = {node.output for step in steps for node in step.nodes}
        gone |= {node.output for node in self.nodes}
        rewriter = Rewriter(self.graph)
        for number, node in enumerate(self.graph.nodes):
            if number == at:
                self._emit(rewriter, steps)
            if node.output not in gone:
                rewriter.keep(node)
        return rewriter.finish()

    # --- what is alike behind the convolutions ---------------------------------------------------

    def _alike(self) -> list[_Step]:
        steps: list[_Step] = []
        values, lane = tuple(node.output for node in self.nodes), 0.0
        while (step := self._step(values, lane)) is not None:
            steps.append(step)
            values, lane = tuple(node.output for node in step.nodes), step.lane
        return steps

    def _step(self, values: tuple[str, ...], lane: float) -> _Step | None:
        """The only readers of these values as one, or None."""
        types, outputs = self.graph.types, self.graph.outputs
        readers = [self.readers.get(value, []) for value in values]
        if any(len(found) != 1 for found in readers) or set(values) & set(outputs):
            return None
        nodes = tuple(found[0] for found in readers)
        first = nodes[0]
        definition = operator(first.operator)
        if definition.pattern is not Pattern.ELEMENTWISE:
            return None
        if len({node.output for node in nodes}) != len(nodes):
            return None
        for value, node in zip(values, nodes, strict=True):
            if node.operator != first.operator or len(node.inputs) != len(first.inputs):
                return None
            attributes = complete_attributes(node)
            if attributes != complete_attributes(first) or attributes.get("block"):
                return None  # of blocks of constants not each element has one
            same = types[node.output].dtype is types[first.output].dtype
            if not same or types[node.output].shape != types[value].shape:
                return None
        return self._with_constants(nodes, values, lane)

    def _with_constants(
        self, nodes: tuple[Node, ...], values: tuple[str, ...], lane: float
    ) -> _Step | None:
        """The nodes as one, if all that they read but these values are constants."""
        looked_up = operator(nodes[0].operator).looked_up
        constants: dict[int, tuple[Array, ...]] = {}
        for position, names in enumerate(zip(*(node.inputs for node in nodes), strict=True)):
            if names == values:
                continue
            arrays = tuple(self.graph.constants[n] for n in names if n in self.graph.constants)
            if len(arrays) != len(nodes) or (position == looked_up and len(set(names)) != 1):
                return None
            constants[position] = arrays
        for fill in (0.0, 1.0):
            joined = {
                position: arrays[0] if position == looked_up else self.joint.constant(arrays, fill)
                for position, arrays in constants.items()
            }
            known = {at: array for at, array in joined.items() if array is not None}
            padding = self._padding(nodes[0], constants, lane, fill)
            fits = len(known) == len(joined) and self._fits(nodes[0], known)
            if fits and padding is not None:
                return _Step(nodes, known, padding)
        return None

    def _fits(self, node: Node, constants: Mapping[int, Array]) -> bool:
        """Whether the node takes these constants, and gives what has the joint shape."""
        types = [
            TensorType(DType.from_numpy(constants[at].dtype), constants[at].shape)
            if at in constants
            else TensorType(self.graph.types[name].dtype, self.joint.shape)
            for at, name in enumerate(node.inputs)
        ]
        try:
            return infer_type(node, types).shape == self.joint.shape
        except ShapeError:
            return False

    def _padding(
        self, node: Node, constants: Mapping[int, Sequence[Array]], lane: float, fill: float
    ) -> float | None:
        """What lies between branches behind the node; None if that is not one finite number."""
        if not any(self.joint.padded):
            return 0.0
        operands: list[Array] = []
        for position, name in enumerate(node.inputs):
            number: Array | None = np.array(lane, self.graph.types[name].dtype.numpy)
            if position in constants:
                arrays = constants[position]
                looked_up = position == operator(node.operator).looked_up
                number = arrays[0] if looked_up else self.joint.between(arrays, fill)
            if number is None:
                return None
            operands.append(number)
        with np.errstate(all="ignore"):
            result = float(evaluate_node(node, tuple(operands)))
        return result if math.isfinite(result) else None

    # --- emission -------------------------------------------------------------------------------

    def _emit(self, rewriter: Rewriter, steps: Sequence[_Step]) -> None:
        value, lane = self._convolution(rewriter), 0.0
        last = self.nodes
        for step in steps:
            first, before = step.nodes[0], last[0].output
            inputs = tuple(
                value if name == before else rewriter.constant(step.constants[at], f"{name}_merged")
                for at, name in enumerate(first.inputs)
            )
            self.names.update((node.output, value) for node in last)
            name = rewriter.fresh(_joint_name(first.output))
            value = rewriter.emit(first.operator, inputs, first.attributes, like=first, output=name)
            last, lane = step.nodes, step.lane
        for number, node in enumerate(last):
            self.joint.emit_branch(rewriter, value, number, node, lane)

    def _convolution(self, rewriter: Rewriter) -> str:
        first, constants = self.nodes[0], self.graph.constants
        rows = [[constants.get(name) for name in node.inputs[1:]] for node in self.nodes]
        columns = map(self._present, zip_longest(*rows))
        joined = [self.joint.joined(arrays) for arrays in columns if arrays]
        hints = (*first.inputs[1:], f"{first.output}_bias")
        names = [
            rewriter.constant(array, f"{hint}_merged")
            for array, hint in zip(joined, hints, strict=False)
        ]
        inputs = rewriter.value(first.inputs[0]), *names
        name = rewriter.fresh(_joint_name(first.output))
        return rewriter.emit(first.operator, inputs, first.attributes, like=first, output=name)

    def _present(self, column: Sequence[Array | None]) -> list[Array]:
        """An operand of all branches, nothing if none has it; zeros where one has no bias."""
        if all(array is None for array in column):
            return []
        return [
            np.zeros(self.graph.types[node.output].shape[1], _dtype_of(column))
            if array is None
            else array
            for array, node in zip(column, self.nodes, strict=True)
        ]


def _dtype_of(column: Sequence[Array | None]) -> np.dtype[Any]:
    return next(array.dtype for array in column if array is not None)
