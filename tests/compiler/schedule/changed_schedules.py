"""Schedules with steps dropped, doubled, swapped, altered and added, as no sketch makes them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.step import STEPS, Step

_WORDS = (("peel", "shift", "mask"), ("stack", "register", "workspace"))
_NUMBERS = (-1, 0, 1, 2, 3, 4, 5, 7, 100)


def changed(kernel: FusedKernel, schedule: Schedule, rng: random.Random) -> Schedule:
    """The schedule after one to three changes."""
    steps = list(schedule.steps)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(_CHANGES) if steps else _add
        change(steps, _names(kernel, steps), rng)
    return Schedule(tuple(steps))


def _drop(steps: list[Step], names: Sequence[str], rng: random.Random) -> None:
    steps.pop(rng.randrange(len(steps)))


def _double(steps: list[Step], names: Sequence[str], rng: random.Random) -> None:
    steps.insert(rng.randrange(len(steps) + 1), rng.choice(steps))


def _swap(steps: list[Step], names: Sequence[str], rng: random.Random) -> None:
    one, other = rng.randrange(len(steps)), rng.randrange(len(steps))
    steps[one], steps[other] = steps[other], steps[one]


def _alter(steps: list[Step], names: Sequence[str], rng: random.Random) -> None:
    position = rng.randrange(len(steps))
    step = steps[position]
    if not fields(step):  # a step that says all by being there
        return
    name = rng.choice(fields(step)).name
    arguments: dict[str, Any] = {name: _other(getattr(step, name), names, rng)}
    steps[position] = replace(step, **arguments)


def _add(steps: list[Step], names: Sequence[str], rng: random.Random) -> None:
    kind = rng.choice(sorted(STEPS.values(), key=lambda kind: kind.__name__))
    made: dict[str, Callable[[], Any]] = {
        "str": lambda: rng.choice([*names, "new"]),
        "int": lambda: rng.choice(_NUMBERS),
        "bool": lambda: rng.random() < 0.5,
        "tuple[str, ...]": lambda: tuple(rng.sample(names, rng.randrange(min(4, len(names))))),
        "tuple[int, ...]": lambda: tuple(rng.sample(range(3), 3)[: rng.randrange(4)]),
        "tuple[tuple[int, int], ...]": lambda: ((0, 2),)[: rng.randrange(2)],
    }
    arguments = [
        rng.choice(choices)
        if (choices := next((words for words in _WORDS if field.default in words), None))
        else made[str(field.type)]()
        for field in fields(kind)
    ]
    steps.insert(rng.randrange(len(steps) + 1), kind(*arguments))


_CHANGES: tuple[Callable[[list[Step], Sequence[str], random.Random], None], ...] = (
    *(_drop, _double, _swap, _add),
    *(_alter, _alter),
)


def _other(value: Any, names: Sequence[str], rng: random.Random) -> Any:
    """Another value of the type of an argument, more often than not one that means something."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, value * 2, value // 2, *_NUMBERS))
    if isinstance(value, str):
        words = next((words for words in _WORDS if value in words), names)
        return rng.choice((*words, value + ".o", value + ".i"))
    items = list(value)
    change = rng.randrange(4) if items else 4
    if change == 0:
        rng.shuffle(items)
    elif change == 1:
        items.pop(rng.randrange(len(items)))
    elif change == 2:
        items.insert(rng.randrange(len(items) + 1), rng.choice(items))
    elif change == 3:
        position = rng.randrange(len(items))
        items[position] = _other(items[position], names, rng)
    return tuple(items)


def _names(kernel: FusedKernel, steps: Sequence[Step]) -> list[str]:
    """Stages, axes and inputs of the kernel, and whatever the steps mention."""
    names = [buffer.name for buffer in kernel.inputs]
    for stage in kernel.stages:
        names += [stage.name, *(axis.name for axis in (*stage.axes, *stage.reduce_axes))]
    for step in steps:
        for field in fields(step):
            value = getattr(step, field.name)
            items = value if isinstance(value, tuple) else (value,)
            names += [item for item in items if isinstance(item, str)]
    return names
