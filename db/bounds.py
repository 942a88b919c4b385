"""What a record that comes from elsewhere may hold: bounds of texts, numbers and keys.

Imports and merges check every record. What is refused here was never written by a tuner, and could
be no key, date or latency of one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

from configs.errors import DatabaseError
from db.records import JOB_STATES, JobTask, TaskKey

Check: TypeAlias = Callable[[object], None]
"""Raises ValueError for a value that cannot be."""

_LAST_MOMENT = 253_402_300_799.0  # the end of the year 9999
_LONGEST = 1e9  # seconds of anything that was measured
_NAME_CHARACTERS = 4096
_JSON_CHARACTERS = 16 << 20
_WORKLOAD = re.compile(r"[0-9a-f]{16}|lost-[0-9]+")
"""A hash, or the stand-in for one that `db.salvage` did not find."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def check_bounds(record: Any) -> None:
    """Raises ValueError, naming the field, for a record with a field that cannot be."""
    kind = type(record).__name__
    for field in fields(record):
        check = _CHECKS.get(f"{kind}.{field.name}") or _CHECKS.get(field.name)
        if check is None:
            continue  # what the store gives
        try:
            check(getattr(record, field.name))
        except ValueError as error:
            raise ValueError(f"{field.name}: {error}") from error


def refuse_unbounded(record: Any, source: str) -> None:
    """Raises DatabaseError, naming the source, for a record with a field that cannot be."""
    try:
        check_bounds(record)
    except ValueError as error:
        kind = type(record).__name__.removesuffix("Record").lower()
        raise DatabaseError(
            f"{source}: a {kind} that cannot be: {error}", hint="nothing of it was added"
        ) from error


def _said(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _text(longest: int, *, plain: bool = True) -> Check:
    """A text of so many characters at most, plain ones without controls."""

    def check(value: object) -> None:
        if not isinstance(value, str):
            raise ValueError(f"{_said(value)} is not a string")
        if len(value) > longest:
            raise ValueError(f"{_said(value)} has more than {longest} characters")
        if plain and _CONTROL.search(value):
            raise ValueError(f"{_said(value)} has control characters")

    return check


def _workload(value: object) -> None:
    if not isinstance(value, str) or not _WORKLOAD.fullmatch(value):
        raise ValueError(f"{_said(value)} is not the hash of a workload")


def _number(least: float, most: float) -> Check:
    def check(value: object) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:  # type: ignore[operator]
            raise ValueError(f"{_said(value)} is not a number from {least:g} to {most:g}")

    return check


def _count(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise ValueError(f"{_said(value)} is not a count")


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _each(check: Check) -> Check:
    def each(value: object) -> None:
        if not isinstance(value, tuple):
            raise ValueError(f"{_said(value)} is not a list")
        for item in value:
            check(item)

    return each


def _json(value: object) -> None:
    if len(json.dumps(value)) > _JSON_CHARACTERS:
        raise ValueError("it is larger than any that a tuner writes")


def _object(value: object) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{_said(value)} is not an object")
    _json(dict(value))


def _state(value: object) -> None:
    if value not in JOB_STATES:
        raise ValueError(f"{_said(value)} is no state of a job")


def _part(value: object) -> None:
    assert isinstance(value, TaskKey | JobTask)
    check_bounds(value)


_MOMENT = _number(0.0, _LAST_MOMENT)
_SECONDS = _number(0.0, _LONGEST)
_SHORT = _text(64)
_CHECKS: Mapping[str, Check] = {
    "WorkloadRecord.key": _workload,
    "TargetRecord.key": _text(200),
    "key": _part,
    "workload": _workload,
    "target": _text(200),
    "threads": _count,
    "occurrences": _count,
    "numerics": _text(32),
    "compiler_version": _SHORT,
    "name": _text(_NAME_CHARACTERS),
    "model_name": _text(16_000, plain=False),
    "model_hash": _SHORT,
    "id": _text(32),
    "job": _optional(_text(32)),
    "kernel": _json,
    "description": _json,
    "settings": _json,
    "progress": _json,
    "report": _object,
    "schedule": _json,
    "choices": _object,
    "machine": _object,
    "conditions": _object,
    "state": _state,
    "started": _MOMENT,
    "updated": _MOMENT,
    "finished": _optional(_MOMENT),
    "created": _MOMENT,
    "tasks": _each(_part),
    "request_id": _SHORT,
    "sketch": _text(_NAME_CHARACTERS),
    "status": _text(32),
    "error": _text(16_000, plain=False),
    "latency": _optional(_number(math.ulp(0.0), _LONGEST)),
    "samples": _each(_SECONDS),
    "build_seconds": _SECONDS,
    "check_seconds": _SECONDS,
    "run_seconds": _SECONDS,
    "schedule_hash": _text(16),
    "default_latency": _number(math.ulp(0.0), _LONGEST),
    "ratio": _SECONDS,
    "low": _SECONDS,
    "high": _SECONDS,
    "met": _each(_text(16)),
    "artefact_sha256": _SHORT,
    "tuned_share": _number(0.0, 1.0),
}
