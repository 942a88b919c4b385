"""From the database to the compiler: exact hits, no hits, damaged records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.tuner.building.test_report import REPORT
from tests.tuner.fleet import record_kernel
from tests.tuner.synthetic import TARGET, matmul_kernel
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.configs.settings import load_settings
from tunefarm.db import queries
from tunefarm.db.records import TrialRecord
from tunefarm.db.store import Store
from tunefarm.tuner.building.apply_best import Records, choose_from
from tunefarm.tuner.records.trials import task_key

KERNEL = matmul_kernel()
SCHEDULE = [["Unroll", "matmul", "n"]]


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open(":memory:") as opened:
        record_kernel(opened, KERNEL, TARGET)
        yield opened


def record(store: Store, schedule: list[list[str]]) -> None:
    key = task_key(workload_key(KERNEL), TARGET, 1, "default")
    trial = TrialRecord(key, "r", "tiled", {}, schedule, "ok", latency=0.5, samples=(0.5,))
    store.add([trial])


def test_a_recorded_kernel_gets_its_schedule_with_the_source(store: Store) -> None:
    record(store, SCHEDULE)
    choice = choose_from(store, TARGET, 1, "default")(KERNEL)
    assert choice is not None
    assert choice.schedule.to_json() == SCHEDULE
    assert (choice.source, choice.record_id, choice.latency) == ("tuned", "1", 0.5)


@pytest.mark.parametrize(("threads", "numerics"), [(2, "default"), (1, "strict")])
def test_records_of_another_key_are_not_used(store: Store, threads: int, numerics: str) -> None:
    record(store, SCHEDULE)
    assert choose_from(store, TARGET, threads, numerics)(KERNEL) is None


def test_another_kernel_has_no_schedule(store: Store) -> None:
    record(store, SCHEDULE)
    assert choose_from(store, TARGET, 1, "default")(matmul_kernel(3, 5, 7)) is None


def test_a_record_that_holds_no_schedule_is_left_and_the_next_one_applied(store: Store) -> None:
    record(store, [["Conjure", "matmul"]])
    assert choose_from(store, TARGET, 1, "default")(KERNEL) is None
    assert queries.damaged(store)["trials 1"].startswith("holds no schedule: unknown schedule step")
    record(store, SCHEDULE)
    choice = choose_from(store, TARGET, 1, "default")(KERNEL)
    assert choice is not None and choice.record_id == "2"


@pytest.mark.parametrize(
    ("numerics", "multiplied", "source", "notes"),
    [
        ("bf16", "bf16", "default", 1),
        ("bf16", "bf16", "tuned", 0),
        ("bf16", "direct", "default", 0),
        ("default", "u8 x i8", "default", 0),
    ],
)
def test_a_build_says_that_what_only_its_numerics_have_is_not_tuned(
    store: Store, numerics: str, multiplied: str, source: str, notes: int
) -> None:
    settings = load_settings(None, {"compile.numerics": numerics}, environment={})
    kernel = replace(REPORT, numerics=multiplied, schedule_source=source, record_id=None)
    found = tuple(map(str, Records(store, settings, TARGET).unapplied([kernel])))
    wanted = ":memory: has no record of the kernel with narrow factors: tune with --precision bf16"
    assert found == (wanted,) * notes
