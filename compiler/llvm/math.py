"""f32 functions as vector polynomials.

Coefficients are weighted least-squares fits, iterated towards minimax, over the reduced interval.
Largest errors, in units in the last place of the result: exp 1.1, log 0.9, tanh 1.4, sigmoid 2.4,
erf 2.5; denormals, infinities, NaN and the sign of zero come out as they should
(tests/compiler/llvm/test_math.py). Other functions, and f64, call libm.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import pack, unpack

from compiler.llvm.writer import FunctionWriter, Value, suffix_of, type_of
from compiler.types.dtypes import DType

# exp(r) = 1 + r + r^2 p(r), |r| <= ln(2)/2
_EXP = (0.5, 0.166665181517601, 0.04166620224714279, 0.008368969894945621, 0.0013950627762824297)
# tanh(x) = x + x z p(z), z = x^2, |x| <= 0.625
_TANH = (
    -0.3333328366279602,
    0.13331490755081177,
    -0.05374349281191826,
    0.020650576800107956,
    -0.0057170335203409195,
)
# erf(x) = x p(x^2), |x| <= 1
_ERF_SMALL = (
    1.1283791065216064,
    -0.3761262595653534,
    0.11283600330352783,
    -0.026854444295167923,
    0.005189535208046436,
    -0.0008020841050893068,
    7.889118569437414e-05,
)
# erf(x) = 1 - exp(p(x)), 1 <= x <= 4
_ERF_LARGE = (
    0.00020436030172277242,
    -1.129661202430725,
    -0.6330395936965942,
    -0.10863900184631348,
    0.025373561307787895,
    -0.0042823851108551025,
    0.00046378871775232255,
    -2.5314921003882773e-05,
    2.513346260002436e-07,
)
# log(1 + f) = f - f^2/2 + f^3 p(f), sqrt(1/2) <= 1 + f <= sqrt(2)
_LOG = (
    0.33333316445350647,
    -0.25000810623168945,
    0.2000228613615036,
    -0.16624553501605988,
    0.14181196689605713,
    -0.13128772377967834,
    0.128816157579422,
    -0.07859525829553604,
)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4


def float_literal(value: float, dtype: DType) -> str:
    """An LLVM floating-point literal with exactly this value (rounded to `dtype`)."""
    if dtype is DType.F32:
        value = float(unpack("<f", pack("<f", value))[0]) if abs(value) < 3.5e38 else value
    return f"0x{unpack('<Q', pack('<d', value))[0]:016X}"


class VectorMath:
    """Emits arithmetic on f32 values of one width; every method takes and gives operand texts."""

    def __init__(self, writer: FunctionWriter, width: int, has_fma: bool) -> None:
        self.writer = writer
        self.width = width
        self.has_fma = has_fma
        self.type = type_of(DType.F32, width)
        self.int_type = type_of(DType.I32, width)
        self.bool_type = type_of(DType.BOOL, width)
        self.suffix = suffix_of(DType.F32, width)

    def constant(self, value: float) -> str:
        literal = float_literal(value, DType.F32)
        return f"splat (float {literal})" if self.width else literal

    def integer(self, value: int) -> str:
        return f"splat (i32 {value})" if self.width else str(value)

    def fma(self, a: str, b: str, c: str) -> str:
        if self.has_fma:
            return self.call("llvm.fma", a, b, c)
        return self.op("fadd", self.op("fmul", a, b), c)

    def op(self, name: str, a: str, b: str) -> str:
        return self.writer.emit(f"{name} {self.type} {a}, {b}")

    def int_op(self, name: str, a: str, b: str) -> str:
        return self.writer.emit(f"{name} {self.int_type} {a}, {b}")

    def call(self, name: str, *arguments: str) -> str:
        typed = [f"{self.type} {argument}" for argument in arguments]
        return self.writer.intrinsic(f"{name}.{self.suffix}", self.type, typed)

    def compare(self, predicate: str, a: str, b: str) -> str:
        return self.writer.emit(f"fcmp {predicate} {self.type} {a}, {b}")

    def select(self, condition: str, a: str, b: str) -> str:
        return self.writer.emit(
            f"select {self.bool_type} {condition}, {self.type} {a}, {self.type} {b}"
        )

    def polynomial(self, x: str, coefficients: tuple[float, ...]) -> str:
        """Horner's scheme; coefficients from the constant term up."""
        result = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.constant(coefficient))
        return result

    def _to_int(self, x: str) -> str:
        converted = self.writer.emit(f"fptosi {self.type} {x} to {self.int_type}")
        return self.writer.emit(f"freeze {self.int_type} {converted}")

    def _power_of_two(self, exponent: str) -> str:
        bits = self.int_op("shl", self.int_op("add", exponent, self.integer(127)), self.integer(23))
        return self.writer.emit(f"bitcast {self.int_type} {bits} to {self.type}")

    def exp(self, x: str) -> str:
        """e^x: x = n ln2 + r, a polynomial in r, and 2^n in two factors for the denormal range."""
        low, high = self.constant(-104.0), self.constant(89.0)
        x = self.select(self.compare("ogt", low, x), low, x)
        x = self.select(self.compare("olt", high, x), high, x)
        p, exponent = self._exp_parts(x)
        half = self.int_op("ashr", exponent, self.integer(1))
        rest = self.int_op("sub", exponent, half)
        return self.op(
            "fmul", self.op("fmul", p, self._power_of_two(half)), self._power_of_two(rest)
        )

    def normal_exp(self, x: str) -> str:
        """e^x for |x| <= 87 or NaN, where the result is neither denormal nor infinite."""
        p, exponent = self._exp_parts(x)
        return self.op("fmul", p, self._power_of_two(exponent))

    def _exp_parts(self, x: str) -> tuple[str, str]:
        """p and the integer n with e^x = p 2^n."""
        n = self.call("llvm.rint", self.op("fmul", x, self.constant(1.4426950408889634)))
        r = self.fma(n, self.constant(-_LN2_HIGH), x)
        r = self.fma(n, self.constant(-_LN2_LOW), r)
        p = self.fma(self.op("fmul", r, r), self.polynomial(r, _EXP), r)
        return self.op("fadd", p, self.constant(1.0)), self._to_int(n)

    def sigmoid(self, x: str) -> str:
        """1 / (1 + e^-x), for x < 0 as e^x / (1 + e^x), which does not overflow."""
        magnitude = self.call("llvm.fabs", x)
        e = self.exp(self.writer.emit(f"fneg {self.type} {magnitude}"))
        one = self.constant(1.0)
        numerator = self.select(self.compare("olt", x, self.constant(0.0)), e, one)
        return self.op("fdiv", numerator, self.op("fadd", e, one))

    def tanh(self, x: str) -> str:
        z = self.op("fmul", x, x)
        small = self.fma(self.op("fmul", x, z), self.polynomial(z, _TANH), x)
        magnitude = self.call("llvm.fabs", x)
        ten = self.constant(10.0)  # from here on tanh is 1
        clamped = self.select(self.compare("ogt", magnitude, ten), ten, magnitude)
        e = self.normal_exp(self.op("fadd", clamped, clamped))
        quotient = self.op("fdiv", self.constant(2.0), self.op("fadd", e, self.constant(1.0)))
        large = self.op("fsub", self.constant(1.0), quotient)
        is_small = self.compare("ule", magnitude, self.constant(0.625))
        return self.call("llvm.copysign", self.select(is_small, small, large), x)

    def erf(self, x: str) -> str:
        magnitude = self.call("llvm.fabs", x)
        small = self.op("fmul", x, self.polynomial(self.op("fmul", x, x), _ERF_SMALL))
        four = self.constant(4.0)
        clamped = self.select(self.compare("ogt", magnitude, four), four, magnitude)
        e = self.normal_exp(self.polynomial(clamped, _ERF_LARGE))
        large = self.call("llvm.copysign", self.op("fsub", self.constant(1.0), e), x)
        return self.select(self.compare("ule", magnitude, self.constant(1.0)), small, large)

    def log(self, x: str) -> str:
        """log x: x = 2^n m with m in [sqrt(1/2), sqrt(2)), a polynomial in m - 1."""
        tiny = self.compare("olt", x, self.constant(1.1754943508222875e-38))
        scaled = self.select(tiny, self.op("fmul", x, self.constant(2.0**25)), x)
        bits = self.writer.emit(f"bitcast {self.type} {scaled} to {self.int_type}")
        # The exponent of m's interval, rounded so that m >= sqrt(1/2).
        shifted = self.int_op("sub", bits, self.integer(0x3F3504F3))
        n = self.int_op("ashr", shifted, self.integer(23))
        m_bits = self.int_op("sub", bits, self.int_op("shl", n, self.integer(23)))
        m = self.writer.emit(f"bitcast {self.int_type} {m_bits} to {self.type}")
        f = self.op("fsub", m, self.constant(1.0))
        e = self.writer.emit(f"sitofp {self.int_type} {n} to {self.type}")
        e = self.select(tiny, self.op("fsub", e, self.constant(25.0)), e)
        f2 = self.op("fmul", f, f)
        y = self.op("fmul", self.op("fmul", f2, f), self.polynomial(f, _LOG))
        y = self.fma(e, self.constant(_LN2_LOW), y)
        y = self.fma(f2, self.constant(-0.5), y)
        y = self.op("fadd", f, y)
        y = self.fma(e, self.constant(_LN2_HIGH), y)
        infinity = self.constant(float("inf"))
        y = self.select(self.compare("oeq", x, infinity), infinity, y)
        zero = self.constant(0.0)
        y = self.select(self.compare("oeq", x, zero), self.constant(float("-inf")), y)
        return self.select(self.compare("ult", x, zero), self.constant(float("nan")), y)


VECTOR_FUNCTIONS: dict[str, Callable[[VectorMath, str], str]] = {
    "exp": VectorMath.exp,
    "log": VectorMath.log,
    "tanh": VectorMath.tanh,
    "erf": VectorMath.erf,
    "sigmoid": VectorMath.sigmoid,
}


def vector_function(writer: FunctionWriter, op: str, x: Value, has_fma: bool) -> Value:
    """The f32 function `op` of a scalar or vector."""
    text = VECTOR_FUNCTIONS[op](VectorMath(writer, x.width, has_fma), x.text)
    return Value(text, DType.F32, x.width)
