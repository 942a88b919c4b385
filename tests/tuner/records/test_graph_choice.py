"""What was chosen for a model's graph: written and read, and told in a few words."""

from __future__ import annotations

from typing import Any

import pytest

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    Chain,
    GraphPlan,
    Layout,
)
from tunefarm.tuner.records.graph_choice import GraphChoice, described

PLAN = GraphPlan((Layout("conv1", 24), Layout("add7", 24), Chain("depthwise4")))
CHOICE = GraphChoice(
    PLAN,
    "NHWC24 from conv1 to add7",
    speedup=1.081,
    low=1.06,
    high=1.1,
    seconds=0.003,
    arena_bytes=4096,
    notes=("4096 bytes for values between kernels, 8192 by the rules",),
)


def test_a_choice_is_read_as_it_was_written() -> None:
    assert GraphChoice.from_json(CHOICE.to_json()) == CHOICE
    assert GraphChoice.from_json(GraphChoice().to_json()) == GraphChoice()


def test_what_parts_gained_is_left_out_of_a_record_of_an_earlier_version() -> None:
    data = CHOICE.to_json()
    region = {"decisions": data["decisions"], "described": "all of it", "rival": "apart"}
    older = {**data, "regions": [region], "found": {"layout": 12, "measured": 9}}
    assert GraphChoice.from_json(older) == CHOICE


@pytest.mark.parametrize(
    "change",
    [
        {"decisions": [{"decide": "anything"}]},
        {"decisions": "layout conv1 NCHW16c"},
        {"speedup": "fast"},
        {"notes": 7},
    ],
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="plan"):
        GraphChoice.from_json({**CHOICE.to_json(), **change})
    with pytest.raises(PlanError, match="no choice of a plan"):
        GraphChoice.from_json({"points": []})


def test_a_choice_says_what_it_gains() -> None:
    gain = "1.08x faster than the rules, 1.06-1.10, confirmed"
    assert str(CHOICE) == f"NHWC24 from conv1 to add7 ({gain})"
    slower = GraphChoice(PLAN, "plain", 0.97, 0.96, 0.98, 0.003)
    assert str(slower) == "plain (0.97x as fast as the rules, 0.96-0.98)"
    assert str(GraphChoice(GraphPlan((Layout("c", 16),)))) == "NCHW16c at c (not confirmed)"
    assert str(GraphChoice(DEFAULT_PLAN)) == "as the rules decide"


def test_layouts_are_told_from_where_to_where() -> None:
    plan = GraphPlan(
        (
            *(Layout(name, 24) for name in "abd"),
            Layout("c", 0),
            Chain("q"),
        )
    )
    order = ("a", "b", "c", "d", "e", "q", "k")
    found = described(plan, order, dict.fromkeys(order, 48))
    assert found == "NCHW24c from a to b, NCHW at c, NCHW24c at d, chain q"
    assert described(PLAN, ("conv1", "add7"), {"conv1": 24, "add7": 24}).startswith(
        "NHWC24 from conv1 to add7, chain"
    )


def test_nhwc_is_told_as_one_whatever_the_channels() -> None:
    channels = {"a": 24, "b": 40, "c": 40, "d": 16}
    layouts = (*(Layout(name, channels[name]) for name in "abc"), Layout("d", 8))
    assert described(GraphPlan(layouts), "abcd", channels) == "NHWC from a to c, NCHW8c at d"


def test_many_decisions_are_counted() -> None:
    plan = GraphPlan(tuple(Chain(f"v{number}") for number in range(9)))
    assert described(plan) == "chain v0, chain v1, chain v2, 6 more chain decisions"
    four = GraphPlan(tuple(Chain(name) for name in "abcd"))
    assert described(four).endswith("chain c, 1 more chain decision")
