"""Schedules and choices in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunefarm.tuner.pages.packed import shortened

_MOST_CHARACTERS = 60


def choices_text(choices: Mapping[str, Any]) -> str:
    """The choices of a candidate: `tile 4x2, unroll 4`."""
    return ", ".join(f"{name} {value_text(value)}" for name, value in choices.items())


def value_text(value: Any) -> str:
    """A value of a choice."""
    if isinstance(value, list | tuple):
        return shortened("x".join(map(str, value)), _MOST_CHARACTERS)
    return shortened(str(value), _MOST_CHARACTERS)


def steps_text(schedule: Any) -> list[str]:
    """The steps of a recorded schedule, one a line: a name and its arguments."""
    if not isinstance(schedule, list):
        return [shortened(str(schedule), 200)]
    return [_step(step) for step in schedule]


def _step(step: Any) -> str:
    if isinstance(step, list) and step:
        name, *arguments = step
        return f"{name} {' '.join(map(value_text, arguments))}".strip()
    return shortened(str(step), 200)
