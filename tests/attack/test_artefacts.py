"""The attack on artefacts finds what is planted, and today's artefacts hold."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.attack.artefacts import Artefacts
from tests.attack.attack import Outcome
from tests.attack.manifest_edits import Edit, draw_edits
from tunefarm.compiler.runtime.artefact import artefact
from tunefarm.compiler.types.tensor_type import Array


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Artefacts:
    return Artefacts(tmp_path_factory.mktemp("artefacts"))


def outcomes(attack: Artefacts, attempts: int) -> list[tuple[int, Outcome]]:
    return [(seed, attack.attempt(seed)) for seed in range(attempts)]


def test_changed_artefacts_are_refused(attack: Artefacts) -> None:
    made = outcomes(attack, 30)
    assert not [outcome.detail for _, outcome in made if outcome.broke]
    assert {outcome.label for _, outcome in made} >= {"edit refused", "damage refused"}


@pytest.mark.nightly
def test_manifest_that_is_believed_is_found(
    attack: Artefacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefact, "seal", lambda *_: b"")  # which every entry holds
    monkeypatch.setattr(artefact, "verify_spec", lambda _: None)
    found = [(seed, outcome) for seed, outcome in outcomes(attack, 130) if outcome.broke]
    labels = {outcome.label for _, outcome in found}
    assert {"accepted", "crashed", "raised"} <= labels
    repros = [attack.minimise(seed, outcome) for seed, outcome in found]
    assert any("manifest['variants']" in repro for repro in repros)


def test_damage_that_is_not_noticed_is_found(
    attack: Artefacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchecked(_: Path, mapped: Array, index: Any) -> list[Array]:
        starts = [index.data_start + part.offset for part in index.parts]
        return [
            mapped[start : start + part.bytes]
            for start, part in zip(starts, index.parts, strict=True)
        ]

    monkeypatch.setattr(artefact, "_check_parts", unchecked)
    found = [outcome for _, outcome in outcomes(attack, 30) if outcome.broke]
    assert any(outcome.detail.startswith("damage") for outcome in found)


def test_attempt_depends_on_its_seed_alone(attack: Artefacts) -> None:
    assert attack.attempt(3) == attack.attempt(3)


def test_edits_change_what_they_say() -> None:
    data = {"a": [1, 2, {"b": "c"}], "d": 0.5}
    for seed in range(200):
        edits, edited = draw_edits(Random(seed), data)
        result: object = data
        for edit in edits:
            result = edit.apply(result)
        assert repr(result) == repr(edited) != repr(data)
    assert data == {"a": [1, 2, {"b": "c"}], "d": 0.5}
    assert Edit(("a", 2, "b"), 7).apply(data) == {"a": [1, 2, {"b": 7}], "d": 0.5}
    with pytest.raises(KeyError):
        Edit(("a", 2, "x"), 7).apply(data)
