"""What was chosen for models is on the page, and what others wrote there is text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.db.examples import TARGET, plan
from tests.tuner.pages.parsed import EVIL, parsed
from tunefarm.db.store import Store
from tunefarm.tuner.pages.models import plan_rows
from tunefarm.tuner.pages.page import page_of


def choice(label: str = "conv1") -> dict[str, Any]:
    return {
        "measure": "relative error",
        "chosen": 1,
        "points": [
            {"precisions": {}, "ratio": 1.0, "error": 0.0, "held_out": 0.0},
            {"precisions": {"a": "int8"}, "ratio": 0.5, "error": 0.004, "held_out": None},
        ],
        "contractions": [
            {
                "identity": "a",
                "label": label,
                "seconds": {"f32": 2e-3, "int8": 5e-4},
                "errors": {"int8": 0.004},
            }
        ],
    }


def test_points_and_contractions_of_a_choice_are_shown(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        store.add([TARGET])
        store.add([plan(1, plan=choice(), model_name="net.onnx")])
        page = page_of(store)
    texts = "".join(parsed(page).texts)
    for text in ("net.onnx: auto", "1 (chosen)", "all f32", "1 int8", "2.00x", "75%", "500 µs"):
        assert text in texts


def test_names_are_escaped_and_what_is_no_choice_is_left_out(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        store.add([TARGET])
        store.add([plan(1, plan=choice(EVIL)), plan(2, plan={"points": [EVIL]})])
        store.add([plan(3, plan={**choice(), "points": []})])
        page = page_of(store)
        assert len(plan_rows(store)) == 1
    found = parsed(page)
    assert not {"script", "img"} & set(found.tags)
    assert any(EVIL[:50] in text for text in found.texts)
