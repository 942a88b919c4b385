"""The attack on caches finds an entry that is believed, and today's caches hold."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.attack import Outcome
from tests.attack.cache_entries import CacheEntries
from tunefarm.compiler import content_cache


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> CacheEntries:
    return CacheEntries(tmp_path_factory.mktemp("cache"))


def broken(attack: CacheEntries, seeds: range) -> Iterator[Outcome]:
    """The outcomes that broke something, as they come."""
    for seed in seeds:
        outcome = attack.attempt(seed)
        shutil.rmtree(attack.folder / "cache")
        if outcome.broke:
            yield outcome


def test_changed_entries_are_not_used(attack: CacheEntries) -> None:
    assert not list(broken(attack, range(3, 7)))


@pytest.mark.nightly
def test_entries_that_are_believed_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_contents(_: str, body: bytes) -> bytes:
        return hashlib.sha256(body).digest()

    monkeypatch.setattr(content_cache, "_digest", of_contents)  # not of the key
    planted = CacheEntries(tmp_path)
    assert next(broken(planted, range(105, 400)), None) is not None
