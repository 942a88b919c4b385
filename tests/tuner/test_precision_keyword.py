"""The keyword `precision` of the public functions, and its former name `numerics`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm import compiler, tuner
from tunefarm.compiler.errors import SettingsError

BUILDERS: dict[str, Callable[..., Any]] = {
    "compiler": compiler.build,
    "tuner": tuner.build,
    "session": lambda *args, **given: tuner.InferenceSession(*args, **given).executable,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_model(), "tiny.onnx")


@pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UntunedWarning")
@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
@pytest.mark.parametrize("given", [{"precision": "fp16"}, {"numerics": "f16"}], ids=str)
def test_both_names_say_what_a_model_computes_in(
    build: Callable[..., Any], given: dict[str, str]
) -> None:
    assert build("tiny.onnx", **given).spec.numerics == "f16"


@pytest.mark.parametrize("call", [*BUILDERS.values(), tuner.tune], ids=[*BUILDERS, "tune"])
def test_both_names_at_once_are_refused(call: Callable[..., Any]) -> None:
    with pytest.raises(SettingsError, match="precision= and numerics= are the same keyword"):
        call("tiny.onnx", precision="bf16", numerics="bf16")


def test_an_unknown_precision_is_refused_before_the_model_is_read() -> None:
    with pytest.raises(SettingsError, match="did you mean bf16"):
        tuner.tune("no.onnx", precision="bf61")
