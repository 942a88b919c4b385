"""What a signature says of conditions that do not hold."""

from __future__ import annotations

from compiler.types.signature import Check


def test_a_condition_names_its_value_after_what_is_wrong() -> None:
    check = Check("%check:0", "axes", "the axes must be [1]")
    assert check.told == "the axes must be [1] ('axes' says so)"


def test_a_value_that_the_model_does_not_name_is_not_told() -> None:
    assert Check("%check:0", "%constant_1", "the loop goes on").told == "the loop goes on"
