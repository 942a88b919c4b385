"""Frozen dataclasses that are made in half of the time, and their instances too: for modules that
every load imports, and for what compiling makes by the hundred thousand.

`dataclass` compiles six functions, one by one: 62 classes took two thirds of the runtime's import.
Here three are compiled together, and the others are the same for all classes. Python 3.13 does
likewise. An instance's fields are set by their slots, past what forbids to set them.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import replace as replace
else:

    def replace(item: T, /, **changes: object) -> T:
        """`dataclasses.replace` in a third of the time, where `__init__` takes all fields."""
        kind = type(item)
        for name in kind.__match_args__:
            if name not in changes:
                changes[name] = getattr(item, name)
        return kind(**changes)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(made_of: type[T]) -> type[T]:
    """What `dataclass(frozen=True, slots=True)` makes of a class.

    Its bases are made by this too, `field` says no more than `default`, `default_factory` and
    `compare`, and nothing is done after `__init__`. `dataclasses.fields`, `replace` and `asdict`,
    pickles and `match` work as with that.
    """
    made_of.__doc__ = made_of.__doc__ or made_of.__qualname__  # else it is a signature, slowly made
    made = dataclass(init=False, repr=False, eq=False, slots=True)(made_of)
    of_class: tuple[Field[Any], ...] = fields(made)  # type: ignore[arg-type]
    known: dict[str, Any] = {"MISSING": MISSING}
    parameters, values = [], {}
    for item in of_class:
        name, made_by = item.name, item.default_factory
        known[f"set_{name}"] = getattr(made, name).__set__
        default = item.default if made_by is MISSING else MISSING
        has_default = default is not MISSING or made_by is not MISSING
        parameters.append(f"{name}=default_{name}" if has_default else name)
        values[name] = name
        if has_default:
            known[f"default_{name}"] = default
        if made_by is not MISSING:
            known[f"make_{name}"] = made_by
            values[name] = f"make_{name}() if {name} is MISSING else {name}"
    names = [item.name for item in of_class if item.compare]
    mine, others = ("".join(f"{who}.{name}," for name in names) for who in ("self", "other"))
    source = f"""
def __init__(self, {", ".join(parameters)}):
    {"; ".join(f"set_{name}(self, {value})" for name, value in values.items()) or "pass"}
def __eq__(self, other):
    return ({mine}) == ({others}) if other.__class__ is self.__class__ else NotImplemented
def __hash__(self):
    return hash(({mine}))
"""
    methods: dict[str, Any] = {}
    exec(source, known, methods)  # noqa: S102 - as dataclass does
    for name, method in methods.items():
        method.__qualname__ = f"{made.__qualname__}.{name}"
    for name, method in (_METHODS | methods).items():
        if name not in made_of.__dict__:
            setattr(made, name, method)
    return made


def _repr(self: Any) -> str:
    values = ", ".join(f"{item.name}={getattr(self, item.name)!r}" for item in fields(self))
    return f"{type(self).__qualname__}({values})"


def _set(self: object, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, item.name) for item in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for item, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, item.name, value)


_METHODS = {
    "__repr__": _repr,
    "__setattr__": _set,
    "__delattr__": _delete,
    "__getstate__": _state,
    "__setstate__": _set_state,
}
