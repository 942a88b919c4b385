"""Classes of `frozen` behave as those of `dataclass(frozen=True, slots=True)`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields
from dataclasses import replace as replace_of_dataclasses
from typing import Any

import pytest

from tunefarm.compiler.types.frozen import frozen, replace


@frozen
class Ours:
    """Two fields."""

    name: str
    numbers: tuple[int, ...] = (1, 2)

    @property
    def total(self) -> int:
        """Of the numbers."""
        return sum(self.numbers)


@frozen
class Longer(Ours):
    """A base and what `field` says."""

    names: dict[str, int] = field(default_factory=dict)
    note: str = field(default="", compare=False)


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


def test_a_base_and_fields_are_as_a_dataclass_has_them() -> None:
    one, other = Longer("a"), Longer("a", (1, 2), {}, "noted")
    assert one == other != Longer("a", names={"b": 1})
    assert one != Ours("a")
    assert one.names == {} and one.names is not other.names and one.names is not Longer("a").names
    assert repr(other) == "Longer(name='a', numbers=(1, 2), names={}, note='noted')"
    with pytest.raises(FrozenInstanceError, match="cannot assign"):
        other.name = "b"  # type: ignore[misc]


@pytest.mark.parametrize("replaced", [replace, replace_of_dataclasses])
def test_some_fields_are_replaced(replaced: Callable[..., Any]) -> None:
    assert replaced(Ours("a"), numbers=()) == Ours("a", ())
    made = replaced(Longer("a", note="noted"), name="b", names={"c": 1})
    assert (made, made.note) == (Longer("b", names={"c": 1}), "noted")
    assert replaced(Theirs("a", (1,)), name="b") == Theirs("b", (1,))
    with pytest.raises(TypeError, match="unexpected keyword"):
        replaced(Ours("a"), other=1)


def test_the_functions_of_dataclasses_take_it() -> None:
    ours, theirs = Ours("a"), Theirs("a")
    assert [item.name for item in fields(ours)] == [item.name for item in fields(theirs)]
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
