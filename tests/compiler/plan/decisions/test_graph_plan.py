"""Plans as data: a canonical order, JSON there and back, and what is refused."""

from __future__ import annotations

import pytest

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, Chain, GraphPlan, Layout

EVERY = GraphPlan((Layout("conv", 16), Chain("dw")))


def test_plan_prints_its_decisions_in_one_order() -> None:
    backwards = GraphPlan(EVERY.decisions[::-1])
    assert backwards == EVERY
    assert str(EVERY) == "chain dw\nlayout conv NCHW16c"
    assert str(DEFAULT_PLAN) == "as the rules decide"


def test_json_gives_the_plan_back() -> None:
    assert GraphPlan.from_json(EVERY.to_json()) == EVERY


@pytest.mark.parametrize(
    "retired",
    [
        {"decide": "separate", "value": "add"},
        {"decide": "spelled", "value": "add"},
        {"decide": "merged", "values": ["box", "class"]},
    ],
)
def test_decisions_of_a_kind_that_is_no_more_are_left_out(retired: object) -> None:
    assert GraphPlan.from_json([*EVERY.to_json(), retired]) == EVERY
    assert GraphPlan.from_json([retired]) == DEFAULT_PLAN


def test_new_decisions_replace_those_of_the_same_values() -> None:
    changed = EVERY.with_decisions(Layout("conv", 0))
    assert Layout("conv", 16) not in changed.decisions
    assert list(changed.of(Chain)) == [Chain("dw")]


def test_contradictions_are_refused() -> None:
    with pytest.raises(PlanError, match="twice"):
        GraphPlan((Layout("conv", 8), Layout("conv", 16)))


@pytest.mark.parametrize(
    "value",
    [
        {},
        ["x"],
        [{"decide": "layout", "value": "x"}],
        [{"decide": "layout", "value": "x", "block": 1}],
        [{"decide": "layout", "value": "x", "block": -8}],
        [{"decide": "chain", "value": 3}],
        [{"decide": "chain", "value": "x", "more": 1}],
        [{"decide": "nothing", "value": "x"}],
    ],
)
def test_what_is_no_plan_is_refused(value: object) -> None:
    with pytest.raises(PlanError):
        GraphPlan.from_json(value)
