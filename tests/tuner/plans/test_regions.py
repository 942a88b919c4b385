"""A plan's decisions fall into regions, and layouts that the rules choose anyway are left out."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import pytest

from tests.tuner.plans.conv_net import conv_net
from tunefarm.compiler.limits import Limits
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    PLAIN,
    Chain,
    Decision,
    FusionBarrier,
    GraphPlan,
    Layout,
)
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS
from tunefarm.configs.settings import load_target
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner.plans.model_values import ModelValues, without
from tunefarm.tuner.plans.programs import PlannedProgram, Programs
from tunefarm.tuner.plans.regions import regions_of
from tunefarm.tuner.records.plan_region import PlanRegion

TARGET = Target.from_json(load_target("x86-64-v4").model_dump())


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Five convolutions c0 to c4, each with a ReLU r0 to r4, which the rules have in NCHW16c."""
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    onnx.save(conv_net((24,) * 5), path)
    return Programs(import_model(path), TARGET, DEFAULT_NUMERICS, Limits())


@pytest.fixture(scope="module")
def values(programs: Programs) -> ModelValues:
    return ModelValues.of(programs)


def regions(
    programs: Programs,
    values: ModelValues,
    decisions: Sequence[Decision],
    base: GraphPlan = DEFAULT_PLAN,
) -> list[PlanRegion]:
    def seconds(program: PlannedProgram) -> float:
        return 1.0 * sum(program.calls.values())

    return regions_of(programs, GraphPlan(tuple(decisions)), seconds, values, base)


def layouts(block: int, numbers: Sequence[int]) -> list[Layout]:
    return [Layout(f"{part}{number}", block) for number in numbers for part in "cr"]


def test_connected_values_of_one_layout_are_a_region(
    programs: Programs, values: ModelValues
) -> None:
    decided = [*layouts(24, [0, 1]), *layouts(PLAIN, [2]), *layouts(24, [3])]
    found = regions(programs, values, decided)
    assert {region.described: region.rival for region in found} == {
        "NHWC24 from c0 to r1": "NCHW16c",
        "NCHW from c2 to r2": "NCHW16c",
        "NHWC24 from c3 to r3": "NCHW16c",
    }
    assert {item for region in found for item in region.plan.decisions} == set(decided)
    assert not any(region.is_measured for region in found)


def test_those_that_are_expected_to_gain_most_come_first(
    programs: Programs, values: ModelValues
) -> None:
    found = regions(programs, values, [*layouts(24, [0, 1]), FusionBarrier("c3")])
    assert [region.rival for region in found] == ["NCHW16c", "fused"]
    assert found[0].expected > found[1].expected  # a cut is a kernel more


def test_cuts_of_the_same_kernels_are_one_region(programs: Programs, values: ModelValues) -> None:
    (found,) = regions(programs, values, [FusionBarrier("c2"), FusionBarrier("c3")])
    assert found.described == "separate c2, separate c3"


def test_what_changes_nothing_is_in_no_region(programs: Programs, values: ModelValues) -> None:
    assert regions(programs, values, layouts(16, [1, 2])) == []


def test_what_the_base_decides_is_in_no_region(programs: Programs, values: ModelValues) -> None:
    base = GraphPlan((FusionBarrier("c2"),))
    (found,) = regions(programs, values, [*base.decisions, *layouts(24, [4])], base)
    assert found.plan == GraphPlan(tuple(layouts(24, [4]))) and found.rival == "without them"


def test_layouts_that_the_rules_choose_anyway_are_left_out(
    programs: Programs, values: ModelValues
) -> None:
    own = layouts(24, [0, 1])
    plan = GraphPlan((*own, *layouts(16, [3, 4]), FusionBarrier("c2")))
    found = values.simplified(programs, plan)
    assert found == GraphPlan((*own, FusionBarrier("c2")))
    assert programs.of(found).is_same(programs.of(plan))
    assert values.simplified(programs, found) == found
    assert values.simplified(programs, plan, plan) == plan
    unfit = GraphPlan((*layouts(16, [3]), FusionBarrier("nothing")))
    assert values.simplified(programs, unfit) == unfit


def test_without_a_region_the_base_decides_again() -> None:
    base = GraphPlan((Layout("a", 8), Chain("b")))
    plan = base.with_decisions(Layout("a", 16), Layout("c", 16))
    assert without(plan, GraphPlan((Layout("a", 16),)), base) == base.with_decisions(
        Layout("c", 16)
    )
    assert without(plan, GraphPlan((Layout("c", 16), Layout("a", 16)))) == GraphPlan((Chain("b"),))
