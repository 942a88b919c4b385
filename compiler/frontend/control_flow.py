"""If, Loop and Scan: branches under conditions; loops, unrolled where that is little."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tunefarm.compiler.errors import ImportModelError, LimitError, UnsupportedOperatorError
from tunefarm.compiler.frontend.chosen_values import chosen
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
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
    sides = [_branch(node, graph, inline, condition, taken) for taken in (True, False)]
    then, otherwise = sides
    if isinstance(then, ImportModelError):
        if isinstance(otherwise, ImportModelError):
            raise then
        return otherwise
    if isinstance(otherwise, ImportModelError):
        return then
    if then is None or otherwise is None:
        return None
    if len(then) != len(otherwise):
        raise node.invalid(f"one branch has {len(then)} results, the other {len(otherwise)}")
    return [chosen(node, graph, condition, *sides) for sides in zip(then, otherwise, strict=True)]


def _branch(
    node: OnnxNode, graph: GraphBuilder, inline: Subgraphs, condition: Value, taken: bool
) -> Results | ImportModelError | None:
    """The results of the branch that runs if the condition is `taken`, or why there can be none.

    What a branch asks of sizes binds the runs that take it, and no others: so does a branch that
    these sizes do not allow. What no size would fix is recorded as a problem of the model.
    """
    body = body_of(node, "then_branch" if taken else "else_branch")
    first, equalities = graph.check_count, graph.run_time.equality_count
    try:
        results = inline.attempt(lambda: inline(body, ()))
    except UnsupportedOperatorError:
        return inline(body, ())
    except LimitError:
        raise
    except ImportModelError as error:
        flag = condition if taken else graph.emit("not", condition)
        reason = f"{node.label} takes a branch that these sizes do not allow"
        graph.require(flag, graph.origin(condition), f"{reason}: {error}")
        return error
    graph.check_equalities(graph.run_time.take_equalities(equalities))
    graph.only_where(condition, taken, first)
    return results


CONTROL_FLOW: dict[str, ControlFlow] = {
    "If": inline_if,
    "Loop": convert_loop,
    "Scan": convert_scan,
}


def control_flow(domain: str, operator: str) -> ControlFlow | None:
    """The function that takes a control flow operator apart; None for other operators."""
    return None if domain else CONTROL_FLOW.get(operator)
