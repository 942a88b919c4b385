"""Who has which part of a farm, by what the drivers say."""

from __future__ import annotations

from tunefarm.measure.farm.fair_share import (
    FORGOTTEN_SECONDS,
    KEEPS_SECONDS,
    SILENT_SECONDS,
    Beat,
    FairShare,
    Part,
)


def test_drivers_number_themselves_alike() -> None:
    names = ("b", "a", "c")
    beats = {name: Beat(1, 5) for name in names}
    assert {name: FairShare(name).part(beats, 0.0) for name in names} == {
        "a": Part(0, 3),
        "b": Part(1, 3),
        "c": Part(2, 3),
    }


def test_a_driver_alone_has_everything_whatever_it_said_itself() -> None:
    assert FairShare("a").part({}, 0.0) == Part(0, 1)
    assert FairShare("a").part({"a": Beat(3, 0)}, 0.0) == Part(0, 1)


def test_a_driver_that_has_nothing_to_measure_has_no_part_after_a_while() -> None:
    fair = FairShare("b")
    assert fair.part({"a": Beat(1, 4)}, 0.0).drivers == 2
    assert fair.part({"a": Beat(2, 0)}, 1.0).drivers == 2
    assert fair.part({"a": Beat(3, 0)}, 1.0 + KEEPS_SECONDS).drivers == 1
    assert fair.part({"a": Beat(4, 1)}, 9.0).drivers == 2
    assert FairShare("b").part({"a": Beat(1, 0)}, 0.0).drivers == 1


def test_a_driver_that_is_stopped_has_no_part_until_it_goes_on() -> None:
    fair = FairShare("b")
    for second in range(20):
        part = fair.part({"a": Beat(second, 9)}, float(second))
        assert part == Part(1, 2)
    silent = 19.0 + SILENT_SECONDS
    assert fair.part({"a": Beat(19, 9)}, silent) == Part(0, 1)
    assert fair.forgotten(silent) == []
    assert fair.forgotten(19.0 + FORGOTTEN_SECONDS) == ["a"]
    assert fair.part({"a": Beat(20, 9)}, silent + 1.0) == Part(1, 2)
