"""The key of a target: the same wherever its code is as fast, another where code differs."""

from __future__ import annotations

from typing import Any

import pytest

from tunefarm.configs.settings import load_target, targets
from tunefarm.configs.target_key import code_features, target_key

ZEN4: dict[str, Any] = load_target("znver4").model_dump(mode="json")
RAPIDS: dict[str, Any] = load_target("sapphirerapids").model_dump(mode="json")


def with_features(target: dict[str, Any], *more: str, without: str = "") -> dict[str, Any]:
    kept = {*target["features"], *more} - {without}
    return {**target, "features": sorted(kept)}


@pytest.mark.parametrize(
    "shown",
    [
        {"l1_bytes": 49152},
        {"l2_bytes": 524288},
        {"l3_bytes": 0},
        {"cores": 1},
        {"triple": "x86_64-conda-linux-gnu"},
        {"tile_palette": [1, 8, 64]},  # of tiles that it does not have
        with_features(ZEN4, "shstk", "vaes", "rdpid", "xsaves", "clwb", "sha", "evex512"),
        with_features(ZEN4, without="64bit"),
        with_features(ZEN4, "avx512vp2intersect"),  # no pattern of LLVM's makes it
    ],
)
def test_what_a_hypervisor_shows_or_hides_leaves_the_key_alone(shown: dict[str, Any]) -> None:
    assert target_key({**ZEN4, **shown}) == target_key(ZEN4)


@pytest.mark.parametrize(
    "other",
    [
        {"cpu": "znver5"},
        {"lanes": 8},
        {"vector_registers": 16},
        {"triple": "x86_64-apple-darwin24.1.0"},
        *(with_features(ZEN4, without=name) for name in ("avx512bf16", "fma", "f16c", "bmi2")),
        with_features(ZEN4, "avxvnni"),
        with_features(ZEN4, "amx-tile"),
    ],
)
def test_what_changes_code_is_in_the_key(other: dict[str, Any]) -> None:
    assert target_key({**ZEN4, **other}) != target_key(ZEN4)


def test_the_tiles_that_a_cpu_has_are_in_the_key() -> None:
    silent = {name: value for name, value in RAPIDS.items() if name != "tile_palette"}
    assert target_key(silent) == target_key(RAPIDS)
    assert target_key({**RAPIDS, "tile_palette": [4, 8, 64]}) != target_key(RAPIDS)


def test_another_version_of_the_operating_system_is_the_same_target() -> None:
    one, later = ({**ZEN4, "triple": f"arm64-apple-darwin{n}.0.0"} for n in (23, 24))
    assert target_key(one) == target_key(later)


def test_named_targets_have_keys_of_their_own() -> None:
    keys = {target_key(load_target(name).model_dump(mode="json")) for name in targets()}
    assert len(keys) == len(targets()) and None not in keys


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], "znver4", {}, {"cpu": "x", "lanes": 8}),
        *({**ZEN4, "features": value} for value in ("avx", [1], None)),
        *({**ZEN4, "cpu": value} for value in ("", "x" * 101, "a\nb", "\ud800", 4)),
        {**RAPIDS, "tile_palette": 8},
    ],
)
def test_what_is_no_target_has_no_key(value: object) -> None:
    assert target_key(value) is None


def test_features_of_arm_that_code_uses_count() -> None:
    shown = ("aes", "bf16", "crc", "dotprod", "fp-armv8", "i8mm", "lse", "neon", "sha2", "sve")
    assert code_features(shown) == ["bf16", "dotprod", "i8mm", "neon", "sve"]
