"""Reasons: which choices of a kernel's schedule are others than the default one's."""

from __future__ import annotations

import math

from tunefarm.compiler.schedule.space import ChoiceValue
from tunefarm.db.records import TrialRecord
from tunefarm.tuner.search.tasks import TuningTask

_NAMED = 3  # choices, those that matter most
_MATTERS = 0.005  # log of time: smaller differences of single trials say nothing


def reason(task: TuningTask, applied: TrialRecord) -> str:
    """Why a task's schedule is faster than its default one, in words: the choices that differ.

        tile 7x2 instead of 14x2 (6 % slower without), unroll 4 instead of 8

    A choice of which the search has measured what its default value costs, all else being the same,
    comes first, the one that costs most before the others. "" for the default schedule, and for one
    that is no point of the space any more.
    """
    default = task.default.candidate
    if applied.schedule_hash == task.default.hash:
        return ""
    if applied.sketch != default.sketch:
        return f"{applied.sketch} instead of {default.sketch}"
    found = task.space.find(applied.sketch, applied.choices)
    if found is None:
        return ""
    before, now = task.space.choices(default), task.space.choices(found)
    costs = {name: _cost(task, applied, name) for name in now if now[name] != before[name]}
    names = sorted(costs, key=lambda name: -costs[name])
    texts = [
        f"{name} {_text(now[name])} instead of {_text(before[name])}{_without(costs[name])}"
        for name in names[:_NAMED]
    ]
    left = len(names) - len(texts)
    return ", ".join([*texts, f"{left} more"] if left else texts)


def _cost(task: TuningTask, applied: TrialRecord, name: str) -> float:
    """log of the time with one choice as the default schedule has it, over that of what is applied;
    0 where that was not measured."""
    value = task.space.choices(task.default.candidate)[name]
    other = task.space.find(applied.sketch, {**applied.choices, name: value})
    if other is None:
        return 0.0
    own = task.known.get(applied.schedule_hash, math.inf)
    seconds = task.known.get(task.plan(other).hash, math.inf)
    return math.log(seconds / own) if 0.0 < own < math.inf and 0.0 < seconds < math.inf else 0.0


def _without(cost: float) -> str:
    return f" ({100.0 * math.expm1(cost):.0f} % slower without)" if cost > _MATTERS else ""


def _text(value: ChoiceValue) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
