"""What `tune db list` and `show` say of trials: against what they were measured, what was lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.db.examples import KEY, TARGET, build, failed, paired, trial
from tests.tuner.synthetic import matmul_kernel
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.db import queries
from tunefarm.db.records import BestRecord, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.tuner.commands.database_commands import (
    builds_to_json,
    check_lines,
    list_table,
    list_to_json,
    listed,
    show_lines,
    show_to_json,
)


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
