"""Targets under the keys that this version gives them; where two become one, all records are its.

A target's key comes from its description (`tunefarm.configs.target_key`), whatever version wrote
it. A database is brought to such keys by a migration and by a salvage, the records of an exported
file as they come in. Targets that differ in nothing that counts are one:

    znver3-13ef5ffc ─┐                      tasks of one kernel become one task, which has the
                     ├─> znver3-97ac3b61    trials, verdicts and claims of both; builds, plans and
    znver3-5d1207aa ─┘                      latencies are of the one target

A trial is named by its task, schedule and request. Where two come to have one name, the request of
the second one gets the target that it was for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Table, bindparam, delete, update
from sqlalchemy.orm import Session

from tunefarm.configs.target_key import target_key
from tunefarm.db import schema
from tunefarm.db.checksum import COLUMN, row_checksum
from tunefarm.db.raw_rows import decode, intact_rows, missing_columns
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
)

_REQUEST_CHARACTERS = 64
_DIGEST_CHARACTERS = 8
_TABLES = schema.Base.metadata.tables
_Row = Mapping[str, Any]


def rekey(session: Session) -> None:
    """Give every target of a database its key. Raises DatabaseError for a damaged row."""
    kept: dict[str, int] = {}  # a target's number by key
    keys, former = {}, {}
    merged: dict[int, int] = {}
    table = _TABLES["targets"]
    rows = [decode(table, row) for row in _rows(session, table)]
    for row in sorted(rows, key=lambda row: row["id"]):
        number, former[number] = row["id"], row["key"]
        key = target_key(row["description"]) or row["key"]
        if kept.setdefault(key, number) == number:
            keys[number] = key
        else:
            merged[number] = kept[key]
    if merged:
        _merge(session, merged, former)
    _rewrite(session, table, lambda row: {"key": keys[row["id"]]})


def _merge(session: Session, merged: Mapping[int, int], former: Mapping[int, str]) -> None:
    """Let everything of some targets be that of others, and delete them.

    `former` are the keys that targets had.
    """
    tasks, target_of = _merged_tasks(session, merged)
    names = _names_of_trials(session, set(tasks.values()))

    def move_trial(row: _Row) -> Mapping[str, Any]:
        if row["task_id"] not in tasks:
            return {}
        task, schedule = tasks[row["task_id"]], _text(row["schedule_hash"])
        request = _text(row["request_id"])
        if (task, schedule, request) in names:
            request = _marked(request, former[target_of[row["task_id"]]])
        names.add((task, schedule, request))
        return {"task_id": task, "request_id": request}

    _rewrite(session, _TABLES["trials"], move_trial)
    _point(session, "bests", "task_id", tasks)
    _point(session, "job_tasks", "task_id", tasks, unique="job_id")
    _point(session, "claims", "task_id", tasks, unique="schedule_hash")
    _delete(session, _TABLES["tasks"], [{"at_id": task} for task in tasks])
    for table in ("tasks", "builds", "plans", "latencies"):
        _point(session, table, "target_id", merged)
    _delete(session, _TABLES["targets"], [{"at_id": number} for number in merged])


def _merged_tasks(
    session: Session, merged: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """The tasks that become another one, and the targets of all tasks."""
    rows = list(_rows(session, _TABLES["tasks"]))
    rows.sort(key=lambda row: (row["target_id"] in merged, row["id"]))
    first: dict[tuple[object, ...], int] = {}
    tasks = {}
    for row in rows:
        rest = [row[name] for name in ("workload_id", "threads", "numerics", "compiler_version")]
        key = (merged.get(row["target_id"], row["target_id"]), *rest)
        if first.setdefault(key, row["id"]) != row["id"]:
            tasks[row["id"]] = first[key]
    return tasks, {row["id"]: row["target_id"] for row in rows}


def _names_of_trials(session: Session, tasks: set[int]) -> set[tuple[int, str, str]]:
    """Task, schedule and request of the trials of these tasks."""
    return {
        (row["task_id"], _text(row["schedule_hash"]), _text(row["request_id"]))
        for row in _rows(session, _TABLES["trials"])
        if row["task_id"] in tasks
    }


def _point(
    session: Session, table: str, column: str, ids: Mapping[int, int], unique: str | None = None
) -> None:
    """Let rows refer to others; where a row does already that is the same in `unique`, it stays."""
    there = set()
    if unique is not None:
        there = {(row[column], row[unique]) for row in _rows(session, _TABLES[table])}

    def move(row: _Row) -> Mapping[str, Any] | None:
        if row[column] not in ids:
            return {}
        name = (ids[row[column]], None if unique is None else row[unique])
        if name in there:
            return None
        if unique is not None:
            there.add(name)
        return {column: ids[row[column]]}

    _rewrite(session, _TABLES[table], move)


def _rows(session: Session, table: Table) -> Iterator[dict[str, Any]]:
    """The table's rows as they are stored; a migration finds it without the latest columns."""
    return intact_rows(session, table, missing_columns(session, table))


def _rewrite(
    session: Session, table: Table, change: Callable[[_Row], Mapping[str, Any] | None]
) -> None:
    """Change rows, with their checksums: `change` gives new values of a stored row by column, {}
    for a row that stays, None for one that goes."""
    gone, changed = [], []
    for row in _rows(session, table):
        new = change(row)
        place = {f"at_{column.name}": row[column.name] for column in table.primary_key.columns}
        if new is None:
            gone.append(place)
        elif new:
            checksum = row_checksum(table, decode(table, row) | dict(new))
            values = {f"to_{name}": value for name, value in new.items()}
            changed.append({**place, **values, f"to_{COLUMN}": checksum})
    _delete(session, table, gone)
    if changed:
        names = [name[3:] for name in changed[0] if name.startswith("to_")]
        values = {name: bindparam(f"to_{name}") for name in names}
        session.connection().execute(update(table).where(*_at(table)).values(values), changed)


def _delete(session: Session, table: Table, places: list[dict[str, Any]]) -> None:
    if places:
        session.connection().execute(delete(table).where(*_at(table)), places)


def _at(table: Table) -> list[Any]:
    return [column == bindparam(f"at_{column.name}") for column in table.primary_key.columns]


def _text(stored: bytes | str) -> str:
    return stored.decode() if isinstance(stored, bytes) else stored


def _marked(request: str, target: str) -> str:
    """The request of a trial for a target with this former key, whose name another trial has."""
    mark = f"@{target[-_DIGEST_CHARACTERS:]}"
    return request[: _REQUEST_CHARACTERS - len(mark)] + mark


class Rekeyed:
    """Records that another version may have written, in the order of an export, as this one names
    what they are for."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}  # of this version, by what the file has
        self._shared: set[str] = set()  # keys of this version that the file has several for
        self._owners: dict[tuple[TaskKey, str, str], str] = {}  # targets of trials by name
        self._requests: dict[tuple[TaskKey, str, str], str] = {}  # those that were changed

    def record(self, record: Record) -> Record:
        """The record under this version's keys."""
        match record:
            case TargetRecord():
                key = target_key(record.description) or record.key
                if key in self._keys.values():
                    self._shared.add(key)
                self._keys[record.key] = key
                return replace(record, key=key)
            case JobRecord():
                tasks = (replace(task, key=self._task(task.key)) for task in record.tasks)
                return replace(record, tasks=tuple({task.key: task for task in tasks}.values()))
            case TrialRecord():
                return self._trial(record)
            case BestRecord():
                name = (record.key, record.schedule_hash, record.request_id)
                request = self._requests.get(name, record.request_id)
                return replace(record, key=self._task(record.key), request_id=request)
            case BuildRecord() | PlanRecord() | LatencyRecord():
                return replace(record, target=self._keys[record.target])
        return record

    def _trial(self, record: TrialRecord) -> TrialRecord:
        key, request = self._task(record.key), record.request_id
        if key.target in self._shared:
            schedule = record.schedule_hash
            owner = self._owners.setdefault((key, schedule, request), record.key.target)
            if owner != record.key.target:
                request = _marked(request, record.key.target)
                self._requests[record.key, schedule, record.request_id] = request
        return replace(record, key=key, request_id=request)

    def _task(self, key: TaskKey) -> TaskKey:
        return replace(key, target=self._keys[key.target])
