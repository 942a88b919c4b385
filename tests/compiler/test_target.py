"""Targets: lanes of element types, and a key that later fields with defaults leave alone."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from compiler.target import Target, baseline_target
from compiler.types.dtypes import DType

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


@dataclass(frozen=True, slots=True)
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
    assert target.key == "znver9-f493f7bc"


def test_field_with_its_default_changes_neither_key_nor_json() -> None:
    later = Later.from_json(FACTS)
    assert (later.tiles, later.units) == (0, ())
    assert later.to_json() == FACTS
    assert later.key == Target.from_json(FACTS).key


def test_field_with_another_value_is_a_target_of_its_own() -> None:
    later = Later.from_json({**FACTS, "tiles": 8, "units": ["amx"]})
    assert later.to_json() == {**FACTS, "tiles": 8, "units": ["amx"]}
    assert later.key != Target.from_json(FACTS).key
    assert Later.from_json(later.to_json()) == later


def test_field_of_a_later_version_is_refused() -> None:
    with pytest.raises(ValueError, match="the target znver9 has tiles, which this version"):
        Target.from_json({**FACTS, "tiles": 8})


def test_baseline_has_vectors_of_16_bytes() -> None:
    assert baseline_target(Target.from_json(FACTS)).vector_bytes == 16
