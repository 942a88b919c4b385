"""A page begins with what the newest job gained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.db.examples import KEY, latency, trial
from tests.tuner.commands.live_jobs import task
from tests.tuner.pages.parsed import parsed
from tests.tuner.records.test_model_latencies import TIMES
from tunefarm.db.records import JobTask
from tunefarm.db.store import Store
from tunefarm.tuner.pages.contents import PageOptions
from tunefarm.tuner.pages.page import html_of, json_of, page_of, parts_of
from tunefarm.tuner.records.model_latencies import Ratio
from tunefarm.tuner.reports.job_state import JobState, Moment

pytestmark = pytest.mark.usefixtures("populated")


def job(store: Store, ratio: Ratio | None, state: JobState | None = None) -> None:
    id = store.start_job("net.onnx", "hash", {}, [JobTask(KEY, 3)]).id
    store.finish_job(id, "finished", (state or JobState()).to_json())
    if ratio is not None:
        times = replace(TIMES, tuned=1e-3, untuned=2e-3, over_untuned=ratio, refused=None)
        store.add([latency(1, job=id, model_name="net.onnx", measured=times.to_json())])


@pytest.mark.parametrize(
    ("ratio", "text", "kind"),
    [
        (
            Ratio(0.5, 0.4, 0.625),
            "2.00x as fast as untuned (95 % interval 1.60x to 2.50x)",
            "better",
        ),
        (
            Ratio(1.25, 1.25, 1.25001),
            "0.80x as fast as untuned (95 % interval 0.80x to 0.80x)",
            "worse",
        ),
        (
            Ratio(1.0, 0.8, 1.25),
            "no difference found between tuned and untuned (95 % interval 0.80x to 1.25x)",
            "same",
        ),
        (
            Ratio(1.0, 1.0, 1.0),
            "unchanged by tuning: the tuned build is the untuned one",
            "same",
        ),
    ],
)
def test_the_headline_is_the_gain_with_its_interval(
    ratio: Ratio, text: str, kind: str, store: Store
) -> None:
    job(store, ratio)
    parts = parts_of(store, PageOptions())
    assert parts["headline"]["text"] == text and parts["headline"]["class"] == kind
    page = html_of(parts)
    assert page.count('class="headline ') == 1
    assert f"net.onnx: {text}" in "".join(parsed(page).texts)
    assert "curve" not in json_of(parts)["headline"]


def test_a_job_without_a_measured_model_says_so(store: Store) -> None:
    job(store, None)
    assert "net.onnx: the whole model was not measured yet" in page_of(store)


def test_an_empty_database_has_no_headline(store: Store) -> None:
    assert parts_of(store, PageOptions())["headline"] is None
    assert 'class="headline ' not in page_of(store)


def test_the_largest_gains_are_named_with_their_reasons(store: Store) -> None:
    why = "tile 5x4 instead of 9x3 (7 % slower without), unroll 16 instead of 8"
    gained = replace(
        task(9),  # 1 ms, by default 2
        nodes="stem <conv>",
        confirmed=0.5,
        reason=why,
    )
    job(store, None, JobState(tasks=(task(3), gained)))
    page = html_of(parts_of(store, PageOptions()))
    assert "<p>Largest gains:</p>" in page
    line = f"stem <conv> ({gained.key[:8]}) 2.00x: {why}"
    assert line in "".join(parsed(page).texts)
    job(store, None, JobState(tasks=(task(3), replace(gained, high=2.1e-3))))
    assert "Largest gains" not in page_of(store)


def test_the_curve_of_the_newest_job_is_drawn(store: Store) -> None:
    history = (Moment(1.0, 5, 2e-3), Moment(9.0, 50, 1e-3))
    job(store, None, JobState(history=history))
    page = page_of(store)
    assert '<path class="line" d="M' in page
    assert "2 ms after 5 trials, 1 ms after 50" in page


def test_kernels_have_the_names_of_the_model_s_nodes(store: Store) -> None:
    store.add([trial(1)])
    named = replace(task(9), key=KEY.workload, nodes="stem.conv + relu1 (and 2 more)")
    job(store, None, JobState(tasks=(named,)))
    parts = parts_of(store, PageOptions())
    (row,) = parts["kernels"]
    assert row["nodes"] == "stem.conv + relu1 (and 2 more)" and row["name"] == "conv_relu"
    assert ">stem.conv + relu1 (and 2 more)</a> <small>conv_relu" in html_of(parts)


def test_kernels_of_earlier_versions_keep_their_names(store: Store) -> None:
    store.add([trial(1)])
    job(store, None)
    assert parts_of(store, PageOptions())["kernels"][0]["nodes"] == "conv_relu"
