"""Structure: inputs and outputs that are no plain tensors of numbers, made of the model's tensors.

A sequence `x` of three tensors is the ports `x[0]`, `x[1]` and `x[2]`; callers give and get the
list `x`. An optional is its content, or None. Text is a tensor of the numbers of words. A matrix
whose columns have labels is a list of dictionaries, one a row.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.string_prefix import NO_PREFIX, StringPrefix, prefix_from_json

Label: TypeAlias = str | int
_SHOWN = 60  # characters of a value, for people


@frozen
class StructuredPort:
    """A sequence (`listed`) or optional; `members` are its tensors' names, None if it is empty.

    An optional that is a tensor has one member and is not listed. Of one member, a matrix, the
    columns may have `labels`.
    """

    name: str
    members: tuple[str, ...] | None
    listed: bool
    labels: tuple[Label, ...] = ()


@frozen
class FixedPort:
    """An input whose value was fixed by the build; `digest` is of its elements, `text` for people.

    Callers may go on to give it, and give that value alone.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    digest: str
    text: str

    @classmethod
    def of(cls, name: str, array: npt.NDArray[Any]) -> FixedPort:
        """The port of an input that holds this array."""
        text = str(array.tolist())
        text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        return cls(name, DType.from_numpy(array.dtype), array.shape, _digest(array), text)

    def check(self, given: Any) -> None:
        """Raise `InputError` unless a caller gives the value that the model was built for."""
        array = np.asarray(given)
        if array.shape == self.shape and _digest(array) == self.digest:
            return
        shown = FixedPort.of("", array).text if array.dtype.kind in "biuf" else repr(given)
        raise InputError(
            f"input {self.name!r} is {shown}, and the model was built for {self.text}",
            hint="build without fixing it, or build for this value as well",
        )


@frozen
class DefaultPort:
    """An input that callers may leave out: what it holds then, `data` in base 64."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    data: str

    @classmethod
    def of(cls, name: str, array: npt.NDArray[Any]) -> DefaultPort:
        """The port of an input whose default is an array."""
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        return cls(name, DType.from_numpy(array.dtype), array.shape, data)

    @property
    def array(self) -> npt.NDArray[Any]:
        """The default."""
        flat = np.frombuffer(base64.b64decode(self.data), self.dtype.numpy)
        return flat.reshape(self.shape)


def _digest(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def without_fixed(ports: Sequence[FixedPort], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, without the inputs whose value is fixed; `InputError` for another value."""
    left = dict(given)
    for port in ports:
        if port.name in left:
            port.check(left.pop(port.name))
    return left


@frozen
class Structure:
    """All inputs and outputs of a model that are no plain tensors of numbers.

    `texts` are the tensors, inputs and outputs, that hold the numbers of words; `words` are the
    first ones. `fixed` are inputs that callers may give and nobody reads, `defaults` those that
    they may leave out. `prefix` runs on the host before the entry.
    """

    inputs: tuple[StructuredPort, ...] = ()
    outputs: tuple[StructuredPort, ...] = ()
    texts: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    fixed: tuple[FixedPort, ...] = ()
    defaults: tuple[DefaultPort, ...] = ()
    prefix: StringPrefix = NO_PREFIX


NO_STRUCTURE = Structure()


def structure_from_json(data: Mapping[str, Any] | None) -> Structure:
    """The inverse of `dataclasses.asdict`, None for no structure; may raise what JSON makes."""
    if data is None:
        return NO_STRUCTURE
    inputs, outputs = (tuple(map(_structured, data[kind])) for kind in ("inputs", "outputs"))
    texts, words = (tuple(map(str, data.get(kind, ()))) for kind in ("texts", "words"))
    fixed = tuple(FixedPort(*_port(item), str(item["text"])) for item in data.get("fixed", ()))
    defaults = tuple(DefaultPort(*_port(item)) for item in data.get("defaults", ()))
    prefix = prefix_from_json(data["prefix"]) if "prefix" in data else NO_PREFIX
    return Structure(inputs, outputs, texts, words, fixed, defaults, prefix)


def _port(data: Mapping[str, Any]) -> tuple[str, DType, tuple[int, ...], str]:
    """What ports of both kinds have: the digest or the data comes last."""
    known = data["digest"] if "digest" in data else data["data"]
    return str(data["name"]), DType(data["dtype"]), tuple(map(int, data["shape"])), str(known)


def _structured(data: Mapping[str, Any]) -> StructuredPort:
    members = data["members"]
    names = None if members is None else tuple(map(str, members))
    labels = tuple(x if isinstance(x, int) else str(x) for x in data.get("labels", ()))
    return StructuredPort(str(data["name"]), names, bool(data["listed"]), labels)


def spread(ports: Sequence[StructuredPort], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given with lists and optionals taken apart into their tensors, by name.

    Tensors that were given by their own names stay. Raises `InputError` for a list of another
    length than the model was built for, and for an optional that is there or not as it is not.
    """
    flat = dict(given)
    for port in ports:
        if port.name not in flat:
            if not port.members:  # nothing to give
                continue
            if set(port.members) <= set(flat):
                continue
            raise InputError(f"input {port.name!r} is missing")
        value = flat.pop(port.name)
        members = port.members
        if (value is None) != (members is None):
            built = "without" if members is None else "with"
            raise InputError(
                f"input {port.name!r} is an optional, and the model was built for one {built} "
                "content",
                hint="build the model for both, or give what it was built for",
            )
        if members is None:
            continue
        items = list(value) if port.listed else [value]
        if len(items) != len(members):
            raise InputError(
                f"input {port.name!r} has {len(items)} tensors, the model was built for "
                f"{len(members)}"
            )
        flat.update(zip(members, items, strict=True))
    return flat


def gathered(ports: Sequence[StructuredPort], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Results by name, with the tensors of lists and optionals put together."""
    results = dict(flat)
    for port in ports:
        if port.members is None:
            results[port.name] = None
            continue
        items = [results.pop(member) for member in port.members]
        results[port.name] = _labelled(items[0], port.labels) if port.labels else items
        if not port.listed:
            (results[port.name],) = items
    return results


def _labelled(matrix: Any, labels: Sequence[Label]) -> list[dict[Label, Any]]:
    return list(map(dict, map(zip, repeat(labels), matrix.tolist())))


def plain(results: Mapping[str, Any]) -> dict[str, Any]:
    """Results of a run as arrays by name: tensors of a list `x` as `x[0]`, `x[1]` and so on, rows
    of labelled columns as a matrix by the order of the labels. What is None is left out."""
    arrays: dict[str, Any] = {}
    for name, value in results.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            labels = sorted(value[0])
            arrays[name] = np.array([[row[label] for label in labels] for row in value], np.float32)
        elif isinstance(value, list):
            arrays |= {f"{name}[{number}]": item for number, item in enumerate(value)}
        elif value is not None:
            arrays[name] = value
    return arrays


class WordTable:
    """Words and their numbers, from 0."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self.words = tuple(words)
        self.shown = object_array([*words, ""])  # with what is shown for a number of none
        self.numbers = {word: number for number, word in enumerate(words)}


class StringTable:
    """Strings and their ids: equal strings have the same one; new ones follow those of a table."""

    def __init__(self, table: WordTable) -> None:
        self._table = table
        self._added: dict[str, int] = {}

    def number(self, word: str) -> int:
        """The number of a word, a new one where it has none."""
        known = self._table.numbers.get(word)
        if known is not None:
            return known
        return self._added.setdefault(word, len(self._table.words) + len(self._added))

    @property
    def all(self) -> tuple[str, ...]:
        """All words, in the order of their numbers."""
        return (*self._table.words, *self._added) if self._added else self._table.words

    def numbers(self, texts: Any) -> Any:
        """An array of words as one of their numbers, i64. Integers are numbers already.

        Raises `TypeError` for an array of anything else.
        """
        array = np.asarray(texts)
        if array.dtype.kind in "iu":
            return array
        known: Mapping[Any, int] = self._table.numbers
        items: list[Any] = array.ravel().tolist()
        try:
            numbers = np.fromiter(map(known.__getitem__, items), np.int64, len(items))
        except (KeyError, TypeError):  # new words, or what is no word
            words = _words_of(array)
            known = {word: self.number(word) for word in dict.fromkeys(words)}
            numbers = np.fromiter(map(known.__getitem__, words), np.int64, len(words))
        return numbers.reshape(array.shape)

    def texts(self, numbers: Any) -> Any:
        """The words of an array of numbers, as objects; "" for a number of none."""
        words = object_array([*self.all, ""]) if self._added else self._table.shown
        count = len(words) - 1
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < count:
            numbers = np.where((numbers < 0) | (numbers >= count), count, numbers)
        return words[numbers.ravel()].reshape(numbers.shape)

    def read(self, names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
        """What was given with strings as numbers. Raises `InputError` for what is no text."""
        numbers = dict(given)
        for name in names:
            if name in numbers:
                try:
                    numbers[name] = self.numbers(numbers[name])
                except (TypeError, UnicodeDecodeError) as error:
                    raise InputError(f"input {name!r} cannot be read: {error}") from error
        return numbers

    def shown(self, names: Sequence[str], results: Mapping[str, Any]) -> dict[str, Any]:
        """Results with numbers as strings."""
        return {name: self.texts(a) if name in names else a for name, a in results.items()}


def strings_of(given: Any) -> npt.NDArray[np.object_]:
    """An array of strings as objects. Raises `TypeError` for an array of anything else."""
    array = np.asarray(given)
    return object_array(_words_of(array)).reshape(array.shape)


def object_array(items: Sequence[Any]) -> npt.NDArray[np.object_]:
    """An array of the items as they are."""
    array = np.empty(len(items), object)
    array[:] = items
    return array


def _words_of(array: npt.NDArray[Any]) -> list[str]:
    """The elements of an array of strings. Raises `TypeError` for an array of anything else."""
    if array.dtype.kind not in "UTSO":
        raise TypeError(f"it has elements of the type {array.dtype}, and must have strings")
    items: list[Any] = array.ravel().tolist()
    return items if {*map(type, items)} == {str} else [*map(_text, items)]


def _text(item: Any) -> str:
    if isinstance(item, bytes):
        return item.decode()
    if not isinstance(item, str):
        raise TypeError(f"it has an element of type {type(item).__name__}, and must have strings")
    return item
