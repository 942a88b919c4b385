"""A model's graph as a job records it: its steps as the rules have them, and under its plan.

    {"rules": [["conv_relu", "ab12", "conv1", ["conv", "relu"], "NCHW16c", []], ...],
     "planned": [...]}

Name, key, value, operators, layout, and what it reads, as in a ProgramStep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunefarm.compiler.plan.choices.program_steps import ProgramStep
from tunefarm.tuner.records.json_values import from_json, named_rows

if TYPE_CHECKING:
    from tunefarm.tuner.records.model_latencies import ModelStep

MOST_STEPS = 20_000
MOST_OPERATORS = 200
"""Of a step that is recorded; the rest is left out."""
_MOST_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class ModelGraphs:
    """The steps by the rules, and those of the plan that is applied; nothing where none is."""

    rules: tuple[ProgramStep, ...]
    planned: tuple[ProgramStep, ...] = ()

    @property
    def applied(self) -> tuple[ProgramStep, ...]:
        """The steps that a build has."""
        return self.planned or self.rules

    def is_of(self, steps: Sequence[ModelStep]) -> bool:
        """Whether these are the applied steps, but for copies of memory."""
        return [step.key for step in steps if step.key] == [step.key for step in self.applied]

    def to_json(self) -> dict[str, Any]:
        """The graphs as JSON values."""
        return {"rules": _to_json(self.rules), "planned": _to_json(self.planned)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ModelGraphs:
        """The inverse of `to_json`. Raises ValueError or KeyError on any other JSON."""
        rows = {name: named_rows(ProgramStep, data[name]) for name in ("rules", "planned")}
        found = from_json(ModelGraphs, rows)
        for steps in (found.rules, found.planned):
            require_order([step.reads for step in steps])
        return found


def _to_json(steps: Sequence[ProgramStep]) -> list[Any]:
    return [
        [
            step.name[:_MOST_CHARACTERS],
            step.key,
            step.value[:_MOST_CHARACTERS],
            list(step.operators[:MOST_OPERATORS]),
            step.layout,
            list(step.reads),
        ]
        for step in steps[:MOST_STEPS]
    ]


def require_order(reads: Sequence[Sequence[int]]) -> None:
    """Raise ValueError unless every step reads from earlier ones alone."""
    for number, sources in enumerate(reads):
        if any(not 0 <= source < number for source in sources):
            raise ValueError(f"step {number} reads what is not written yet")
