"""The page shows what is recorded, and names as text, whatever is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.db.examples import KEY, TARGET, failed, latency, populate, trial
from tests.tuner.pages.parsed import EVIL, details, parsed
from tests.tuner.records.test_model_latencies import TIMES
from tunefarm.configs.errors import DatabaseError
from tunefarm.db.records import BestRecord, TaskKey, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.tuner.pages.contents import PageOptions
from tunefarm.tuner.pages.page import json_of, page_of, parts_of
from tunefarm.tuner.records.model_latencies import EngineTime, ModelStep, Ratio


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "<b>.db") as store:
        yield store


def test_every_name_of_the_database_is_escaped(store: Store) -> None:
    key = TaskKey(EVIL, EVIL[:60], 1, "default", EVIL[:60])
    store.add([WorkloadRecord(key.workload, EVIL, {})])
    store.add([replace(TARGET, key=key.target)])
    job = store.start_job(EVIL, "hash", {})
    store.update_job(job.id, {"trials": EVIL})
    store.add([trial(n, 1.0 / n, key=key, sketch=EVIL) for n in (1, 2)])
    store.add([trial(3, None, key=key, samples=(), status="crashed", error=EVIL)])
    engine = EngineTime(EVIL, EVIL, 1.0, Ratio(1.0, 0.9, 1.1), EVIL)
    times = replace(TIMES, steps=(ModelStep(EVIL, EVIL, 1.0),), llvm=EVIL, engines=(engine,))
    names = {"model_name": EVIL, "numerics": EVIL[:60], "machine": {"cpu": EVIL}}
    measured = latency(1, target=key.target, measured=times.to_json(), **names)
    store.add([measured])
    page = page_of(store)
    found = parsed(page)
    assert "img" not in found.tags
    assert found.scripts == page.count("<script")  # none of them is a record's
    assert sum(EVIL[:50] in text for text in found.texts) >= 10
    assert "\x1b" not in page and "\u202e" not in page
    (shown,) = details(page).values()
    shown_text = json.dumps(shown, ensure_ascii=False)
    assert "\x1b" not in shown_text and "\\x1b" not in page + shown_text


def test_values_for_scripts_are_the_same_and_harmless(store: Store) -> None:
    populate(store)
    store.add([trial(1, error="", sketch="a\u202eb")])
    text = json.dumps(json_of(parts_of(store, PageOptions())), allow_nan=False, ensure_ascii=False)
    assert "a\\u202eb" in json.loads(text)["kernels"][0]["details"]["schedule"]["sketch"]
    assert "\u202e" not in text


def test_the_page_has_jobs_and_kernels(store: Store) -> None:
    store.add([WorkloadRecord(KEY.workload, "conv_relu", {})])
    store.add([TARGET])
    store.start_job("resnet.onnx", "hash", {})
    store.add([trial(1, 0.5), trial(2, 0.25), failed(3), failed(4, "scattered")])
    page = page_of(store)
    texts = "".join(parsed(page).texts)
    for text in (
        "resnet.onnx",
        "running",
        "conv_relu",
        KEY.workload[:8],
        "250 ms",
        "not confirmed",
    ):
        assert text in texts
    points = details(page)["k0"]["trials"]["points"]
    assert {kind: group["x"] for kind, group in points.items() if group["x"]} == {
        "measured": [1, 2],
        "failed": [3],
        "too noisy": [4],
    }


def test_what_was_lost_to_noise_has_not_failed(store: Store) -> None:
    populate(store)
    lost = [failed(n, "unstable" if n % 2 else "scattered", "too noisy") for n in range(2, 249)]
    store.add([trial(1, 0.5), *lost])
    job = store.start_job("resnet.onnx", "hash", {})
    store.update_job(job.id, {"trials": 248, "failures": 0, "scattered": 247})
    page = page_of(store)
    assert "<td>248</td><td>0</td><td>247</td>" in page  # of the kernel: trials, failed, lost
    assert "<td>248</td><td>0</td><td>247</td>" in page[page.index('id="jobs"') :].replace("\n", "")
    assert "247 failed" not in page
    assert details(page)["k0"]["failures"] == []


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (0.7, 0.8, "1.33x (1.25x to 1.43x)"),
        (0.7, 1.02, "no difference found (0.98x to 1.43x)"),
    ],
)
def test_a_speed_up_is_of_the_pairs_that_confirmed_it(
    low: float, high: float, told: str, store: Store
) -> None:
    """And one that its interval does not exclude is none."""
    populate(store)
    store.add([trial(1, 0.5), trial(2, 0.25)])
    job = store.start_job("resnet.onnx", "hash", {})
    names = trial(2).schedule_hash, trial(2).request_id
    store.add([BestRecord(KEY, *names, 0.8, 0.75, low, high, ("a",), job.id)])
    page = page_of(store)
    assert ">800 ms</td>" in page and ">600 ms</td>" in page
    assert f">{told}</td>" in page
    assert ("1.33x" in page) == (high < 1)


def test_a_model_that_noise_made_slower_is_not_shown_as_slower(store: Store) -> None:
    populate(store)
    times = replace(TIMES, refused=None, over_untuned=Ratio(1.05, 0.6, 1.8))
    store.add([latency(1, measured=times.to_json())])
    texts = "".join(parsed(page_of(store)).texts)
    assert "no difference found (0.56x to 1.67x)" in texts and "0.95x" not in texts


def test_latencies_that_others_wrote_wrongly_are_left_out(store: Store) -> None:
    populate(store)
    store.add([latency(1, measured={"form": 1, "tuned": "fast"}), latency(2, measured={})])
    assert "<h2>Models" not in page_of(store)


def test_one_job_is_shown_alone(store: Store) -> None:
    populate(store)
    store.add([trial(1)])
    ids = [store.start_job(name, name, {}).id for name in ("first.onnx", "second.onnx")]
    page = page_of(store, PageOptions(job=ids[0][:12]))
    assert "first.onnx" in page and "second.onnx" not in page
    with pytest.raises(DatabaseError, match="no job begins"):
        page_of(store, PageOptions(job="none"))


def test_engines_are_compared_or_the_command_is_named(store: Store) -> None:
    populate(store)
    record = latency(1, measured=replace(TIMES, engines=()).to_json())
    store.add([record])
    assert f"tune bench --model {record.model_name} --db" in page_of(store)
    engine = EngineTime("onnxruntime", "f32", 3.3e-3, Ratio(1.57, 1.5, 1.64))
    store.add([latency(2, measured=replace(TIMES, engines=(engine,)).to_json())])
    page = page_of(store)
    assert "1.57 (1.50 to 1.64)" in page and "tune bench --model" not in page
