"""What goes wrong in model files: bytes that change, and fields with values that nobody expects."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_INTEGERS = (0, -1, 1, 2, 3, 7, 16, 64, 65, 1000, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63))
_FLOATS = (0.0, -0.0, -1.0, 1.0, 0.5, 1e30, 1e-30, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", "..", "../x", "/etc/passwd", "pipe", "link", "x" * 1000, "\n", "x", "y", "NaN", "ab")
Site = tuple[Any, FieldDescriptor]


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """One change of a few bytes: turned over, left out, repeated, put in, or cut off."""
    at = random.randrange(max(len(data), 1))
    length = random.choice((1, 1, 1, 2, 4, 8, 32))
    match random.randrange(5):
        case 0:
            flipped = bytes(byte ^ (1 << random.randrange(8)) for byte in data[at : at + 1])
            return data[:at] + flipped + data[at + 1 :]
        case 1:
            return data[:at] + data[at + length :]
        case 2:
            return data[: at + length] + data[at:]
        case 3:
            return data[:at] + random.randbytes(length) + data[at:]
        case _:
            return data[:at] if random.random() < 0.2 else data[:at] + b"\xff" + data[at + 1 :]


def mutate_field(model: onnx.ModelProto, random: Random) -> None:
    """Change one field of one message in place."""
    sites = list(_sites(model))
    message, field = random.choice(sites)
    if field.is_repeated:
        _mutate_repeated(getattr(message, field.name), field, random, sites)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        _mutate_message(getattr(message, field.name), message, field, random, sites)
    elif random.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _value(getattr(message, field.name), field, random, sites))


def _sites(message: Message) -> Iterator[Site]:
    """Every field that is set, in all messages."""
    for field, value in message.ListFields():
        yield message, field
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                yield from _sites(inner)


def _mutate_repeated(
    values: Any, field: FieldDescriptor, random: Random, sites: list[Site]
) -> None:
    at = random.randrange(len(values))
    match random.randrange(4):
        case 0:
            del values[at]
        case 1:
            values.append(values[at])
        case 2 if field.type != FieldDescriptor.TYPE_MESSAGE:
            values[at] = _value(values[at], field, random, sites)
        case 2:
            _take_over(values[at], random.choice(_like(values[at], sites)))
        case _ if field.type == FieldDescriptor.TYPE_MESSAGE:
            copy = type(values[at])()
            copy.CopyFrom(values[at])
            del values[at]
            values.insert(random.randrange(len(values) + 1), copy)
        case _:
            values.append(_value(values[at], field, random, sites))


def _mutate_message(
    value: Any, owner: Any, field: FieldDescriptor, random: Random, sites: list[Site]
) -> None:
    if random.random() < 0.5:
        owner.ClearField(field.name)
        return
    _take_over(value, random.choice(_like(value, sites)))


def _take_over(value: Any, other: Any) -> None:
    """Make `value` equal to `other`, which it may be a part of."""
    copy = type(value)()
    copy.CopyFrom(other)
    value.CopyFrom(copy)


def _like(value: Message, sites: list[Site]) -> list[Any]:
    """Messages of the same kind anywhere in the model."""
    found = [message for message, _ in sites if type(message) is type(value)]
    return found or [value]


def _value(old: Any, field: FieldDescriptor, random: Random, sites: list[Site]) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return mutate_bytes(bytes(old), random)
        case FieldDescriptor.CPPTYPE_STRING:
            return _text(field, random, sites)
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return random.choice((*_FLOATS, -old))
        case FieldDescriptor.CPPTYPE_ENUM:
            return random.choice([item.number for item in field.enum_type.values])
    wide = field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
    signed = field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_INT32)
    bits = 64 if wide else 32
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    wanted = random.choice((*_INTEGERS, old + 1, old - 1, -old, 2 * old, random.randrange(30)))
    return min(max(wanted, low), high)


def _text(field: FieldDescriptor, random: Random, sites: list[Site]) -> str:
    """A text of the model itself, as a rule: names that lead somewhere else."""
    if random.random() < 0.3:
        return random.choice(_TEXTS)
    texts = []
    for message, other in sites:
        if other.cpp_type == FieldDescriptor.CPPTYPE_STRING and other.type != field.TYPE_BYTES:
            value = getattr(message, other.name)
            texts += list(value) if other.is_repeated else [value]
    return str(random.choice(texts or ["x"]))
