"""Databases as JSON lines: a header, then targets, workloads, jobs, trials, bests, builds, plans,
latencies, and an end.

    {"format": "tunefarm-records", "version": 9}
    {"kind": "workload", "key": "89ab…", "name": "conv_relu", "kernel": …, "checksum": "01ef…"}
    {"kind": "trial", "key": {"workload": "89ab…", …}, "latency": 0.00017, …, "checksum": …}
    {"kind": "end", "records": 2}

Only JSON goes in and out, and every field of a line that comes in is checked. Leases,
claims, requests and queues stay where they are: they are about work on this very database.

A file may hold several exports, one behind the other, of any versions; it may be compressed by
gzip, in any number of members. Blank lines, CRLF and byte order marks are of no account.
"""

from __future__ import annotations

import codecs
import gzip
import itertools
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from tunefarm.configs.errors import DatabaseError, system_errors_as
from tunefarm.configs.file_kinds import kind_of
from tunefarm.configs.files import open_regular, replacing
from tunefarm.db import model_queries, queries
from tunefarm.db.additions import bringing
from tunefarm.db.bounds import GIVEN, read_record
from tunefarm.db.records import (
    BestRecord,
    BuildRecord,
    JobRecord,
    LatencyRecord,
    PlanRecord,
    Record,
    TargetRecord,
    TaskKey,
    TrialRecord,
    WorkloadRecord,
    hash_json,
)
from tunefarm.db.rekey import Rekeyed
from tunefarm.db.store import Store

FORMAT = "tunefarm-records"
VERSION = 9
"""Version 1 had no bests, version 2 no builds, version 3 no checksums, no end and no lost jobs,
version 4 no pairs, version 5 no plans, version 6 no latencies; up to version 7 the keys of targets
held the sizes of caches; up to version 8 plans had no CPU."""
_CHECKED_SINCE = 4
_PAIRS_SINCE = 5
_CPUS_SINCE = 9
_ALONE: Mapping[str, Any] = {
    **dict.fromkeys(("reference", "ratio", "low", "high")),
    "reference_samples": [],
}
"""The fields of a trial that was not measured in pairs."""
_BATCH = 1000
_GZIP = b"\x1f\x8b"
_LONGEST_LINE = 64 << 20  # bytes; a record's JSON values have 16 Mi characters at most


def export_records(store: Store, path: Path) -> int:
    """Write everything to a new file; returns the number of trials.

    Raises DatabaseError if the file exists already or cannot be written.
    """
    try:
        with (
            replacing(path, new=True) as unfinished,
            unfinished.open("x", encoding="utf-8") as file,
        ):
            return write_records(records_of(store), file)
    except FileExistsError as error:
        raise DatabaseError(f"{path} exists already", hint="nothing was changed") from error
    except OSError as error:
        raise DatabaseError(f"cannot write {path}: {error.strerror or error}") from error


def write_records(records: Iterable[Record], file: TextIO) -> int:
    """Write records as an export, each behind those that it refers to; the number of trials."""
    count = 0
    for line in _lines(records):
        file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
        count += line.get("kind") == "trial"
    return count


@dataclass(slots=True)
class Added:
    """What became of the records of an import or a merge, by their kind: those that the database
    did not have, and those that it had."""

    new: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)

    @property
    def trials(self) -> int:
        """The new trials."""
        return self.new["trial"]

    def __bool__(self) -> bool:
        return bool(self.new.total() or self.known.total())

    def __str__(self) -> str:
        """A line for people."""
        others = self.new.total() - self.trials
        known = self.known.total() - self.known["trial"]
        return (
            f"{self.trials} new trials, {self.known['trial']} known already; "
            f"targets, kernels, jobs and results: {others} new, {known} known already"
        )


def import_records(store: Store, path: Path, added: Added | None = None) -> Added:
    """Add what a file holds and the store does not, counting it in `added`.

    The whole file is checked before anything is added. Raises DatabaseError with the line's
    number for the first line that is not right.
    """
    with RecordsFile(path) as file:
        return file.add_to(store, added)


def merge_records(store: Store, source: Store, added: Added | None = None) -> Added:
    """Add what `source` holds and the store does not, counting it in `added`.

    Broken off, it can be done again: what is there already stays as it is. Raises DatabaseError if
    both are the same database.
    """
    check_source(store, source)
    with bringing(store, "merge", source.name) as addition:
        return add_records(store, records_of(source), addition, added)


def check_source(store: Store, source: Store) -> None:
    """Raise DatabaseError if both are the same database, or a record of `source` cannot be."""
    if store.is_same(source):
        raise DatabaseError(f"{source.name} is the database itself", hint="nothing was changed")
    for record in records_of(source):
        try:  # all of them before the first is added
            _checked(type(record), record)
        except ValueError as error:
            raise DatabaseError(
                f"{source.name}: a {_NAMES[type(record)]} that cannot be: {error}",
                hint="nothing of it was added",
            ) from error


def add_records(
    store: Store, records: Iterable[Record], addition: int | None, added: Added | None = None
) -> Added:
    """Add the records that the store does not hold yet, in their order, as those of an addition, or
    without one as its own.

    What a record refers to must come before it, as in `records_of`.
    """
    added = Added() if added is None else added
    for kind, run in itertools.groupby(records, key=type):
        while batch := list(itertools.islice(run, _BATCH)):
            new = store.add(batch, addition)
            added.new[_NAMES[kind]] += new
            added.known[_NAMES[kind]] += len(batch) - new
    return added


def records_of(store: Store) -> Iterator[Record]:
    """Everything, in an order in which each record stands behind those that it refers to."""
    yield from queries.targets(store).values()
    yield from queries.workloads(store).values()
    yield from reversed(queries.jobs(store))
    yield from queries.iterate_trials(store)
    yield from queries.iterate_bests(store)
    yield from reversed(model_queries.builds(store))
    yield from reversed(model_queries.plans(store))
    yield from reversed(model_queries.latencies(store))


_KINDS: Mapping[str, type[Record]] = {
    "target": TargetRecord,
    "workload": WorkloadRecord,
    "job": JobRecord,
    "trial": TrialRecord,
    "best": BestRecord,
    "build": BuildRecord,
    "plan": PlanRecord,
    "latency": LatencyRecord,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def _lines(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    yield {"format": FORMAT, "version": VERSION}
    count = 0
    for record in records:
        line = {"kind": _NAMES[type(record)], **asdict(record)}
        line.pop(GIVEN, None)
        yield {**line, "checksum": hash_json(line)}
        count += 1
    yield {"kind": "end", "records": count}


class RecordsFile:
    """A file of exports that is open, and was checked to its end."""

    def __init__(self, path: Path) -> None:
        """Raises DatabaseError with the line's number for the first line that is not right."""
        self._path = path
        with system_errors_as(DatabaseError, f"read {path}"):
            self._file = open_regular(path)
        try:
            for _ in self.records():
                pass
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> RecordsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add_to(self, store: Store, added: Added | None = None) -> Added:
        """Add what the store does not hold yet, counting it in `added`.

        Broken off, it can be done again: what is there already stays as it is.
        """
        with bringing(store, "import", str(self._path)) as addition:
            return add_records(store, self.records(), addition, added)

    def records(self) -> Iterator[Record]:
        """From the beginning. Raises DatabaseError at the first line that is not right."""
        reader = _Lines()
        number = 0
        try:
            for number, line in self._lines():
                record = reader.read(number, line)
                if record is not None:
                    yield record
            reader.end()
        except (ValueError, TypeError, RecursionError) as error:
            raise self._refusal(number, str(error), reader) from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reason = f"the gzip file is damaged or cut off behind this line ({error})"
            raise self._refusal(number, reason, reader) from error
        except OSError as error:
            reason = f"what follows cannot be read: {error.strerror or error}"
            raise self._refusal(number, reason, reader) from error

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines that are not blank, with their numbers, without byte order marks."""
        self._file.seek(0)
        is_compressed = self._file.read(len(_GZIP)) == _GZIP
        self._file.seek(0)
        file: BinaryIO | gzip.GzipFile = self._file
        if is_compressed:
            file = gzip.GzipFile(fileobj=self._file, mode="rb")
        for number in itertools.count(1):
            line = file.readline(_LONGEST_LINE)
            if not line:
                return
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"a line behind this one has {_LONGEST_LINE} bytes or more")
            line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                yield number, line

    def _refusal(self, number: int, reason: str, reader: _Lines) -> DatabaseError:
        hint = reader.hint
        if not reader.exports and (kind := kind_of(self._path)) is not None:
            reason, hint = f"{reason}: it is {kind.what}", kind.advice
        if reader.whole_lines:
            whole = f"head -n {reader.whole_lines} gives the exports above it, which are whole"
            hint = "; ".join(filter(None, [hint, whole]))
        if number == 0:
            return DatabaseError(f"{self._path}: {reason}", hint=hint)
        return DatabaseError(f"{self._path}:{number}: {reason}", hint=hint)


class _Lines:
    """Reads a file's lines in their order. Methods raise ValueError for one that is not right."""

    def __init__(self) -> None:
        self.exports = 0
        self.whole_lines = 0  # up to the end of the last export that is whole
        self.hint = ""
        self._version = 0
        self._ended = False

    def read(self, number: int, line: bytes) -> Record | None:
        """The record of a line; None for headers and ends."""
        value = _value(line)
        if self._is_header(value):
            self._begin(number, value)
            return None
        if self._ended:
            raise ValueError("this stands behind the end")
        if self._version >= _CHECKED_SINCE:
            if isinstance(value, dict) and value.get("kind") == "end":
                if value != {"kind": "end", "records": self._records}:
                    raise ValueError(f"{self._records} records stand above the end")
                self._ended, self.whole_lines = True, number
                return None
            _check_sum(value)
        record = _record(value, self._version)
        _check_references(record, self._seen)
        self._records += 1
        return self._rekeyed.record(record)

    def end(self) -> None:
        """Nothing follows: what was read must be whole."""
        if not self.exports:
            raise ValueError("there is no export in it")
        if not self._is_whole:
            raise ValueError("the export is cut off: it has no end behind this line")

    def _is_header(self, value: object) -> bool:
        """Whether an export begins here, which the first line must."""
        return not self.exports or (isinstance(value, dict) and value.get("format") == FORMAT)

    @property
    def _is_whole(self) -> bool:
        return self._ended or self._version < _CHECKED_SINCE

    def _begin(self, number: int, header: object) -> None:
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise ValueError("this is not a file of records")
        if not self._is_whole:
            raise ValueError("an export begins here, and the one above is cut off: it has no end")
        version = header.get("version")
        if isinstance(version, bool) or version not in range(1, VERSION + 1):
            is_newer = isinstance(version, int) and version > VERSION
            self.hint = "a newer tunefarm has written it: update this one" if is_newer else ""
            raise ValueError(f"version {version!r} is not supported, only 1 to {VERSION}")
        assert isinstance(version, int)
        self.whole_lines = number - 1 if self.exports else 0
        self.exports += 1
        self._version, self._ended = version, False
        self._seen: set[tuple[str, str]] = set()
        self._rekeyed = Rekeyed()
        self._records = 0


def _value(line: bytes) -> object:
    """The JSON value of a line."""
    try:
        return json.loads(line.decode(), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ValueError("this is not a text file (UTF-8)") from error
    except json.JSONDecodeError as error:
        if not line.endswith(b"\n"):
            raise ValueError("the file is cut off within this line") from error
        raise ValueError(f"this is not JSON: {error.msg}, column {error.colno}") from error


def _check_sum(value: object) -> None:
    """Take the line's checksum off, if it is right."""
    if not isinstance(value, dict):
        raise ValueError("this is not an object")
    checksum = value.pop("checksum", None)
    if checksum != hash_json(value):
        raise ValueError("the line is not what was written: its checksum is not right")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_references(record: Record, seen: set[tuple[str, str]]) -> None:
    """What a record refers to must stand above it in the file."""
    keys: list[TaskKey] = []
    needed: set[tuple[str, str]] = set()
    match record:
        case TargetRecord() | WorkloadRecord():
            seen.add((_NAMES[type(record)], record.key))
        case JobRecord():
            seen.add(("job", record.id))
            keys = [task.key for task in record.tasks]
        case TrialRecord():
            seen.add(("trial", _trial_name(record)))
            keys = [record.key]
            needed = set() if record.job is None else {("job", record.job)}
        case BestRecord():
            keys = [record.key]
            needed = {("trial", _trial_name(record))}
            needed |= set() if record.job is None else {("job", record.job)}
        case BuildRecord() | PlanRecord():
            needed = {("target", record.target)}
        case LatencyRecord():
            needed = {("target", record.target)}
            needed |= set() if record.job is None else {("job", record.job)}
    needed |= {
        part for key in keys for part in (("workload", key.workload), ("target", key.target))
    }
    for kind, key in needed - seen:
        raise ValueError(f"{kind} {key!r} does not stand above this line")


def _trial_name(record: TrialRecord | BestRecord) -> str:
    return f"{record.request_id} {record.schedule_hash}"


def _record(value: object, version: int) -> Record:
    if not isinstance(value, dict):
        raise ValueError("this is not an object")
    name = value.pop("kind", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"unknown kind {name!r}")
    if kind is TrialRecord and version < _PAIRS_SINCE:
        for field in _ALONE.keys() & value.keys():
            raise ValueError(f"unknown field {field!r}")
        value |= _ALONE
    if kind is PlanRecord and version < _CPUS_SINCE:
        if "cpu" in value:
            raise ValueError("unknown field 'cpu'")
        value["cpu"] = None
    return _checked(kind, value)


def _checked(kind: type[Record], value: object) -> Record:
    """The record, if it can be. Raises ValueError."""
    record = read_record(kind, value)
    if isinstance(record, TrialRecord) and record.contradiction:
        raise ValueError(record.contradiction)
    return record
