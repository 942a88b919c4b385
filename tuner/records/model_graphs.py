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
        """The inverse of `to_json`. Raises ValueError on any other JSON."""
        try:
            return ModelGraphs(_steps(data["rules"]), _steps(data["planned"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no graph of a model: {type(error).__name__}") from error


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


def _steps(items: Any) -> tuple[ProgramStep, ...]:
    if not isinstance(items, list) or len(items) > MOST_STEPS:
        raise ValueError("no list of steps")
    return tuple(_step(number, item) for number, item in enumerate(items))


def _step(number: int, item: Any) -> ProgramStep:
    name, key, value, operators, layout, reads = item
    if not isinstance(operators, list) or len(operators) > MOST_OPERATORS:
        raise ValueError("no list of operators")
    if not isinstance(reads, list) or not all(_is_before(read, number) for read in reads):
        raise ValueError(f"step {number} reads what is not written yet")
    names = tuple(map(_text, operators))
    return ProgramStep(_text(name), _text(key), _text(value), names, _text(layout), tuple(reads))


def _is_before(read: Any, number: int) -> bool:
    return isinstance(read, int) and not isinstance(read, bool) and 0 <= read < number


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:
        raise ValueError("no text")
    return value
