"""Pointwise arithmetic, comparison and logic, with NumPy broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from compiler.errors import ShapeError
from compiler.expr.nodes import Expr, binary, cast, const, mul, select, unary
from compiler.kernels.kernel import KernelBuilder, Tensor
from compiler.operators.registry import (
    REQUIRED,
    Attributes,
    ExpressionRule,
    Pattern,
    Required,
    Tensors,
    TypeRule,
    Types,
    register,
)
from compiler.operators.rules import (
    bool_attribute,
    broadcast_load,
    broadcast_shapes,
    check_dtype,
    check_same_dtype,
    choice_attribute,
    float_attribute,
    given,
    pointwise,
    present,
)
from compiler.types.dtypes import (
    ALL,
    BOOLS,
    FLOATS,
    INTEGERS,
    NUMBERS,
    SIGNED,
    UNSIGNED_INTEGERS,
    DType,
)
from compiler.types.tensor_type import Attribute, TensorType

UnaryBody: TypeAlias = Callable[[Attributes, Expr], Expr]
BinaryBody: TypeAlias = Callable[[Attributes, Expr, Expr], Expr]


# --- one operand --------------------------------------------------------------------------------


def register_unary(
    name: str,
    allowed: frozenset[DType],
    body: UnaryBody,
    *,
    result: DType | None = None,
    validate: Callable[[Attributes], None] | None = None,
    **defaults: Attribute | Required,
) -> None:
    """Register the pointwise operator `name` of one operand; `body` is the scalar function."""

    def infer(attributes: Attributes, types: Types) -> TensorType:
        type = present(types, 0)
        check_dtype(type, allowed)
        for attribute, default in defaults.items():
            if isinstance(default, bool):
                bool_attribute(attributes, attribute)
            elif isinstance(default, float):
                float_attribute(attributes, attribute)
        if validate is not None:
            validate(attributes)
        return TensorType(result or type.dtype, type.shape)

    def expression(
        builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
    ) -> Tensor:
        data = given(inputs, 0)
        return pointwise(
            builder, name, type.shape, lambda indices: body(attributes, data[tuple(indices)])
        )

    register(name, Pattern.ELEMENTWISE, 1, infer, expression, **defaults)


def _plain(op: str) -> UnaryBody:
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
    detect_positive = bool_attribute(attributes, "detect_positive")
    if bool_attribute(attributes, "detect_negative"):
        return binary("or", negative, positive) if detect_positive else negative
    return positive if detect_positive else const(False, DType.BOOL)


def _bitwise_not(attributes: Attributes, x: Expr) -> Expr:
    all_bits = int(np.iinfo(x.dtype.numpy).max) if x.dtype in UNSIGNED_INTEGERS else -1
    return binary("xor", x, const(all_bits, x.dtype))


def _cast_target(attributes: Attributes) -> DType:
    return DType(choice_attribute(attributes, "to", list(DType)))


def _infer_cast(attributes: Attributes, types: Types) -> TensorType:
    return TensorType(_cast_target(attributes), present(types, 0).shape)


def _cast(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data = given(inputs, 0)
    return pointwise(
        builder, "cast", type.shape, lambda indices: cast(type.dtype, data[tuple(indices)])
    )


_FLOAT_FUNCTIONS = (
    "exp log sqrt reciprocal tanh erf sigmoid sin cos tan asin acos atan sinh cosh asinh acosh "
    "atanh floor ceil round"
)
for _name in _FLOAT_FUNCTIONS.split():
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
register("cast", Pattern.ELEMENTWISE, 1, _infer_cast, _cast, to=REQUIRED)


# --- two and three operands ---------------------------------------------------------------------


def _infer_binary(allowed: frozenset[DType], result: DType | None) -> TypeRule:
    def infer(attributes: Attributes, types: Types) -> TensorType:
        left, right = present(types, 0), present(types, 1)
        check_dtype(left, allowed, "the left operand")
        check_same_dtype(left, right)
        return TensorType(result or left.dtype, broadcast_shapes(left.shape, right.shape))

    return infer


def _binary_expression(name: str, body: BinaryBody) -> ExpressionRule:
    def expression(
        builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
    ) -> Tensor:
        left, right = given(inputs, 0), given(inputs, 1)

        def value(indices: Sequence[Expr]) -> Expr:
            return body(
                attributes,
                broadcast_load(left, indices, type.shape),
                broadcast_load(right, indices, type.shape),
            )

        return pointwise(builder, name, type.shape, value)

    return expression


def _register_binary(
    name: str,
    allowed: frozenset[DType],
    body: BinaryBody,
    *,
    result: DType | None = None,
    infer: TypeRule | None = None,
    **defaults: Attribute | Required,
) -> None:
    rule = infer or _infer_binary(allowed, result)
    expression = _binary_expression(name, body)
    register(name, Pattern.ELEMENTWISE, 2, rule, expression, **defaults)


def _plain_binary(op: str) -> BinaryBody:
    return lambda attributes, left, right: binary(op, left, right)


def _division(op: str) -> BinaryBody:
    """div, mod or fmod. Integer division by zero gives 0, and by -1 wraps, as NumPy has it.

    The machine's division traps in both cases, so that it gets the divisor 1 instead.
    """

    def body(attributes: Attributes, left: Expr, right: Expr) -> Expr:
        dtype = left.dtype
        if dtype.is_float:
            return binary(op, left, right)
        zero, one = const(0, dtype), const(1, dtype)
        is_zero = binary("eq", right, zero)
        if not dtype.is_signed:
            return select(is_zero, zero, binary(op, left, select(is_zero, one, right)))
        is_minus_one = binary("eq", right, const(-1, dtype))
        special = binary("or", is_zero, is_minus_one)
        result = binary(op, left, select(special, one, right))
        if op == "div":
            return select(is_zero, zero, select(is_minus_one, unary("neg", left), result))
        return select(special, zero, result)

    return body


def _infer_pow(attributes: Attributes, types: Types) -> TensorType:
    base, exponent = present(types, 0), present(types, 1)
    check_dtype(base, NUMBERS, "the base")
    check_dtype(exponent, NUMBERS, "the exponent")
    return TensorType(base.dtype, broadcast_shapes(base.shape, exponent.shape))


def _pow(attributes: Attributes, base: Expr, exponent: Expr) -> Expr:
    # f32 stays f32 unless the exponent is f64; integers are raised in f64, as C's pow would.
    narrow = base.dtype is DType.F32 and exponent.dtype is not DType.F64
    work = DType.F32 if narrow else DType.F64
    return cast(base.dtype, binary("pow", cast(work, base), cast(work, exponent)))


def _infer_shift(attributes: Attributes, types: Types) -> TensorType:
    choice_attribute(attributes, "direction", ("left", "right"))
    return _infer_binary(UNSIGNED_INTEGERS, None)(attributes, types)


def _bit_shift(attributes: Attributes, left: Expr, right: Expr) -> Expr:
    direction = choice_attribute(attributes, "direction", ("left", "right"))
    shifted = binary("shl" if direction == "left" else "shr", left, right)
    bits = const(left.dtype.bytes * 8, left.dtype)
    return select(binary("lt", right, bits), shifted, const(0, left.dtype))


def _infer_prelu(attributes: Attributes, types: Types) -> TensorType:
    data, slope = present(types, 0), present(types, 1)
    result = _infer_binary(NUMBERS, None)(attributes, types)
    if result.shape != data.shape:
        raise ShapeError(f"the slope {slope} does not broadcast to the data's shape")
    return result


def _prelu(attributes: Attributes, x: Expr, slope: Expr) -> Expr:
    if x.dtype in UNSIGNED_INTEGERS:
        return x
    return select(binary("lt", x, const(0, x.dtype)), mul(slope, x), x)


def _infer_where(attributes: Attributes, types: Types) -> TensorType:
    condition, then, otherwise = (present(types, position) for position in range(3))
    check_dtype(condition, BOOLS, "the condition")
    check_same_dtype(then, otherwise)
    return TensorType(then.dtype, broadcast_shapes(condition.shape, then.shape, otherwise.shape))


def _where(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    operands = [given(inputs, position) for position in range(3)]

    def value(indices: Sequence[Expr]) -> Expr:
        condition, then, otherwise = (
            broadcast_load(operand, indices, type.shape) for operand in operands
        )
        return select(condition, then, otherwise)

    return pointwise(builder, "where", type.shape, value)


for _name in ("add", "sub", "mul", "max", "min"):
    _register_binary(_name, NUMBERS, _plain_binary(_name))
for _name in ("div", "mod", "fmod"):
    _register_binary(_name, NUMBERS, _division(_name))
for _name in ("and", "or", "xor"):
    _register_binary(_name, BOOLS, _plain_binary(_name))
    _register_binary(f"bitwise_{_name}", INTEGERS, _plain_binary(_name))
for _name, _op in (
    ("less", "lt"),
    ("greater", "gt"),
    ("less_equal", "le"),
    ("greater_equal", "ge"),
):
    _register_binary(_name, NUMBERS, _plain_binary(_op), result=DType.BOOL)
_register_binary("equal", ALL, _plain_binary("eq"), result=DType.BOOL)
_register_binary("pow", NUMBERS, _pow, infer=_infer_pow)
_register_binary("bit_shift", UNSIGNED_INTEGERS, _bit_shift, infer=_infer_shift, direction=REQUIRED)
_register_binary("prelu", NUMBERS, _prelu, infer=_infer_prelu)
register("where", Pattern.ELEMENTWISE, 3, _infer_where, _where)
