"""How far windows reach, as sizes: strides, fractions and divided positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.compiler.expr.nodes import Expr, Load, add, binary, index, integer, mul
from tunefarm.compiler.loops.size_conditions import Condition
from tunefarm.compiler.plan.sizes.live_extents import named, reaches
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import Dimension, Symbol, value_of

HEIGHT = Symbol.of("height", 1, 40)
ROWS = Load(DType.I64, "sizes", (integer(0),))
BELOW_ROWS = Condition((("oh", 1),), 0, 1, ROWS)


def window(stride: int, pad: int) -> Expr:
    return add(add(mul(index("oh"), integer(stride)), index("kh")), integer(-pad))


@pytest.mark.parametrize(
    ("stride", "taps", "rows", "more"),
    [
        (1, 3, HEIGHT, 1),
        (2, 3, (HEIGHT + 1) // 2, 1),
        (2, 7, (HEIGHT + 1) // 2, 3),
        (2, 2, HEIGHT // 2, 0),
    ],
)
def test_windows_reach_as_far_behind_the_data_as_it_is_padded(
    stride: int, taps: int, rows: Dimension, more: int
) -> None:
    ranges = {"oh": (0, 39), "kh": (0, taps - 1)}
    item = window(stride, (taps - 1) // 2)
    (reach,) = reaches(item, BELOW_ROWS, rows, ranges)
    assert (("sizes", 1), more) in set(named(reach, {("sizes", 1): HEIGHT}))


def test_every_other_element_is_read_twice_of_what_is_resized() -> None:
    item = binary("floordiv", index("oh"), integer(2))
    (reach,) = reaches(item, BELOW_ROWS, HEIGHT * 2, {"oh": (0, 79)})
    assert reach == HEIGHT


def test_rows_that_interleave_reach_as_far_as_their_own_number() -> None:
    condition = Condition((("q", 2), ("r", 1)), 0, 1, ROWS)  # 2 * q + r < size
    (reach,) = reaches(index("q"), condition, HEIGHT * 2, {"q": (0, 39), "r": (0, 1)})
    assert reach == HEIGHT


def test_what_a_size_bounds_from_below_reaches_nowhere() -> None:
    condition = Condition((("q", -1),), 39, 1, ROWS)  # 39 - q < size
    assert not list(reaches(index("q"), condition, HEIGHT, {"q": (0, 39)}))


def test_what_does_not_depend_on_the_size_reaches_nowhere() -> None:
    assert not list(reaches(index("kh"), BELOW_ROWS, HEIGHT, {"kh": (0, 4)}))


@given(
    stride=st.integers(1, 4),
    taps=st.integers(1, 5),
    pad=st.integers(0, 2),
    divided=st.integers(1, 5),
    height=st.integers(1, 40),
)
def test_no_index_is_beyond_its_reach(
    stride: int, taps: int, pad: int, divided: int, height: int
) -> None:
    rows = (HEIGHT + divided) // divided
    item = binary("floordiv", window(stride, pad), integer(divided))
    symbols = {"height": height}
    count = value_of(rows, symbols)
    ranges = {"oh": (0, 40), "kh": (0, taps - 1)}
    found = list(reaches(item, BELOW_ROWS, rows, ranges))
    highest = ((count - 1) * stride + taps - 1 - pad) // divided
    sizes = {("sizes", 0): rows, ("sizes", 1): HEIGHT}
    for reach in found:
        assert highest < value_of(reach, symbols)
        for name, more in named(reach, sizes):
            assert highest < value_of(sizes[name], symbols) + more
    assert found or stride % divided == 0
