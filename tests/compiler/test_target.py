"""Targets: lanes of element types, and JSON that later fields with defaults leave alone."""

from __future__ import annotations

import json
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tests.targets import target_named
from tunefarm.compiler import target as module
from tunefarm.compiler.machine.amx_set_up import TilePalette
from tunefarm.compiler.target import (
    Target,
    baseline_target,
    host_features,
    host_target,
    host_tile_refusal,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.configs.settings import targets

FACTS = {
    "triple": "x86_64-unknown-linux-gnu",
    "cpu": "znver9",
    "features": ["avx2", "fma"],
    "lanes": 8,
    "vector_registers": 16,
    "l1_bytes": 32768,
    "l2_bytes": 524288,
    "l3_bytes": 8388608,
    "cores": 8,
}
"""What records and artefacts hold of a target."""


@frozen
class Later(Target):
    """A target with fields that did not exist when FACTS was written."""

    tiles: int = 0
    units: tuple[str, ...] = ()


def test_lanes_are_the_elements_of_a_vector_register() -> None:
    target = Target.from_json(FACTS)
    assert target.vector_bytes == 32
    assert [target.lanes(t) for t in (DType.F64, DType.F32, DType.I16, DType.I8)] == [4, 8, 16, 32]


def test_json_and_key_are_those_that_records_have() -> None:
    target = Target.from_json(FACTS)
    assert json.dumps(target.to_json()) == json.dumps(FACTS)
    assert target.key == "znver9-5ad9e4de"


def test_field_with_its_default_changes_neither_key_nor_json() -> None:
    later = Later.from_json(FACTS)
    assert (later.tiles, later.units) == (0, ())
    assert later.to_json() == FACTS
    assert later.key == Target.from_json(FACTS).key


def test_field_with_another_value_is_kept() -> None:
    later = Later.from_json({**FACTS, "tiles": 8, "units": ["amx"]})
    assert later.to_json() == {**FACTS, "tiles": 8, "units": ["amx"]}
    assert later != Later.from_json(FACTS)
    assert Later.from_json(later.to_json()) == later


def test_field_of_a_later_version_is_refused() -> None:
    with pytest.raises(ValueError, match="the target znver9 has tiles, which this version"):
        Target.from_json({**FACTS, "tiles": 8})


def test_baseline_has_vectors_of_16_bytes() -> None:
    assert baseline_target(Target.from_json(FACTS)).vector_bytes == 16


def test_tile_palette_is_written_where_it_is_another() -> None:
    facts = {**FACTS, "features": ["amx-tile", "avx2", "fma"]}
    usual = Target.from_json(facts)
    assert usual.matrix_tiles == TilePalette(8, 16, 64) and usual.to_json() == facts
    smaller = Target.from_json({**facts, "tile_palette": [4, 8, 64]})
    assert smaller.matrix_tiles == TilePalette(4, 8, 64) and smaller.key != usual.key
    assert Target.from_json(json.loads(json.dumps(smaller.to_json()))) == smaller


def test_baseline_has_no_matrix_tiles() -> None:
    target = Target.from_json({**FACTS, "features": ["amx-tile", "avx2", "fma"]})
    assert baseline_target(target).matrix_tiles is None


@pytest.mark.parametrize("name", targets())
def test_named_targets_lie_between_their_kind_and_themselves(name: str) -> None:
    target = target_named(name)
    assert list(target.features) == sorted(set(target.features))
    assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target
    assert "tile_palette" not in target.to_json()


def test_host_goes_without_tiles_that_it_may_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"amx-bf16": True, "amx-tile": True, "avx2": True, "avx512f": False}
    host = host_target()
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: told)
    for refusal, features in (
        ("the kernel does not permit them", ("avx2",)),
        ("", ("amx-bf16", "amx-tile", "avx2")),
    ):
        monkeypatch.setattr(module, "host_tile_problem", lambda refusal=refusal: refusal)
        host_features.cache_clear()
        host_target.cache_clear()
        assert (host_target().features, host_tile_refusal()) == (features, refusal)
    monkeypatch.undo()
    host_features.cache_clear()
    host_target.cache_clear()
    assert host_target() == host


def test_nobody_asks_for_tiles_where_the_cpu_tells_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "host_features", lambda: ("avx2",))
    monkeypatch.setattr(module, "host_tile_problem", lambda: pytest.fail("asked"))
    assert host_tile_refusal() == ""


@pytest.mark.parametrize(
    ("name", "left", "right", "instructions"),
    [
        ("x86-64-v2", DType.U8, DType.I8, []),
        ("x86-64-v4", DType.U8, DType.I8, []),
        ("x86-64-v3", DType.I16, DType.I16, ["vpmaddwd"]),
        ("znver4", DType.U8, DType.I8, ["vpdpbusd"]),
        ("znver5", DType.I8, DType.I8, []),
        ("sapphirerapids", DType.U8, DType.I8, ["tdpbusd", "vpdpbusd"]),
        ("sapphirerapids", DType.I8, DType.I8, ["tdpbssd"]),
        ("znver4", DType.BF16, DType.BF16, ["vdpbf16ps"]),
        ("sapphirerapids", DType.BF16, DType.BF16, ["tdpbf16ps", "vdpbf16ps"]),
        ("sapphirerapids", DType.F16, DType.F16, []),
        ("neoverse-v1", DType.BF16, DType.BF16, ["bfmmla", "bfdot"]),
        ("armv8-neon", DType.I8, DType.I8, []),
        ("neoverse-v1", DType.I8, DType.I8, ["smmla", "sdot"]),
        ("neoverse-v1", DType.U8, DType.I8, ["usmmla", "usdot"]),
    ],
)
def test_dot_products_of_named_targets(
    name: str, left: DType, right: DType, instructions: list[str]
) -> None:
    target = target_named(name)
    found = target.dot_products(left, right, DType.F32 if left.is_float else DType.I32)
    assert [item.instruction for item in found] == instructions


@pytest.mark.parametrize(
    ("name", "one", "several"),
    [
        ("x86-64-v2", DType.I8, DType.I8),
        ("x86-64-v3", DType.I16, DType.I16),
        ("skylake-avx512", DType.I8, DType.I16),
        ("znver4", DType.U8, DType.U8),
        ("neoverse-n1", DType.I8, DType.I8),
    ],
)
def test_rounded_states_are_as_a_target_multiplies_them(
    name: str, one: DType, several: DType
) -> None:
    target = target_named(name)
    assert (target.states(1), target.states(2), target.states(8)) == (one, several, several)


def test_caches_that_a_hypervisor_shows_otherwise_leave_the_host_its_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = host_target()
    for number, (level, size) in enumerate(((1, "96K"), (2, "7M"))):  # no third one is shown
        index = tmp_path / f"index{number}"
        index.mkdir()
        for name, text in (("level", str(level)), ("type", "Unified"), ("size", size)):
            (index / name).write_text(f"{text}\n")
    monkeypatch.setattr(module, "_CACHE_ROOT", tmp_path)
    elsewhere = host_target.__wrapped__()
    assert (elsewhere.l1_bytes, elsewhere.l2_bytes) == (96 << 10, 7 << 20)
    assert elsewhere != host and elsewhere.key == host.key
