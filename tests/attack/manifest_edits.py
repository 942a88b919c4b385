"""Random edits of JSON: any place gets another value, or is removed, doubled or moved."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from tunefarm.compiler.runtime.artefact.file_header import json_text

Path: TypeAlias = tuple[str | int, ...]

_NUMBERS = (0, 1, -1, 2, 63, 2**31, 2**63, -(2**63), 10**30, 1.5, 1e308, float("nan"), float("inf"))
_TEXTS = (
    "",
    "x",
    "f32",
    "f64",
    "u8",
    "bool",
    "arena",
    "input",
    "output",
    "constant",
    "\n",
    "\ud800",
)
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], "0", 7)
_STOPS_EARLY = 0.15


@dataclass(frozen=True, slots=True)
class Edit:
    """One place of a JSON value and what it gets."""

    path: Path
    value: Any

    def apply(self, data: Any) -> Any:
        """The edited copy. KeyError, IndexError or TypeError if there is no such place."""
        if not self.path:
            return copy.deepcopy(self.value)
        edited = copy.deepcopy(data)
        parent = edited
        for key in self.path[:-1]:
            parent = parent[key]
        parent[self.path[-1]]  # it must be there
        parent[self.path[-1]] = copy.deepcopy(self.value)
        return edited

    def __str__(self) -> str:
        place = "".join(f"[{key!r}]" for key in self.path)
        return f"manifest{place} = {json_text(self.value).decode()[:200]}"


def draw_edits(rng: Random, data: Any) -> tuple[list[Edit], Any]:
    """One edit or two that change `data`, and the result of them."""
    while True:
        edits: list[Edit] = []
        edited = data
        for _ in range(rng.choice((1, 1, 2))):
            edits.append(_draw_edit(rng, edited))
            edited = edits[-1].apply(edited)
        if json_text(edited) != json_text(data):
            return edits, edited


def _draw_edit(rng: Random, data: Any) -> Edit:
    path = _draw_path(rng, data)
    value = _at(data, path)
    if isinstance(value, dict) and value:
        return Edit(path, _other_object(rng, value))
    if isinstance(value, list):
        return Edit(path, _other_list(rng, value, data))
    return Edit(path, _other_leaf(rng, value, data))


def _draw_path(rng: Random, data: Any) -> Path:
    """A place, each part of the whole being as likely as its neighbours, however small."""
    path: list[str | int] = []
    while isinstance(data, (dict, list)) and data:
        if path and rng.random() < _STOPS_EARLY:
            break
        key = rng.choice(list(data) if isinstance(data, dict) else range(len(data)))
        path.append(key)
        data = data[key]
    return tuple(path)


def _at(data: Any, path: Path) -> Any:
    for key in path:
        data = data[key]
    return data


def _other_leaf(rng: Random, value: Any, data: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    choices = [_leaf_of(rng, data), *rng.choices(_OTHERS, k=2), rng.choice(_TEXTS)]
    if number:
        step = rng.choice((1, 4, 64, 4096))
        choices += [value + step, value - step, -value, float(value), str(value)] * 2
        choices += rng.choices(_NUMBERS, k=4)
    elif isinstance(value, str):
        choices += [value + "x", value[:-1], value.upper(), [value]]
    return rng.choice(choices)


def _other_list(rng: Random, value: list[Any], data: Any) -> list[Any] | Any:
    result = list(value)
    where = rng.randrange(len(value) + 1)
    match rng.randrange(6):
        case 0 if result:
            del result[where - 1]
        case 1 if result:
            result.insert(where, copy.deepcopy(rng.choice(value)))
        case 2:
            rng.shuffle(result)
        case 3:
            del result[where:]
        case 4:
            result.insert(where, _leaf_of(rng, data))
        case _:
            return rng.choice(_OTHERS)
    return result


def _other_object(rng: Random, value: dict[str, Any]) -> Any:
    result = dict(value)
    key = rng.choice(list(result))
    match rng.randrange(4):
        case 0:
            del result[key]
        case 1:
            result[f"{key}s"] = result.pop(key)
        case 2:
            result["more"] = result[key]
        case _:
            return rng.choice(_OTHERS)
    return result


def _leaf_of(rng: Random, data: Any) -> Any:
    """A value from elsewhere in the same JSON."""
    return rng.choice(list(_leaves(data)) or [None])


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, (dict, list)):
        for value in data.values() if isinstance(data, dict) else data:
            yield from _leaves(value)
    else:
        yield data


def draw_text(rng: Random, text: bytes) -> bytes:
    """Other JSON text, or none at all, that is read almost like `text`."""
    marks = [place for place, byte in enumerate(text) if byte in b"{"]
    where = rng.choice(marks) + 1
    match rng.randrange(5):
        case 0:  # a key twice
            key = text[where : text.index(b":", where)]
            return text[:where] + key + b":0," + text[where:]
        case 1:
            return text[:where] + b" " + text[where:]
        case 2:
            return text + rng.choice((b"\n", b"\0", b"]", b"{}"))
        case 3:
            return text[:where] + b'"a":' + rng.choice((b"[", b'{"":')) * 100_000 + text[where:]
        case _:
            return text[: rng.randrange(len(text))]
