"""Drawn networks under drawn plans must give what onnxruntime gives.

Five hundred of them:

    python -m tests.attack plans --attempts 500 --seconds 7200 --seed 0
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from compiler.frontend.import_onnx import import_onnx
from compiler.pipeline import compile_model
from compiler.plan.graph_plan import GraphPlan
from compiler.runtime.executable import Executable
from compiler.target import host_target
from tests.attack.attack import Outcome
from tests.attack.drawn_model import Array, Drawn
from tests.attack.drawn_networks import draw_network
from tests.attack.graphs import Graphs, threads_of
from tests.compiler.plan.drawn_plans import drawn_plan


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
        return drawn_plan(import_onnx(path), host_target(), seed)

    @classmethod
    def drawn(cls, seed: int) -> Drawn:
        """The network of this seed."""
        return draw_network(seed)

    @classmethod
    def run(cls, path: Path, inputs: Mapping[str, Array], seed: int) -> list[Array]:
        """The outputs of what is built under a plan of this seed."""
        graph, target = import_onnx(path), host_target()
        plan = drawn_plan(graph, target, seed)
        built = compile_model(graph, target=target, threads=threads_of(seed), plan=plan)
        return list(Executable(built.spec).run(dict(inputs)).values())
