"""What keeps a machine out of a farm."""

from __future__ import annotations

from tunefarm.measure.farm.farm_versions import COMPILER, differences, versions


def test_a_machine_differs_in_nothing_from_itself() -> None:
    here = versions()
    assert differences(here, here) == ""
    assert all(here.values()) and "missing" not in here.values()


def test_a_line_says_what_differs() -> None:
    here = versions()
    there = {**here, COMPILER: "0", "llvmlite": "0.1"}
    said = differences(here, there)
    assert said.startswith(f"the compiler is {here[COMPILER]} here and 0 there, llvmlite is ")
    assert differences(here, {}).count("unknown there") == len(here)
