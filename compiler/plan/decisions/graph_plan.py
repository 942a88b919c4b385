"""GraphPlan: what the graph decides for its kernels, as data.

A plan is a tuple of decisions, each about values by the names that they have in the graph before
layouts are chosen. Where it says nothing, the rules of the passes decide: `DEFAULT_PLAN`, the plan
without a decision, is what they do alone. Printed, it reads like

    layout conv1 NCHW16c
    chain depthwise4

Passes apply decisions, each those of its kind, and raise `PlanError` for one that does not fit the
graph; so a plan that was applied is legal, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

from tunefarm.compiler.errors import PlanError

PLAIN = 0
"""The block of values that lie in rows, NCHW."""


RETIRED = frozenset(("merged", "separate", "spelled"))
"""Kinds of decisions that records of earlier versions may have: the rules decide there again."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The result `value` lies in blocks of `block` channels; PLAIN: it does not.

    A block of all channels is NHWC.
    """

    kind: ClassVar[str] = "layout"
    value: str
    block: int

    def __post_init__(self) -> None:
        if self.block < 0 or self.block == 1:
            raise PlanError(f"{self.value!r} cannot lie in blocks of {self.block} channels")

    def __str__(self) -> str:
        return f"layout {self.value} {f'NCHW{self.block}c' if self.block else 'NCHW'}"


@dataclass(frozen=True, slots=True)
class Chain:
    """The contraction or pool that makes `value` is computed in its reader's kernel, tile by tile.

    Its reader is one contraction or pool, which takes what lies between as well.
    """

    kind: ClassVar[str] = "chain"
    value: str

    def __str__(self) -> str:
        return f"chain {self.value}"


Decision: TypeAlias = Layout | Chain
_D = TypeVar("_D", Layout, Chain)


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """Decisions in a canonical order, each value once a kind. Raises PlanError for others."""

    decisions: tuple[Decision, ...] = ()

    def __post_init__(self) -> None:
        ordered = tuple(sorted(set(self.decisions), key=lambda item: (item.kind, str(item))))
        object.__setattr__(self, "decisions", ordered)
        seen: set[tuple[str, str]] = set()
        for decision in ordered:
            if (decision.kind, decision.value) in seen:
                raise PlanError(f"the plan decides {decision.kind} of {decision.value!r} twice")
            seen.add((decision.kind, decision.value))

    def of(self, kind: type[_D]) -> Iterator[_D]:
        """The decisions of one kind."""
        return (decision for decision in self.decisions if isinstance(decision, kind))

    def with_decisions(self, *decisions: Decision) -> GraphPlan:
        """The plan with these too; they replace what was decided of the same values."""
        new = {(item.kind, item.value) for item in decisions}
        kept = (item for item in self.decisions if (item.kind, item.value) not in new)
        return GraphPlan((*kept, *decisions))

    def to_json(self) -> list[dict[str, Any]]:
        """The decisions as JSON values."""
        return [_to_json(decision) for decision in self.decisions]

    @staticmethod
    def from_json(value: object) -> GraphPlan:
        """The plan that was written as these JSON values, without decisions of `RETIRED` kinds.

        Raises PlanError for anything else.
        """
        if not isinstance(value, list):
            raise PlanError(f"a plan is a list of decisions, not {value!r:.80}")
        return GraphPlan(tuple(_from_json(item) for item in value if not _is_retired(item)))

    def __str__(self) -> str:
        return "\n".join(map(str, self.decisions)) or "as the rules decide"


DEFAULT_PLAN = GraphPlan()
"""Decides nothing: the rules of each pass do."""


def _to_json(decision: Decision) -> dict[str, Any]:
    named: dict[str, Any] = {"decide": decision.kind}
    match decision:
        case Layout(value, block):
            return {**named, "value": value, "block": block}
        case Chain(value):
            return {**named, "value": value}


def _is_retired(value: object) -> bool:
    return isinstance(value, dict) and value.get("decide") in RETIRED


def _from_json(value: object) -> Decision:
    given = dict(value) if isinstance(value, dict) else {}
    match given.pop("decide", None), given:
        case "layout", {"value": str(name), "block": int(block), **others} if not others:
            return Layout(name, block)
        case "chain", {"value": str(name), **others} if not others:
            return Chain(name)
    raise PlanError(f"no decision of a plan: {value!r:.80}")
