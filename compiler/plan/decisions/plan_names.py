"""Values of the graph before layouts, found again in the graph that kernels are extracted from.

Decisions name values as they are before layouts are chosen. Later passes give a value other forms,
which have its name and what they are: `conv` lies in blocks as `conv_blocked`, in narrow floats
as `conv_bf16`, in both as `conv_blocked_bf16`; a number at the end makes a name that was taken
another one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.decisions.graph_plan import Decision
from tunefarm.compiler.types.node import Node

_FORM = re.compile(r"_(blocked|bf16|f16)(_\d+)?$")


class PlanNames:
    """Answers which nodes of a graph make the values that decisions name."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._producers = {node.output: node for node in graph.nodes}
        self._forms: dict[str, list[str]] = {}
        for node in graph.nodes:
            for value in _formed_from(node.output):
                self._forms.setdefault(value, []).append(node.output)

    def node(self, value: str) -> Node | None:
        """The node that computes a value, whatever form that has by now; None if none does.

        What only turns one form into another does not compute it.
        """
        if value in self.graph.inputs or value in self.graph.constants:
            return None
        forms = self._forms.get(value, [])
        node = self._producers.get(value)
        if node is None:
            return self._producers[forms[0]] if forms else None
        while node.inputs and node.inputs[0] in forms:
            node = self._producers[node.inputs[0]]
        return node

    def value(self, node: Node, known: Collection[str]) -> str | None:
        """The value of these `known` ones that a node computes; None if it is none of them."""
        forms = (node.output, *_formed_from(node.output))
        found = next((name for name in forms if name in known), None)
        return found if found is not None and self.node(found) == node else None

    def unknown(self, decision: Decision, value: str) -> PlanError:
        """The error of a decision about a value that no node computes."""
        plain = {_formed_from(name)[-1] if _formed_from(name) else name for name in self._producers}
        return unknown_value(decision, value, (*self._producers, *sorted(plain)))


def unknown_value(decision: Decision, value: str, known: Iterable[str]) -> PlanError:
    """The error of a decision about a value that is none of the `known` ones."""
    near = difflib.get_close_matches(value, list(known), n=1)
    found = f"did you mean {near[0]!r}? " if near else ""
    return PlanError(
        f"{decision}: no node computes {value!r}",
        hint=f"{found}the plan is of another model, or of another compiler: plan it anew",
    )


def _formed_from(name: str) -> tuple[str, ...]:
    """What a value of this name may be a form of, the nearest first."""
    found: list[str] = []
    while match := _FORM.search(name):
        name = name[: match.start()]
        found.append(name)
    return tuple(found)
