"""A trace is JSON of Chrome's form, with named lanes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tuner.reports.traces import assert_nested, lanes, slices
from tunefarm.tuner.reports.trace import Trace


def test_slices_are_in_microseconds_from_the_origin(tmp_path: Path) -> None:
    trace = Trace(origin=10.0)
    trace.slice("job", "phases", "search", 10.5, 12.0, kernels=3)
    trace.slice("job", "phases", "early", 9.0, 9.5)
    trace.write(str(tmp_path / "t.json"))
    read = json.loads((tmp_path / "t.json").read_text())
    early, search = slices(read)
    assert (search["ts"], search["dur"], search["args"]) == (5e5, 15e5, {"kernels": 3})
    assert (early["ts"], early["dur"]) == (0.0, 0.0)  # before the origin there is nothing
    assert list(lanes(read)) == ["job/phases"]


def test_lanes_of_one_name_are_told_apart_by_their_process() -> None:
    trace = Trace()
    for node in ("node 0", "node 1"):
        trace.slice(node, "slot 0", "run", 0.0, 1.0)
    found = trace.to_json()
    assert set(lanes(found)) == {"node 0/slot 0", "node 1/slot 0"}
    assert_nested(found)


@pytest.mark.parametrize("begin", [0.5, 1.5])
def test_overlaps_are_found(begin: float) -> None:
    """The check itself can fail."""
    trace = Trace()
    trace.slice("p", "lane", "first", 1.0, 2.0)
    trace.slice("p", "lane", "second", begin, begin + 1.0)
    with pytest.raises(AssertionError):
        assert_nested(trace.to_json())


def test_slices_that_hold_others_come_first() -> None:
    trace = Trace()
    trace.slice("p", "lane", "inner", 1.0, 1.5)
    trace.slice("p", "lane", "outer", 1.0, 2.0)
    assert [event["name"] for event in slices(trace.to_json())] == ["outer", "inner"]
