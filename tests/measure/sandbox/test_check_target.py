"""Targets that users describe are tried in a process of their own, once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.targets import target_named
from tunefarm.compiler.errors import LoweringError, SettingsError
from tunefarm.compiler.llvm.machine import target_machine
from tunefarm.compiler.target import Target
from tunefarm.tuner import from_settings as module
from tunefarm.tuner.from_settings import check_target

V3 = target_named("x86-64-v3")


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    module._reason.cache_clear()


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (replace(V3, triple="nonsense"), "nonsense"),
        (replace(V3, cpu="quantum9"), "'quantum9' is not a recognized processor"),
        (replace(V3, features=(*V3.features, "warp9")), "warp9' is not a recognized feature"),
        (
            replace(V3, cpu="i386", features=(), vector_bytes=16),
            "64-bit code requested",
        ),  # LLVM aborts
    ],
    ids=["triple", "cpu", "feature", "abort"],
)
def test_target_without_code_is_one_clear_error(target: Target, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason) as caught:
        check_target(target, "mine.toml", None)
    assert str(caught.value).startswith("mine.toml describes no target")
    assert "\n" not in str(caught.value)


V4 = target_named("x86-64-v4")


def without(target: Target, *features: str) -> Target:
    return replace(target, features=tuple(f for f in target.features if f not in features))


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (without(V4, "fma"), "avx512f needs fma"),
        (without(V4, "avx"), "vectors of 64 bytes|avx2 needs avx"),
        (without(V4, "avx512f"), "vectors of 64 bytes need avx512f"),
        (replace(V3, vector_bytes=64), "vectors of 64 bytes need avx512f"),
        (replace(V3, features=(*V3.features, "avx512vl")), "avx512vl needs avx512f"),
        (replace(V4, features=(*V4.features, "amx-int8")), "amx-int8 needs amx-tile"),
    ],
)
def test_target_that_llvm_would_end_the_process_for_is_refused_before_it_is_asked(
    target: Target, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_probe", lambda text: pytest.fail("asked"))
    target_machine(V3)  # another target of the same CPU and features is known
    with pytest.raises(SettingsError, match=reason) as caught:
        check_target(target, "mine.toml", None)
    assert "\n" not in str(caught.value)
    with pytest.raises(LoweringError, match=reason):
        target_machine(target)


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
