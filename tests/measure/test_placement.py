"""Where a kernel's buffers lie: planned offsets drawn near, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.placement import PERIOD, Placement, Span, placements_of

SIZES = st.lists(st.integers(1, 3 * PERIOD), min_size=1, max_size=5)
OFFSETS = st.integers(0, 1 << 26).map(lambda lines: 64 * lines)


@given(SIZES, st.data())
def test_buffers_drawn_near_keep_their_sets_and_order(
    sizes: list[int], data: st.DataObject
) -> None:
    offsets = data.draw(st.lists(OFFSETS, min_size=len(sizes), max_size=len(sizes)))
    placement = Placement.near(offsets, sizes)
    for near, far in zip(placement.offsets, offsets, strict=True):
        assert near % PERIOD == far % PERIOD
    spans = placement.spans(sizes, 0)[:-1]
    pairs = sorted(zip(spans, offsets, strict=True), key=lambda pair: pair[0].begin)
    assert [offset for _, offset in pairs] == sorted(offsets)
    for (below, _), (above, _) in pairwise(pairs):
        assert 0 <= above.begin - below.end < PERIOD + 64


@given(SIZES, st.integers(0, 5 * PERIOD))
def test_planned_buffers_that_lie_near_stay_where_they_are(sizes: list[int], extra: int) -> None:
    packed = Placement.packed(sizes)
    assert Placement.near(packed.offsets, sizes) == packed
    assert all(0 <= above - below < 64 for below, above in _gaps(packed.spans(sizes, extra)))


@given(SIZES, st.integers(1, 40 * PERIOD), st.data())
def test_workspaces_of_any_size_have_room_at_the_planned_sets(
    sizes: list[int], workspace: int, data: st.DataObject
) -> None:
    count = len(sizes) + 1
    offsets = data.draw(st.lists(OFFSETS, min_size=count, max_size=count))
    placement = Placement.near(offsets, sizes)
    *spans, last = placement.spans(sizes, workspace)
    assert [span.begin for span in (*spans, last)] == [*placement.offsets]
    assert last.begin % PERIOD == offsets[-1] % PERIOD


def _gaps(spans: tuple[Span, ...]) -> list[tuple[int, int]]:
    return [(below.end, above.begin) for below, above in pairwise(spans)]


@given(SIZES, st.data())
def test_buffers_of_a_placement_never_overlap(sizes: list[int], data: st.DataObject) -> None:
    near = st.integers(0, 2 * PERIOD // 64).map(lambda lines: 64 * lines)
    offsets = data.draw(st.lists(near, min_size=len(sizes), max_size=len(sizes) + 1))
    workspace = data.draw(st.integers(0, 3 * PERIOD))
    try:
        spans = Placement(tuple(offsets)).spans(sizes, workspace)
    except MeasureError:
        return
    assert [span.end - span.begin for span in spans] == [*sizes, workspace]
    filled = sorted((s.begin, s.end) for s in spans if s.end > s.begin)
    assert all(below[1] <= above[0] for below, above in pairwise(filled))
    assert all(span.begin % 64 == 0 and span.begin >= 0 for span in spans)


def test_workspace_lies_where_it_is_planned_if_there_is_room() -> None:
    placement = Placement((0, 1024, 128))
    assert placement.spans([100, 100], 896)[2] == Span(128, 1024)
    assert placement.spans([100, 100], 897)[2] == Span(1152, 2049)
    assert Placement((0, 1024)).spans([100, 100], 10)[2] == Span(1152, 1162)


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        ((0,), "of 1 buffers"),
        ((0, 128, 256, 384), "of 4 buffers"),
        ((0, 100), "no multiple of 64"),
        ((-64, 128), "no multiple of 64"),
        ((0, 64), "overlap"),
        ((0, 0), "overlap"),
        ((0, 1 << 40), "too far apart"),
        ((0, 128, 1 << 40), "too far apart"),
    ],
)
def test_placement_that_does_not_fit_is_refused(offsets: tuple[int, ...], reason: str) -> None:
    with pytest.raises(MeasureError, match=reason):
        Placement(offsets).spans([100, 100], 8)


@pytest.mark.parametrize("value", [None, 7, "0", [0, "64"], [0, 64.0], [True, 64], [[0, 64]]])
def test_only_lists_of_integers_are_placements(value: object) -> None:
    with pytest.raises(MeasureError, match="no list of byte offsets"):
        Placement.of_json(value)


def test_a_request_has_no_placement_or_one_or_one_for_each_schedule() -> None:
    first, second = Placement((0, 64)), Placement((0, 128))
    assert placements_of([], 2) == [None, None]
    assert placements_of([[0, 64]], 2) == [first, first]
    assert placements_of([first.to_json(), second.to_json()], 2) == [first, second]
    with pytest.raises(MeasureError, match="3 placements do not fit a request of 2 schedules"):
        placements_of([[0, 64]] * 3, 2)
