"""Latencies by size on the page: of plans in the database, and beside other engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.db.examples import TARGET, plan
from tests.tuner.pages.parsed import EVIL, parsed
from tunefarm.db.store import Store
from tunefarm.tuner.pages.contents import PageOptions
from tunefarm.tuner.pages.page import page_of
from tunefarm.tuner.records.size_ranges import SizePlan, SizeRange
from tunefarm.tuner.reports.size_curves import WRONG, SizeCurves, curves_of_plans, drawn

RANGE = SizeRange({"seq": (1, 64)}, {})
KERNELS = {"seq=1": (1e-6, 2e-6), "seq=64": (1e-4, 1e-4)}
MODELS = {"seq=1": (1e-5, 2e-5), "seq=64": (1e-3, 1e-3)}


def test_whole_models_are_drawn_where_they_were_measured_else_kernels(tmp_path: Path) -> None:
    whole, kernels = SizePlan((RANGE,), KERNELS, MODELS), SizePlan((RANGE,), KERNELS)
    with Store.open(tmp_path / "tuning.db") as store:
        store.add([TARGET])
        store.add([plan(1, plan=whole.to_json(), model_name="whole.onnx")])
        store.add([plan(2, plan=kernels.to_json(), model_name="parts.onnx")])
        store.add([plan(3, plan={"seconds": 1}, model_name="none.onnx")])
        found = {curves.title.split(",")[0]: curves for curves in curves_of_plans(store)}
        page = page_of(store)
    assert found["whole.onnx"].lines == (("tuned", (1e-5, 1e-3)), ("untuned", (2e-5, 1e-3)))
    assert found["kernels of parts.onnx"].lines[0] == ("tuned", (1e-6, 1e-4))
    assert len(found) == 2
    texts = "".join(parsed(page).texts)
    assert "Latency by size: whole.onnx" in texts and "20 µs" in texts
    assert 'points="12.0,188.0 468.0,12.0"' in page  # from the least latency to the greatest


@pytest.mark.parametrize("seconds", [(None, None), (1e-3, None)])
def test_wrong_outputs_have_no_place_in_a_curve(
    seconds: tuple[float | None, ...], tmp_path: Path
) -> None:
    curves = SizeCurves(EVIL, ("seq=1", EVIL), (("ours", (1e-3, 2e-3)), (EVIL, seconds)))
    (item,) = drawn([curves])
    lines: Any = item["lines"]
    ours, other = lines
    assert len(ours["points"].split()) == 2
    assert len(other["points"].split()) == 2 - seconds.count(None)
    with Store.open(tmp_path / "tuning.db") as store:
        page = page_of(store, PageOptions(benches=[curves]))
    found = parsed(page)
    assert not {"script", "img"} & set(found.tags)
    assert any(WRONG in text for text in found.texts)


def test_sizes_stand_in_the_order_of_what_they_compute() -> None:
    sizes = ("batch=1, seq=8", "batch=1, seq=64", "batch=2, seq=1", "batch=2, seq=8")
    curves = SizeCurves("m", sizes, (("ours", (2e-3, 5e-3, 1e-3, 3e-3)),))
    (item,) = drawn([curves])
    rows: Any = item["rows"]
    assert [row["sizes"] for row in rows] == [sizes[2], sizes[0], sizes[3], sizes[1]]
    assert [row["cells"] for row in rows] == [["1 ms"], ["2 ms"], ["3 ms"], ["5 ms"]]
    assert item["scale"] == (
        "upwards: latency, 1 ms to 5 ms on a logarithmic scale; "
        "to the right: sizes, batch=2, seq=1 to batch=1, seq=64"
    )
