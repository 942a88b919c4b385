"""The search for the fastest plan within an error: numbers in, points out.

Errors of single contractions do not add up exactly, so they only say what to try first; what counts
is the joint error of a plan, which somebody measures (`Judge`). As roundings are of random sign it
is squares that add up: many small errors cost less than a few large ones. Of each contraction the
precisions on the lower hull of (square error, seconds) are steps; all steps in order of seconds won
per square error are a path from f32 to the fastest plan. The longest part of it within the budget
is found by bisection; uniform plans within the budget start where that is slower. Then the rest is
tried: what wins most first, kept if the budget still holds. (A multiple-choice knapsack by its
linear relaxation: Sinha and Zoltners, 1979.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tunefarm.compiler.types.precision import Precision

Assignment: TypeAlias = Mapping[str, Precision]
"""Precisions of contractions by identity; those not named are f32."""

CURVE_POINTS = 6
"""Plans along the path whose errors are measured next to those that the search needs."""
MOST_CHECKS = 64
_LEAST_SQUARE = 1e-24


@dataclass(frozen=True, slots=True)
class Item:
    """A contraction: its time in each precision, and what it alone costs of the outputs."""

    identity: str
    label: str
    seconds: Mapping[Precision, float]
    errors: Mapping[Precision, float]

    def gain(self, precision: Precision) -> float:
        """Seconds that it takes less than in f32."""
        return self.seconds[Precision.F32] - self.seconds[precision]


@dataclass(frozen=True, slots=True)
class Point:
    """A plan whose joint error is known, and the time that its parts promise."""

    assignment: Assignment
    seconds: float
    error: float

    @property
    def lowered(self) -> int:
        """How many contractions are not f32."""
        return sum(precision is not Precision.F32 for precision in self.assignment.values())


class Judge(Protocol):
    """Knows what plans cost."""

    def seconds(self, assignment: Assignment) -> float:
        """The time that is expected of the model, with conversions between precisions."""

    def error(self, assignment: Assignment) -> float:
        """The joint error, from runs of the model."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A contraction goes from its precision to this one; `cost` is what that adds of squares."""

    identity: str
    precision: Precision
    gain: float
    cost: float

    @property
    def order(self) -> tuple[float, str]:
        return -self.gain / max(self.cost, _LEAST_SQUARE), self.identity


def find_points(
    items: Sequence[Item],
    judge: Judge,
    budget: float,
    uniform: Iterable[Assignment] = (),
    most_checks: int = MOST_CHECKS,
) -> list[Point]:
    """Every plan whose error was measured; f32 is one of them, at an error of 0.

    The fastest of them within the budget, see `best_point`, is what the search has found.
    """
    return _Search(items, judge, budget, most_checks).run(uniform)


def best_point(points: Iterable[Point], budget: float) -> Point:
    """The fastest within the budget. Raises ValueError if there is none."""
    return min(
        (point for point in points if point.error <= budget),
        key=lambda point: (point.seconds, point.error),
    )


def pareto(points: Iterable[Point]) -> list[Point]:
    """Those that no other is both faster and closer than, from the slowest, f32, to the fastest."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.seconds, point.error)):
        if not front or point.error < front[-1].error:
            front.append(point)
    return front[::-1]


class _Search:
    def __init__(
        self, items: Sequence[Item], judge: Judge, budget: float, most_checks: int
    ) -> None:
        self.items = {item.identity: item for item in items}
        self.judge = judge
        self.budget = budget
        self.checks = most_checks
        self.known: dict[tuple[tuple[str, Precision], ...], Point] = {}

    def run(self, uniform: Iterable[Assignment]) -> list[Point]:
        self._measured({})
        for assignment in uniform:
            self._measured(assignment)
        path = self._path()
        self._bisect(path)
        self._curve(path)
        self._improve(self._best())
        return list(self.known.values())

    def _path(self) -> list[_Step]:
        """Steps from f32 to the fastest precision of each contraction, the worthiest first."""
        steps = [step for item in self.items.values() for step in _hull(item)]
        return sorted(steps, key=lambda step: step.order)

    def _bisect(self, path: Sequence[_Step]) -> None:
        """Measure beginnings of the path until the longest one within the budget is known."""
        within, beyond = 0, len(path) + 1
        while beyond - within > 1 and self.checks > 0:
            middle = len(path) if beyond > len(path) else (within + beyond) // 2
            if self._measured(_after(path[:middle])).error <= self.budget:
                within = middle
            else:
                beyond = middle

    def _curve(self, path: Sequence[_Step]) -> None:
        """Measure a few more beginnings, so that others can choose among them."""
        for number in range(1, CURVE_POINTS):
            self._measured(_after(path[: round(len(path) * number / CURVE_POINTS)]))

    def _best(self) -> Point:
        return best_point(self.known.values(), self.budget)

    def _improve(self, point: Point) -> None:
        """Try what is faster in its place, one contraction after the other, while that helps.

        Where two precisions of different contractions compete for the budget, the one that wins
        least for its error gives way once.
        """
        refused: set[tuple[str, Precision]] = set()
        while self.checks > 0:
            trial = self._next(point, refused)
            if trial is None:
                return
            identity, precision = trial
            found = self._measured({**point.assignment, identity: precision})
            if found.error <= self.budget:
                point = found
                continue
            refused.add(trial)
            exchanged = self._exchange(found, identity, point)
            if exchanged is not None:
                point = exchanged

    def _next(
        self, point: Point, refused: set[tuple[str, Precision]]
    ) -> tuple[str, Precision] | None:
        """The change of one contraction that promises most, of those not refused."""
        best, least = None, point.seconds
        for item in self.items.values():
            for precision, error in item.errors.items():
                trial = item.identity, precision
                now = point.assignment.get(item.identity, Precision.F32)
                if trial in refused or precision is now or error > self.budget:
                    continue
                seconds = self.judge.seconds({**point.assignment, item.identity: precision})
                if seconds < least:
                    best, least = trial, seconds
        return best

    def _exchange(self, beyond: Point, kept: str, former: Point) -> Point | None:
        """Revert of a plan beyond the budget what costs most for what it wins; None if that does
        not make a faster plan within it."""
        others = [
            (self.items[identity], precision)
            for identity, precision in beyond.assignment.items()
            if identity != kept and precision is not Precision.F32 and identity in self.items
        ]
        if not others:
            return None

        def worth(pair: tuple[Item, Precision]) -> float:
            item, precision = pair
            return item.gain(precision) / max(item.errors.get(precision, 0.0) ** 2, _LEAST_SQUARE)

        item, _ = min(others, key=worth)
        assignment = {**beyond.assignment, item.identity: Precision.F32}
        if self.judge.seconds(assignment) >= former.seconds or self.checks <= 0:
            return None
        found = self._measured(assignment)
        return found if found.error <= self.budget else None

    def _measured(self, assignment: Assignment) -> Point:
        """The point of a plan; each is measured once."""
        lowered = {
            name: precision
            for name, precision in assignment.items()
            if precision is not Precision.F32
        }
        key = tuple(sorted(lowered.items()))
        if key not in self.known:
            self.checks -= bool(lowered)
            error = self.judge.error(lowered) if lowered else 0.0
            self.known[key] = Point(lowered, self.judge.seconds(lowered), error)
        return self.known[key]


def _hull(item: Item) -> list[_Step]:
    """The precisions of a contraction that are worth their error, as steps from one to the next."""
    steps: list[_Step] = []
    seconds, square = item.seconds[Precision.F32], 0.0
    options = [
        (item.errors[precision] ** 2, item.seconds[precision], precision)
        for precision in item.errors
        if precision is not Precision.F32 and math.isfinite(item.errors[precision])
    ]
    while True:
        faster = [option for option in options if option[1] < seconds]
        if not faster:
            return steps
        cost, time, precision = max(
            faster,
            key=lambda option: (seconds - option[1]) / max(option[0] - square, _LEAST_SQUARE),
        )
        steps.append(_Step(item.identity, precision, seconds - time, max(cost - square, 0.0)))
        seconds, square = time, cost


def _after(steps: Iterable[_Step]) -> dict[str, Precision]:
    return {step.identity: step.precision for step in steps}
