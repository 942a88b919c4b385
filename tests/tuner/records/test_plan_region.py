"""What a part of a plan gains: written and read, and told in a line."""

from __future__ import annotations

from typing import Any

import pytest

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.plan.decisions.graph_plan import Chain, GraphPlan, Layout
from tunefarm.tuner.records.plan_region import PlanRegion, region_lines

REGION = PlanRegion(
    GraphPlan((Layout("conv3", 16), Layout("add7", 16))),
    "NCHW16c from conv3 to add7",
    "plain",
    0.05,
)


def test_a_region_is_read_as_it_was_written() -> None:
    measured = REGION.measured(1.04, 1.02, 1.06)
    assert PlanRegion.from_json(measured.to_json()) == measured
    assert PlanRegion.from_json(REGION.to_json()) == REGION


@pytest.mark.parametrize(
    "change", [{"decisions": 7}, {"low": "much"}, {"expected": None}, {"decisions": [{}]}]
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        PlanRegion.from_json({**REGION.to_json(), **change})
    with pytest.raises(PlanError, match="no region of a plan"):
        PlanRegion.from_json({})


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        ((1.04, 1.021, 1.06), "4 % faster than plain, confirmed (2.1 to 6.0 %)"),
        ((1.004, 1.001, 1.008), "0.4 % faster than plain, confirmed (0.1 to 0.8 %)"),
        ((0.95, 0.9, 0.97), "5 % slower than plain, confirmed (-10 to -3.0 %)"),
        ((1.04, 0.99, 1.09), "no difference found to plain (-1.0 to 9.0 %)"),
        ((1.25, 1.0, 1.5), "no difference found to plain (0 to 50 %)"),
    ],
)
def test_what_an_interval_does_not_exclude_is_no_gain(
    figures: tuple[float, float, float], told: str
) -> None:
    region = REGION.measured(*figures)
    assert str(region) == f"NCHW16c from conv3 to add7: {told}"
    assert region.gains == ("faster" in told)


def test_of_regions_that_were_not_measured_most_are_counted() -> None:
    others = [PlanRegion(GraphPlan((Chain(name),)), f"chain {name}") for name in "abcd"]
    lines = region_lines([*others, REGION.measured(1.04, 1.02, 1.06)])
    assert lines == [
        "NCHW16c from conv3 to add7: 4 % faster than plain, confirmed (2.0 to 6.0 %)",
        *(f"chain {name}: not measured alone" for name in "abc"),
        "1 more region: not measured alone",
    ]
    assert region_lines(others[:3]) == [f"chain {name}: not measured alone" for name in "abc"]
