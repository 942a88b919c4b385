"""Cases of the pointwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.compiler.operators.cases import (
    ALL,
    FLOATS,
    INTEGERS,
    NUMBERS,
    SIGNED_INTEGERS,
    UNSIGNED_INTEGERS,
    Case,
    Values,
    array,
    case,
    reference,
)

SIGNED = FLOATS + SIGNED_INTEGERS
SHAPES = ((), (1,), (13,), (7, 1, 3))
HALVES = (-2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, 1e-3, -30.0, 30.0, 100.0, -100.0)

# operator -> ONNX name, element types, smallest argument
FUNCTIONS: dict[str, tuple[str, tuple[str, ...], float]] = {
    "neg": ("Neg", SIGNED, -4),
    "abs": ("Abs", NUMBERS, -4),
    "exp": ("Exp", FLOATS, -4),
    "log": ("Log", FLOATS, 0.1),
    "sqrt": ("Sqrt", FLOATS, 0),
    "reciprocal": ("Reciprocal", FLOATS, 0.1),
    "tanh": ("Tanh", FLOATS, -4),
    "erf": ("Erf", ("float32",), -4),
    "sigmoid": ("Sigmoid", FLOATS, -4),
    "sin": ("Sin", FLOATS, -4),
    "cos": ("Cos", FLOATS, -4),
    "tan": ("Tan", FLOATS, -4),
    "atan": ("Atan", FLOATS, -4),
    "sinh": ("Sinh", FLOATS, -4),
    "cosh": ("Cosh", FLOATS, -4),
    "asinh": ("Asinh", FLOATS, -4),
    "acosh": ("Acosh", FLOATS, 1),
    "floor": ("Floor", FLOATS, -4),
    "ceil": ("Ceil", FLOATS, -4),
    "round": ("Round", FLOATS, -4),
    "sign": ("Sign", NUMBERS, -4),
    "not": ("Not", ("bool",), 0),
    "bitwise_not": ("BitwiseNot", INTEGERS, -4),
    "relu": ("Relu", SIGNED, -4),
    "softplus": ("Softplus", FLOATS, -4),
    "hard_swish": ("HardSwish", ("float32",), -4),
    "mish": ("Mish", FLOATS, -4),
    "identity": ("Identity", ALL, -4),
}
HALVES_TOO = ("round", "floor", "ceil", "sign", "relu", "abs", "hard_swish", "tanh", "sigmoid")

# operator, ONNX name, attributes
ACTIVATIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("leaky_relu", "LeakyRelu", {}),
    ("leaky_relu", "LeakyRelu", {"alpha": 0.2}),
    ("leaky_relu", "LeakyRelu", {"alpha": 1.5}),
    ("leaky_relu", "LeakyRelu", {"alpha": -0.5}),
    ("elu", "Elu", {}),
    ("elu", "Elu", {"alpha": 2.0}),
    ("selu", "Selu", {}),
    ("selu", "Selu", {"alpha": 2.0, "gamma": 3.0}),
    ("celu", "Celu", {}),
    ("celu", "Celu", {"alpha": 2.0}),
    ("hard_sigmoid", "HardSigmoid", {}),
    ("hard_sigmoid", "HardSigmoid", {"alpha": 0.5, "beta": 0.6}),
    ("gelu", "Gelu", {}),
    ("gelu", "Gelu", {"approximate": "tanh"}),
    ("thresholded_relu", "ThresholdedRelu", {}),
    ("thresholded_relu", "ThresholdedRelu", {"alpha": 2.0}),
)

# operator -> ONNX name, element types
OPERATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "add": ("Add", NUMBERS),
    "sub": ("Sub", NUMBERS),
    "mul": ("Mul", NUMBERS),
    "max": ("Max", NUMBERS),
    "min": ("Min", NUMBERS),
    "mod": ("Mod", INTEGERS),
    "and": ("And", ("bool",)),
    "or": ("Or", ("bool",)),
    "xor": ("Xor", ("bool",)),
    "equal": ("Equal", ALL),
    "less": ("Less", NUMBERS),
    "greater": ("Greater", NUMBERS),
    "less_equal": ("LessOrEqual", NUMBERS),
    "greater_equal": ("GreaterOrEqual", NUMBERS),
    "bitwise_and": ("BitwiseAnd", INTEGERS),
    "bitwise_or": ("BitwiseOr", INTEGERS),
    "bitwise_xor": ("BitwiseXor", INTEGERS),
    "prelu": ("PRelu", ("float32", "float64", "int32", "int64", "uint32", "uint64")),
}
BROADCASTS = (((13,), (13,)), ((7, 1, 3), (1, 5, 3)), ((2, 7), ()), ((1,), (3, 1)))


def _nonzero(values: Values) -> Values:
    return np.where(values == 0, np.ones((), values.dtype), values)


def _numpy(function: Callable[..., Any], *arguments: Values) -> Callable[[], Values]:
    def run() -> Values:
        with np.errstate(all="ignore"):
            return np.asarray(function(*arguments)).astype(arguments[0].dtype)

    return run


def _functions() -> Iterator[Case]:
    for operator, (name, dtypes, low) in FUNCTIONS.items():
        for dtype in dtypes:
            shapes = SHAPES if dtype == dtypes[0] else SHAPES[2:3]
            for shape in shapes:
                x = array(1, shape, dtype, low)
                yield case(f"{dtype}-{shape}", operator, [x], reference(name, x))
    for operator in HALVES_TOO:
        x = np.array(HALVES, "float32")
        yield case("halves", operator, [x], reference(FUNCTIONS[operator][0], x))
    for operator, function in (
        ("asin", np.arcsin),
        ("acos", np.arccos),
        ("atanh", np.arctanh),
        ("erf", np.vectorize(math.erf)),
        ("softsign", lambda x: x / (1 + np.abs(x))),
        ("hard_swish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    ):
        for dtype in FLOATS:
            x = np.linspace(-0.9, 0.9, 13).astype(dtype)
            yield case(dtype, operator, [x], _numpy(function, x))


def _activations() -> Iterator[Case]:
    for operator, name, attributes in ACTIVATIONS:
        for dtype in ("float32",) if operator == "celu" else FLOATS:
            x = array(2, (7, 13), dtype)
            id = f"{dtype}-{attributes}"
            opset = 22 if name != "Gelu" else 20
            expected = reference(name, x, opset=opset, **attributes)
            yield case(id, operator, [x], expected, 1e-5, **attributes)
    for alpha in (1.0, 1.7):
        x = array(3, (13,))
        expected = _numpy(lambda x, alpha=alpha: x / (1 + np.exp(-alpha * x)), x)
        yield case(f"{alpha}", "swish", [x], expected, alpha=alpha)
    for dtype in NUMBERS:
        x = array(4, (13,), dtype)
        expected = reference("Shrink", x, lambd=1.5, bias=1.0)
        yield case(dtype, "shrink", [x], expected, lambd=1.5, bias=1.0)
    x = np.array([500.0, -500.0], "float32")
    yield case("large", "softplus", [x], lambda: np.array([500.0, 0.0], "float32"))


def _clips() -> Iterator[Case]:
    bounds: tuple[tuple[float | None, float | None], ...] = (
        (0, 6),
        (None, 3),
        (2, None),
        (None, None),
        (5, 2),
    )
    for dtype in NUMBERS:
        x = array(5, (13,), dtype)
        for low, high in bounds:
            ends = [None if end is None else np.array(end, dtype) for end in (low, high)]
            expected = reference("Clip", x, *ends)
            yield case(f"{dtype}-{low}-{high}", "clip", [x], expected, min=low, max=high)
    x = array(6, (13,), "uint8")
    yield case("beyond-type", "clip", [x], lambda: x, min=-5, max=1e9)
    y = array(6, (13,), "float32")
    yield case("infinite", "clip", [y], lambda: y, min=-np.inf, max=np.inf)


def _specials() -> Iterator[Case]:
    for dtype in FLOATS:
        x = np.array([np.nan, np.inf, -np.inf, 0, np.finfo(dtype).max], dtype)
        yield case(dtype, "isnan", [x], reference("IsNaN", x))
        for negative, positive in ((1, 1), (0, 1), (1, 0), (0, 0)):
            flags = {"detect_negative": negative, "detect_positive": positive}
            expected = reference("IsInf", x, **flags)
            yield case(f"{dtype}-{negative}{positive}", "isinf", [x], expected, **flags)
        yield case(f"{dtype}-nan", "relu", [x], reference("Relu", x))
    for source in ALL:
        for target in ALL:
            x = array(7, (13,), source, 0 if target in UNSIGNED_INTEGERS else -4)
            short = {"float": "f", "int": "i", "uint": "u", "bool": "bool"}
            kind = target.rstrip("0123456789")
            to = short[kind] + target[len(kind) :]
            expected = _cast(x, target)
            yield case(f"{source}-{target}", "cast", [x], expected, to=to)


def _cast(x: Values, target: str) -> Callable[[], Values]:
    return lambda: x.astype(target)


def _operations() -> Iterator[Case]:
    for operator, (name, dtypes) in OPERATIONS.items():
        for dtype in dtypes:
            shapes = BROADCASTS if dtype == dtypes[0] else BROADCASTS[1:2]
            for left, right in shapes:
                if operator == "prelu" and len(np.broadcast_shapes(left, right)) > len(left):
                    continue
                x, y = array(8, left, dtype), array(9, right, dtype)
                if operator == "prelu":
                    x = np.broadcast_to(x, np.broadcast_shapes(left, right)).copy()
                if operator == "mod":
                    y = _nonzero(y)
                yield case(f"{dtype}-{left}-{right}", operator, [x, y], reference(name, x, y))
    for dtype in NUMBERS:
        x, y = array(10, (7, 13), dtype), _nonzero(array(11, (13,), dtype))
        exact = _numpy(lambda x, y: np.trunc(x.astype("f8") / y.astype("f8")), x, y)
        quotient = _numpy(np.divide, x, y) if dtype in FLOATS else exact
        yield case(dtype, "div", [x, y], quotient)
        yield case(dtype, "fmod", [x, y], reference("Mod", x, y, fmod=1))
    for dtype in INTEGERS:
        least = np.iinfo(dtype).min
        x = np.array([5, 7, least, least, 9], dtype)
        y = np.array([0, 2, 0, 1 if dtype in UNSIGNED_INTEGERS else -1, 4], dtype)
        yield case(f"{dtype}-trap", "div", [x, y], _constant([0, 3, 0, least, 2], dtype))
        yield case(f"{dtype}-trap", "mod", [x, y], _constant([0, 1, 0, 0, 1], dtype))
        yield case(f"{dtype}-trap", "fmod", [x, y], _constant([0, 1, 0, 0, 1], dtype))


def _constant(values: list[int], dtype: str) -> Callable[[], Values]:
    return lambda: np.array(values, dtype)


def _mixed() -> Iterator[Case]:
    for base in ("float32", "float64", "int32", "int64"):
        for exponent in ("float32", "float64", "int32", "int64", "uint8"):
            x, y = array(12, (7, 13), base, 1), array(13, (13,), exponent, 0)
            y = np.minimum(y, np.array(5, exponent))
            expected = _numpy(lambda x, y: np.power(x.astype("f8"), y.astype("f8")), x, y)
            yield case(f"{base}-{exponent}", "pow", [x, y], expected)
    for dtype in UNSIGNED_INTEGERS:
        bits = np.dtype(dtype).itemsize * 8
        x, y = array(14, (3, 13), dtype), (np.arange(13) * bits // 12).astype(dtype)
        for direction in ("left", "right"):
            name = direction.upper()
            expected = _numpy(_shift, x, y, np.array(direction == "left"), np.array(bits))
            if dtype == "uint8":
                expected = reference("BitShift", x, y, direction=name)
            yield case(f"{dtype}-{direction}", "bit_shift", [x, y], expected, direction=direction)
    for dtype in ALL:
        flags = array(15, (7, 1, 3), "bool")
        x, y = array(16, (1, 5, 1), dtype), array(17, (3,), dtype)
        yield case(dtype, "where", [flags, x, y], reference("Where", flags, x, y))


def _shift(x: Values, y: Values, left: Values, bits: Values) -> Values:
    mask = (1 << int(bits)) - 1
    pairs = np.broadcast(x, y)
    shifted = [(int(a) << int(b)) & mask if left else int(a) >> int(b) for a, b in pairs]
    return np.array(shifted, x.dtype).reshape(pairs.shape)


def pointwise_cases() -> list[Case]:
    """All cases of this file."""
    return [
        *_functions(),
        *_activations(),
        *_clips(),
        *_specials(),
        *_operations(),
        *_mixed(),
    ]
