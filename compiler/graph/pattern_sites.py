"""Where patterns are found in a graph, and those that are to stay as they are spelled."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.graph.ir import Graph


@dataclass(frozen=True, slots=True)
class PatternSite:
    """A pattern whose result is `value`: `operator` stands for all that makes the values `inside`.

    Those are in the order of the graph, the last is `value`.
    """

    value: str
    operator: str
    inside: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.operator} {self.value}"


class PatternSites:
    """What the recognising passes of one run over a graph have in common.

    Each of them reports the patterns that it finds and gets those that it may take: not those that
    end in a value of `spelled`, nor what shares a value with one of them.
    """

    def __init__(self, spelled: Iterable[str] = ()) -> None:
        self.spelled = frozenset(spelled)
        self.left: set[str] = set()
        self._found: dict[str, PatternSite] = {}

    @property
    def found(self) -> tuple[PatternSite, ...]:
        """All patterns in the order in which passes found them, each pass from first to last."""
        return tuple(self._found.values())

    def taken(self, graph: Graph, found: Iterable[PatternSite]) -> frozenset[str]:
        """The results of those of a pass's patterns that its operators may take the place of."""
        by_value = {site.value: site for site in found}
        ordered = [by_value[node.output] for node in graph.nodes if node.output in by_value]
        for site in ordered:
            self._found.setdefault(site.value, site)
            if site.value in self.spelled:
                self.left.update(site.inside)
        return frozenset(site.value for site in ordered if site.value not in self.spelled)

    def check(self) -> None:
        """Raise PlanError for a value that was to stay spelled where no pattern ends."""
        for value in sorted(self.spelled - self._found.keys()):
            near = difflib.get_close_matches(value, self._found, n=1)
            found = f"did you mean {near[0]}? " if near else ""
            raise PlanError(
                f"spelled {value}: no pattern ends in {value!r}",
                hint=f"{found}the plan is of another model, or of another compiler: plan it anew",
            )
