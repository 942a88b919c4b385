"""Which colour a layout has in the drawings of models: the commonest always the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tunefarm.compiler.plan.choices.program_steps import CHANNELS_LAST, PLAIN_LAYOUT

_FIXED = (PLAIN_LAYOUT, CHANNELS_LAST, "NCHW16c", "NCHW8c", "NCHW32c", "NCHW4c")
COLOURS = 10
"""That there are; layouts beyond that share the last one."""
NONE = "ln"
"""The class of what gives nothing of a layout, as a copy of memory."""


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A layout, the class of its colour, and how many steps have it: by the rules, and applied."""

    layout: str
    colour: str
    rules: int
    applied: int


def colours_of(layouts: Iterable[str]) -> dict[str, str]:
    """The class of each layout: "l0" to "l9"."""
    others = [name for name in dict.fromkeys(layouts) if name not in _FIXED]
    names = (*_FIXED, *others)
    return {name: f"l{min(number, COLOURS - 1)}" for number, name in enumerate(names)}


def legend_of(
    rules: Iterable[str], applied: Iterable[str], colours: Mapping[str, str]
) -> tuple[LegendEntry, ...]:
    """The layouts that steps have, the commonest of those that are applied first."""
    before, after = Counter(rules), Counter(applied)
    names = sorted({*before, *after}, key=lambda name: (-after[name], -before[name], name))
    return tuple(LegendEntry(name, colours[name], before[name], after[name]) for name in names)
