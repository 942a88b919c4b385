"""A schedule: steps in order, and as JSON; and what a build asks a tuner for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeAlias, get_args, get_type_hints

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.limb_dot import ROUNDED
from tunefarm.compiler.schedule.steps.kernel_forms import BlockAttention, DigitSums, Winograd
from tunefarm.compiler.schedule.steps.matrix_tiles import MatrixTiles
from tunefarm.compiler.schedule.steps.step import STEPS, Step
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.numerics import Algorithm


@frozen
class Schedule:
    """A tuple of steps, applied in order."""

    steps: tuple[Step, ...]

    @property
    def algorithm(self) -> Algorithm:
        """How the kernel's anchor is computed."""
        sizes = [step.m for step in self.steps if isinstance(step, Winograd)]
        if any(isinstance(step, BlockAttention) and step.online for step in self.steps):
            return Algorithm.ONLINE_SOFTMAX
        for step in self.steps:
            if isinstance(step, DigitSums):
                return Algorithm.ROUNDED_DATA if step.digits == ROUNDED else Algorithm.DIGITS
        return Algorithm.winograd(sizes[0]) if sizes else Algorithm.DIRECT

    @property
    def uses_tiles(self) -> bool:
        """Matrix tiles have to be set up before the kernel runs."""
        return any(isinstance(step, MatrixTiles) for step in self.steps)

    def to_json(self) -> list[Any]:
        """The steps as `[kind, argument, ...]` lists of JSON values.

        Trailing arguments that have their default value are left out, so that a schedule's JSON
        stays the same when a step gets a new optional argument.
        """
        return [[type(step).__name__, *_arguments(step)] for step in self.steps]

    @staticmethod
    def from_json(data: Sequence[Any]) -> Schedule:
        """The inverse of `to_json`; `ScheduleError` for a step that this version does not know."""
        steps = []
        for entry in data:
            if not isinstance(entry, list | tuple) or not entry or entry[0] not in STEPS:
                raise ScheduleError(f"unknown schedule step {entry!r}")
            kind = STEPS[entry[0]]
            arguments = [_tuples(argument) for argument in entry[1:]]
            types = _argument_types(entry[0])
            if len(arguments) > len(types):
                raise ScheduleError(f"schedule step {entry[0]} has too many arguments: {entry!r}")
            for value, (name, expected) in zip(arguments, types, strict=False):
                if not _is(value, expected):
                    raise ScheduleError(f"schedule step {entry!r}: {name} cannot be {value!r}")
            try:
                steps.append(kind(*arguments))
            except TypeError as error:
                raise ScheduleError(f"schedule step {entry!r}: {error}") from None
        return Schedule(tuple(steps))

    def __str__(self) -> str:
        return "\n".join(str(step) for step in self.steps)


@cache
def _argument_types(step: str) -> tuple[tuple[str, Any], ...]:
    """The arguments of the step of this name, and their types."""
    hints = get_type_hints(STEPS[step])
    return tuple((field.name, hints[field.name]) for field in fields(STEPS[step]))


def _is(value: Any, expected: Any) -> bool:
    """`value` is of a type that steps have: str, int, bool, or tuples of such."""
    items = get_args(expected)
    if not items:
        return type(value) is expected
    if not isinstance(value, tuple):
        return False
    if items[-1] is ...:
        items = items[:1] * len(value)
    return len(items) == len(value) and all(map(_is, value, items))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _arguments(step: Step) -> list[Any]:
    """A step's arguments, without the trailing ones that have their default value."""
    arguments = [(getattr(step, field.name), field.default) for field in fields(step)]
    while arguments and arguments[-1][0] == arguments[-1][1]:
        arguments.pop()
    return [value for value, _ in arguments]


@frozen
class ScheduleChoice:
    """A schedule for a kernel and where it came from.

    `source` is as in a `KernelReport`;
    `record_id` is that record, `latency` the time that was measured for this kernel in seconds,
    if any.
    """

    schedule: Schedule
    source: str
    record_id: str | None = None
    latency: float | None = None

    def __str__(self) -> str:
        steps = "; ".join(map(str, self.schedule.steps)) or "no steps"
        return f"{' '.join(filter(None, (self.source, self.record_id)))}: {steps}"


ChooseSchedule: TypeAlias = Callable[[FusedKernel], ScheduleChoice | None]
