"""Salvage: what is intact of a damaged file, as a new database. The damaged file is only read.

The rows are read page by page, without the trees that lead to them: a leaf page of a table says for
itself where its rows are, so those of every page that is intact are found
(https://www.sqlite.org/fileformat2.html, section 1.6 on pages, 2.1 on records). A row is taken if
its checksum is right for one of the tables, which also tells which table it is from. Rows keep
their numbers. Where a row refers to one that is lost, a stand-in named `lost-NUMBER` takes the
place of that one.
"""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import struct
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Table, func, insert, select

from tunefarm.configs.errors import DatabaseError, system_errors_as
from tunefarm.configs.temporary_folders import temporary_folder
from tunefarm.db import schema
from tunefarm.db.checksum import COLUMN, added_columns
from tunefarm.db.raw_rows import decode, is_intact
from tunefarm.db.rekey import rekey
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
    with (
        system_errors_as(DatabaseError, f"read {source}"),
        temporary_folder("salvage") as folder,
    ):
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


def table_of(rowid: int, stored: list[_Value]) -> tuple[Table, dict[str, Any]] | None:
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


def _could_be_ours(stored: list[_Value]) -> bool:
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


_Value = int | float | str | bytes | None

_HEADER_BYTES = 100  # of the file, in front of the first page's own header
_TABLE_LEAF = 13
_LEAF_HEADER_BYTES = 8
_PAGE_SIZES = tuple(1 << power for power in range(9, 17))
_USUAL_PAGE_SIZE = 4096
_FLOAT_TYPE = 7
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_CONSTANTS = {8: 0, 9: 1}


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a file is cut into pages; `reserved` bytes at the end of each are not used."""

    page_size: int
    reserved: int

    @property
    def usable(self) -> int:
        """Bytes of a page that SQLite uses."""
        return self.page_size - self.reserved


class _DamagedRow(Exception):  # noqa: N818 - what is found, not a mistake of anyone
    """A row that cannot be read."""


def layouts(content: bytes) -> list[_Layout]:
    """The layout that the header gives, then the usual one: the header may be damaged."""
    found = [_Layout(_USUAL_PAGE_SIZE, 0)]
    if len(content) >= _HEADER_BYTES:
        size = int.from_bytes(content[16:18], "big")
        size = 65536 if size == 1 else size
        if size in _PAGE_SIZES:
            found = [_Layout(size, content[20]), _Layout(size, 0), *found]
    return list(dict.fromkeys(found))


def _free_pages(content: bytes, layout: _Layout) -> set[int]:
    """Numbers of the pages that are not in use, as far as their list can be read."""
    pages: set[int] = set()
    trunk = int.from_bytes(content[32:36], "big")
    while trunk and trunk not in pages:
        page = _page(content, layout, trunk)
        if len(page) < 8:
            break
        pages.add(trunk)
        trunk, count = struct.unpack_from(">II", page)
        if count > (layout.usable - 8) // 4:
            break
        pages.update(struct.unpack_from(f">{count}I", page, 8))
    return pages


def rows(content: bytes, layout: _Layout) -> Iterator[tuple[int, list[_Value]] | None]:
    """Rowid and values of every row in a leaf page; None for one that is there but damaged."""
    free = _free_pages(content, layout)
    for number in range(1, -(-len(content) // layout.page_size) + 1):
        if number not in free:
            yield from _rows_of_page(content, layout, number)


def _page(content: bytes, layout: _Layout, number: int) -> bytes:
    start = (number - 1) * layout.page_size
    return content[start : start + layout.page_size] if number > 0 else b""


def _rows_of_page(
    content: bytes, layout: _Layout, number: int
) -> Iterator[tuple[int, list[_Value]] | None]:
    page = _page(content, layout, number)
    head = _HEADER_BYTES if number == 1 else 0
    if len(page) < head + _LEAF_HEADER_BYTES or page[head] != _TABLE_LEAF:
        return
    count = int.from_bytes(page[head + 3 : head + 5], "big")
    first = head + _LEAF_HEADER_BYTES
    found: list[tuple[int, list[_Value]]] = []
    for position in range(first, min(first + 2 * count, len(page) - 1), 2):
        cell = int.from_bytes(page[position : position + 2], "big")
        try:
            found.append(_row(content, layout, page, cell))
        except _DamagedRow:
            yield None
    kept = _ascending([rowid for rowid, _ in found])
    for i, row in enumerate(found):
        yield row if i in kept else None


def _ascending(rowids: list[int]) -> set[int]:
    """Positions of the longest ascending run of rowids, which are in order on an intact page."""
    ends: list[int] = []  # the smallest last rowid of an ascending run of each length
    last: list[int] = []  # where it is
    before = [-1] * len(rowids)
    for i, rowid in enumerate(rowids):
        length = bisect_left(ends, rowid)
        before[i] = last[length - 1] if length else -1
        ends[length : length + 1] = [rowid]
        last[length : length + 1] = [i]
    kept = set()
    i = last[-1] if last else -1
    while i >= 0:
        kept.add(i)
        i = before[i]
    return kept


def _row(content: bytes, layout: _Layout, page: bytes, cell: int) -> tuple[int, list[_Value]]:
    size, at = _varint(page, cell)
    rowid, at = _varint(page, at)
    payload = _payload(content, layout, page, at, size)
    return rowid, _values(payload)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 1 to 9 bytes, and where it ends."""
    value = 0
    for position in range(at, at + 9):
        if position >= len(data):
            raise _DamagedRow
        byte = data[position]
        if position == at + 8:
            value = value << 8 | byte
            return (value - (1 << 64) if value >> 63 else value), position + 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, position + 1
    raise AssertionError("nine bytes end every number")


def _payload(content: bytes, layout: _Layout, page: bytes, at: int, size: int) -> bytes:
    """The record's bytes, those on overflow pages too."""
    if not 0 < size <= len(content):
        raise _DamagedRow
    usable = layout.usable
    if size <= usable - 35:
        local = size
    else:
        least = (usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (usable - 4)
        local = local if local <= usable - 35 else least
    payload = page[at : at + local]
    if len(payload) < local:
        raise _DamagedRow
    following = int.from_bytes(page[at + local : at + local + 4], "big") if local < size else 0
    parts = [payload]
    missing = size - local
    while missing:
        overflow = _page(content, layout, following)
        if len(overflow) < layout.usable:
            raise _DamagedRow
        part = overflow[4 : min(4 + missing, usable)]
        parts.append(part)
        missing -= len(part)
        following = int.from_bytes(overflow[:4], "big")
    return b"".join(parts)


def _values(payload: bytes) -> list[_Value]:
    end, at = _varint(payload, 0)
    types = []
    while at < end:
        kind, at = _varint(payload, at)
        types.append(kind)
    if at != end:
        raise _DamagedRow
    values: list[_Value] = []
    for kind in types:
        value, at = _value(payload, at, kind)
        values.append(value)
    if at != len(payload):
        raise _DamagedRow
    return values


def _value(payload: bytes, at: int, kind: int) -> tuple[_Value, int]:
    """The value of a serial type, and where it ends."""
    if kind == 0:
        return None, at
    if kind in _CONSTANTS:
        return _CONSTANTS[kind], at
    size = _INTEGER_BYTES.get(kind, 8) if kind < 10 else (kind - 12) // 2
    data = payload[at : at + size]
    if kind in (10, 11) or kind < 0 or len(data) < size:
        raise _DamagedRow
    end = at + size
    if kind in _INTEGER_BYTES:
        return int.from_bytes(data, "big", signed=True), end
    if kind == _FLOAT_TYPE:
        return struct.unpack(">d", data)[0], end
    if kind % 2 == 0:
        return data, end
    try:
        return data.decode(), end
    except UnicodeDecodeError as error:
        raise _DamagedRow from error
