"""The page shows names as text, whatever is in them."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from db.records import TaskKey, WorkloadRecord
from db.store import Store
from tests.db.examples import KEY, TARGET, trial
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
        store.add([trial(1, 0.5), trial(2, 0.25)])
        texts = "".join(parsed(html_report(store)).texts)
        page = html_report(store)
    for text in (
        "resnet.onnx",
        "running",
        "conv_relu",
        KEY.workload,
        KEY.target,
        "250 ms",
        "2.00x",
    ):
        assert text in texts
    assert '<polyline points="0.0,2.0 160.0,26.0"/>' in page
