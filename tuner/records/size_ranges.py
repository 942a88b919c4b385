"""Ranges of sizes: which schedules serve which of the sizes that a model may have at run time.

    bounds of the symbols   ->  points, by geometric means      points_of
    kernels at the points   ->  a few schedules for all         cover
    points                  ->  ranges, each with its schedules SizePlan

A plan is what a job found; a build makes a program of each of its ranges, of the same kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any, TypeAlias

from tunefarm.compiler.types.signature import AxisSource, Signature
from tunefarm.compiler.types.sizes import Symbol, symbols_of, value_of
from tunefarm.configs.json_values import from_json, to_json

WITHIN = 0.05
"""A schedule serves a size if it takes so much longer than the best at most (0.05 is 5 %)."""
MOST_POINTS = 9
SEARCHED = 3
Bounds: TypeAlias = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SizePoint:
    """Values of the symbols, the vector of sizes that follows, and the range they stand for."""

    symbols: Mapping[str, int]
    sizes: tuple[int, ...]
    bounds: Bounds

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.symbols.items())


def points_of(signature: Signature, *, only_told: bool = True) -> list[SizePoint]:
    """Representative sizes of a model: of each symbol the minimum, the maximum and those between.

    Only symbols that are the extent of an input's axis, and that kernels are told of (or all of
    these), have points; others stay at the maximum.
    """
    symbols = {source.symbol.name: source.symbol for source in signature.sources}
    text = {symbol.name for size in signature.sizes for symbol in symbols_of(size)}
    axes = [s.symbol.name for s in signature.sources if isinstance(s, AxisSource)]
    able = [name for name in dict.fromkeys(axes) if name in text or not only_told]
    each = next((n for n in (4, 3, 2) if n ** len(able) <= MOST_POINTS), 1)
    samples = {name: _samples(symbols[name], each) for name in able}
    points = []
    for chosen in product(*samples.values()):
        values = {name: symbol.high for name, symbol in symbols.items()}
        values |= {name: value for name, (value, _) in zip(samples, chosen, strict=True)}
        bounds = {name: range for name, (_, range) in zip(samples, chosen, strict=True)}
        sizes = tuple(value_of(size, values) for size in signature.sizes)
        points.append(SizePoint({name: values[name] for name in able}, sizes, bounds))
    return points


def searched_points(points: Sequence[SizePoint]) -> list[SizePoint]:
    """Those of a model's points that a search measures at: the smallest, a middle one, the
    maximum."""
    ordered = sorted(points, key=lambda point: math.prod(point.symbols.values()))
    if len(ordered) <= SEARCHED:
        return ordered
    return [ordered[0], ordered[len(ordered) // 2], ordered[-1]]


def _samples(symbol: Symbol, count: int) -> list[tuple[int, tuple[int, int]]]:
    """So many sizes at most, each with the range that it stands for; together that is all."""
    low, high = max(1, symbol.low), symbol.high
    if count == 1 or low == high:
        return [(high, (symbol.low, high))]
    step = (high / low) ** (1 / (count - 1))
    values = sorted({round(low * step**number) for number in range(count - 1)} | {high})
    ends = [math.isqrt(left * right) for left, right in pairwise(values)]
    starts = [symbol.low, *(end + 1 for end in ends)]
    return list(zip(values, zip(starts, [*ends, high], strict=True), strict=True))


def cover(times: Sequence[Mapping[str, float]], preferred: str) -> list[str]:
    """For each point one of few schedules that is within `WITHIN` of the point's best.

    `times` are seconds by schedule. The `preferred` schedule serves all points that it can, then
    those that serve most of the rest, the faster one of equals.
    """
    able = [
        {name for name, seconds in at.items() if seconds <= (1.0 + WITHIN) * min(at.values())}
        for at in times
    ]
    served = [preferred if preferred in names else "" for names in able]
    while "" in served:
        left = [number for number, name in enumerate(served) if not name]
        names = sorted({name for number in left for name in able[number]})

        def worth(name: str, left: Sequence[int] = left) -> tuple[int, float]:
            mine = [number for number in left if name in able[number]]
            return len(mine), -sum(times[number][name] for number in mine)

        best = max(names, key=worth)
        served = [
            best if not name and best in able[number] else name
            for number, name in enumerate(served)
        ]
    return served


Ratio: TypeAlias = tuple[float, float, float]
"""A ratio of times with the ends of its 95 % interval."""


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Bounds of the symbols, and the schedules (JSON) of the kernels that have others there than
    those that are applied anyway, by workload key."""

    bounds: Bounds
    schedules: Mapping[str, list[Any]]

    def holds(self, point: SizePoint) -> bool:
        """Whether a point is of this range."""
        ends = ((point.symbols[name], *ends) for name, ends in self.bounds.items())
        return all(low <= value <= high for value, low, high in ends)


@dataclass(frozen=True, slots=True)
class SizePlan:
    """What a job found for a model's range of sizes.

    `seconds` are those of all kernels that depend on the sizes, at each point, by its name: with
    the schedules of the plan, and with those that are applied anyway. `models` are seconds of the
    whole model, tuned and untuned, at the points where it was measured; `ratios` are the tuned time
    over the untuned one there, each with its 95 % interval.
    """

    ranges: tuple[SizeRange, ...]
    seconds: Mapping[str, tuple[float, float]]
    models: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    ratios: Mapping[str, Ratio] = field(default_factory=dict)

    @property
    def mean_ratio(self) -> Ratio | None:
        """The geometric mean of the ratios, with its 95 % interval; None where there are none."""
        if not self.ratios:
            return None
        logs = [tuple(map(math.log, ratio)) for ratio in self.ratios.values()]
        middle = math.fsum(log for log, _, _ in logs) / len(logs)
        width = math.sqrt(math.fsum(((high - low) / 2) ** 2 for _, low, high in logs)) / len(logs)
        return math.exp(middle), math.exp(middle - width), math.exp(middle + width)

    @property
    def is_slower(self) -> bool:
        """The tuned model is slower than the untuned one in the mean of its sizes, beyond doubt."""
        return self.mean_ratio is not None and self.mean_ratio[1] > 1.0

    @property
    def untuned(self) -> SizePlan:
        """The plan of the untuned model, with the same schedules everywhere."""
        ranges = merged([replace(item, schedules={}) for item in self.ranges])
        return replace(self, ranges=ranges, models={}, ratios={})

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return to_json(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SizePlan:
        """The inverse of `to_json`; ValueError on other JSON."""
        return from_json(SizePlan, data)


def merged(ranges: Sequence[SizeRange]) -> tuple[SizeRange, ...]:
    """The ranges, with neighbours of the same schedules made one."""
    found = list(ranges)
    for one, other in ((a, b) for a in found for b in found if a is not b):
        joined = _joined(one, other)
        if joined is not None:
            rest = [item for item in found if item is not one and item is not other]
            return merged([*rest, joined])
    return tuple(sorted(found, key=lambda item: sorted(item.bounds.items())))


def _joined(one: SizeRange, other: SizeRange) -> SizeRange | None:
    """Both as one range; None where they are no neighbours along one symbol, or differ."""
    apart = [name for name in one.bounds if one.bounds[name] != other.bounds[name]]
    if one.schedules != other.schedules or len(apart) != 1:
        return None
    (name,) = apart
    (low, end), (start, high) = one.bounds[name], other.bounds[name]
    if end + 1 != start:
        return None
    return replace(one, bounds={**one.bounds, name: (low, high)})
