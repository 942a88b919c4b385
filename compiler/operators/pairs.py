"""Counts over pairs of elements of a row: how many others come before each one.

y[r, i] = sum over j < 97 of select(flags[r, j] and x[r, j] before x[r, i], 1, 0)
y[r, i] = sum over j < 97 of select(j < end[0], select(x[r, j] before x[r, i], 1, 0), 0)

Every pair is looked at, in vectors: the simplest way to sort some thousand elements. NaN comes
behind all other numbers and is equal to itself, so that positions are those of one order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tunefarm.compiler.expr.nodes import Expr, all_of, binary, cast, const, integer, select, unary
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.registry import OperatorDefinition, Pattern, register
from tunefarm.compiler.operators.rules import check, check_dtype
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use, axes_of
from tunefarm.compiler.types.dtypes import ALL, DType
from tunefarm.compiler.types.tensor_type import TensorType

_Order: TypeAlias = Callable[[Expr, Expr, Expr, Expr], Expr]
"""Whether an element counts for another: (element, other, its position, the other's)."""


def _below(element: Expr, other: Expr) -> Expr:
    """element < other, where NaN is the largest number."""
    if element.dtype is DType.BOOL:
        return binary("and", unary("not", element), other)
    less = binary("lt", element, other)
    if not element.dtype.is_float:
        return less
    orders_nan = binary("and", unary("isnan", other), unary("not", unary("isnan", element)))
    return binary("or", less, orders_nan)


def _same(element: Expr, other: Expr) -> Expr:
    equal = binary("eq", element, other)
    if not element.dtype.is_float:
        return equal
    return binary("or", equal, binary("and", unary("isnan", element), unary("isnan", other)))


def _infer(attributes: Attributes, types: Types) -> TensorType:
    data, flags, end = types.present(0), types.optional(1), types.optional(2)
    check_dtype(data, ALL)
    check(len(data.shape) == 2, f"{data} is not [rows, elements]")
    fits = flags is None or (flags.dtype is DType.BOOL and flags.shape == data.shape)
    check(fits, f"the flags {flags} are no bools of the shape of {data}")
    check(end in (None, TensorType(DType.I64, (1,))), f"the end {end} is no vector of one size")
    return TensorType.of(DType.I64, data.dims)


def _definition(name: str, counts: _Order, dynamic: bool = False) -> OperatorDefinition:
    def expression(attributes: Attributes, use: Use) -> Tensor:
        data, flags, end = use.input(0), use.optional(1), use.optional(2)

        def body(row: Expr, position: Expr, other: Expr) -> Expr:
            counted = counts(data[row, other], data[row, position], other, position)
            if flags is not None:
                counted = all_of(flags[row, other], counted)
            one = select(counted, const(1, DType.I32), const(0, DType.I32))
            if end is None:
                return one
            is_there = binary("lt", other, end[(integer(0),)])
            return select(is_there, one, const(0, DType.I32))

        total = use.builder.stage(
            name, axes_of(use.shape), body, reduce=[("r", use.shape[1])], combiner="sum"
        )
        return use.pointwise(f"{name}_i64", lambda indices: cast(DType.I64, total[indices]))

    return OperatorDefinition(name, Pattern.OPAQUE, (1, 3), _infer, expression, dynamic=dynamic)


def _before(element: Expr, other: Expr, place: Expr, others: Expr) -> Expr:
    tied = binary("and", _same(element, other), binary("lt", place, others))
    return binary("or", _below(element, other), tied)


def _after(element: Expr, other: Expr, place: Expr, others: Expr) -> Expr:
    tied = binary("and", _same(element, other), binary("lt", place, others))
    return binary("or", _below(other, element), tied)


register(
    # Who asks for ranks says which elements of a row are there.
    _definition("rank_ascending", _before, True),
    _definition("rank_descending", _after, True),
    _definition("count_less", lambda element, other, place, others: _below(element, other)),
    _definition(
        "count_equal_before",
        lambda element, other, place, others: binary(
            "and", _same(element, other), binary("lt", place, others)
        ),
    ),
)
"""`rank_ascending(x, flags)`: the position that each element of a row has in its sorted row, of
equal ones the first first; `rank_descending` the same from the largest on. `count_less`: how many
elements are less; `count_equal_before`: how many equal ones come before it in the row. Only
elements with a flag count, and those before `end[0]`; all without flags and end.
"""
