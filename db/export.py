"""Databases as JSON lines: a header, then targets, workloads, jobs, trials, bests, builds, an end.

    {"format": "tunefarm-records", "version": 4}
    {"kind": "workload", "key": "89ab…", "name": "conv_relu", "kernel": …, "checksum": "01ef…"}
    {"kind": "trial", "key": {"workload": "89ab…", …}, "latency": 0.00017, …, "checksum": …}
    {"kind": "end", "records": 2}

Only JSON goes in and out, and every field of a line that comes in is checked. Leases and claims
stay where they are: they say who is at work on this very database.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO, TypeAlias, TypeVar

from configs.errors import DatabaseError
from configs.files import replacing
from configs.regular_file import open_regular
from db import queries
from db.bounds import check_bounds, refuse_unbounded
from db.records import (
    JOB_STATES,
    BestRecord,
    BuildRecord,
    JobRecord,
    JobTask,
    TargetRecord,
    TaskKey,
    TrialRecord,
    WorkloadRecord,
    hash_json,
)
from db.store import Store

FORMAT = "tunefarm-records"
VERSION = 4
"""Version 1 had no bests, version 2 no builds, version 3 no checksums, no end and no lost jobs."""
_CHECKED_SINCE = 4
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
    return add_records(store, _read(path))


def merge_records(store: Store, source: Store) -> int:
    """Add what `source` holds and the store does not; returns the number of new trials.

    Broken off, it can be done again: what is there already stays as it is. Raises DatabaseError if
    both are the same database.
    """
    if store.is_same(source):
        raise DatabaseError(f"{source.name} is the database itself", hint="nothing was changed")
    for record in records_of(source):
        refuse_unbounded(record, source.name)  # all of them before the first is added
    return add_records(store, records_of(source))


def add_records(store: Store, records: Iterable[Record]) -> int:
    """Add the records that the store does not hold yet, in their order; how many trials were new.

    What a record refers to must come before it, as in `records_of`.
    """
    new = 0
    for kind, run in itertools.groupby(records, key=type):
        same: Iterator[Any] = iter(run)
        while batch := list(itertools.islice(same, _BATCH)):
            if kind is TargetRecord:
                store.add_targets(batch)
            elif kind is WorkloadRecord:
                store.add_workloads(batch)
            elif kind is JobRecord:
                store.add_jobs(batch)
            elif kind is BestRecord:
                store.record_bests(batch)
            elif kind is BuildRecord:
                store.record_builds(batch)
            else:
                new += store.record_trials(batch)
    return new


Record: TypeAlias = (
    TargetRecord | WorkloadRecord | JobRecord | TrialRecord | BestRecord | BuildRecord
)


def records_of(store: Store) -> Iterator[Record]:
    """Everything, in an order in which each record stands behind those that it refers to."""
    yield from queries.targets(store).values()
    yield from queries.workloads(store).values()
    yield from reversed(queries.jobs(store))
    yield from queries.iterate_trials(store)
    yield from queries.iterate_bests(store)
    yield from reversed(queries.builds(store))


_KINDS: Mapping[type[Record], str] = {
    TargetRecord: "target",
    WorkloadRecord: "workload",
    JobRecord: "job",
    TrialRecord: "trial",
    BestRecord: "best",
    BuildRecord: "build",
}


def _lines(store: Store) -> Iterator[dict[str, Any]]:
    yield {"format": FORMAT, "version": VERSION}
    count = 0
    for record in records_of(store):
        line = {"kind": _KINDS[type(record)], **asdict(record)}
        line.pop("number", None)
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
    """Reads a file's lines in turn. Methods raise ValueError for one that is not right."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._seen: set[tuple[str, str]] = set()
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
        record = _record(value)
        check_bounds(record)
        _check_references(record, self._seen)
        self._records += 1
        return record


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
    if isinstance(record, TargetRecord):
        seen.add(("target", record.key))
    elif isinstance(record, WorkloadRecord):
        seen.add(("workload", record.key))
    elif isinstance(record, JobRecord):
        seen.add(("job", record.id))
    elif isinstance(record, TrialRecord):
        seen.add(("trial", _trial_name(record)))
    keys = [record.key] if isinstance(record, TrialRecord | BestRecord) else []
    if isinstance(record, JobRecord):
        keys = [task.key for task in record.tasks]
    needed = {("workload", key.workload) for key in keys}
    needed |= {("target", key.target) for key in keys}
    if isinstance(record, BuildRecord):
        needed.add(("target", record.target))
    if isinstance(record, TrialRecord) and record.job is not None:
        needed.add(("job", record.job))
    if isinstance(record, BestRecord):
        needed |= {("job", record.job), ("trial", _trial_name(record))}
    for kind, key in needed - seen:
        raise ValueError(f"{kind} {key!r} does not stand above this line")


def _trial_name(record: TrialRecord | BestRecord) -> str:
    return f"{record.request_id} {record.schedule_hash}"


def _record(value: object) -> Record:
    if not isinstance(value, dict):
        raise ValueError("this is not an object")
    kind = value.pop("kind", None)
    if kind == "target":
        return _build(TargetRecord, value, {"key": _text, "description": _any})
    if kind == "workload":
        return _build(WorkloadRecord, value, {"key": _text, "name": _text, "kernel": _any})
    if kind == "job":
        return _build(JobRecord, value, _JOB)
    if kind == "trial":
        trial = _build(TrialRecord, value, _TRIAL)
        if trial.status == "ok" and not trial.is_ok:
            raise ValueError("an ok trial needs a latency above zero")
        return trial
    if kind == "best":
        return _build(BestRecord, value, _BEST)
    if kind == "build":
        return _build(BuildRecord, value, _BUILD)
    raise ValueError(f"unknown kind {kind!r}")


_T = TypeVar(
    "_T",
    TargetRecord,
    WorkloadRecord,
    JobRecord,
    TrialRecord,
    BestRecord,
    BuildRecord,
    JobTask,
    TaskKey,
)
Reader = Callable[[object], Any]


def _build(cls: type[_T], value: object, readers: Mapping[str, Reader]) -> _T:
    if not isinstance(value, dict):
        raise ValueError(f"{cls.__name__} is not an object")
    for name in value.keys() - readers.keys():
        raise ValueError(f"unknown field {name!r}")
    for name in readers.keys() - value.keys():
        raise ValueError(f"field {name!r} is missing")
    read = {}
    for name, reader in readers.items():
        try:
            read[name] = reader(value[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return cls(**read)


def _any(value: object) -> Any:
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return float(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise ValueError(f"{value!r} is not a count")
    return value


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not an object")
    return value


def _optional(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


def _list(reader: Reader) -> Reader:
    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f"{value!r} is not a list")
        return tuple(reader(item) for item in value)

    return read


def _state(value: object) -> str:
    if value not in JOB_STATES:
        raise ValueError(f"{value!r} is no state of a job")
    return str(value)


def _task_key(value: object) -> TaskKey:
    return _build(TaskKey, value, _TASK_KEY)


def _job_task(value: object) -> JobTask:
    return _build(JobTask, value, {"key": _task_key, "occurrences": _count})


_READERS: dict[str, Reader] = {"str": _text, "int": _count, "float": _number}
_TASK_KEY = {field.name: _READERS[str(field.type)] for field in fields(TaskKey)}
_JOB: dict[str, Reader] = {
    "id": _text,
    "model_name": _text,
    "model_hash": _text,
    "settings": _any,
    "state": _state,
    "started": _number,
    "updated": _number,
    "finished": _optional(_number),
    "progress": _any,
    "tasks": _list(_job_task),
}
_TRIAL: dict[str, Reader] = {
    "key": _task_key,
    "request_id": _text,
    "sketch": _text,
    "choices": _object,
    "schedule": _any,
    "status": _text,
    "latency": _optional(_number),
    "samples": _list(_number),
    "error": _text,
    "build_seconds": _number,
    "check_seconds": _number,
    "run_seconds": _number,
    "machine": _object,
    "conditions": _object,
    "job": _optional(_text),
    "created": _number,
}
_BEST: dict[str, Reader] = {
    "key": _task_key,
    "schedule_hash": _text,
    "request_id": _text,
    "default_latency": _number,
    "ratio": _number,
    "low": _number,
    "high": _number,
    "met": _list(_text),
    "job": _text,
    "created": _number,
}
_BUILD: dict[str, Reader] = {
    "id": _text,
    "model_name": _text,
    "model_hash": _text,
    "target": _text,
    "threads": _count,
    "numerics": _text,
    "compiler_version": _text,
    "artefact_sha256": _text,
    "tuned_share": _number,
    "report": _any,
    "created": _number,
}
