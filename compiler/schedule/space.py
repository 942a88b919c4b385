"""ScheduleSpace: the sketches of a kernel and the choices that each one leaves open."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.schedule.nest_shape import Counts, Mask, NestShape, Positions
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.numerics import Algorithm

ChoiceValue: TypeAlias = int | str | tuple[int, ...] | tuple[str, ...]
_FIRST = np.zeros(1, np.int64)


@frozen
class Choice:
    """One open choice: its name and its domain, ordered so that neighbours are alike."""

    name: str
    values: tuple[ChoiceValue, ...]

    def numbers(self, value: ChoiceValue) -> tuple[float, ...]:
        """The value as numbers: integers as they are, others by position in the domain."""
        if isinstance(value, int):
            return (float(value),)
        if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            return tuple(float(item) for item in value if isinstance(item, int))
        return (float(self.values.index(value)),)


@frozen
class Values:
    """The values of n candidates' choices as typed arrays: what a sketch's plan is made from."""

    domains: Mapping[str, tuple[ChoiceValue, ...]]
    positions: Positions
    count: int

    @staticmethod
    def of(choices: Sequence[Choice], positions: Positions) -> Values:
        """The candidates with these positions in the choices' domains."""
        domains = {choice.name: choice.values for choice in choices}
        return Values(domains, positions, len(next(iter(positions.values()))))

    @staticmethod
    def one(assignment: Mapping[str, ChoiceValue]) -> Values:
        """One candidate; its values may lie outside of the domains."""
        domains = {name: (value,) for name, value in assignment.items()}
        return Values(domains, dict.fromkeys(assignment, _FIRST), 1)

    def integers(self, name: str, absent: int = 0) -> Counts:
        """The values of a choice of integers, shape [n]; `absent` where it is not open."""
        if name not in self.domains:
            return np.full(self.count, absent)
        return np.asarray(self._table(name)[self.positions[name]], np.int64)

    def pairs(self, name: str) -> tuple[Counts, Counts]:
        """The first and the second numbers of a choice of pairs, shapes [n]."""
        first, second = self._table(name)[self.positions[name]].T
        return first, second

    def are(self, name: str, value: str) -> Mask:
        """Which candidates have this value, shape [n]; none where the choice is not open."""
        if name not in self.domains:
            return np.zeros(self.count, np.bool_)
        table = np.array([item == value for item in self.domains[name]], np.bool_)
        return np.asarray(table[self.positions[name]], np.bool_)

    def _table(self, name: str) -> Counts:
        values: Any = self.domains[name]
        return np.array(values, np.int64)


class Candidates(Protocol):
    """All that a sketch decides for n candidates; the schedule and the shape follow from it."""

    def steps(self) -> Iterable[Step]:
        """The schedule of the only candidate, n = 1."""

    def shape(self) -> NestShape:
        """The loops that those schedules lead to."""


@frozen
class Sketch:
    """Which steps are taken, as a function of the choices that stay open.

    `build` turns a complete assignment into the schedule; every assignment of `choices` is legal.
    `default` is the analytic pick: an assignment of the same choices. `shape` gives the loops of
    many candidates at once, for cost models; it takes the positions of their values. `algorithm` is
    what results are computed by. A sketch that `leads` is clearly faster than other ones.
    """

    name: str
    choices: tuple[Choice, ...]
    build: Callable[[Mapping[str, ChoiceValue]], Schedule]
    default: tuple[ChoiceValue, ...]
    shape: Callable[[Positions], NestShape] | None = None
    algorithm: Algorithm = Algorithm.DIRECT
    leads: bool = False

    @staticmethod
    def planned(
        name: str,
        choices: Sequence[tuple[Choice, ChoiceValue]],
        plan: Callable[[Values], Candidates],
    ) -> Sketch:
        """The sketch with these choices, each with its default, whose candidates `plan` decides."""
        domains = tuple(choice for choice, _ in choices)
        return Sketch(
            name,
            domains,
            lambda assignment: Schedule(tuple(plan(Values.one(assignment)).steps())),
            tuple(value for _, value in choices),
            lambda positions: plan(Values.of(domains, positions)).shape(),
        )

    def shape_of(self, tried: Sequence[Sequence[ChoiceValue]]) -> tuple[NestShape, Counts]:
        """The loops of all combinations of these values of each choice, and the number of the value
        that each combination has of each, [choices, n]. The first one has the first of each."""
        assert self.shape is not None
        sizes = [len(values) for values in tried]
        numbers = np.indices(sizes).reshape(len(sizes), math.prod(sizes))
        positions = {
            choice.name: np.array([choice.values.index(value) for value in values])[picked]
            for choice, values, picked in zip(self.choices, tried, numbers, strict=True)
        }
        return self.shape(positions), numbers

    def after(self, step: Step) -> Sketch:
        """The same sketch, of a kernel that this step has rewritten before all others."""
        return replace(
            self, build=lambda assignment: Schedule((step, *self.build(assignment).steps))
        )

    @property
    def size(self) -> int:
        """How many schedules its choices make."""
        size = 1
        for choice in self.choices:
            size *= len(choice.values)
        return size

    def narrowed(self, choices: Sequence[Choice]) -> Sketch:
        """The same sketch with other domains, each a part of the one it had.

        Raises ScheduleError for a choice or a value that the sketch does not have.
        """
        tables: dict[str, Counts] = {}
        for old, new in zip(self.choices, choices, strict=True):
            if old.name != new.name or not set(new.values) <= set(old.values):
                raise ScheduleError(f"{new.name} {new.values} is no part of the sketch {self.name}")
            tables[new.name] = np.array([old.values.index(value) for value in new.values])
        inner = self.shape

        def shape(positions: Positions) -> NestShape:
            assert inner is not None
            return inner({name: tables[name][at] for name, at in positions.items()})

        return replace(self, choices=tuple(choices), shape=None if inner is None else shape)


@frozen
class Candidate:
    """A point of a space: a sketch and the position of each choice's value in its domain."""

    sketch: str
    positions: tuple[int, ...]


class ScheduleSpace:
    """All schedules of one kernel on one target that are worth measuring.

    Points are `Candidate`s, numbered 0 <= number < size. The space is the disjoint union of its
    sketches, and each sketch the product of its choices' domains.
    """

    def __init__(self, sketches: Sequence[Sketch]) -> None:
        if not sketches:
            raise ScheduleError("the schedule space has no sketch")
        self.sketches = tuple(sketches)
        self._by_name = {sketch.name: sketch for sketch in sketches}

    @property
    def size(self) -> int:
        """Number of candidates."""
        return sum(sketch.size for sketch in self.sketches)

    def sketch(self, name: str) -> Sketch:
        """The sketch of this name. Raises ScheduleError."""
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(self._by_name)
            raise ScheduleError(f"no sketch {name!r} in this space (it has: {known})") from None

    def candidate(self, number: int) -> Candidate:
        """The candidate with this number."""
        if not 0 <= number < self.size:
            raise IndexError(number)
        for sketch in self.sketches:
            if number < sketch.size:
                positions = []
                for choice in reversed(sketch.choices):
                    number, position = divmod(number, len(choice.values))
                    positions.append(position)
                return Candidate(sketch.name, tuple(reversed(positions)))
            number -= sketch.size
        raise AssertionError("unreachable")

    def number(self, candidate: Candidate) -> int:
        """The inverse of `candidate`."""
        offset = 0
        for sketch in self.sketches:
            if sketch.name == candidate.sketch:
                number = 0
                for choice, position in zip(sketch.choices, candidate.positions, strict=True):
                    number = number * len(choice.values) + position
                return offset + number
            offset += sketch.size
        raise ScheduleError(f"no sketch {candidate.sketch!r} in this space")

    def default(self) -> Candidate:
        """The analytic pick of the first sketch: what runs when nothing was measured."""
        sketch = self.sketches[0]
        return Candidate(
            sketch.name,
            tuple(
                choice.values.index(value)
                for choice, value in zip(sketch.choices, sketch.default, strict=True)
            ),
        )

    def sample(self, rng: random.Random) -> Candidate:
        """A candidate drawn uniformly: first the sketch, then each choice."""
        sketch = rng.choice(self.sketches)
        positions = tuple(rng.randrange(len(choice.values)) for choice in sketch.choices)
        return Candidate(sketch.name, positions)

    def choices(self, candidate: Candidate) -> dict[str, ChoiceValue]:
        """The candidate's choices by name."""
        sketch = self.sketch(candidate.sketch)
        return {
            choice.name: choice.values[position]
            for choice, position in zip(sketch.choices, candidate.positions, strict=True)
        }

    def find(self, sketch_name: str, choices: Mapping[str, ChoiceValue]) -> Candidate | None:
        """The candidate with these choices, or None if the space does not hold it."""
        sketch = self._by_name.get(sketch_name)
        if sketch is None or set(choices) != {choice.name for choice in sketch.choices}:
            return None
        positions = []
        for choice in sketch.choices:
            value = choices[choice.name]
            value = tuple(value) if isinstance(value, list) else value
            if value not in choice.values:
                return None
            positions.append(choice.values.index(value))
        return Candidate(sketch_name, tuple(positions))

    def schedule(self, candidate: Candidate) -> Schedule:
        """The candidate's schedule."""
        return self.sketch(candidate.sketch).build(self.choices(candidate))
