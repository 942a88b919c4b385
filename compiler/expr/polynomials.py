"""What the vector functions are made of: polynomials, bounds, bits.

The functions are in `exponentials`, `logarithms`, `powers` and `trigonometry`. Polynomials are
weighted least-squares fits on Chebyshev nodes, iterated towards minimax (Lawson's algorithm) for
the relative error of the result over the reduced interval; coefficients were rounded to f32 one
after another, from the constant term up, and those that remained were fitted again. The largest
errors, in units in the last place of the result, are said with each function and hold over all of
f32: denormals, infinities, NaN and the sign of zero come out as they should
(tests/compiler/llvm/test_vector_functions.py).

Of f64 the exponentials, the logarithm, sine and cosine are vector code too, with Taylor series that
are long enough for their interval; the others call libm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunefarm.compiler.expr.instructions import Instructions
from tunefarm.compiler.types.dtypes import DType

MANTISSA = {DType.F32: 23, DType.F64: 52}
"""Bits behind the point of a normal number."""


def horner(m: Instructions, x: str, coefficients: Sequence[float]) -> str:
    """A polynomial by Horner's scheme; coefficients from the constant term up."""
    result = m.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = m.fma(result, x, m.constant(coefficient))
    return result


def odd(m: Instructions, x: str, square: str, coefficients: Sequence[float]) -> str:
    """x + x^3 p(x^2), which near zero is x."""
    return m.fma(m.emit("fmul", x, square), horner(m, square, coefficients), x)


def at_least(m: Instructions, low: float, x: str) -> str:
    """The larger of the two; NaN stays."""
    bound = m.constant(low)
    return m.select(m.compare("gt", bound, x), bound, x)


def at_most(m: Instructions, high: float, x: str) -> str:
    """The smaller of the two; NaN stays."""
    bound = m.constant(high)
    return m.select(m.compare("lt", bound, x), bound, x)


def magnitude(m: Instructions, x: str) -> str:
    """|x|."""
    return m.call("llvm.fabs", x)


def with_sign_of(m: Instructions, x: str, sign: str) -> str:
    """The magnitude of x with the sign of another value."""
    return m.call("llvm.copysign", x, sign)


def square_root(m: Instructions, x: str) -> str:
    """The square root, rounded correctly."""
    return m.call("llvm.sqrt", x)


def integers(m: Instructions) -> Instructions:
    """Instructions on the bits of floats."""
    return m.of(DType.I32 if m.dtype is DType.F32 else DType.I64)


def bits_of(m: Instructions, x: str) -> str:
    """The bits of floats as integers of the same width."""
    return m.convert("bitcast", x, integers(m).dtype)


def from_bits(m: Instructions, bits: str) -> str:
    """Floats of these bits."""
    return integers(m).convert("bitcast", bits, m.dtype)


def rounding(m: Instructions) -> str:
    """What makes an integer of a number that it is added to, in the sum's lowest bits."""
    return m.constant(1.5 * 2.0 ** MANTISSA[m.dtype])


def taylor(first: int, count: int, step: int = 1, sign: int = 1) -> tuple[float, ...]:
    """sign / first!, sign^2 / (first + step)!, and so on."""
    return tuple(sign ** (i + 1) / math.factorial(first + step * i) for i in range(count))
