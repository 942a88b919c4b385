"""Relatives: kernels of the same kind, whose best schedules are worth a try.

Kernels are the nearer the less the logarithms of their facts (extents, operations, bytes) differ. A
relative's choices carry over value by value: what this kernel's space does not have becomes the
nearest that it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.space import Candidate, Choice, ScheduleSpace
from tunefarm.tuner.model.features import kernel_facts

NEAREST = 2  # relatives that a search starts from


class Known(NamedTuple):
    """A kernel and the choices of its best schedule; `record` is that record's number, if any."""

    kernel: FusedKernel
    sketch: str
    choices: Mapping[str, Any]
    record: int | None = None


class _Task(Protocol):
    kernel: FusedKernel
    space: ScheduleSpace

    @property
    def best_candidate(self) -> Candidate | None: ...


def relatives_bests(task: _Task, others: Iterable[_Task]) -> list[Candidate]:
    """The best schedules so far of the nearest among other tasks, as candidates of this one's."""
    known = []
    for other in others:
        best = None if other is task else other.best_candidate
        if best is not None:
            known.append(Known(other.kernel, best.sketch, other.space.choices(best)))
    return list(nearest_bests(task.kernel, task.space, known))


def nearest_bests(
    kernel: FusedKernel, space: ScheduleSpace, known: Iterable[Known], count: int = NEAREST
) -> dict[Candidate, Known]:
    """The best schedules of the `count` nearest relatives in `known`, nearest first, and which
    relative each one is from."""
    related = [item for item in known if is_related(kernel, item.kernel)]
    related.sort(key=lambda item: distance(kernel, item.kernel))
    found: dict[Candidate, Known] = {}
    for item in related:
        candidate = carried_over(item.sketch, item.choices, space)
        if candidate is not None:
            found.setdefault(candidate, item)
        if len(found) == count:
            break
    return found


def is_related(left: FusedKernel, right: FusedKernel) -> bool:
    """The anchors are the same computation: equal axes by name, whatever their extents."""
    a, b = left.stage(left.anchor), right.stage(right.anchor)
    return (
        [axis.name for axis in a.axes] == [axis.name for axis in b.axes]
        and [axis.name for axis in a.reduce_axes] == [axis.name for axis in b.reduce_axes]
        and a.dtype == b.dtype
    )


def distance(left: FusedKernel, right: FusedKernel) -> float:
    """Sum of the differences of the kernels' facts, as log2 of their ratios."""
    pairs = zip(kernel_facts(left), kernel_facts(right), strict=True)
    return sum(abs(math.log2((1.0 + a) / (1.0 + b))) for a, b in pairs)


def carried_over(
    sketch_name: str, choices: Mapping[str, Any], space: ScheduleSpace
) -> Candidate | None:
    """The candidate with the nearest choices, or None if the space has no such sketch.

    A choice that the relative did not have gets the default's value.
    """
    for sketch in space.sketches:
        if sketch.name == sketch_name:
            positions = tuple(
                _nearest(choice, choices.get(choice.name, preferred), preferred)
                for choice, preferred in zip(sketch.choices, sketch.default, strict=True)
            )
            return Candidate(sketch_name, positions)
    return None


def _nearest(choice: Choice, value: Any, preferred: Any) -> int:
    """Position of the value in the domain that is nearest to `value`."""
    value = tuple(value) if isinstance(value, list) else value
    if value in choice.values:
        return choice.values.index(value)
    wanted = _logarithms(value)
    distances = []
    for item in choice.values:
        here = _logarithms(item)
        if wanted is None or here is None or len(here) != len(wanted):
            return choice.values.index(preferred)
        distances.append(sum(abs(a - b) for a, b in zip(here, wanted, strict=True)))
    return distances.index(min(distances))


def _logarithms(value: Any) -> Sequence[float] | None:
    items = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(item, int) and item >= 0 for item in items):
        return None
    return [math.log2(1.0 + item) for item in items]
