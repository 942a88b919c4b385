"""Frozen dataclasses that are made in half of the time, for modules that every load imports.

`dataclass` compiles six functions, one by one: 62 classes took two thirds of the runtime's import.
Here three are compiled together, and the others are the same for all classes. Python 3.13 does
likewise.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def frozen(made_of: type[T]) -> type[T]:
    """What `dataclass(frozen=True, slots=True)` makes of a class without a base and `field`.

    `dataclasses.fields`, `replace` and `asdict`, pickles and `match` work as with that.
    """
    made_of.__doc__ = made_of.__doc__ or made_of.__qualname__  # else it is a signature, slowly made
    made = dataclass(init=False, repr=False, eq=False, slots=True)(made_of)
    names = [field.name for field in fields(made)]  # type: ignore[arg-type]
    defaults = {field.name: field.default for field in fields(made)}  # type: ignore[arg-type]
    known = {f"default_{name}": value for name, value in defaults.items() if value is not MISSING}
    parameters = (name if defaults[name] is MISSING else f"{name}=default_{name}" for name in names)
    mine, others = ("".join(f"{who}.{name}," for name in names) for who in ("self", "other"))
    source = f"""
def __init__(self, {", ".join(parameters)}):
    {"; ".join(f"set(self, '{name}', {name})" for name in names)}
def __eq__(self, other):
    return ({mine}) == ({others}) if other.__class__ is self.__class__ else NotImplemented
def __hash__(self):
    return hash(({mine}))
"""
    methods: dict[str, Any] = {}
    exec(source, known | {"set": object.__setattr__}, methods)  # noqa: S102 - as dataclass does
    for name, method in methods.items():
        method.__qualname__ = f"{made.__qualname__}.{name}"
    for name, method in (_METHODS | methods).items():
        if name not in made_of.__dict__:
            setattr(made, name, method)
    return made


def _repr(self: Any) -> str:
    values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
    return f"{type(self).__qualname__}({values})"


def _set(self: object, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_METHODS = {
    "__repr__": _repr,
    "__setattr__": _set,
    "__delattr__": _delete,
    "__getstate__": _state,
    "__setstate__": _set_state,
}
