"""A model's section tells its plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.db.examples import latency
from tests.tuner.pages.made_up import graph_plan
from tests.tuner.pages.parsed import parsed
from tests.tuner.records.test_model_latencies import TIMES
from tunefarm.compiler.plan.decisions.graph_plan import Chain, GraphPlan, Layout
from tunefarm.db.records import LatencyRecord
from tunefarm.db.store import Store
from tunefarm.tuner.pages.contents import PageOptions
from tunefarm.tuner.pages.page import html_of, json_of, page_of, parts_of
from tunefarm.tuner.records.graph_choice import GraphChoice
from tunefarm.tuner.records.model_latencies import (
    EngineTime,
    ModelTimes,
    Ratio,
)

pytestmark = pytest.mark.usefixtures("populated")


def kept(store: Store, times: ModelTimes, number: int = 1) -> LatencyRecord:
    record = latency(number, measured=times.to_json())
    store.add([record])
    return record


def section(store: Store, *, full: bool = False) -> dict[str, Any]:
    (model,) = parts_of(store, PageOptions(full=full))["models"]
    return dict(model)


def test_a_plan_is_told_with_what_it_gains(store: Store) -> None:
    store.add([graph_plan(kept(store, TIMES))])
    model = section(store)
    assert model["plan"]["notes"] == ["NHWC from v0 to v39: 8 % faster than the rules, confirmed"]
    told = "".join(parsed(html_of(parts_of(store, PageOptions()))).texts)
    for text in (
        "1.08x as fast as the default plan (95 % interval 1.06x to 1.10x)",
        "4 MiB for values",
        "chain v4",
        "layout v7 NCHW24c",
        "default plan",
        "41 decisions",
        "40 values in a channel-blocked layout",
    ):
        assert text in told
    json.dumps(json_of(parts_of(store, PageOptions())), allow_nan=False)


@pytest.mark.parametrize(
    ("bounds", "kind"),
    [((1.06, 1.1), "better"), ((0.9, 0.95), "worse"), ((0.9, 1.1), "same"), ((-1.0, 0.0), "same")],
)
def test_plans_that_gain_nothing_are_not_shown_as_gains(
    bounds: tuple[float, float], kind: str, store: Store
) -> None:
    """They may be there for the memory that they need."""
    plan = graph_plan(kept(store, TIMES))
    changed = {**plan.plan, "speedup": sum(bounds) / 2, "low": bounds[0], "high": bounds[1]}
    store.add([replace(plan, plan=changed)])
    assert section(store)["plan"]["gain_class"] == kind


def test_a_plan_of_another_compiler_or_none_at_all_is_said(store: Store) -> None:
    plan = graph_plan(kept(store, TIMES))
    store.add([replace(plan, compiler_version="0")])
    assert section(store)["plan"]["version"] == "0"
    rules = GraphChoice().to_json()
    store.add([replace(plan, id="later", created=plan.created + 1, plan=rules)])
    assert section(store)["plan"]["summary"].startswith("The default plan")
    store.add([replace(plan, id="last", created=plan.created + 2, plan={"decisions": 1})])
    # The last one cannot be read.
    assert section(store)["plan"]["summary"].startswith("The default plan")


def test_a_plan_says_what_it_does_without_node_names(store: Store) -> None:
    decided = GraphPlan((Layout("stem", 16), Layout("pool", 0), Chain("head")))
    plan = graph_plan(kept(store, TIMES))
    store.add([replace(plan, plan=GraphChoice(decided, "names", 1.08, 1.06, 1.1).to_json())])
    does = section(store)["plan"]["does"]
    assert does == (
        "1 value in a channel-blocked layout; 1 value in plain NCHW layout; "
        "1 producer computed tile by tile inside its consumer (fusion)"
    )
    page = page_of(store)
    assert f"<p>{does}.</p>" in page and "3 decisions" in page


@pytest.mark.parametrize(("count", "text"), [(1, ">1 decision<"), (2, ">2 decisions<")])
def test_decisions_are_counted_in_words(count: int, text: str, store: Store) -> None:
    choice = GraphChoice(GraphPlan(tuple(Chain(f"v{n}") for n in range(count))))
    store.add([replace(graph_plan(kept(store, TIMES)), plan=choice.to_json())])
    page = page_of(store)
    assert text in page and "Not confirmed with the whole model" in page


def test_engines_are_compared_or_the_command_is_named(store: Store) -> None:
    kept(store, replace(TIMES, engines=()))
    assert f"tune bench --model {section(store)['name']} --db" in page_of(store)
    engine = EngineTime("onnxruntime", "f32", 3.3e-3, Ratio(1.57, 1.5, 1.64))
    kept(store, replace(TIMES, engines=(engine,)), 2)
    page = page_of(store)
    assert "1.57 (1.50 to 1.64)" in page and "tune bench --model" not in page
