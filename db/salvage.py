"""Salvage: what is intact of a damaged file, as a new database. The damaged file is only read.

The rows are read page by page (`tunefarm.db.sqlite_pages`), and a row is taken if its checksum is
right for one of the tables, which also tells which table it is from. Rows keep their numbers. Where
a row refers to one that is lost, a stand-in named `lost-NUMBER` takes the place of that one.
"""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Table, func, insert, select

from tunefarm.configs.errors import DatabaseError
from tunefarm.configs.temporary_folders import make_folder
from tunefarm.db import schema
from tunefarm.db.checksum import COLUMN, added_columns
from tunefarm.db.raw_rows import decode, is_intact
from tunefarm.db.rekey import rekey
from tunefarm.db.sqlite_pages import Value, layouts, rows
from tunefarm.db.store import Store

_AT_ONCE = 1000
_TABLES: tuple[Table, ...] = tuple(schema.Base.metadata.sorted_tables)


@dataclass(frozen=True, slots=True)
class SalvagedTable:
    """What became of a table: rows in the new database, stand-ins among them, and the rows that
    were intact but of no use without others that are lost. `missing` are the numbers between 1 and
    the highest that no row has: rows that are lost, or that had been deleted before."""

    name: str
    kept: int
    stand_ins: int
    useless: int
    missing: int


@dataclass(frozen=True, slots=True)
class Salvage:
    """What was saved; `damaged` is how many rows were found that are not intact."""

    tables: tuple[SalvagedTable, ...]
    damaged: int


_Rows = dict[int, dict[str, Any]]  # by number


def salvage(source: Path, target: Path) -> Salvage:
    """Write the intact rows of `source` to the new database `target`.

    Raises DatabaseError if `target` exists, `source` cannot be read, or it holds no intact row.
    """
    if target.exists():
        raise DatabaseError(f"{target} exists already", hint="nothing was changed")
    found, damaged = _intact_rows(_settled_content(source))
    if not any(found.values()):
        raise DatabaseError(
            f"{source} holds no intact record of schema {schema.REVISION}",
            hint="a backup, or an upgrade's NAME.REVISION.backup, may do",
        )
    useless = _drop_useless(found)
    stand_ins = _add_stand_ins(found)
    tables = tuple(
        SalvagedTable(
            name, len(rows), stand_ins[name], useless.get(name, 0), max(rows, default=0) - len(rows)
        )
        for name, rows in found.items()
    )
    try:
        with Store.open(target) as store:
            _write(store, found)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return Salvage(tables, damaged)


def _settled_content(source: Path) -> bytes:
    """The file's bytes after a transaction that was cut short, or a log next to it, is dealt with.

    That is done to a copy, by SQLite, if it can; else the file is taken as it is.
    """
    if not source.is_file():
        raise DatabaseError(f"cannot read {source}: there is no such file")
    try:
        folder = make_folder("salvage")
        try:
            copy = Path(folder, "copy.db")
            for suffix in ("", "-journal", "-wal"):
                part = source.with_name(source.name + suffix)
                if part.exists():
                    shutil.copyfile(part, f"{copy}{suffix}")
            try:
                with closing(sqlite3.connect(copy)) as connection:
                    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except (sqlite3.Error, UnicodeDecodeError):  # messages quote what they cannot read
                return source.read_bytes()
            return copy.read_bytes()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise DatabaseError(f"cannot read {source}: {error.strerror or error}") from error


def _intact_rows(content: bytes) -> tuple[dict[str, _Rows], int]:
    """The intact rows by table, by the first layout that gives any, and how many are not intact."""
    for layout in layouts(content):
        found: dict[str, _Rows] = {table.name: {} for table in _TABLES}
        damaged = 0
        for row in rows(content, layout):
            placed = None if row is None else table_of(*row)
            if placed is None:
                damaged += row is None or _could_be_ours(row[1])
            else:
                _keep(found[placed[0].name], row[0] if row else 0, placed[1])
        if any(found.values()):
            break
    return found, damaged


def _keep(table: _Rows, number: int, values: dict[str, Any]) -> None:
    """Of two versions of a row (a page that was moved leaves one behind) the newer is right."""
    known = table.get(number)
    if known is None or values.get("updated", 0.0) > known.get("updated", 0.0):
        table[number] = values


def table_of(rowid: int, stored: list[Value]) -> tuple[Table, dict[str, Any]] | None:
    """The table that an intact row is from, and its values by column."""
    for table in _TABLES:
        names = [column.name for column in table.columns]
        if len(stored) not in _lengths(table):
            continue
        row: dict[str, Any] = dict(itertools.zip_longest(names, stored))
        if "id" in row:
            row["id"] = rowid
        try:
            values = decode(table, row)
        except ValueError:
            continue
        if is_intact(table, values):
            return table, values
    return None


@cache
def _lengths(table: Table) -> tuple[int, ...]:
    """How many values its rows have: those from before a schema have none of its columns."""
    whole, added = len(table.columns), len(added_columns(table))
    return tuple(range(whole, whole - added - 1, -1))


def _could_be_ours(stored: list[Value]) -> bool:
    """Whether a row has the length of one of ours; SQLite's own tables have other rows."""
    return len(stored) > 5 and any(len(stored) in _lengths(table) for table in _TABLES)


def _references_to(parent: str) -> Iterator[tuple[str, str]]:
    """Table and column of what refers to rows of `parent`."""
    for table in _TABLES:
        for column in table.columns:
            if any(key.column.table.name == parent for key in column.foreign_keys):
                yield table.name, column.name


_NEEDED = {
    "bests": {"trial_id": "trials"},
    "leases": {"job_id": "jobs"},
    "requests": {"job_id": "jobs"},
    "claims": {"job_id": "jobs", "task_id": "tasks"},
}
"""Columns whose rows say nothing once the row that they are about is lost, and its table."""


def _drop_useless(found: dict[str, _Rows]) -> dict[str, int]:
    """Drop what says nothing: verdicts without trials; how many of each table."""
    useless = {}
    for table, needed in _NEEDED.items():
        kept = {
            number: row
            for number, row in found[table].items()
            if all(row[column] in found[parent] for column, parent in needed.items())
        }
        useless[table] = len(found[table]) - len(kept)
        found[table] = kept
    return useless


def _add_stand_ins(found: dict[str, _Rows]) -> dict[str, int]:
    """Add a row for everything that is referred to and lost; how many of each table."""
    counts = dict.fromkeys(found, 0)
    for parent in ("jobs", "tasks", "machines", "workloads", "targets"):
        for table, column in _references_to(parent):
            wanted = {row[column] for row in found[table].values()} - {None}
            for number in sorted(wanted - found[parent].keys()):
                found[parent][number] = _stand_in(parent, number, found)
                counts[parent] += 1
    return counts


def _stand_in(table: str, number: int, found: Mapping[str, _Rows]) -> dict[str, Any]:
    name = f"lost-{number}"
    if table == "workloads":
        return {"id": number, "key": name, "name": "lost", "kernel": None}
    if table in ("targets", "machines"):
        return {"id": number, "key": name, "description": {"lost": number}}
    if table == "tasks":
        # a workload and a target of its own: which ones it had is not known
        beyond = max((*found["workloads"], *found["targets"], 0), default=0) + number
        key = {"workload_id": beyond, "target_id": beyond}
        return {"id": number, **key, "threads": 1, "numerics": "lost", "compiler_version": "lost"}
    nothing = {"model_name": "lost", "model_hash": "", "settings": {}, "progress": {}}
    times = {"started": 0.0, "updated": 0.0, "finished": None}
    return {"id": number, "uid": name, **nothing, **times, "state": "failed"}


def _write(store: Store, found: Mapping[str, _Rows]) -> None:
    with store.writing() as session:
        for table in _TABLES:
            rows = [
                {name: value for name, value in row.items() if name != COLUMN}
                for _, row in sorted(found[table.name].items())
            ]
            for start in range(0, len(rows), _AT_ONCE):
                session.execute(insert(table), rows[start : start + _AT_ONCE])
            written = session.scalar(select(func.count()).select_from(table))
            if written != len(rows):
                raise DatabaseError(f"only {written} rows of {table.name} could be written")
        rekey(session)  # the file may be of an earlier schema
