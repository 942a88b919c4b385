"""Elements at known distances, collected from vectors: compiled and compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.llvm.test_shuffles import run
from tunefarm.compiler.llvm.shuffles import Pieces, collect, pieces_of, readers

LANES = 8


@st.composite
def distances(draw: st.DrawFn) -> list[int]:
    """What loads read: divided, strided, mirrored, interleaved and clamped positions."""
    first, stride = draw(st.integers(0, 9)), draw(st.integers(-3, 3))
    divisor, clusters = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 4]))
    apart, last = draw(st.integers(1, 100)), draw(st.integers(1, 40))
    found = [
        min(max(first + (i // clusters) * stride // divisor, 0), last) + (i % clusters) * apart
        for i in range(LANES)
    ]
    return [offset - min(found) for offset in found]


@settings(max_examples=50, deadline=None)
@given(distances())
def test_elements_are_collected_from_the_vectors_that_hold_them(offsets: list[int]) -> None:
    pieces = pieces_of(offsets)
    if pieces is None:
        assert len(set(offsets)) > LANES // 2
        return
    assert min(pieces.starts) >= 0
    assert max(pieces.starts) + pieces.width <= max(offsets) + 1
    data = np.arange(max(offsets) + 1, dtype=np.float32)
    collected = run(
        lambda writer, vectors: [collect(writer, pieces, vectors)],
        data,
        pieces.starts,
        pieces.width,
        1,
        LANES,
    )
    np.testing.assert_array_equal(collected[0], data[offsets])


@pytest.mark.parametrize(
    ("offsets", "starts", "width"),
    [
        ([0, 0, 1, 1, 2, 2, 3, 3], (0,), 4),
        ([7, 6, 5, 4, 3, 2, 1, 0], (0,), 8),
        ([0, 100, 1, 101, 2, 102, 3, 103], (0, 100), 4),
        ([0, 3, 6, 9, 12, 15, 18, 21], (0, 9, 14), 8),
        ([4, 4, 4, 4, 4, 4, 4, 4], (4,), 1),
    ],
)
def test_few_narrow_vectors_are_loaded(
    offsets: list[int], starts: tuple[int, ...], width: int
) -> None:
    pieces = pieces_of(offsets)
    assert pieces is not None
    assert (pieces.starts, pieces.width) == (starts, width)


def test_elements_far_apart_are_loaded_one_by_one() -> None:
    assert pieces_of([1000 * i for i in range(LANES)]) is None


def test_readers_of_an_element_come_in_rounds() -> None:
    pieces = Pieces(2, (0,), ((0, 0), (0, 0), (0, 1), (0, 0)))
    assert readers(pieces, 0) == [[0, 2], [1, None], [3, None]]
