"""Latencies by size on the page, of plans in the database."""

from __future__ import annotations

from pathlib import Path

from tests.db.examples import TARGET, plan
from tests.tuner.pages.parsed import EVIL, parsed
from tunefarm.db.store import Store
from tunefarm.tuner.pages.models import size_tables
from tunefarm.tuner.pages.page import page_of
from tunefarm.tuner.records.size_ranges import SizePlan, SizeRange

RANGE = SizeRange({"seq": (1, 64)}, {})
KERNELS = {"seq=1": (1e-6, 2e-6), "seq=64": (1e-4, 1e-4)}
MODELS = {"batch=2, seq=8": (3e-3, 4e-3), "batch=1, seq=8": (1e-5, 2e-5)}


def test_whole_models_are_listed_where_they_were_measured_else_kernels(tmp_path: Path) -> None:
    whole, kernels = SizePlan((RANGE,), KERNELS, MODELS), SizePlan((RANGE,), KERNELS)
    with Store.open(tmp_path / "tuning.db") as store:
        store.add([TARGET])
        store.add([plan(1, plan=whole.to_json(), model_name=f"whole.onnx{EVIL}")])
        store.add([plan(2, plan=kernels.to_json(), model_name="parts.onnx")])
        store.add([plan(3, plan={"seconds": 1}, model_name="none.onnx")])
        parts, models = size_tables(store)
        page = parsed(page_of(store))
    assert models["names"] == ["tuned", "untuned"]
    assert models["rows"] == [  # what computes less comes first
        {"sizes": "batch=1, seq=8", "cells": ["10 µs", "20 µs"]},
        {"sizes": "batch=2, seq=8", "cells": ["3 ms", "4 ms"]},
    ]
    assert str(parts["title"]).startswith("kernels of parts.onnx")
    texts = "".join(page.texts)
    assert "Latency by size: whole.onnx" in texts and "20 µs" in texts
    assert not {"script", "img"} & set(page.tags)
