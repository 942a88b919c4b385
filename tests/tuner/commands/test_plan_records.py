"""Plans of graphs in `tune db`: listed, shown, exported, imported, merged and checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.db.examples import plan as other_plan
from tests.db.examples import populate
from tunefarm.compiler.plan.decisions.graph_plan import FusionBarrier, GraphPlan, Layout
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import load_settings
from tunefarm.db import model_queries
from tunefarm.db.check import check
from tunefarm.db.export import export_records, import_records, merge_records
from tunefarm.db.records import TargetRecord
from tunefarm.db.store import Store
from tunefarm.tuner.building.recorded_plan import plan_to_apply, record_plan
from tunefarm.tuner.commands.plan_records import plan_list, shown_plans
from tunefarm.tuner.records.graph_choice import GraphChoice
from tunefarm.tuner.records.prune import plan_pruning, prune

CHOICE = GraphChoice(
    GraphPlan((Layout("conv1", 24), FusionBarrier("add7"))),
    "NHWC24 at conv1, separate add7",
    1.08,
    1.06,
    1.1,
    0.003,
    4096,
    ("NHWC24 at conv1: 6 % faster than the rules, confirmed",),
)
SETTINGS = load_settings(None, environment={})


def fill(store: Store) -> None:
    """An older plan of a model, and its newest one, beside what is no plan of a graph."""
    populate(store)
    store.add([other_plan(1)])
    for choice in (GraphChoice(), CHOICE):
        record_plan(store, choice, "net", "hash", SETTINGS, host_target())


def test_the_newest_plan_of_a_model_is_listed(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store:
        fill(store)
        (line,) = plan_list(store)
    assert line.endswith(
        f"of net, {host_target().key}, 1 thread, default: NHWC24 at conv1, separate add7 "
        "(1.08x faster than the rules, 1.06-1.10, confirmed)"
    )


def test_a_plan_of_another_compiler_is_listed_as_such(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store:
        fill(store)
        (record,) = [r for r in model_queries.plans(store) if r.plan == CHOICE.to_json()]
    with Store.open(tmp_path / "b.db") as store:
        target = host_target()
        store.add([TargetRecord(target.key, target.to_json())])
        store.add([replace(record, compiler_version="0")])
        (line,) = plan_list(store)
    assert line.endswith(", confirmed); of version 0 of the compiler: not applied")


def test_a_plan_is_shown_by_the_start_of_its_id(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store:
        fill(store)
        newest = model_queries.plans(store)[0]
        assert newest.model_name == "net"
        lines = shown_plans(store, newest.id[:10])
        assert shown_plans(store, "zz") == []
    assert "  NHWC24 at conv1: 6 % faster than the rules, confirmed" in lines
    assert lines[-2:] == ["    layout conv1 NCHW24c", "    separate add7"]


def applied(store: Store) -> GraphChoice | None:
    """The plan of a build that takes what comes from elsewhere as it is."""
    return plan_to_apply(store, "hash", SETTINGS, host_target(), accept_nominees=True).choice


def test_plans_go_where_records_go(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store:
        fill(store)
        export_records(store, tmp_path / "a.jsonl")
        with Store.open(tmp_path / "b.db") as other:
            import_records(other, tmp_path / "a.jsonl")
            assert applied(other) == CHOICE
            left = plan_to_apply(other, "hash", SETTINGS, host_target())
            assert left.choice is None
            assert "was not confirmed on this CPU: the rules decide" in left.notes[0]
            assert plan_list(other) == plan_list(store)
        with Store.open(tmp_path / "c.db") as third:
            target = host_target()
            third.add([TargetRecord(target.key, target.to_json())])
            merge_records(third, store)
            prune(third, plan_pruning(third, 1))
            assert applied(third) == CHOICE
            assert check(third) == []
