from __future__ import annotations

from tunefarm.compiler.plan.layouts.choose_layouts import connected_values


def test_values_are_together_with_all_that_ties_lead_to() -> None:
    ties = [("d", "b"), ("e", "d"), ("c", "c")]
    assert connected_values("abcde", ties) == [("a",), ("b", "d", "e"), ("c",)]


def test_without_ties_each_value_is_alone() -> None:
    assert connected_values(["x", "y"], []) == [("x",), ("y",)]
    assert connected_values([], []) == []
