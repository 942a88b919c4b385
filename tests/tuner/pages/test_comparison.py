"""Two jobs, or two builds: what is told to have changed, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.db.examples import KEY, build, latency, populate, trial
from tests.tuner.pages.parsed import parsed
from tests.tuner.records.test_model_latencies import TIMES
from tunefarm.configs.errors import DatabaseError
from tunefarm.db.records import BestRecord, JobTask
from tunefarm.db.store import Store
from tunefarm.tuner.pages.comparison import find_build, ratio_of
from tunefarm.tuner.pages.contents import PageOptions
from tunefarm.tuner.pages.page import page_of, parts_of
from tunefarm.tuner.records.model_latencies import Ratio


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as store:
        populate(store)
        store.add([trial(1), trial(2)])
        yield store


def job(store: Store, number: int, ratio: Ratio, seed: int, other: bool = False) -> str:
    """A job that settled on a trial, and took so much of the untuned model's time."""
    id = store.start_job("net.onnx", "hash", {"search": {"seed": seed}}, [JobTask(KEY, 1)]).id
    chosen = trial(number)
    names = chosen.schedule_hash, chosen.request_id
    bounds = ratio.ratio, ratio.low, ratio.high
    store.add([BestRecord(KEY, *names, 1.0, *bounds, (names[0],), id, created=1e9 * number)])
    times = replace(TIMES, over_untuned=ratio, refused=None)
    changes: dict[str, Any] = {"machine": {"cpu": "another"}} if other else {}
    store.add([latency(number, measured=times.to_json(), job=id, **changes)])
    store.finish_job(id, "finished", {})
    return id


def test_jobs_differ_by_ratios_that_each_measured(store: Store) -> None:
    old = job(store, 1, Ratio(0.8, 0.79, 0.81), seed=1)
    new = job(store, 2, Ratio(0.4, 0.39, 0.41), seed=2)
    options = PageOptions(job=new, against=old)
    comparison = parts_of(store, options)["comparison"]
    assert comparison["model"]["change"].startswith("2.00x (")
    (row,) = comparison["rows"]
    assert row["schedule"] == "another schedule" and row["change"].startswith("2.00x (")
    assert comparison["settings"] == [{"name": "search.seed", "old": "1", "new": "2"}]
    assert comparison["model"]["note"] == ""
    assert "What changed" in "".join(parsed(page_of(store, options)).texts)


def test_a_change_within_the_noise_is_none_and_conditions_are_told(store: Store) -> None:
    old = job(store, 1, Ratio(0.8, 0.6, 1.0), seed=1)
    new = job(store, 2, Ratio(0.76, 0.6, 0.95), seed=1, other=True)
    comparison = parts_of(store, PageOptions(job=new, against=old))["comparison"]
    assert comparison["model"]["change"].startswith("no difference found")
    assert comparison["rows"][0]["change_class"] == "same"
    assert comparison["model"]["note"] == "machine test before, another now"


def test_the_same_schedule_is_no_change(store: Store) -> None:
    old = job(store, 1, Ratio(0.8, 0.79, 0.81), seed=1)
    (row,) = parts_of(store, PageOptions(job=old, against=old))["comparison"]["rows"]
    assert (row["schedule"], row["change"]) == ("the same schedule", "-")


def test_what_a_later_job_settled_is_not_the_former_ones_after_a_clock_was_set_back(
    store: Store,
) -> None:
    old = job(store, 2, Ratio(0.8, 0.79, 0.81), seed=1)
    new = job(store, 1, Ratio(0.4, 0.39, 0.41), seed=2)  # created long before the old one ended
    (row,) = parts_of(store, PageOptions(job=new, against=old))["comparison"]["rows"]
    assert row["schedule"] == "another schedule" and row["change"].startswith("2.00x (")


def test_errors_of_two_ratios_add_up() -> None:
    both = ratio_of(Ratio(0.5, 0.4, 0.625), Ratio(1.0, 0.8, 1.25))
    assert both.ratio == 0.5
    assert both.high / both.ratio > 1.25 and both.low < 0.4


def test_builds_differ_in_their_kernels_records(store: Store) -> None:
    def built(number: int, record: str, seconds: object) -> dict[str, Any]:
        kernel = {"name": "conv", "key": "ab12", "schedule_source": "tuned", "share": 1.0}
        return {"kernels": [{**kernel, "record_id": record, "latency": seconds}, "no kernel"]}

    first, second = build(1), replace(build(2), artefact_sha256="b" * 64, tuned_share=1.0)
    store.add([replace(first, report=built(1, "1", 2e-3))])
    store.add([replace(second, report=built(2, "2", 1e-3))])
    names = first.artefact_sha256, "bbbb"
    comparison = parts_of(store, PageOptions(builds=names))["comparison"]
    (row,) = comparison["rows"]
    assert row["change"] == "2.00x by its records"
    assert comparison["tuned"] == ["75.0 %", "100.0 %"]
    page_of(store, PageOptions(builds=names))
    store.add([replace(build(3), artefact_sha256="c" * 64, report={"kernels": "none"})])
    page_of(store, PageOptions(builds=("bbbb", "cccc")))


@pytest.mark.parametrize("name", ["", "f", "0"])
def test_builds_that_are_not_there_or_not_alone_are_named(name: str) -> None:
    with pytest.raises(DatabaseError, match="begin"):
        find_build([build(1), build(2)], name)
