"""Dataclasses as JSON values and back: what a record holds that no column has.

Records may be other people's. What has not the types of the fields, or more than anybody writes, is
refused; fields that a later version has added are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

_Value = TypeVar("_Value")

_CONFIG = ConfigDict(strict=True, allow_inf_nan=False, str_max_length=16_000)

Number = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]


@cache
def _adapter(kind: Any) -> TypeAdapter[tuple[Any]]:
    return TypeAdapter(tuple[kind], config=_CONFIG)  # of a dataclass itself there can be no config


def to_json(value: Any) -> dict[str, Any]:
    """A dataclass as a JSON object of its fields."""
    (found,) = _adapter(cast(Hashable, type(value))).dump_python((value,), mode="json")
    return dict(found)


def from_json(kind: type[_Value], data: Any) -> _Value:
    """The inverse of `to_json`. Raises ValueError, naming the field, on any other JSON."""
    try:
        (found,) = _adapter(cast(Hashable, kind)).validate_json(json.dumps([data]))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}") from error
    except (TypeError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from error
    value: _Value = found
    return value


def named_rows(kind: Any, rows: Any) -> list[dict[str, Any]]:
    """Lists of values as objects, by the names of a dataclass's fields. Raises ValueError."""
    names = [field.name for field in fields(kind)]
    try:
        return [dict(zip(names, row, strict=True)) for row in rows]
    except TypeError as error:
        raise ValueError("no list of lists") from error
