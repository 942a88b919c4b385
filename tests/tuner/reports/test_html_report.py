"""The page shows names as text, whatever is in them."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from db.records import BestRecord, TaskKey, WorkloadRecord
from db.store import Store
from tests.db.examples import KEY, TARGET, failed, populate, trial
from tuner.reports.html_report import html_report

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&\x1b\u202e"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def parsed(page: str) -> _Tags:
    parser = _Tags()
    parser.feed(page)
    return parser


def test_every_name_of_the_database_is_escaped(tmp_path: Path) -> None:
    key = TaskKey(EVIL, EVIL[:60], 1, "default", EVIL[:60])
    with Store.open(tmp_path / "<b>.db") as store:
        store.add([WorkloadRecord(key.workload, EVIL, {})])
        store.add([replace(TARGET, key=key.target)])
        job = store.start_job(EVIL, "hash", {})
        store.update_job(job.id, {"trials": EVIL})
        store.add([trial(n, 1.0 / n, key=key) for n in (1, 2)])
        page = html_report(store)
    found = parsed(page)
    assert not {"script", "img", "b"} & set(found.tags)
    assert (
        sum(EVIL[:50] in text for text in found.texts) == 5
    )  # model, trials, kernel, its key, target
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_the_page_has_jobs_kernels_and_a_drawing(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        store.add([WorkloadRecord(KEY.workload, "conv_relu", {})])
        store.add([TARGET])
        store.start_job("resnet.onnx", "hash", {})
        store.add([trial(1, 0.5), trial(2, 0.25), failed(3), failed(4, "scattered")])
        texts = "".join(parsed(html_report(store)).texts)
        page = html_report(store)
    for text in (
        "resnet.onnx",
        "running",
        "conv_relu",
        KEY.workload,
        KEY.target,
        "250 ms",
        "not confirmed",
    ):
        assert text in texts
    assert "<td>4</td><td>1</td><td>1</td>" in page  # trials, failed, scattered
    assert '<polyline points="0.0,2.0 53.3,26.0 106.7,26.0 160.0,26.0"/>' in page


def test_a_speed_up_is_of_the_pairs_that_confirmed_it(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        populate(store)
        store.add([trial(1, 0.5), trial(2, 0.25)])
        job = store.start_job("resnet.onnx", "hash", {})
        record = trial(2)
        names = record.schedule_hash, record.request_id
        store.add([BestRecord(KEY, *names, 0.8, 0.75, 0.7, 0.8, ("a",), job.id)])
        page = html_report(store)
    assert "<td>800 ms</td>\n<td>600 ms</td><td>1.33x (1.25x to 1.43x)</td>" in page
