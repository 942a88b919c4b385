"""Damage at random places is found or harmless, and every row that is intact is saved."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.db.examples import KEY, build, failed, paired, populate, trial
from tests.db.test_upgrade import unpacked
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries, schema
from tunefarm.db.check import check
from tunefarm.db.export import export_records
from tunefarm.db.raw_rows import examined
from tunefarm.db.records import BestRecord, JobTask
from tunefarm.db.salvage import Salvage, layouts, rows, salvage, table_of
from tunefarm.db.store import Store
from tunefarm.db.work import ask, claim

TRIALS = 400
SOME = pytest.mark.parametrize(
    "places", [range(8), pytest.param(range(200), marks=pytest.mark.nightly)]
)
LONG = "a long error text " * 400  # goes on to overflow pages
Content = dict[str, dict[str, dict[str, Any]]]  # table, primary key, values


@dataclass(frozen=True, slots=True)
class Sound:
    """An undamaged database: its bytes, what it holds, and the rows of each of its pages."""

    content: bytes
    rows: Content
    pages: dict[int, int]  # page -> rows that it has
    page_size: int


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    path = tmp_path_factory.mktemp("sound") / "tuning.db"
    with Store.open(path) as store:
        populate(store)
        job = store.start_job("resnet18", "abc", {"search": {"seed": 3}}, [JobTask(KEY, 4)])
        store.add(
            failed(number, error=LONG)
            if number % 100 == 0
            else (paired(number, 1) if number % 3 == 0 else trial(number, 1.0, job=job.id))
            for number in range(1, TRIALS + 1)
        )
        hash = trial(1).schedule_hash
        best = BestRecord(KEY, hash, "request-1", 1.0, 0.5, 0.4, 0.6, (hash,), job.id, 7.0)
        store.add([best])
        store.add([build(1)])
        store.finish_job(job.id, "finished")
        assert check(store) == []
    content = path.read_bytes()
    layout = layouts(content)[0]
    size = layout.page_size
    pages = {}
    for number in range(len(content) // size):
        # a page alone, in its place, with what may go on elsewhere
        page = content[number * size : (number + 1) * size]
        if page[0] == 13:
            pages[number] = int.from_bytes(page[3:5], "big")
    assert sum(row is not None for row in rows(content, layout)) > TRIALS
    return Sound(content, all_rows(path), pages, size)


def all_rows(path: Path) -> Content:
    found: Content = {}
    with Store.open(path, read_only=True) as store, store.reading() as session:
        for table in schema.Base.metadata.sorted_tables:
            found[table.name] = {name: row for name, _, row in examined(session, table)}
    return found


def damaged_bytes(content: bytes, number: int) -> tuple[bytes, int | None]:
    """The content cut off, or with a few bytes changed; and where that is."""
    choice = random.Random(number)
    place = choice.randrange(1, len(content))
    if number % 4 == 0:
        return content[:place], None
    changed = bytearray(content)
    for at in range(place, min(place + choice.choice([1, 1, 4]), len(content))):
        changed[at] ^= choice.randrange(1, 256)
    return bytes(changed), place


def is_found(path: Path) -> bool:
    """Whether opening or checking the file says that it is damaged."""
    try:
        with Store.open(path, read_only=True, create=False) as store:
            return check(store) != []
    except DatabaseError:
        return True


@SOME
def test_damage_is_found_or_harmless(places: range, sound: Sound, tmp_path: Path) -> None:
    harmless = 0
    for number in places:
        path = tmp_path / "damaged.db"
        path.write_bytes(damaged_bytes(sound.content, number)[0])
        if not is_found(path):
            assert all_rows(path) == sound.rows, number
            harmless += 1
        assert path.read_bytes() == damaged_bytes(sound.content, number)[0]
    assert harmless < 3 * len(places) / 4  # pages have room that nothing uses


@SOME
def test_every_intact_row_of_damaged_files_is_saved(
    places: range, sound: Sound, tmp_path: Path
) -> None:
    for number in places:
        content, place = damaged_bytes(sound.content, number)
        path = tmp_path / "damaged.db"
        path.write_bytes(content)
        saved = tmp_path / f"{number}.db"
        try:
            result = salvage(path, saved)
        except DatabaseError:
            assert place is None and len(content) < 30 * sound.page_size, number
            continue
        kept = {table.name: table.kept - table.stand_ins for table in result.tables}
        lost = sum(map(len, sound.rows.values())) - sum(kept.values())
        if place is not None:
            assert lost <= most_lost(sound, place), number
        found = all_rows(saved)
        for name, table in found.items():
            real = {key: row for key, row in table.items() if "lost" not in str(row)}
            assert real.items() <= sound.rows[name].items(), number
        with Store.open(saved) as store:
            assert check(store) == []
        assert path.read_bytes() == content
        saved.unlink()


def most_lost(sound: Sound, place: int) -> int:
    """How many rows damage of four bytes can concern: one within a page, its rows in its head."""
    page = place // sound.page_size
    count = sound.pages.get(page, 1)  # an overflow page belongs to one row
    head = 8 + 2 * count
    within = place % sound.page_size
    return count if within < head else 2


def edit(number: int, changes: Callable[[bytearray], None], sound: Sound, path: Path) -> Salvage:
    content = bytearray(sound.content)
    changes(content)
    path.write_bytes(bytes(content))
    return salvage(path, path.with_name(f"{number}.db"))


def pages_with(sound: Sound, table: str) -> list[int]:
    """Numbers (from 0) of the pages on which rows of a table are."""
    layout = layouts(sound.content)[0]
    found = []
    for page in sound.pages:
        blank = bytearray(len(sound.content))
        start = page * sound.page_size
        blank[start : start + sound.page_size] = sound.content[start : start + sound.page_size]
        places = [table_of(*row) for row in rows(bytes(blank), layout) if row is not None]
        if any(place is not None and place[0].name == table for place in places):
            found.append(page)
    return found


def test_inner_pages_are_not_needed(sound: Sound, tmp_path: Path) -> None:
    def clear(content: bytearray) -> None:
        for start in range(sound.page_size, len(content), sound.page_size):
            if content[start] in (2, 5, 10):  # inner pages, and all of the indices
                content[start : start + sound.page_size] = bytes(sound.page_size)
        content[:100] = bytes(100)  # and the file's header

    result = edit(1, clear, sound, tmp_path / "damaged.db")
    assert {table.name: table.kept for table in result.tables} == {
        name: len(table) for name, table in sound.rows.items()
    }
    assert all_rows(tmp_path / "1.db") == sound.rows


def test_lost_parents_get_stand_ins_and_verdicts_without_trials_go(
    sound: Sound, tmp_path: Path
) -> None:
    def clear(content: bytearray) -> None:
        for table in ("tasks", "jobs"):
            for page in pages_with(sound, table):
                start = page * sound.page_size
                content[start : start + sound.page_size] = bytes(sound.page_size)
        changed = content.find(b"request-1" + b"direct")
        content[changed] ^= 1

    result = edit(2, clear, sound, tmp_path / "damaged.db")
    tables = {table.name: table for table in result.tables}
    assert (tables["tasks"].stand_ins, tables["jobs"].stand_ins) == (1, 1)
    assert (tables["trials"].kept, tables["trials"].missing) == (TRIALS - 1, 1)
    assert tables["bests"].useless == 1
    assert result.damaged == 1
    with Store.open(tmp_path / "2.db") as store:
        assert check(store) == []
        trials = list(queries.iterate_trials(store))
        assert [record.number for record in trials] == list(range(2, TRIALS + 1))
        assert {record.key.numerics for record in trials} == {"lost"}
        assert export_records(store, tmp_path / "saved.jsonl") == TRIALS - 1


def test_what_is_no_database_of_ours_is_refused(tmp_path: Path) -> None:
    path, new = tmp_path / "other.db", tmp_path / "new.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE trials (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("INSERT INTO trials (name) VALUES ('x')")
        connection.commit()
    with pytest.raises(DatabaseError, match="holds no intact record of schema"):
        salvage(path, new)
    with pytest.raises(DatabaseError, match="cannot read"):
        salvage(tmp_path / "nowhere.db", new)
    assert not new.exists()


def test_an_existing_file_is_never_written(sound: Sound, tmp_path: Path) -> None:
    path, new = tmp_path / "tuning.db", tmp_path / "new.db"
    path.write_bytes(sound.content)
    new.write_text("precious")
    with pytest.raises(DatabaseError, match="exists already"):
        salvage(path, new)
    assert new.read_text() == "precious"


def test_a_transaction_that_was_cut_short_is_rolled_back_in_the_copy(
    sound: Sound, tmp_path: Path
) -> None:
    path = tmp_path / "tuning.db"
    path.write_bytes(sound.content)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN")
        connection.execute("UPDATE trials SET status = 'crashed'")  # spills to the file
        halfway = {name: (tmp_path / name).read_bytes() for name in ("tuning.db",)}
        journal = (tmp_path / "tuning.db-journal").read_bytes()
        connection.execute("ROLLBACK")
    path.write_bytes(halfway["tuning.db"])
    (tmp_path / "tuning.db-journal").write_bytes(journal)
    salvage(path, tmp_path / "new.db")
    assert all_rows(tmp_path / "new.db") == sound.rows
    assert path.read_bytes() == halfway["tuning.db"]


def test_rows_from_before_a_schema_are_saved(tmp_path: Path) -> None:
    """Rows that an upgrade left as they were have fewer values than those added since."""
    path, target = unpacked("0004", tmp_path), tmp_path / "saved.db"
    with Store.open(path) as store:
        store.add([paired(9, 1)])
        trials = list(queries.iterate_trials(store))
    assert salvage(path, target).damaged == 0
    with Store.open(target) as store:
        assert list(queries.iterate_trials(store)) == trials
        assert check(store) == []


def test_claims_of_a_lost_job_are_dropped_and_others_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    with Store.open(path) as store:
        populate(store)
        for number in (1, 2):
            job = store.start_job("model", "hash", {}, [JobTask(KEY, 1)]).id
            claim(store, job, [(KEY, trial(number).schedule_hash)])
            assert ask(store, job, "stop")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM job_tasks WHERE job_id = 2")
        connection.execute("UPDATE jobs SET state = 'gone' WHERE id = 2")
    saved = {table.name: table for table in salvage(path, tmp_path / "saved.db").tables}
    for name in ("leases", "claims", "requests"):
        assert (saved[name].kept, saved[name].useless) == (1, 1)
    assert saved["jobs"].stand_ins == 0
    with Store.open(tmp_path / "saved.db") as store:
        assert check(store) == []
        assert [job.state for job in queries.jobs(store)] == ["running"]
