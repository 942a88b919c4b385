"""How control flow has the graphs converted that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from onnx import GraphProto

from tunefarm.compiler.frontend.graph_builder import Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.structured_values import Entity
from tunefarm.compiler.frontend.tensors import initializers

Results: TypeAlias = Sequence[Entity | None]


class Subgraphs(Protocol):
    """Converts the subgraphs of one node."""

    def __call__(self, graph: GraphProto, inputs: Results, /) -> Results | None:
        """A subgraph's results for these inputs; None when a recorded problem hides them."""

    def attempt(self, make: Callable[[], Results | None], /) -> Results | None:
        """What `make` gives.

        Raises ImportModelError, the graph being as it was before, if it meets any problem.
        """


def body_of(node: OnnxNode, name: str) -> GraphProto:
    """The graph that an attribute of a node is, with the inputs alone that the node passes.

    Before IR version 4 a graph lists its initializers among its inputs.
    """
    body = node.attributes.get(name)
    if not isinstance(body, GraphProto):
        raise node.invalid(f"the attribute {name} is no graph")
    initialized = initializers(body)
    passed = [info for info in body.input if info.name not in initialized]
    if len(passed) == len(body.input):
        return body
    whole = GraphProto()
    whole.CopyFrom(body)
    del whole.input[:]
    whole.input.extend(passed)
    return whole


def constant_bool(node: OnnxNode, condition: Value) -> bool:
    """A condition that is known."""
    if condition.array is None:
        raise node.unsupported("a condition that is computed at run time")
    if condition.array.size != 1:
        raise node.bad_shape("the condition must have one element")
    return bool(condition.array.reshape(-1)[0])
