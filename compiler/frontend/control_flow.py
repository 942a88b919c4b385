"""If, Loop and Scan: branches under conditions; loops, unrolled where that is little."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tunefarm.compiler.frontend.chosen_values import chosen
from tunefarm.compiler.frontend.graph_builder import GraphBuilder
from tunefarm.compiler.frontend.loop_forms import convert_loop, convert_scan
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.subgraphs import Results, Subgraphs, body_of, constant_bool

ControlFlow: TypeAlias = Callable[[OnnxNode, GraphBuilder, Subgraphs], Results | None]


def inline_if(node: OnnxNode, graph: GraphBuilder, inline: Subgraphs) -> Results | None:
    """The branch that a constant condition selects; else both, of whose results one is chosen."""
    condition = node.input(0)
    if condition.array is not None:
        taken = constant_bool(node, condition)
        return inline(body_of(node, "then_branch" if taken else "else_branch"), ())
    if condition.type.size != 1:
        raise node.bad_shape("the condition must have one element")
    condition = graph.reshape(condition, ())
    sides: list[Results | None] = []
    for name in ("then_branch", "else_branch"):
        first = graph.check_count
        sides.append(inline(body_of(node, name), ()))
        graph.only_where(condition, name == "then_branch", first)
    then, otherwise = sides
    if then is None or otherwise is None:
        return None
    if len(then) != len(otherwise):
        raise node.invalid(f"one branch has {len(then)} results, the other {len(otherwise)}")
    return [chosen(node, graph, condition, *sides) for sides in zip(then, otherwise, strict=True)]


CONTROL_FLOW: dict[str, ControlFlow] = {
    "If": inline_if,
    "Loop": convert_loop,
    "Scan": convert_scan,
}


def control_flow(domain: str, operator: str) -> ControlFlow | None:
    """The function that takes a control flow operator apart; None for other operators."""
    return None if domain else CONTROL_FLOW.get(operator)
