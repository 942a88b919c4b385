"""Classes of `frozen` behave as those of `dataclass(frozen=True, slots=True)`."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, fields, replace
from typing import Any

import pytest

from tunefarm.compiler.types.frozen import frozen


@frozen
class Ours:
    """Two fields."""

    name: str
    numbers: tuple[int, ...] = (1, 2)

    @property
    def total(self) -> int:
        """Of the numbers."""
        return sum(self.numbers)


@dataclass(frozen=True, slots=True)
class Theirs:
    """Two fields."""

    name: str
    numbers: tuple[int, ...] = (1, 2)


@frozen
class Shown:
    value: float

    def __repr__(self) -> str:
        return "shown"


def test_values_are_compared_hashed_and_shown_as_a_dataclass_does() -> None:
    ours, theirs = Ours("a"), Theirs("a")
    assert ours == Ours("a", (1, 2)) != Ours("b")
    others: tuple[object, ...] = (theirs, ("a", (1, 2)))
    assert ours not in others
    assert hash(ours) == hash(theirs)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert ours.total == 3
    assert repr(Shown(1.0)) == "shown"


def test_the_functions_of_dataclasses_take_it() -> None:
    ours, theirs = Ours("a"), Theirs("a")
    assert [field.name for field in fields(ours)] == [field.name for field in fields(theirs)]
    assert replace(ours, numbers=()) == Ours("a", ())
    assert asdict(ours) == asdict(theirs)
    match ours:
        case Ours(name, numbers):
            assert (name, numbers) == ("a", (1, 2))


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))]
)
def test_copies_and_pickles_are_equal(duplicate: Any) -> None:
    assert duplicate(Ours("a", (7,))) == Ours("a", (7,))


def test_nothing_can_be_changed_or_added() -> None:
    ours = Ours("a")
    for name in ("name", "other"):
        with pytest.raises(FrozenInstanceError, match="cannot assign"):
            setattr(ours, name, "b")
    with pytest.raises(FrozenInstanceError, match="cannot delete"):
        del ours.name
    assert not hasattr(ours, "__dict__")


def test_arguments_are_those_of_the_fields() -> None:
    assert Ours(name="a", numbers=()) == Ours("a", ())
    wrong: tuple[dict[str, Any], ...] = ({}, {"name": "a", "other": 1})
    for given in wrong:
        with pytest.raises(TypeError, match="__init__"):
            Ours(**given)
