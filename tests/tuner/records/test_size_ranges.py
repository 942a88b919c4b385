"""Representative sizes, few schedules for all of them, and the ranges that they serve."""

from __future__ import annotations

import json
import math
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tunefarm.compiler.types.signature import AxisSource, Signature
from tunefarm.compiler.types.sizes import Size, Symbol, bounds_of
from tunefarm.tuner.records.size_ranges import (
    MOST_POINTS,
    WITHIN,
    SizePlan,
    SizeRange,
    cover,
    merged,
    points_of,
    searched_points,
)


def signature(*bounds: tuple[int, int]) -> Signature:
    """Symbols s0, s1 and so on; all but those of even number are known to kernels, doubled."""
    symbols = [Symbol(f"s{number}", *ends) for number, ends in enumerate(bounds)]
    sources = tuple(AxisSource(symbol, "x", axis) for axis, symbol in enumerate(symbols))
    sizes = tuple(Symbol.of(s.name, s.low, s.high) * 2 for s in symbols)
    return Signature((), (), sources, sizes)


ends = st.tuples(st.integers(0, 40), st.integers(1, 600)).map(lambda e: (e[0], e[0] + e[1]))


@given(st.lists(ends, min_size=1, max_size=4))
def test_the_points_ranges_are_all_sizes_each_once(bounds: list[tuple[int, int]]) -> None:
    points = points_of(signature(*bounds))
    assert 1 <= len(points) <= MOST_POINTS
    for axis, (low, high) in enumerate(bounds):
        found = sorted({point.bounds[f"s{axis}"] for point in points})
        covered = [size for start, end in found for size in range(start, end + 1)]
        assert covered == list(range(low, high + 1))
    for point in points:
        for name, (low, high) in point.bounds.items():
            assert max(low, 1) <= point.symbols[name] <= high
        assert point.sizes == tuple(2 * value for value in point.symbols.values())
    assert any(all(p.symbols[f"s{n}"] == h for n, (_, h) in enumerate(bounds)) for p in points)


def test_sizes_that_no_kernel_is_told_have_no_points() -> None:
    full = signature((1, 8), (1, 512))
    (_, second) = full.sizes
    assert isinstance(second, Size) and bounds_of(second) == (2, 1024)
    told = Signature((), (), full.sources, (second,))
    assert {tuple(point.symbols) for point in points_of(told)} == {("s1",)}
    assert [str(point) for point in points_of(told)] == ["s1=1", "s1=8", "s1=64", "s1=512"]


def test_a_search_measures_at_the_smallest_sizes_the_greatest_and_some_between() -> None:
    searched = searched_points(points_of(signature((1, 4), (0, 512))))
    assert [tuple(point.symbols.values()) for point in searched] == [(1, 1), (2, 23), (4, 512)]
    assert len(searched_points(points_of(signature((1, 2))))) == 2


seconds = st.dictionaries(st.sampled_from("abcd"), st.floats(0.5, 2.0), min_size=4, max_size=4)


@given(st.lists(seconds, min_size=1, max_size=6))
def test_every_size_has_a_schedule_near_its_best(times: list[dict[str, float]]) -> None:
    served = cover(times, "a")
    for name, at in zip(served, times, strict=True):
        assert at[name] <= (1 + WITHIN) * min(at.values())
        if at["a"] <= (1 + WITHIN) * min(at.values()):
            assert name == "a"


def test_few_schedules_serve_all_sizes() -> None:
    times = [
        {"a": 1.0, "b": 1.01, "c": 0.99},
        {"a": 2.0, "b": 1.03, "c": 1.0},
        {"a": 3.0, "b": 1.0, "c": 2.0},
        {"a": 1.0, "b": 5.0, "c": 0.5},
    ]
    assert cover(times, "a") == ["a", "c", "b", "c"]
    times[3] = {"a": 1.0, "b": 5.0, "c": 5.0}
    assert cover(times, "a") == ["a", "b", "b", "a"]


def test_neighbours_with_the_same_schedules_are_one_range() -> None:
    cells = [(1, 3), (4, 9), (10, 64)]
    own = {(0, 0): {}, (0, 1): {}, (0, 2): {"k": [1]}, (1, 0): {}, (1, 1): {}, (1, 2): {"k": [1]}}
    ranges = [
        SizeRange({"b": ((1, 1), (2, 4))[row], "s": cells[column]}, dict(own[row, column]))
        for row, column in product(range(2), range(3))
    ]
    assert merged(ranges) == (
        SizeRange({"b": (1, 4), "s": (1, 9)}, {}),
        SizeRange({"b": (1, 4), "s": (10, 64)}, {"k": [1]}),
    )
    ranges[0] = SizeRange(ranges[0].bounds, {"k": [2]})
    total = sum(math.prod(h - w + 1 for w, h in r.bounds.values()) for r in merged(ranges))
    assert total == 4 * 64 and len(merged(ranges)) == 4


def test_a_plan_is_what_it_was_in_json() -> None:
    ranges = (SizeRange({"s": (1, 9)}, {"k": [["tile", "i", 4]]}), SizeRange({"s": (10, 64)}, {}))
    plan = SizePlan(ranges, {"s=1": (1e-6, 2e-6)}, {"s=1": (1.0, 2.0)}, {"s=1": (0.5, 0.4, 0.6)})
    assert SizePlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
