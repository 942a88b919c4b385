"""Pointwise arithmetic, comparison and logic, with NumPy broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.expr.nodes import Expr, binary, cast, const, mul, select, unary
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Pattern,
    Required,
    TypeRule,
    define,
)
from tunefarm.compiler.operators.rules import (
    broadcast_load,
    check,
    check_dtype,
    check_same_dtype,
)
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.types.dtypes import (
    ALL,
    BOOLS,
    FLOATS,
    INTEGERS,
    NUMBERS,
    SIGNED,
    UNSIGNED_INTEGERS,
    DType,
)
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

Body: TypeAlias = Callable[..., Expr]
"""The scalar function: of the attributes and one element of each operand."""


def pointwise(
    name: str,
    operands: int,
    infer: TypeRule,
    body: Body,
    *,
    attributes: Mapping[str, Attribute | Required] = MappingProxyType({}),
    cheap: bool = True,
    commutes: bool = False,
    neutral: float | None = None,
) -> None:
    """Register a pointwise operator."""

    def expression(attributes: Attributes, use: Use) -> Tensor:
        tensors = [use.input(position) for position in range(operands)]
        return use.pointwise(
            name,
            lambda indices: body(
                attributes, *(broadcast_load(tensor, indices, use.shape) for tensor in tensors)
            ),
        )

    define(
        name,
        Pattern.ELEMENTWISE,
        operands,
        infer,
        expression,
        attributes,
        cheap=cheap,
        commutes=commutes,
        neutral=neutral,
        dynamic=True,
    )


# --- one operand --------------------------------------------------------------------------------


def register_unary(
    name: str,
    allowed: frozenset[DType],
    body: Body,
    *,
    cheap: bool = True,
    result: DType | None = None,
    validate: Callable[[Attributes], object] | None = None,
    **defaults: Attribute | Required,
) -> None:
    """Register a pointwise operator of one operand; `cheap` as in its definition."""

    def infer(attributes: Attributes, types: Types) -> TensorType:
        type = types.present(0)
        check_dtype(type, allowed)
        for attribute, default in defaults.items():
            if isinstance(default, bool):
                attributes.flag(attribute)
            elif isinstance(default, float):
                attributes.floating(attribute)
        if validate is not None:
            validate(attributes)
        return TensorType.of(result or type.dtype, type.dims)

    pointwise(name, 1, infer, body, attributes=defaults, cheap=cheap)


def _plain(op: str) -> Body:
    return lambda attributes, x: unary(op, x)


def _abs(attributes: Attributes, x: Expr) -> Expr:
    return x if x.dtype in UNSIGNED_INTEGERS else unary("abs", x)


def _sign(attributes: Attributes, x: Expr) -> Expr:
    if x.dtype.is_float:
        return unary("sign", x)
    zero, one = const(0, x.dtype), const(1, x.dtype)
    positive = select(binary("gt", x, zero), one, zero)
    if x.dtype in UNSIGNED_INTEGERS:
        return positive
    return select(binary("lt", x, zero), const(-1, x.dtype), positive)


def _isinf(attributes: Attributes, x: Expr) -> Expr:
    largest = float(np.finfo(x.dtype.numpy).max)
    positive = binary("gt", x, const(largest, x.dtype))
    negative = binary("lt", x, const(-largest, x.dtype))
    detect_positive = attributes.flag("detect_positive")
    if attributes.flag("detect_negative"):
        return binary("or", negative, positive) if detect_positive else negative
    return positive if detect_positive else const(False, DType.BOOL)


def _bitwise_not(attributes: Attributes, x: Expr) -> Expr:
    all_bits = int(np.iinfo(x.dtype.numpy).max) if x.dtype in UNSIGNED_INTEGERS else -1
    return binary("xor", x, const(all_bits, x.dtype))


_FUNCTIONS = (
    "exp log sqrt reciprocal tanh erf sigmoid sin cos tan asin acos atan sinh cosh asinh acosh "
    "atanh"
)
for _name in _FUNCTIONS.split():
    register_unary(_name, FLOATS, _plain(_name), cheap=False)
for _name in ("floor", "ceil", "round"):
    register_unary(_name, FLOATS, _plain(_name))
register_unary("neg", SIGNED, _plain("neg"))
register_unary("not", BOOLS, _plain("not"))
register_unary("isnan", FLOATS, _plain("isnan"), result=DType.BOOL)
register_unary("abs", NUMBERS, _abs)
register_unary("sign", NUMBERS, _sign)
register_unary(
    "isinf", FLOATS, _isinf, result=DType.BOOL, detect_negative=True, detect_positive=True
)
register_unary("bitwise_not", INTEGERS, _bitwise_not)


# --- two and three operands ---------------------------------------------------------------------


def _infer_binary(
    allowed: frozenset[DType], result: DType | None, divides: bool = False
) -> TypeRule:
    """Integers are not divided by what may be 0."""

    def infer(attributes: Attributes, types: Types) -> TensorType:
        left, right = types.present(0), types.present(1)
        check_dtype(left, allowed, "the left operand")
        check_same_dtype(left, right)
        if divides and right.dtype.is_integer:
            for axis in range(len(right.shape)):
                types.fill(1, axis, "one")
        return TensorType.of(result or left.dtype, types.broadcast(0, 1))

    return infer


def _plain_binary(op: str) -> Body:
    return lambda attributes, left, right: binary(op, left, right)


def _infer_pow(attributes: Attributes, types: Types) -> TensorType:
    base, exponent = types.present(0), types.present(1)
    check_dtype(base, NUMBERS, "the base")
    check_dtype(exponent, NUMBERS, "the exponent")
    return TensorType.of(base.dtype, types.broadcast(0, 1))


def _pow(attributes: Attributes, base: Expr, exponent: Expr) -> Expr:
    # f32 stays f32 unless the exponent is f64; integers are raised in f64, as C's pow would.
    narrow = base.dtype is DType.F32 and exponent.dtype is not DType.F64
    work = DType.F32 if narrow else DType.F64
    return cast(base.dtype, binary("pow", cast(work, base), cast(work, exponent)))


def _infer_shift(attributes: Attributes, types: Types) -> TensorType:
    attributes.choice("direction", ("left", "right"))
    return _infer_binary(UNSIGNED_INTEGERS, None)(attributes, types)


def _bit_shift(attributes: Attributes, left: Expr, right: Expr) -> Expr:
    direction = attributes.choice("direction", ("left", "right"))
    shifted = binary("shl" if direction == "left" else "shr", left, right)
    bits = const(left.dtype.bytes * 8, left.dtype)
    return select(binary("lt", right, bits), shifted, const(0, left.dtype))


def _infer_prelu(attributes: Attributes, types: Types) -> TensorType:
    data, slope = types.present(0), types.present(1)
    check_dtype(data, NUMBERS, "the left operand")
    check_same_dtype(data, slope)
    mismatch = f"the slope {slope} does not broadcast to the data's shape"
    return TensorType.of(data.dtype, types.broadcast_to(0, 1, otherwise=mismatch))


def _prelu(attributes: Attributes, x: Expr, slope: Expr) -> Expr:
    if x.dtype in UNSIGNED_INTEGERS:
        return x
    return select(binary("lt", x, const(0, x.dtype)), mul(slope, x), x)


def _infer_where(attributes: Attributes, types: Types) -> TensorType:
    condition, then, otherwise = (types.present(position) for position in range(3))
    check_dtype(condition, BOOLS, "the condition")
    check_same_dtype(then, otherwise)
    return TensorType.of(then.dtype, types.broadcast(0, 1, 2))


def _where(attributes: Attributes, condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    return select(condition, then, otherwise)


def _register_binary(
    name: str,
    allowed: frozenset[DType],
    body: Body | None = None,
    *,
    result: DType | None = None,
    cheap: bool = True,
    commutes: bool = False,
    neutral: float | None = None,
    divides: bool = False,
) -> None:
    """An operator of two operands of one type; its `body` is the function of its name if None."""
    function, infer = body or _plain_binary(name), _infer_binary(allowed, result, divides)
    pointwise(
        name,
        2,
        infer,
        function,
        cheap=cheap,
        commutes=commutes,
        neutral=neutral,
    )


_register_binary("add", NUMBERS, commutes=True, neutral=0)
_register_binary("sub", NUMBERS, neutral=0)
_register_binary("mul", NUMBERS, commutes=True, neutral=1)
_register_binary("max", NUMBERS, commutes=True)
_register_binary("min", NUMBERS, commutes=True)
_register_binary("div", NUMBERS, cheap=False, neutral=1, divides=True)
_register_binary("mod", NUMBERS, cheap=False, divides=True)
_register_binary("fmod", NUMBERS, cheap=False, divides=True)
for _name in ("and", "or", "xor"):
    _register_binary(_name, BOOLS, commutes=True)
    _register_binary(f"bitwise_{_name}", INTEGERS, _plain_binary(_name))
for _name, _op in (
    ("less", "lt"),
    ("greater", "gt"),
    ("less_equal", "le"),
    ("greater_equal", "ge"),
):
    _register_binary(_name, NUMBERS, _plain_binary(_op), result=DType.BOOL)
_register_binary(
    "equal", ALL | {DType.STRING}, _plain_binary("eq"), result=DType.BOOL, commutes=True
)
pointwise("pow", 2, _infer_pow, _pow, cheap=False, neutral=1)
pointwise("bit_shift", 2, _infer_shift, _bit_shift, attributes={"direction": REQUIRED})
pointwise("prelu", 2, _infer_prelu, _prelu)
pointwise("where", 3, _infer_where, _where)


# --- One of two values: only the one that is taken has to be computed ----------------------------
#
# What computes the other is left out when the program runs, see
# `tunefarm.compiler.plan.fusion.extract_kernels`.


def _infer(attributes: Attributes, types: Types) -> TensorType:
    condition, then, otherwise = (types.present(position) for position in range(3))
    check(condition == TensorType(DType.BOOL, ()), f"the condition is no bool, but {condition}")
    differ = f"one value is {then}, the other one {otherwise}"
    check(then.dtype == otherwise.dtype and len(then.shape) == len(otherwise.shape), differ)
    places = (((1, axis), (2, axis)) for axis in range(len(then.shape)))
    return TensorType.of(then.dtype, tuple(types.same(*p, otherwise=differ) for p in places))


def _choose(attributes: Attributes, use: Use) -> Tensor:
    condition, then, otherwise = (use.input(position) for position in range(3))
    return use.pointwise(
        "chosen", lambda indices: select(condition[()], then[indices], otherwise[indices])
    )


define(
    "choose",
    Pattern.OPAQUE,
    3,
    _infer,
    _choose,
    alone=True,
    stored=True,
    lazy=True,
    moves=True,
    dynamic=True,
)
"""`choose(condition, then, otherwise)`: a copy of one of two tensors."""
