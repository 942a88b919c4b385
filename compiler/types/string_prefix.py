"""StringPrefix: operators of strings that run on the host before a model's entry, as plain data.

Callers give the strings of `ports`; `steps` make of them the tensors `results`, which are inputs of
the entry like any other (numbers of words where they are strings).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from tunefarm.compiler.types.frozen import frozen

StringAttribute: TypeAlias = str | int | float | tuple[str | int | float, ...]


@frozen
class StringPort:
    """An input of strings that the entry does not have, as the model declares it.

    None is a dimension without a name, no `shape` any rank. `position` counts all inputs.
    """

    name: str
    shape: tuple[int | str | None, ...] | None
    position: int


@frozen
class StringStep:
    """An operator of `tunefarm.compiler.strings.operators` with its attributes, sorted by name."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, StringAttribute], ...] = ()


@frozen
class StringPrefix:
    """The steps in the order in which they run; none for nearly all models."""

    ports: tuple[StringPort, ...] = ()
    steps: tuple[StringStep, ...] = ()
    results: tuple[str, ...] = ()

    @property
    def operators(self) -> str:
        """The names of the operators, each once, for people."""
        return ", ".join(dict.fromkeys(step.operator for step in self.steps))

    @property
    def note(self) -> str:
        """What a build says of it."""
        return f"runs on the host before the compiled code: {self.operators}" if self.steps else ""


NO_PREFIX = StringPrefix()


def prefix_from_json(data: Mapping[str, Any]) -> StringPrefix:
    """The inverse of `dataclasses.asdict`; may raise what JSON makes."""
    return StringPrefix(
        tuple(map(_port, data["ports"])),
        tuple(map(_step, data["steps"])),
        tuple(map(str, data["results"])),
    )


def _port(data: Mapping[str, Any]) -> StringPort:
    shape = data["shape"]
    sizes = None if shape is None else tuple(map(_size, shape))
    return StringPort(str(data["name"]), sizes, int(data["position"]))


def _size(size: Any) -> int | str | None:
    return size if size is None or type(size) is int else str(size)


def _step(data: Mapping[str, Any]) -> StringStep:
    attributes = tuple((str(name), _attribute(value)) for name, value in data["attributes"])
    inputs, outputs = (tuple(map(str, data[kind])) for kind in ("inputs", "outputs"))
    return StringStep(str(data["operator"]), inputs, outputs, attributes)


def _attribute(value: Any) -> StringAttribute:
    """A value of JSON; `TypeError` for what no attribute is."""
    if isinstance(value, list | tuple):
        return tuple(_scalar(item) for item in value)
    return _scalar(value)


def _scalar(value: Any) -> str | int | float:
    if not isinstance(value, str | int | float):
        raise TypeError(f"an attribute is {value!r}")
    return value
