"""Sizes that are drawn for inputs and reports: within bounds and ranges, and together possible."""

from __future__ import annotations

import pytest

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.types.chosen_sizes import choose_sizes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import AxisSource, Equality, Signature, SizedPort
from tunefarm.compiler.types.sizes import Symbol


def signature(
    *, ranges: tuple[tuple[int, int], ...] = ((1, 64),), equal: bool = False
) -> Signature:
    """x: [rows, columns], each from 1 to 64; rows in `ranges`, and equal columns if `equal`."""
    rows, columns = Symbol.of("rows", 1, 64), Symbol.of("columns", 1, 64)
    port = SizedPort("x", DType.F32, (rows, columns), (((rows, 64),), ((columns, 64),)))
    sources = tuple(
        AxisSource(Symbol(name, 1, 64), "x", axis) for axis, name in enumerate(("rows", "columns"))
    )
    equalities = (Equality(rows, columns, "x is square"),) if equal else ()
    return Signature(
        (port,), (), sources, (rows, columns), equalities=equalities, ranges=(("rows", ranges),)
    )


@pytest.mark.parametrize("rows", [1, 8, 60, 64])
def test_a_given_size_is_taken_and_the_other_is_near_the_middle(rows: int) -> None:
    chosen = choose_sizes(signature(), {"rows": rows})
    assert chosen["rows"] == rows
    assert 16 < chosen["columns"] < 48


def test_sizes_between_the_ranges_are_neither_drawn_nor_taken() -> None:
    apart = signature(ranges=((1, 8), (60, 64)))
    for rows in (1, 8, 60, 64):
        assert choose_sizes(apart, {"rows": rows})["rows"] == rows
    for rows in (9, 59):
        with pytest.raises(InputError, match=f"rows = {rows} is none of the sizes"):
            choose_sizes(apart, {"rows": rows})
    drawn = choose_sizes(apart, {})["rows"]
    assert drawn <= 8 or drawn >= 60


@pytest.mark.parametrize("rows", [0, 65])
def test_a_size_out_of_its_bounds_is_refused(rows: int) -> None:
    with pytest.raises(InputError, match=f"rows = {rows} is out of its bounds, 1 to 64"):
        choose_sizes(signature(), {"rows": rows})


def test_a_size_follows_from_one_that_it_equals() -> None:
    assert choose_sizes(signature(equal=True), {"rows": 7}) == {"rows": 7, "columns": 7}
    with pytest.raises(InputError, match="must be equal"):
        choose_sizes(signature(equal=True), {"rows": 7, "columns": 8})


def test_an_unknown_symbol_names_the_nearest() -> None:
    with pytest.raises(InputError, match="rows"):
        choose_sizes(signature(), {"rovs": 7})
