"""Problems of a plan: what may be decided of one kind, and what of it has the lowest cost.

A problem is solved for costs of kernels by workload key, again and again as more of them are known.
Each solution says which kernels the model has then, so that a search knows what to measure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tunefarm.compiler.plan.decisions.graph_plan import Decision, GraphPlan
from tunefarm.tuner.plans.programs import Programs


class Kind(StrEnum):
    """What is decided, as people are told; OWN is nothing: kernels of the model as it is."""

    OWN = ""
    CHAINS = "chains"
    MERGES = "merges"


Seconds: TypeAlias = Callable[[str], float]
"""What a call of the kernel with a workload key takes."""


def certain(key: str) -> float:
    """No doubt about any cost."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Solved:
    """Decisions, and the kernels that decide between them and others: calls by workload key."""

    decisions: tuple[Decision, ...]
    calls: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Part:
    """Decisions that can be taken on top of others: what they change of the program without them.

    `calls` are those of kernels that come (above 0) and go (below); `touches` the values whose
    kernels change.
    """

    decisions: tuple[Decision, ...]
    calls: Mapping[str, int]
    touches: frozenset[str]

    def gain(self, seconds: Seconds) -> float:
        """Seconds of a run that it saves."""
        return -total(self.calls, seconds)

    def doubt(self, doubt: Seconds) -> float:
        """The standard deviation of that, `doubt` being those of kernels."""
        return math.hypot(*(count * doubt(key) for key, count in self.calls.items()))

    def contradicts(self, other: Part) -> bool:
        """Whether both change the same kernels, so that what they gain cannot be added."""
        return bool(self.touches & other.touches)

    def __str__(self) -> str:
        return ", ".join(map(str, self.decisions))


@dataclass(frozen=True, slots=True)
class LocalParts:
    """Parts of which any may be taken that do not contradict each other."""

    kind: Kind
    parts: Sequence[Part]

    @property
    def size(self) -> int:
        """How many parts there are."""
        return len(self.parts)

    def solve(self, seconds: Seconds, doubt: Seconds = certain) -> Solved:
        """The parts that gain most together, each more than the `doubt`: a cost's standard
        deviation, in seconds."""
        chosen = chosen_parts(self.parts, seconds, doubt)
        calls: Counter[str] = Counter()
        for part in chosen:
            for key, count in part.calls.items():
                calls[key] += abs(count)
        return Solved(tuple(item for part in chosen for item in part.decisions), calls)


def chosen_parts(parts: Sequence[Part], seconds: Seconds, doubt: Seconds = certain) -> list[Part]:
    """Of parts that gain more than is in doubt those that gain most, in their order: of some that
    contradict each other, which are few and within one kernel, the best.

    Of many candidates the one that seems best owes some of it to luck.
    """
    gains = [part.gain(seconds) - part.doubt(doubt) for part in parts]
    found: list[int] = []
    for number in sorted(range(len(parts)), key=lambda number: (-gains[number], number)):
        rivals = (parts[number].contradicts(parts[other]) for other in found)
        if gains[number] > 0.0 and not any(rivals):
            found.append(number)
    return [parts[number] for number in sorted(found)]


def total(calls: Mapping[str, int], seconds: Seconds) -> float:
    """Seconds of these calls; infinity if one of those that come does not work at all."""
    known = [(count, seconds(key)) for key, count in calls.items() if count]
    if any(count > 0 and math.isinf(each) for count, each in known):
        return math.inf
    if any(math.isinf(each) for _, each in known):
        return -math.inf  # what does not work goes
    return math.fsum(count * each for count, each in known)


def parts_of(
    programs: Programs,
    base: GraphPlan,
    candidates: Iterable[tuple[Decision, ...]],
    is_late: Callable[[], bool] = lambda: False,
) -> list[Part]:
    """What each of these decisions changes by itself of the program under `base`.

    Those that do not fit, or change nothing, are left out, and all when it `is_late`.
    """
    without = programs.of(base)
    found: dict[tuple[frozenset[str], tuple[tuple[str, int], ...]], Part] = {}
    for decisions in candidates:
        if is_late():
            break
        program = programs.fitting(base.with_decisions(*decisions))
        if program is None:
            continue
        calls = {
            key: count
            for key in dict.fromkeys((*without.calls, *program.calls))
            if (count := program.calls.get(key, 0) - without.calls.get(key, 0))
        }
        if calls:
            touches = program.changed_from(without)
            found.setdefault((touches, tuple(calls.items())), Part(decisions, calls, touches))
    return list(found.values())
