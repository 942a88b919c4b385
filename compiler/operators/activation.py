"""Activation functions, each one pointwise expression of its operand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.expr.nodes import Expr, add, binary, cast, const, mul, select, sub, unary
from tunefarm.compiler.operators.elementwise import register_unary
from tunefarm.compiler.operators.rules import check
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.dtypes import FLOATS, NUMBERS, SIGNED, DType

SELU_ALPHA = 1.67326319217681884765625
SELU_GAMMA = 1.05070102214813232421875


def _constant(attributes: Attributes, name: str, x: Expr) -> Expr:
    return const(attributes.floating(name), x.dtype)


def _max(left: Expr, right: Expr) -> Expr:
    return binary("max", left, right)


def _min(left: Expr, right: Expr) -> Expr:
    return binary("min", left, right)


def _relu(attributes: Attributes, x: Expr) -> Expr:
    return _max(x, const(0, x.dtype))


def _leaky_relu(attributes: Attributes, x: Expr) -> Expr:
    scaled = mul(x, _constant(attributes, "alpha", x))
    if 0 <= attributes.floating("alpha") <= 1:
        return _max(x, scaled)
    return select(binary("lt", x, const(0, x.dtype)), scaled, x)


def _elu(attributes: Attributes, x: Expr) -> Expr:
    negative = mul(_constant(attributes, "alpha", x), unary("expm1", x))
    return select(binary("lt", x, const(0, x.dtype)), negative, x)


def _selu(attributes: Attributes, x: Expr) -> Expr:
    return mul(_constant(attributes, "gamma", x), _elu(attributes, x))


def _celu(attributes: Attributes, x: Expr) -> Expr:
    alpha = attributes.floating("alpha")
    zero = const(0, x.dtype)
    negative = mul(const(alpha, x.dtype), unary("expm1", mul(x, const(1 / alpha, x.dtype))))
    return add(_max(x, zero), _min(negative, zero))


def _softplus(attributes: Attributes, x: Expr) -> Expr:
    return unary("softplus", x)


def _softsign(attributes: Attributes, x: Expr) -> Expr:
    return binary("div", x, add(unary("abs", x), const(1, x.dtype)))


def _unit_ramp(x: Expr, slope: float, offset: float) -> Expr:
    line = add(mul(x, const(slope, x.dtype)), const(offset, x.dtype))
    return _max(_min(line, const(1, x.dtype)), const(0, x.dtype))


def _hard_sigmoid(attributes: Attributes, x: Expr) -> Expr:
    alpha, beta = attributes.floating("alpha"), attributes.floating("beta")
    return _unit_ramp(x, alpha, beta)


def _hard_swish(attributes: Attributes, x: Expr) -> Expr:
    return mul(x, _unit_ramp(x, 1 / 6, 0.5))


def _gelu_form(attributes: Attributes) -> str:
    return attributes.choice("approximate", ("none", "tanh"))


def _gelu(attributes: Attributes, x: Expr) -> Expr:
    """Hendrycks and Gimpel, Gaussian Error Linear Units: x P(X <= x), or its tanh form."""
    half, one = const(0.5, x.dtype), const(1, x.dtype)
    if _gelu_form(attributes) == "none":
        inner = unary("erf", mul(x, const(math.sqrt(0.5), x.dtype)))
    else:
        # sqrt(2/pi) (x + 0.044715 x^3), as x (a + b x^2)
        scale = math.sqrt(2 / math.pi)
        cubic = mul(mul(x, x), const(scale * 0.044715, x.dtype))
        inner = unary("tanh", mul(x, add(cubic, const(scale, x.dtype))))
    return mul(mul(x, half), add(inner, one))


def _mish(attributes: Attributes, x: Expr) -> Expr:
    """x tanh(log(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2), which is x for large x."""
    exponential = unary("exp", _min(x, const(40, x.dtype)))
    n = mul(exponential, add(exponential, const(2, x.dtype)))
    return mul(x, binary("div", n, add(n, const(2, x.dtype))))


def _thresholded_relu(attributes: Attributes, x: Expr) -> Expr:
    return select(binary("gt", x, _constant(attributes, "alpha", x)), x, const(0, x.dtype))


def _swish(attributes: Attributes, x: Expr) -> Expr:
    alpha = attributes.floating("alpha")
    scaled = x if alpha == 1 else mul(x, const(alpha, x.dtype))
    return mul(x, unary("sigmoid", scaled))


def _shrink(attributes: Attributes, x: Expr) -> Expr:
    lambd, bias = attributes.floating("lambd"), attributes.floating("bias")
    wide = x if x.dtype.is_float else cast(DType.F64, x)  # integers meet float thresholds
    zero, offset = const(0, wide.dtype), const(bias, wide.dtype)
    above = select(binary("gt", wide, const(lambd, wide.dtype)), sub(wide, offset), zero)
    below = binary("lt", wide, const(-lambd, wide.dtype))
    return cast(x.dtype, select(below, add(wide, offset), above))


def _clip(attributes: Attributes, x: Expr) -> Expr:
    low, high = _clip_bounds(attributes)
    if x.dtype.is_float:
        smallest, largest = -math.inf, math.inf
    else:
        limits = np.iinfo(x.dtype.numpy)
        smallest, largest = int(limits.min), int(limits.max)
    if low is not None and low > smallest:
        x = _max(x, const(min(low, largest), x.dtype))
    if high is not None and high < largest:
        x = _min(x, const(max(high, smallest), x.dtype))
    return x


def _clip_bounds(attributes: Attributes) -> list[int | float | None]:
    """The bounds `min` and `max`, None where there is none."""
    bounds: list[int | float | None] = []
    for name in ("min", "max"):
        value = attributes[name]
        if value is not None and (value != value or isinstance(value, bool | str | tuple)):
            raise ShapeError(f"attribute {name} must be a number or absent, not {value!r}")
        bounds.append(value)
    return bounds


def _check_celu(attributes: Attributes) -> None:
    check(attributes.floating("alpha") != 0, "attribute alpha must not be 0")


def _affine(attributes: Attributes, x: Expr) -> Expr:
    return add(mul(x, _constant(attributes, "alpha", x)), _constant(attributes, "beta", x))


def _scaled_tanh(attributes: Attributes, x: Expr) -> Expr:
    inner = unary("tanh", mul(x, _constant(attributes, "beta", x)))
    return mul(inner, _constant(attributes, "alpha", x))


RECURRENT: Mapping[str, Callable[[Attributes, Expr], Expr]] = {
    "affine": _affine,
    "elu": _elu,
    "hard_sigmoid": _hard_sigmoid,
    "leaky_relu": _leaky_relu,
    "relu": _relu,
    "scaled_tanh": _scaled_tanh,
    "sigmoid": lambda attributes, x: unary("sigmoid", x),
    "softplus": _softplus,
    "softsign": _softsign,
    "tanh": lambda attributes, x: unary("tanh", x),
    "thresholded_relu": _thresholded_relu,
}
"""The functions that recurrent layers have, of the attributes `alpha` and `beta`."""

register_unary("relu", SIGNED, _relu)
register_unary("leaky_relu", FLOATS, _leaky_relu, alpha=0.01)
register_unary("elu", FLOATS, _elu, cheap=False, alpha=1.0)
register_unary("selu", FLOATS, _selu, cheap=False, alpha=SELU_ALPHA, gamma=SELU_GAMMA)
register_unary("celu", FLOATS, _celu, cheap=False, validate=_check_celu, alpha=1.0)
register_unary("softplus", FLOATS, _softplus, cheap=False)
register_unary("softsign", FLOATS, _softsign, cheap=False)
register_unary("hard_sigmoid", FLOATS, _hard_sigmoid, alpha=0.2, beta=0.5)
register_unary("hard_swish", FLOATS, _hard_swish)
register_unary("gelu", FLOATS, _gelu, cheap=False, validate=_gelu_form, approximate="none")
register_unary("mish", FLOATS, _mish, cheap=False)
register_unary("thresholded_relu", FLOATS, _thresholded_relu, alpha=1.0)
register_unary("swish", FLOATS, _swish, cheap=False, alpha=1.0)
register_unary("shrink", NUMBERS, _shrink, lambd=0.5, bias=0.0)
register_unary("clip", NUMBERS, _clip, validate=_clip_bounds, min=None, max=None)
