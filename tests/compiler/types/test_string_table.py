"""Strings as numbers of words, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunefarm.compiler.types.structure import StringTable, WordTable

WORDS = WordTable(("red", "green", ""))


@pytest.mark.parametrize(
    "given",
    [
        np.array([["red", "blue"], ["", "blue"]]),
        np.array([["red", "blue"], ["", "blue"]], object),
        np.array([[b"red", "blue"], [np.str_(""), b"blue"]], object),
        np.array([[b"red", b"blue"], [b"", b"blue"]]),
        [["red", "blue"], ["", "blue"]],
    ],
)
def test_new_words_follow_those_of_the_table(given: Any) -> None:
    table = StringTable(WORDS)
    numbers = table.numbers(given)
    assert numbers.dtype == np.int64
    np.testing.assert_array_equal(numbers, [[0, 3], [2, 3]])
    assert table.all == ("red", "green", "", "blue")
    np.testing.assert_array_equal(table.numbers(np.array(["black", "blue", "red"])), [4, 3, 0])
    expected = np.array([["red", "blue"], ["", "blue"]], object)
    np.testing.assert_array_equal(table.texts(numbers), expected)
    assert WORDS.numbers == {"red": 0, "green": 1, "": 2}


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_shapes_are_kept(shape: tuple[int, ...]) -> None:
    numbers = StringTable(WORDS).numbers(np.full(shape, "green", object))
    words = StringTable(WORDS).texts(numbers)
    assert numbers.shape == words.shape == shape and words.dtype == object


def test_a_number_of_no_word_is_an_empty_string() -> None:
    table = StringTable(WORDS)
    numbers = np.array([-1, 0, 3, 1])
    assert table.texts(numbers).tolist() == ["", "red", "", "green"]
    table.number("blue")
    assert table.texts(numbers).tolist() == ["", "red", "blue", "green"]


@pytest.mark.parametrize("given", [np.array(["red", 3], object), [1.5], [["red"], None]])
def test_what_is_no_string_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="must have strings"):
        StringTable(WORDS).numbers(np.asarray(given, object))
