"""Rows of an SQLite file read page by page, without the trees that lead to them.

A leaf page of a table says for itself where its rows are, so the rows of every page that is intact
are found, whatever has become of the rest (https://www.sqlite.org/fileformat2.html, section 1.6 on
pages, 2.1 on records). Nothing here trusts what it reads: what does not fit is left out.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

Value = int | float | str | bytes | None

_HEADER_BYTES = 100  # of the file, in front of the first page's own header
_TABLE_LEAF = 13
_LEAF_HEADER_BYTES = 8
_PAGE_SIZES = tuple(1 << power for power in range(9, 17))
_USUAL_PAGE_SIZE = 4096
_FLOAT_TYPE = 7
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_CONSTANTS = {8: 0, 9: 1}


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file is cut into pages; `reserved` bytes at the end of each are not used."""

    page_size: int
    reserved: int

    @property
    def usable(self) -> int:
        """Bytes of a page that SQLite uses."""
        return self.page_size - self.reserved


class DamagedRow(Exception):  # noqa: N818 - what is found, not a mistake of anyone
    """A row that cannot be read."""


def layouts(content: bytes) -> list[Layout]:
    """The layout that the header gives, then the usual one: the header may be damaged."""
    found = [Layout(_USUAL_PAGE_SIZE, 0)]
    if len(content) >= _HEADER_BYTES:
        size = int.from_bytes(content[16:18], "big")
        size = 65536 if size == 1 else size
        if size in _PAGE_SIZES:
            found = [Layout(size, content[20]), Layout(size, 0), *found]
    return list(dict.fromkeys(found))


def free_pages(content: bytes, layout: Layout) -> set[int]:
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


def rows(content: bytes, layout: Layout) -> Iterator[tuple[int, list[Value]] | None]:
    """Rowid and values of every row in a leaf page; None for one that is there but damaged."""
    free = free_pages(content, layout)
    for number in range(1, -(-len(content) // layout.page_size) + 1):
        if number not in free:
            yield from _rows_of_page(content, layout, number)


def _page(content: bytes, layout: Layout, number: int) -> bytes:
    start = (number - 1) * layout.page_size
    return content[start : start + layout.page_size] if number > 0 else b""


def _rows_of_page(
    content: bytes, layout: Layout, number: int
) -> Iterator[tuple[int, list[Value]] | None]:
    page = _page(content, layout, number)
    head = _HEADER_BYTES if number == 1 else 0
    if len(page) < head + _LEAF_HEADER_BYTES or page[head] != _TABLE_LEAF:
        return
    count = int.from_bytes(page[head + 3 : head + 5], "big")
    first = head + _LEAF_HEADER_BYTES
    found: list[tuple[int, list[Value]]] = []
    for position in range(first, min(first + 2 * count, len(page) - 1), 2):
        cell = int.from_bytes(page[position : position + 2], "big")
        try:
            found.append(_row(content, layout, page, cell))
        except DamagedRow:
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


def _row(content: bytes, layout: Layout, page: bytes, cell: int) -> tuple[int, list[Value]]:
    size, at = _varint(page, cell)
    rowid, at = _varint(page, at)
    payload = _payload(content, layout, page, at, size)
    return rowid, _values(payload)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 1 to 9 bytes, and where it ends."""
    value = 0
    for position in range(at, at + 9):
        if position >= len(data):
            raise DamagedRow
        byte = data[position]
        if position == at + 8:
            value = value << 8 | byte
            return (value - (1 << 64) if value >> 63 else value), position + 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, position + 1
    raise AssertionError("nine bytes end every number")


def _payload(content: bytes, layout: Layout, page: bytes, at: int, size: int) -> bytes:
    """The record's bytes, those on overflow pages too."""
    if not 0 < size <= len(content):
        raise DamagedRow
    usable = layout.usable
    if size <= usable - 35:
        local = size
    else:
        least = (usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (usable - 4)
        local = local if local <= usable - 35 else least
    payload = page[at : at + local]
    if len(payload) < local:
        raise DamagedRow
    following = int.from_bytes(page[at + local : at + local + 4], "big") if local < size else 0
    parts = [payload]
    missing = size - local
    while missing:
        overflow = _page(content, layout, following)
        if len(overflow) < layout.usable:
            raise DamagedRow
        part = overflow[4 : min(4 + missing, usable)]
        parts.append(part)
        missing -= len(part)
        following = int.from_bytes(overflow[:4], "big")
    return b"".join(parts)


def _values(payload: bytes) -> list[Value]:
    end, at = _varint(payload, 0)
    types = []
    while at < end:
        kind, at = _varint(payload, at)
        types.append(kind)
    if at != end:
        raise DamagedRow
    values: list[Value] = []
    for kind in types:
        value, at = _value(payload, at, kind)
        values.append(value)
    if at != len(payload):
        raise DamagedRow
    return values


def _value(payload: bytes, at: int, kind: int) -> tuple[Value, int]:
    """The value of a serial type, and where it ends."""
    if kind == 0:
        return None, at
    if kind in _CONSTANTS:
        return _CONSTANTS[kind], at
    size = _INTEGER_BYTES.get(kind, 8) if kind < 10 else (kind - 12) // 2
    data = payload[at : at + size]
    if kind in (10, 11) or kind < 0 or len(data) < size:
        raise DamagedRow
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
        raise DamagedRow from error
