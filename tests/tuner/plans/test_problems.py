"""Which decisions cost least together, for costs of kernels that are made up."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler.kernels.calls_in_run import calls_in_run
from tunefarm.compiler.limits import Limits
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    PLAIN,
    Chain,
    GraphPlan,
    Layout,
)
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner.plans.job_plans import kinds_of_plans
from tunefarm.tuner.plans.problems import Kind, LocalParts, Part, parts_of, total
from tunefarm.tuner.plans.programs import Programs


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    path = tmp_path / "tiny.onnx"
    onnx.save(tiny_model(), path)
    return Programs(import_model(path), host_target(), DEFAULT_NUMERICS, Limits())


def part(value: str, touches: str, **calls: int) -> Part:
    return Part((Chain(value),), calls, frozenset(touches))


COSTS = {"old": 4.0, "new": 1.0, "tail": 2.0, "broken": math.inf}


def seconds(key: str) -> float:
    return COSTS[key]


def test_parts_that_gain_are_taken_together() -> None:
    parts = [part("a", "x", old=-1, new=1), part("b", "y", old=-1, tail=1), part("c", "z", new=1)]
    found = LocalParts(Kind.CHAINS, parts).solve(seconds)
    assert found.decisions == (Chain("a"), Chain("b"))
    assert found.calls == {"old": 2, "new": 1, "tail": 1}


def test_of_parts_that_change_the_same_kernel_the_better_one_is_taken() -> None:
    parts = [part("a", "xy", old=-1, tail=1), part("b", "yz", old=-1, new=1)]
    assert LocalParts(Kind.CHAINS, parts).solve(seconds).decisions == (Chain("b"),)


def test_a_gain_that_is_in_doubt_is_not_taken() -> None:
    parts = [part("a", "x", old=-1, tail=1)]
    assert LocalParts(Kind.CHAINS, parts).solve(seconds, lambda _: 1.0).decisions != ()
    assert LocalParts(Kind.CHAINS, parts).solve(seconds, lambda _: 2.0).decisions == ()


def test_a_kernel_that_does_not_work_is_never_taken_and_always_replaced() -> None:
    assert total({"broken": 1, "old": -1}, seconds) == math.inf
    assert total({"broken": -1, "old": 1}, seconds) == -math.inf
    assert total({"broken": 0}, seconds) == 0.0
    broken = part("a", "x", broken=1, old=-1)
    assert LocalParts(Kind.CHAINS, [broken]).solve(seconds).decisions == ()


def test_the_program_of_a_plan_is_made_once(programs: Programs) -> None:
    plain = GraphPlan((Layout("c", PLAIN),))
    first = programs.of(plain)
    assert programs.of(plain) is first
    assert first.changed_from(programs.of(DEFAULT_PLAN))
    assert set(first.calls) <= programs.kernels.keys()
    assert first.arena_bytes > 0
    assert programs.fitting(GraphPlan((Layout("nothing", PLAIN),))) is None


def test_kernels_of_other_plans_are_those_of_this_one(programs: Programs) -> None:
    for plan in (DEFAULT_PLAN, GraphPlan((Layout("c", PLAIN),))):
        alone = kernels_of(programs.graph, programs.target, plan=plan)
        assert programs.of(plan).calls == calls_in_run(alone)
        assert all(
            programs.kernels[key] == uses[0].kernel for key, uses in alone.kernel_calls().items()
        )


def test_a_part_is_what_its_decision_changes(programs: Programs) -> None:
    wanted = (Layout("c", PLAIN),)
    (found,) = parts_of(programs, DEFAULT_PLAN, [wanted, (Chain("nothing"),), wanted])
    rules, plain = programs.of(DEFAULT_PLAN), programs.of(GraphPlan(wanted))
    assert found.decisions == wanted
    come, go = ({key for key, n in found.calls.items() if n * sign > 0} for sign in (1, -1))
    assert come == {*plain.calls} - {*rules.calls} and go == {*rules.calls} - {*plain.calls}
    assert found.touches == plain.changed_from(rules)
    assert parts_of(programs, DEFAULT_PLAN, [wanted], is_late=lambda: True) == []


def test_every_kind_offers_only_plans_that_fit(programs: Programs) -> None:
    kinds = [make(programs, DEFAULT_PLAN) for make in kinds_of_plans(lambda: False)]
    assert [kind.kind for kind in kinds] == [Kind.CHAINS, Kind.MERGES]
    assert "c" in programs.sites(DEFAULT_PLAN).planned.types
