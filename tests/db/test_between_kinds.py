"""Records go from a file to a server and back, by merging and by files, and stay what they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.db.examples import failed
from tests.db.postgresql import Server
from tests.db.test_merge import content, fill
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries
from tunefarm.db.check import check
from tunefarm.db.export import export_records, import_records, merge_records
from tunefarm.db.store import Store


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as store:
        fill(store, 1, 2, 3)
        store.add([failed(8, error="signal 11 \N{SNOWMAN}\nat 0x1")])
        yield store


@pytest.fixture
def server(postgresql_url: str) -> Iterator[Store]:
    with Store.open(postgresql_url) as store:
        fill(store, 3, 4, 5, 6)
        yield store


def test_merging_both_ways_gives_the_same_content(file: Store, server: Store) -> None:
    assert merge_records(file, server).trials == 3  # 3 is in both
    assert merge_records(server, file).trials == 3
    assert content(file) == content(server)
    assert sum(queries.count_trials(server).values()) == 7
    assert not merge_records(file, server).trials + merge_records(server, file).trials
    assert check(file) == check(server) == []


def test_exported_file_is_the_same_from_both_kinds(
    file: Store, postgresql: Server, tmp_path: Path
) -> None:
    """Every number to the last bit, every text, in the same order."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    export_records(file, first)
    with postgresql.database() as name, Store.open(postgresql.url(name)) as store:
        assert import_records(store, first).trials == 4
        assert import_records(store, first).trials == 0
        assert export_records(store, second) == 4
    with Store.open(":memory:") as store:
        import_records(store, second)
        export_records(store, third)
    assert first.read_bytes() == second.read_bytes() == third.read_bytes()
    assert b"SNOWMAN" not in first.read_bytes() and b"\\u2603" in first.read_bytes()


def test_server_is_not_merged_into_itself(server: Store, postgresql_url: str) -> None:
    before = content(server)
    url = postgresql_url.replace("127.0.0.1", "localhost") + "?application_name=another"
    with Store.open(url, read_only=True) as same, pytest.raises(DatabaseError, match="itself"):
        merge_records(server, same)
    assert content(server) == before


def test_two_databases_of_one_server_are_two(server: Store, postgresql: Server) -> None:
    with postgresql.database() as name, Store.open(postgresql.url(name)) as store:
        assert merge_records(store, server).trials == 4
        assert content(store) == content(server)
