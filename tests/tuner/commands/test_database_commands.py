"""What `tune db list` and `show` say of trials: against what they were measured, what was lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.db.examples import KEY, TARGET, build, failed, paired, populate, trial
from tests.db.examples import plan as other_plan
from tests.tuner.synthetic import matmul_kernel
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.plan.decisions.graph_plan import Chain, GraphPlan, Layout
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import load_settings
from tunefarm.db import model_queries, queries
from tunefarm.db.check import check
from tunefarm.db.export import export_records, import_records, merge_records
from tunefarm.db.records import BestRecord, TargetRecord, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.tuner.building.recorded_plan import plan_to_apply, record_plan
from tunefarm.tuner.commands.database_commands import (
    builds_to_json,
    check_lines,
    list_table,
    list_to_json,
    listed,
    plan_list,
    show_lines,
    show_to_json,
    shown_plans,
)
from tunefarm.tuner.records.graph_choice import GraphChoice
from tunefarm.tuner.records.prune import plan_pruning, prune


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as store:
        kernel = matmul_kernel()
        store.add([WorkloadRecord(KEY.workload, kernel.name, kernel_to_json(kernel))])
        store.add([TARGET])
        yield store


def test_what_scattered_is_listed_apart_from_what_failed(store: Store) -> None:
    store.add([trial(1), failed(2), failed(3), failed(4, "scattered"), failed(5, "unstable")])
    tasks = queries.summary(store)
    assert [list_to_json(tasks)[0][name] for name in ("trials", "failed", "scattered")] == [5, 2, 2]
    table = list_table(tasks)
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert (cells["failed"], cells["noisy"]) == (["2"], ["2"])


def test_a_trial_is_shown_with_what_it_was_measured_against(store: Store) -> None:
    store.add([trial(1), paired(2, 1)])
    assert "time relative to trial 1: 0.500 (0.450 to 0.550)" in "\n".join(shown(store))


def test_a_reference_that_is_gone_is_named_as_such(store: Store) -> None:
    gone = trial(9).schedule_hash
    store.add([paired(2, 9)])
    assert any(f"schedule {gone}, which was deleted: 0.500" in line for line in shown(store))


def test_a_schedule_measured_again_is_shown_with_all_its_pairs(store: Store) -> None:
    store.add([trial(1), paired(2, 1), paired(2, 1, request_id="again", ratio=0.52)])
    against = [line.split(": ")[1] for line in shown(store) if "to trial 1" in line]
    assert [line[:5] for line in against] == ["0.500", "0.520"]


def test_the_best_that_is_listed_is_what_a_build_applies(store: Store) -> None:
    store.add([trial(1), paired(2, 1), paired(2, 1, request_id="again")])
    store.add([paired(3, 1, latency=0.495)])  # lucky, perhaps
    assert [task.best_latency for task in listed(store)] == [0.5]


def test_checking_says_that_references_are_gone_and_finds_nothing_wrong(store: Store) -> None:
    store.add([trial(1), paired(2, 1)])
    assert len(check_lines(store, 0)[0]) == 1
    store.add([paired(3, 9), paired(4, 9)])
    lines, sound = check_lines(store, 0)
    assert sound
    assert lines[1].startswith("2 records were measured against schedules that have no record")


def test_a_trial_that_was_measured_alone_is_shown_with_its_latency_only(store: Store) -> None:
    store.add([trial(1)])
    assert not any("time relative" in line for line in shown(store))


def test_what_a_build_uses_is_shown_with_what_was_confirmed_of_it(store: Store) -> None:
    store.add([trial(1), paired(2, 1)])
    assert any(line.endswith("record 2 (not confirmed yet)") for line in shown(store))
    job = store.start_job("model.onnx", "hash", {})
    record = replace(paired(2, 1), job=job.id)
    names = record.schedule_hash, record.request_id
    store.add([BestRecord(KEY, *names, 1.0, 0.5, 0.45, 0.55, ("a",), job.id)])
    (used,) = [line for line in shown(store) if "a build uses" in line]
    assert used.endswith("(confirmed, time relative to the default: 0.500 (0.450 to 0.550))")


def test_a_default_schedule_that_was_confirmed_is_unchanged(store: Store) -> None:
    store.add([trial(1)])
    job = store.start_job("model.onnx", "hash", {})
    record = replace(trial(1), job=job.id)
    names = record.schedule_hash, record.request_id
    store.add([BestRecord(KEY, *names, 1.0, 1.0, 1.0, 1.0, ("a",), job.id)])
    (used,) = [line for line in shown(store) if "a build uses" in line]
    assert used.endswith("(confirmed, unchanged: the default schedule)")


def shown(store: Store) -> list[str]:
    return show_lines(store, KEY.workload, 10)


def test_a_workload_is_json_with_its_trials_and_what_a_build_uses(store: Store) -> None:
    store.add([trial(1), paired(2, 1), failed(3)])
    value = show_to_json(store, KEY.workload[:8], 2)
    assert (value["workload"], value["kernel"]) == (KEY.workload, kernel_to_json(matmul_kernel()))
    (task,) = value["tasks"]
    assert (task["target"], task["threads"]) == (KEY.target, KEY.threads)
    assert [(item["number"], item["seconds"]) for item in task["trials"]] == [(2, 0.5), (1, 1.0)]
    assert task["applied"]["number"] == 2
    assert show_to_json(store, KEY.workload, 3)["tasks"][0]["trials"][-1]["seconds"] is None
    json.dumps(value, allow_nan=False)


def test_builds_are_json_with_the_columns_of_their_table(store: Store) -> None:
    assert builds_to_json(store, 5) == []
    first = build(1)
    store.add([first, replace(build(2), created=first.created + 1)])
    newest, oldest = builds_to_json(store, 5)
    assert newest["created"] == first.created + 1
    assert (oldest["model"], oldest["tuned_share"]) == (first.model_name, first.tuned_share)
    assert builds_to_json(store, 1) == [newest]


CHOICE = GraphChoice(
    GraphPlan((Layout("conv1", 24), Chain("add7"))),
    "NHWC24 at conv1, chain add7",
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
        f"of net, {host_target().key}, 1 thread, default: NHWC24 at conv1, chain add7 "
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
    assert lines[-2:] == ["    chain add7", "    layout conv1 NCHW24c"]


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
            assert "not confirmed on this CPU: the rules decide" in left.notes[0]
            assert plan_list(other) == plan_list(store)
        with Store.open(tmp_path / "c.db") as third:
            target = host_target()
            third.add([TargetRecord(target.key, target.to_json())])
            merge_records(third, store)
            prune(third, plan_pruning(third, 1))
            assert applied(third) == CHOICE
            assert check(third) == []
