"""The page in a real browser: what is seen, clicked, searched and sorted, and what never runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuner.pages.browser import Browser, running_browser
from tests.tuner.pages.made_up import fill
from tests.tuner.pages.parsed import EVIL
from tunefarm.db.store import Store
from tunefarm.tuner.pages.page import page_of
from tunefarm.tuner.records.model_latencies import ModelStep, measured_models

MOST_BYTES = 3_000_000
HOSTILE = f"</script>{EVIL}<svg onload=window.broken=1>"
COMPLETE = "document.getElementById('kernel').dataset.complete === '{}'"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A night of 5,000 trials, and beside it a job and a kernel with hostile names."""
    folder = tmp_path_factory.mktemp("page")
    with Store.open(folder / "tuning.db") as store:
        fill(store, kernels=40, trials=124)
        fill(store, kernels=2, trials=20, name=HOSTILE, seed=1)
        kept = next(measured_models(store))
        hostile = replace(kept.times, steps=(ModelStep(HOSTILE, HOSTILE[:60], 1.0),), llvm=HOSTILE)
        changed = replace(kept.record, id="hostile", numerics="x", measured=hostile.to_json())
        store.add([replace(changed, created=kept.record.created + 1)])
        text = page_of(store)
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_night_fits_into_a_small_file(page: Path) -> None:
    assert page.stat().st_size < MOST_BYTES


def test_nothing_is_loaded_and_no_name_runs(browser: Browser, page: Path) -> None:
    browser.errors.clear()
    browser.requests.clear()
    browser.open(page, "#k0", COMPLETE.format("k0"))
    assert browser.value("window.broken === undefined")
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("data:", "file:"))] == []
    assert browser.value("document.querySelectorAll('img, iframe, object, embed').length") == 0
    assert HOSTILE[:40] in browser.value("document.body.textContent")


def test_a_kernel_opens_with_its_plots_and_failures(browser: Browser, page: Path) -> None:
    browser.open(page, "#k1", COMPLETE.format("k1"))
    text = browser.value("document.getElementById('kernel').textContent")
    for part in (
        "Finalists",
        "(applied)",
        "Its code",
        "build_error",
        "arithmetic",
    ):
        assert part in text
    assert "vector registers are needed" in text
    drawn = "[...document.querySelectorAll('[data-drawn]')].map((plot) => plot.dataset.drawn)"
    assert {"trials", "roof"} <= set(browser.value(drawn))
    points = (
        "Bokeh.documents.flatMap((d) => d.roots()).flatMap((r) => r.renderers)"
        ".reduce((sum, one) => sum + one.data_source.get_length(), 0)"
    )
    assert browser.value(points) > 100


def test_the_table_is_searched_and_sorted(browser: Browser, page: Path) -> None:
    browser.open(page)
    rows = "[...document.querySelectorAll('#kernel-table tbody tr')].filter((row) => !row.hidden)"
    assert browser.value(f"{rows}.length") == 40
    key = browser.value(f"{rows}[5].querySelector('code').textContent")
    search = "const box = document.getElementById('search'); box.value = {}; "
    type_in = "box.dispatchEvent(new Event('input'));"
    browser.value(search.format(json.dumps(key)) + type_in)
    assert browser.value(f"{rows}.length") == 1
    browser.value("box.value = ''; " + type_in)
    values = f"{rows}.map((row) => Number(row.cells[4].dataset.v))"
    browser.value("document.querySelectorAll('#kernel-table th')[4].click()")
    assert browser.value(values) == sorted(browser.value(values), reverse=True)
    browser.value("document.querySelectorAll('#kernel-table th')[4].click()")
    assert browser.value(values) == sorted(browser.value(values))


def test_it_reads_in_the_dark_and_on_a_phone(browser: Browser, page: Path) -> None:
    shades = "getComputedStyle(document.body).backgroundColor"
    try:
        browser.screen(390, 844, dark=True, mobile=True)
        browser.open(page, "#k0", COMPLETE.format("k0"))
        dark = browser.value(shades)
        assert browser.value("document.documentElement.scrollWidth <= window.innerWidth")
        browser.screen(1280, 900)
        assert browser.value(shades) != dark
    finally:
        browser.screen(1280, 900)


def test_wide_tables_show_on_a_phone_that_they_scroll(browser: Browser, page: Path) -> None:
    try:
        browser.screen(390, 844, mobile=True)
        browser.open(page)
        place = "document.querySelector('#kernels .scroll')"
        assert browser.value(f"{place}.scrollWidth > {place}.clientWidth")
        style = f"getComputedStyle({place})"
        assert "local" in browser.value(f"{style}.backgroundAttachment")
        assert browser.value(f"{style}.backgroundImage").count("gradient") == 4
    finally:
        browser.screen(1280, 900)


def test_the_headline_comes_first_and_once(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.value("document.querySelectorAll('.headline').length") == 1
    first = "document.querySelector('main section')"
    assert browser.value(f"{first}.id") == "headline"
