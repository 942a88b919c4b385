"""Databases as JSON lines: a header, then targets, workloads, jobs, trials, bests, builds, plans,
latencies, and an end.

    {"format": "tunefarm-records", "version": 8}
    {"kind": "workload", "key": "89ab…", "name": "conv_relu", "kernel": …, "checksum": "01ef…"}
    {"kind": "trial", "key": {"workload": "89ab…", …}, "latency": 0.00017, …, "checksum": …}
    {"kind": "end", "records": 2}

Only JSON goes in and out, and every field of a line that comes in is checked. Leases,
claims, requests and queues stay where they are: they are about work on this very database.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from tunefarm.configs.errors import DatabaseError
from tunefarm.configs.files import replacing
from tunefarm.configs.regular_file import open_regular
from tunefarm.db import model_queries, queries
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
VERSION = 8
"""Version 1 had no bests, version 2 no builds, version 3 no checksums, no end and no lost jobs,
version 4 no pairs, version 5 no plans, version 6 no latencies; up to version 7 the keys of targets
held the sizes of caches."""
_CHECKED_SINCE = 4
_PAIRS_SINCE = 5
_ALONE: Mapping[str, Any] = {
    **dict.fromkeys(("reference", "ratio", "low", "high")),
    "reference_samples": [],
}
"""The fields of a trial that was not measured in pairs."""
_BATCH = 1000


def export_records(store: Store, path: Path) -> int:
    """Write everything to a new file; returns the number of trials.

    Raises DatabaseError if the file exists already or cannot be written.
    """
    try:
        with (
            replacing(path, new=True) as unfinished,
            unfinished.open("x", encoding="utf-8") as file,
        ):
            return _write(store, file)
    except FileExistsError as error:
        raise DatabaseError(f"{path} exists already", hint="nothing was changed") from error
    except OSError as error:
        raise DatabaseError(f"cannot write {path}: {error.strerror or error}") from error


def _write(store: Store, file: TextIO) -> int:
    count = 0
    for line in _lines(store):
        file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
        count += line.get("kind") == "trial"
    return count


def import_records(store: Store, path: Path) -> int:
    """Add what a file holds and the store does not; returns the number of new trials.

    The whole file is checked before anything is added. Raises DatabaseError with the line's
    number for the first line that is not right.
    """
    for _ in _read(path):
        pass  # checked to the end before the first record is added
    return _add(store, _read(path))


def merge_records(store: Store, source: Store) -> int:
    """Add what `source` holds and the store does not; returns the number of new trials.

    Broken off, it can be done again: what is there already stays as it is. Raises DatabaseError if
    both are the same database.
    """
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
    return _add(store, records_of(source))


def _add(store: Store, records: Iterable[Record]) -> int:
    """Add the records that the store does not hold yet, in their order; how many trials were new.

    What a record refers to must come before it, as in `records_of`.
    """
    new = 0
    for kind, run in itertools.groupby(records, key=type):
        while batch := list(itertools.islice(run, _BATCH)):
            added = store.add(batch)
            new += added if kind is TrialRecord else 0
    return new


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


def _lines(store: Store) -> Iterator[dict[str, Any]]:
    yield {"format": FORMAT, "version": VERSION}
    count = 0
    for record in records_of(store):
        line = {"kind": _NAMES[type(record)], **asdict(record)}
        line.pop(GIVEN, None)
        yield {**line, "checksum": hash_json(line)}
        count += 1
    yield {"kind": "end", "records": count}


def _read(path: Path) -> Iterator[Record]:
    """The file's records. Raises DatabaseError at the first line that is not right."""
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8") as file:
            number = 0
            reader = _Lines()
            for number, text in enumerate(file, start=1):
                try:
                    record = reader.read(text)
                except (ValueError, TypeError, RecursionError) as error:
                    raise DatabaseError(f"{path}:{number}: {error}") from error
                if record is not None:
                    yield record
        if number == 0:
            raise DatabaseError(f"{path} is empty", hint="an export has a first line at least")
        if not reader.is_whole:
            raise DatabaseError(f"{path} is cut off: it has no end")
    except UnicodeDecodeError as error:
        raise DatabaseError(f"{path} is not a text file (UTF-8)") from error
    except OSError as error:
        raise DatabaseError(f"cannot read {path}: {error.strerror or error}") from error


class _Lines:
    """Reads a file's lines in their order. Methods raise ValueError for one that is not right."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._seen: set[tuple[str, str]] = set()
        self._rekeyed = Rekeyed()
        self._records = 0
        self._ended = False

    @property
    def is_whole(self) -> bool:
        """Whether the end was read, in files that have one; an empty file is whole."""
        return self._ended or self._version is None or self._version < _CHECKED_SINCE

    def read(self, text: str) -> Record | None:
        """The line's record; None for the header and the end."""
        value = json.loads(text, parse_constant=_no_constant)
        if self._version is None:
            self._version = _version(value)
            return None
        if self._ended:
            raise ValueError("this stands behind the end")
        if self._version >= _CHECKED_SINCE:
            if isinstance(value, dict) and value.get("kind") == "end":
                if value != {"kind": "end", "records": self._records}:
                    raise ValueError(f"{self._records} records stand above the end")
                self._ended = True
                return None
            _check_sum(value)
        record = _record(value, self._version)
        _check_references(record, self._seen)
        self._records += 1
        return self._rekeyed.record(record)


def _check_sum(value: object) -> None:
    """Take the line's checksum off, if it is right."""
    if not isinstance(value, dict):
        raise ValueError("this is not an object")
    checksum = value.pop("checksum", None)
    if checksum != hash_json(value):
        raise ValueError("the line is not what was written: its checksum is not right")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _version(header: object) -> int:
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError("this is not a file of records")
    version = header.get("version")
    if isinstance(version, bool) or version not in range(1, VERSION + 1):
        raise ValueError(f"version {version!r} is not supported, only 1 to {VERSION}")
    assert isinstance(version, int)
    return version


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
            needed = {("job", record.job), ("trial", _trial_name(record))}
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
    return _checked(kind, value)


def _checked(kind: type[Record], value: object) -> Record:
    """The record, if it can be. Raises ValueError."""
    record = read_record(kind, value)
    if isinstance(record, TrialRecord) and record.contradiction:
        raise ValueError(record.contradiction)
    return record
