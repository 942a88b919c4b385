"""Extents as users give them: what is read, what is printed, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.types.extents import Extent, Given, extent_of, listed, shapes_to_json


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (7, 7),
        ("7", 7),
        ("batch:1..8", Extent("batch", 1, 8)),
        ("batch:0..8", Extent("batch", 0, 8)),
        ("batch=0..8", Extent("batch", 0, 8)),
        ("1..8", Extent("", 1, 8)),
        ((1, 8), Extent("", 1, 8)),
        ("batch:16|1|4|4", Extent("batch", 1, 16, (1, 4, 16))),
        ("1|4", Extent("", 1, 4, (1, 4))),
        ("seq:65..512|1..64", Extent("seq", 1, 512, buckets=((1, 64), (65, 512)))),
        ("seq:1|2..64", Extent("seq", 1, 64, buckets=((1, 1), (2, 64)))),
        ("0|1..512", Extent("", 0, 512, buckets=((0, 0), (1, 512)))),
        ("batch", Extent("batch")),
        ("past_sequence_length + 1", Extent("past_sequence_length + 1")),
        ("batch:4..4", 4),
        ("batch:4", 4),
        (np.int64(7), 7),
        ((np.int32(1), np.int64(8)), Extent("", 1, 8)),
    ],
)
def test_extents_are_read_and_printed(given: Given, expected: int | Extent) -> None:
    extent = extent_of(given)
    assert extent == expected
    assert extent_of(str(extent)) == expected
    assert extent_of(shapes_to_json({"x": [given]})["x"][0]) == expected


@pytest.mark.parametrize(
    "text", ["", "batch:", "batch=", "8..1", "batch:8..1", "1..2..3", "a:1,2", "0..0", "-1..3"]
)
def test_what_is_no_extent_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ShapeError) as caught:
        extent_of(text)
    assert "batch:1..8" in caught.value.hint


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("1..4", ("1..4",)),
        ("1,3,h=64..256,w", (1, 3, "h:64..256", "w")),
        (4, (4,)),
        (Extent("b", 1, 8), (Extent("b", 1, 8),)),
        ((1, "batch"), (1, "batch")),
        (None, None),
    ],
)
def test_shapes_may_be_text_or_one_extent(shape: Any, expected: Any) -> None:
    shapes = {"n": shape}
    assert listed(shapes) == listed(listed(shapes)) == {"n": expected}


@pytest.mark.parametrize("shapes", [[1, 3], "x=1,3", None])
def test_shapes_that_are_no_dictionary_are_refused_with_one(shapes: Any) -> None:
    with pytest.raises(ShapeError, match="must be a dictionary"):
        listed(shapes)


@pytest.mark.parametrize("bounds", [(1,), (1, 2, 3), (1.0, 8)])
def test_bounds_that_are_no_two_numbers_are_refused(bounds: Any) -> None:
    with pytest.raises(ShapeError, match="is not a dimension"):
        extent_of(bounds)
