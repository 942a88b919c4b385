"""The search over precisions, on made-up contractions whose best plan is known by trying all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunefarm.compiler.types.precision import Precision
from tunefarm.tuner.precision.search import (
    Assignment,
    Item,
    best_point,
    find_points,
    pareto,
)

F32, BF16, INT8 = Precision.F32, Precision.BF16, Precision.INT8


@dataclass
class Model:
    """Errors join as the root of their squares (times `surprise`), seconds and borders add up."""

    items: Sequence[Item]
    border: float = 0.0
    surprise: Mapping[frozenset[str], float] = field(default_factory=dict)
    checks: int = 0

    def seconds(self, assignment: Assignment) -> float:
        chosen = [assignment.get(item.identity, F32) for item in self.items]
        borders = sum(left is not right for left, right in itertools.pairwise(chosen))
        own = sum(item.seconds[kind] for item, kind in zip(self.items, chosen, strict=True))
        return own + self.border * borders

    def error(self, assignment: Assignment) -> float:
        self.checks += 1
        errors = [item.errors.get(assignment.get(item.identity, F32), 0.0) for item in self.items]
        factor = self.surprise.get(frozenset(assignment), 1.0)
        return factor * math.sqrt(sum(error * error for error in errors))

    def optimum(self, budget: float) -> float:
        """Seconds of the fastest plan within the budget, of all there are."""
        plans = itertools.product((F32, BF16, INT8), repeat=len(self.items))
        named = (dict(zip([i.identity for i in self.items], plan, strict=True)) for plan in plans)
        return min(self.seconds(plan) for plan in named if self.error(plan) <= budget)


def item(name: str, seconds: Sequence[float], errors: Sequence[float]) -> Item:
    kinds = (F32, BF16, INT8)
    times = dict(zip(kinds, seconds, strict=True))
    return Item(name, name, times, dict(zip(kinds[1:], errors, strict=True)))


drawn_items = st.lists(
    st.tuples(
        st.tuples(st.just(1.0), st.floats(0.2, 1.4), st.floats(0.1, 1.4)),
        st.tuples(st.floats(1e-4, 0.02), st.floats(1e-3, 0.1)),
    ),
    min_size=1,
    max_size=5,
).map(lambda drawn: [item(f"c{n}", *pair) for n, pair in enumerate(drawn)])


@settings(max_examples=60, deadline=None)
@given(drawn_items, st.floats(1e-4, 0.1), st.sampled_from([0.0, 0.05]))
def test_choice_is_within_the_budget_and_near_the_best(
    items: list[Item], budget: float, border: float
) -> None:
    model = Model(items, border)
    uniform = [{i.identity: kind for i in items} for kind in (BF16, INT8)]
    points = find_points(items, model, budget, uniform)
    found = best_point(points, budget)
    assert found.error <= budget
    assert found.seconds <= model.seconds({})
    for plan in uniform:
        assert model.error(plan) > budget or found.seconds <= model.seconds(plan)
    assert found.seconds <= 1.25 * model.optimum(budget)


def test_what_wins_most_for_its_error_is_lowered_first() -> None:
    items = [
        item("large", (10.0, 9.0, 2.0), (0.001, 0.009)),
        item("fragile", (3.0, 1.0, 0.5), (0.2, 0.9)),
        item("small", (1.0, 0.5, 0.4), (0.001, 0.02)),
    ]
    found = best_point(find_points(items, Model(items), 0.01), 0.01)
    assert dict(found.assignment) == {"large": INT8, "small": BF16}


def test_errors_that_add_to_more_than_expected_are_repaired() -> None:
    items = [item(f"c{n}", (1.0, 0.5, 0.6), (0.004, 0.006)) for n in range(4)]
    everything = frozenset(i.identity for i in items)
    surprise = {everything: 5.0, everything - {"c3"}: 5.0}
    found = best_point(find_points(items, Model(items, surprise=surprise), 0.01), 0.01)
    assert 0 < found.lowered < 4
    assert found.error <= 0.01


def test_nothing_is_lowered_for_less_speed() -> None:
    items = [item("c", (1.0, 1.1, 1.2), (0.0, 0.0))]
    points = find_points(items, Model(items), 1.0, [{"c": BF16}])
    assert best_point(points, 1.0).lowered == 0


def test_borders_keep_a_lone_contraction_in_its_neighbours_precision() -> None:
    items = [item(f"c{n}", (1.0, 0.5, 9.0), (0.001, 1.0)) for n in range(4)]
    items.insert(2, item("slow", (1.0, 1.05, 9.0), (0.001, 1.0)))
    found = best_point(
        find_points(items, Model(items, border=0.2), 0.1, [{i.identity: BF16 for i in items}]), 0.1
    )
    assert set(found.assignment.values()) == {BF16}
    assert found.lowered == 5


def test_measurements_are_bounded_and_none_is_made_twice() -> None:
    items = [item(f"c{n}", (1.0, 0.5, 0.4), (0.001 * n, 0.004)) for n in range(60)]
    model = Model(items)
    find_points(items, model, 0.02, most_checks=20)
    assert model.checks <= 30


@pytest.mark.parametrize("budget", [0.0, 1e-9])
def test_a_budget_that_nothing_meets_leaves_f32(budget: float) -> None:
    items = [item("c", (1.0, 0.5, 0.4), (0.01, 0.1))]
    points = find_points(items, Model(items), budget)
    assert best_point(points, budget).lowered == 0
    assert min(point.error for point in points if point.lowered) == pytest.approx(0.01)


def test_front_has_no_point_that_another_beats() -> None:
    items = [item(f"c{n}", (1.0, 0.6, 0.3), (0.002, 0.01 * (n + 1))) for n in range(5)]
    front = pareto(find_points(items, Model(items), 0.03, [{i.identity: INT8 for i in items}]))
    assert front[0].lowered == 0
    for slower, faster in itertools.pairwise(front):
        assert slower.seconds > faster.seconds and slower.error < faster.error


def test_many_small_errors_are_taken_before_a_large_one() -> None:
    large = [item(f"large {n}", (10.0, 5.0, 5.0), (0.003, 0.003)) for n in range(2)]
    small = [item(f"small {n}", (2.0, 1.0, 1.0), (0.0007, 0.0007)) for n in range(10)]
    model = Model([*large, *small])
    found = best_point(find_points(model.items, model, 0.0031, most_checks=8), 0.0031)
    assert set(found.assignment) == {item.identity for item in small}
