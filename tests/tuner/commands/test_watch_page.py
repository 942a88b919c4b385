"""The watch page in a real browser: progress, node names and the best latency so far."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuner.commands.live_jobs import NAME, begin, state, task
from tests.tuner.pages.browser import Browser, running_browser
from tunefarm.db.store import Store
from tunefarm.tuner.commands.live_server import LiveServer
from tunefarm.tuner.reports.job_state import Moment

HISTORY = (Moment(1.0, 5, 2e-3), Moment(9.0, 50, 1e-3))
READY = "document.documentElement?.dataset.interactive"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with Store.open(tmp_path / "tuning.db") as store:
        job = begin(store)
        named = replace(task(50), nodes="stem.conv + relu1")
        shown = replace(state(50), tasks=(named, replace(task(7), key="b")), history=HISTORY)
        store.update_job(job, shown.to_json())
        with LiveServer(store, None, 0) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            yield server.url
            server.shutdown()
            thread.join(60.0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


def test_a_running_job_is_drawn(browser: Browser, url: str) -> None:
    browser.errors.clear()
    browser.screen(390, 844, mobile=True)
    browser.call("Page.navigate", url=url)
    browser.wait(READY)
    assert browser.value("document.getElementById('title').textContent").startswith(
        "net.onnx, searching"
    )
    assert browser.value("document.querySelectorAll('#best path.line').length") == 1
    caption = browser.value("document.querySelector('#best figcaption').textContent")
    assert "2 ms after 5 trials, 1 ms after 50" in caption
    assert browser.value("document.getElementById('bar').checkVisibility()")
    cells = browser.value("[...document.querySelectorAll('#kernels td')].map((c) => c.textContent)")
    assert any(cell.startswith("stem.conv + relu1") for cell in cells)
    assert browser.value("document.documentElement.scrollWidth <= window.innerWidth")
    text = browser.value("document.body.textContent")
    assert NAME not in text and "\x1b" not in text and "\\x1b" not in text
    assert [error for error in browser.errors if "404" not in error] == []  # the browser's icon
