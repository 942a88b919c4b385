"""Structure: inputs and outputs that are sequences or optionals, made of the model's tensors.

A sequence `x` of three tensors is the ports `x[0]`, `x[1]` and `x[2]`; callers give and get the
list `x`. An optional is its content, or None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.errors import InputError


@dataclass(frozen=True, slots=True)
class StructuredPort:
    """A sequence (`listed`) or optional; `members` are its tensors' names, None if it is empty.

    An optional that is a tensor has one member and is not listed.
    """

    name: str
    members: tuple[str, ...] | None
    listed: bool


@dataclass(frozen=True, slots=True)
class Structure:
    """All inputs and outputs of a model that are no plain tensors."""

    inputs: tuple[StructuredPort, ...] = ()
    outputs: tuple[StructuredPort, ...] = ()


NO_STRUCTURE = Structure()


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
        results[port.name] = items if port.listed else items[0]
    return results
