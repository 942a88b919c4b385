"""Targets that users describe are tried in a process of their own, once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compiler.errors import SettingsError
from compiler.target import Target
from configs.settings import load_target
from measure.sandbox import check_target as module
from measure.sandbox.check_target import check_target

V3 = Target.from_json(load_target("x86-64-v3").model_dump())


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    module._reason.cache_clear()


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (replace(V3, triple="nonsense"), "nonsense"),
        (replace(V3, cpu="quantum9"), "'quantum9' is not a recognized processor"),
        (replace(V3, features=("64bit", "warp9")), "warp9' is not a recognized feature"),
        (replace(V3, cpu="i386", features=()), "64-bit code requested"),  # LLVM aborts
    ],
    ids=["triple", "cpu", "feature", "abort"],
)
def test_target_without_code_is_one_clear_error(target: Target, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason) as caught:
        check_target(target, "mine.toml", None)
    assert str(caught.value).startswith("mine.toml describes no target")
    assert "\n" not in str(caught.value)


def test_target_is_tried_once_in_a_process_and_once_with_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def probe(text: str) -> str:
        tried.append(text)
        return ""

    monkeypatch.setattr(module, "_probe", probe)
    for _ in range(2):
        check_target(V3, "mine.toml", tmp_path)
    assert len(tried) == 1
    module._reason.cache_clear()  # as in another process
    check_target(V3, "mine.toml", tmp_path)
    assert len(tried) == 1
    check_target(replace(V3, vector_bytes=16), "mine.toml", tmp_path)
    assert len(tried) == 2
