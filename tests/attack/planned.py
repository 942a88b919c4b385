"""Drawn networks under drawn plans must give what onnxruntime gives, those with symbols as well.

Five hundred of them:

    python -m tests.attack plans --attempts 500 --seconds 7200 --seed 0
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tests.attack.attack import Outcome
from tests.attack.drawn_model import Array, Drawn
from tests.attack.drawn_networks import draw_network
from tests.attack.drawn_plans import drawn_plan
from tests.attack.graphs import Graphs, threads_of
from tests.attack.sized import Sized
from tests.attack.sized_drawing import SizedDrawn
from tests.attack.targets import drawn_target
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.plan.decisions.graph_plan import GraphPlan
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.extents import Shapes

AS_BY_RULES = "wrong or refused by the rules as well"


class Plans(Graphs):
    """Draws a network and a plan that fits it, and asks onnxruntime about the network."""

    name: ClassVar[str] = "plans"
    share: ClassVar[float] = 1.0

    def minimise(self, seed: int, outcome: Outcome) -> str:
        """The least model that breaks under its own plan of this seed, and that of the whole."""
        return f"{super().minimise(seed, outcome)}\nthe whole network's plan:\n{self.plan(seed)}"

    def plan(self, seed: int) -> GraphPlan:
        """The plan of this seed, of its whole network."""
        path = self.folder / "planned.onnx"
        path.write_bytes(draw_network(seed).proto().SerializeToString())
        return drawn_plan(import_onnx(path), drawn_target(seed), seed)

    @classmethod
    def drawn(cls, seed: int) -> Drawn:
        """The network of this seed."""
        return draw_network(seed)

    @classmethod
    def run(cls, path: Path, inputs: Mapping[str, Array], seed: int) -> list[Array]:
        """The outputs of what is built under a plan of this seed."""
        built = _built(path, None, drawn_target(seed), seed)
        return list(built.run(dict(inputs)).values())


class SizedPlans(Sized):
    """Draws a model with symbols and a plan that fits it."""

    name: ClassVar[str] = "sized-plans"
    share: ClassVar[float] = 1.0

    _by_rules = False

    def built(self, path: Path, shapes: Shapes, seed: int) -> Executable:
        """The model under a plan of this seed."""
        if self._by_rules:
            return super().built(path, shapes, seed)
        return _built(path, shapes, drawn_target(seed), seed)

    def _ask(self, drawn: SizedDrawn, seed: int) -> Outcome:
        """What goes wrong by the rules as well is none of the plan's."""
        outcome = super()._ask(drawn, seed)
        if not outcome.broke:
            return outcome
        self._by_rules = True
        try:
            ruled = super()._ask(drawn, seed)
        finally:
            self._by_rules = False
        return Outcome(AS_BY_RULES) if ruled.label == outcome.label else outcome


def _built(path: Path, shapes: Shapes | None, target: Target, seed: int) -> Executable:
    graph = import_onnx(path, shapes)
    plan = drawn_plan(graph, target, seed)
    built = compile_model(graph, target=target, threads=threads_of(seed), plan=plan)
    return Executable(built.spec)
