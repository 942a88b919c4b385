"""Shapes with values and buckets: which programs they ask for."""

from __future__ import annotations

import pytest

from tunefarm.compiler.types.extents import Extent, Shapes
from tunefarm.configs.errors import SettingsError
from tunefarm.tuner.building.size_values import MOST_PROGRAMS, programs_of


def test_shapes_without_values_are_one_program() -> None:
    shapes: Shapes = {"x": (1, "batch:1..8"), "seq": ("1..512",)}
    (program,) = programs_of(shapes)
    assert program.shapes == shapes and str(program) == ""


def test_every_combination_is_a_program() -> None:
    found = programs_of({"x": ("batch:1|4", 3), "y": ("batch:1|4", "seq:1..8|9..64")})
    assert [str(program) for program in found] == [
        "batch=1, seq=1..8",
        "batch=1, seq=9..64",
        "batch=4, seq=1..8",
        "batch=4, seq=9..64",
    ]
    assert found[-1].shapes == {"x": (4, 3), "y": (4, Extent("seq", 9, 64))}


def test_what_has_no_name_is_called_by_its_place() -> None:
    found = programs_of({"x": ("1|2", "7|8"), "batch": ("1|2",)})
    assert str(found[0]) == "x[0]=1, x[1]=7, batch=1"
    assert len(found) == 8


def test_two_lists_of_one_symbol_and_too_many_programs_are_refused() -> None:
    with pytest.raises(SettingsError, match="'batch' is given two lists"):
        programs_of({"x": ("batch:1|4",), "y": ("batch:1|2",)})
    many = "|".join(map(str, range(1, MOST_PROGRAMS + 2)))
    with pytest.raises(SettingsError, match=r"65 programs, and 64 is the most \(give bounds"):
        programs_of({"x": (f"batch:{many}",)})
