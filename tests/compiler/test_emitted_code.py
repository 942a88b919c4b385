"""Records are found by workload key and compiler version, and their latencies are of the code that
was emitted then. So keys, default schedules and code stay what they are while the version stays."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compiler.emitted_code import (
    Json,
    differences,
    drawn_loops,
    model_code,
    only_adds,
    read_golden,
    write_golden,
)
from tunefarm.compiler import VERSION

_FOLDER = Path(__file__).resolve().parents[1] / "golden" / "emitted"


def check_emitted(name: str, make: Callable[[], Json], update: bool) -> None:
    """Compare with the golden file, or write it anew: if what it has differs, only with a new
    version."""
    path = _FOLDER / f"{name}.json"
    now: Json = json.loads(json.dumps(make()))
    before = read_golden(path) if path.exists() else None
    if update and (before is None or before["version"] != VERSION or only_adds(before, now)):
        write_golden(path, now)
        before = now
    assert before is not None, f"{path} is missing: write it with --update-golden"
    different = "\n".join(differences(before, now))
    assert not different, (
        "keys or code differ from what this compiler version emitted, so records of it would be "
        "lost or untrue: raise VERSION in compiler/version.py and run with --update-golden, or "
        f"undo the change:\n{different}"
    )


MODELS = (
    "convnext_pico",
    "crnn",
    "decoder_prefill",
    "decoder_step",
    "encoder",
    "resnet18",
    "vit_tiny",
    "yolov3_tiny",
)
"""Together they have four fifths of the step sequences of the zoo's default schedules."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_model_code_is_that_of_the_compiler_version(name: str, update_golden: bool) -> None:
    check_emitted(name, lambda: model_code(name), update_golden)


def test_loops_of_drawn_schedules_are_those_of_the_compiler_version(update_golden: bool) -> None:
    check_emitted("drawn", drawn_loops, update_golden)


def test_changed_code_fails_even_when_goldens_are_updated() -> None:
    changed = copy.deepcopy(read_golden(_FOLDER / "encoder.json"))
    by_kernel = next(iter(changed["code"].values()))
    next(iter(by_kernel.values()))[1] = "another digest"
    with pytest.raises(AssertionError, match="another digest"):
        check_emitted("encoder", lambda: changed, update=True)


def test_kernels_may_be_added_to_a_version_but_none_may_go() -> None:
    before = read_golden(_FOLDER / "encoder.json")
    more, fewer = copy.deepcopy(before), copy.deepcopy(before)
    more["kernels"]["another key"] = "matmul"
    fewer["kernels"].popitem()
    assert only_adds(before, more) and not only_adds(before, fewer)
