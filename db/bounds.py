"""What the fields of records may hold: kinds of strings, numbers and JSON values, with their
bounds.

`tunefarm.db.records` declares every field as one of these. Imports and merges read every record
through them. What is refused here was never written by a tuner, and could be no key, date or
latency of one.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache, partial
from typing import Annotated, Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_Read: TypeAlias = Callable[[object], Any]
"""A field's value from its JSON value, or itself. Raises ValueError for one that cannot be."""

GIVEN = "number"
"""The field that a store gives to a record, and that leaves no database."""
_LAST_MOMENT = 253_402_300_799.0  # the end of the year 9999
_LONGEST = 1e9  # seconds of anything that was measured
_JSON_CHARACTERS = 16 << 20
_WORKLOAD = re.compile(r"[0-9a-f]{16}|lost-[0-9]+")
"""A hash, or the stand-in for one that `tunefarm.db.salvage` did not find."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def read_record(kind: type[_T], value: object) -> _T:
    """The record from a JSON object of its fields, or from a record itself.

    Raises ValueError, naming the field, for one that is unknown, missing or cannot be.
    """
    readers = _readers(kind)  # type: ignore[arg-type]  # mypy doubts that types can be hashed
    if isinstance(value, kind):
        value = {name: getattr(value, name) for name in readers}
    if not isinstance(value, dict):
        raise ValueError(f"{kind.__name__} is not an object")
    for name in value.keys() - readers.keys():
        raise ValueError(f"unknown field {name!r}")
    for name in readers.keys() - value.keys():
        raise ValueError(f"field {name!r} is missing")
    found = {}
    for name, read in readers.items():
        try:
            found[name] = read(value[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return kind(**found)


@cache
def _readers(kind: type[Any]) -> Mapping[str, _Read]:
    here = {"bounds": sys.modules[__name__]}
    hints = get_type_hints(kind, localns=here, include_extras=True)
    return {name: _reader(hint) for name, hint in hints.items() if name != GIVEN}


def _reader(hint: Any) -> _Read:
    """Of `Annotated[…, read]`, of one or None, of `tuple[…, ...]`, or of a dataclass of these."""
    if is_dataclass(hint):
        return partial(read_record, hint)  # type: ignore[arg-type]
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        read: _Read = arguments[1]
        return read
    inner = _reader(arguments[0])
    if get_origin(hint) is tuple:
        return lambda value: tuple(map(inner, _listed(value)))
    return lambda value: None if value is None else inner(value)


def _listed(value: object) -> Iterable[object]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{_said(value)} is not a list")
    return value


def _said(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _text(longest: int, *, plain: bool = True) -> _Read:
    """A text of so many characters at most, plain ones without controls."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{_said(value)} is not a string")
        if len(value) > longest:
            raise ValueError(f"{_said(value)} has more than {longest} characters")
        if plain and _CONTROL.search(value):
            raise ValueError(f"{_said(value)} has control characters")
        return value

    return read


def _workload(value: object) -> str:
    if not isinstance(value, str) or not _WORKLOAD.fullmatch(value):
        raise ValueError(f"{_said(value)} is not the hash of a workload")
    return value


def one_of(texts: Collection[str], what: str) -> _Read:
    """One of these strings."""

    def read(value: object) -> Any:
        if value not in texts:
            raise ValueError(f"{_said(value)} is no {what}")
        return value

    return read


def _number(least: float, most: float) -> _Read:
    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{_said(value)} is not a finite number")
        if not abs(value) <= sys.float_info.max:
            raise ValueError(f"{_said(value)} is not a finite number")
        if not least <= float(value) <= most:
            raise ValueError(f"{float(value)!r} is not a number from {least:g} to {most:g}")
        return float(value)

    return read


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise ValueError(f"{_said(value)} is not a count")
    return value


def _json(value: object) -> object:
    if len(json.dumps(value)) > _JSON_CHARACTERS:
        raise ValueError("it is larger than any that a tuner writes")
    return value


def _object(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError(f"{_said(value)} is not an object")
    return _json(dict(value))


WorkloadKey = Annotated[str, _workload]
TargetKey = Annotated[str, _text(200)]
ScheduleHash = Annotated[str, _text(16)]
Word = Annotated[str, _text(32)]
Hash = Annotated[str, _text(64)]
Name = Annotated[str, _text(4096)]
Prose = Annotated[str, _text(16_000, plain=False)]
Count = Annotated[int, _count]
Moment = Annotated[float, _number(0.0, _LAST_MOMENT)]
Seconds = Annotated[float, _number(0.0, _LONGEST)]
Latency = Annotated[float, _number(math.ulp(0.0), _LONGEST)]
Ratio = Annotated[float, _number(math.ulp(0.0), _LONGEST)]
Share = Annotated[float, _number(0.0, 1.0)]
Json = Annotated[Any, _json]
JsonObject = Annotated[Mapping[str, Any], _object]
