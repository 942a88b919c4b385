"""What is known of an index, and of a size that it is less than."""

from __future__ import annotations

from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import Expr, add, binary, index, integer, mul
from tunefarm.compiler.kernels.kernel import ValidExtent
from tunefarm.compiler.loops.size_conditions import limit_condition, narrowed

RANGES = {"i": (0, 15), "j": (0, 3), "t": (1, 9)}
COLUMNS, ROWS = 8, 10
LIMIT = ValidExtent(COLUMNS, ROWS, "sizes", 0)


def condition(place: Expr, end: Expr) -> tuple[tuple[tuple[str, int], ...], int] | None:
    """Terms and constant of what keeps the place within the limit, under `place < end`."""
    ranges = narrowed(RANGES, end)
    found = limit_condition(LIMIT, [affine(place, ranges)], [3 * COLUMNS * ROWS], ranges)
    return None if found is None else (found.terms, found.constant)


def test_a_tail_stays_within_its_row() -> None:
    place = add(mul(index("t"), integer(COLUMNS)), index("i"))
    assert condition(place, binary("lt", index("i"), integer(COLUMNS))) == ((("t", 1),), 0)
    shifted = binary("lt", add(index("i"), integer(4)), integer(COLUMNS + 4))
    assert condition(place, shifted) == ((("t", 1),), 0)
    assert condition(place, binary("lt", index("i"), integer(COLUMNS + 1))) is None
    assert condition(place, binary("lt", index("j"), integer(2))) is None


def test_the_row_before_is_of_the_same_period() -> None:
    before = add(mul(index("t"), integer(COLUMNS)), integer(-COLUMNS))
    everything = binary("lt", index("j"), integer(4))
    assert condition(before, everything) == ((("t", 1),), -1)
    later = add(before, integer(2 * COLUMNS * ROWS))
    assert condition(later, everything) == ((("t", 1),), -1)


def test_tiles_beyond_an_axis_write_what_is_within_it() -> None:
    """Columns that fill no vector, and rows in tiles that do not divide them."""
    tile = add(mul(index("j"), integer(4)), index("i"))
    forms = [affine(place, RANGES) for place in (index("b"), tile, index("i"))]
    ranges = {**RANGES, "b": (0, 2)}
    found = limit_condition(LIMIT, forms, (3, ROWS, COLUMNS), ranges)
    assert found is not None
    assert (found.terms, found.constant, found.scale) == ((("i", 1), ("j", 4)), 0, 1)
