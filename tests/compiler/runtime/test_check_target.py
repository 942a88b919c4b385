"""Code for another CPU is refused in one line that says what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.errors import ArtefactError
from compiler.runtime.check_target import check_target
from compiler.target import Target
from configs.settings import load_target

TILES = Target.from_json(load_target("sapphirerapids").model_dump())
PLAIN = replace(
    TILES, features=tuple(name for name in TILES.features if not name.startswith("amx-"))
)


def test_code_runs_where_all_its_features_are() -> None:
    check_target(TILES, TILES, "")
    check_target(PLAIN, TILES, "")
    check_target(PLAIN, PLAIN, "the kernel does not permit them")


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        ("", ""),
        ("the kernel does not permit them", " (matrix tiles: the kernel does not permit them)"),
    ],
)
def test_tiles_that_are_not_there_are_named_with_the_reason(refusal: str, reason: str) -> None:
    with pytest.raises(ArtefactError) as refused:
        check_target(TILES, PLAIN, refusal)
    lacking = f"lacks: amx-bf16, amx-int8, amx-tile{reason}"
    assert refused.value.message.endswith(lacking) and "\n" not in str(refused.value)
    assert "--fallback" in refused.value.hint


def test_tiles_are_not_spoken_of_where_something_else_is_missing() -> None:
    older = replace(PLAIN, features=PLAIN.features[1:])
    with pytest.raises(ArtefactError) as refused:
        check_target(PLAIN, older, "the kernel does not permit them")
    assert refused.value.message.endswith(f"lacks: {PLAIN.features[0]}")
