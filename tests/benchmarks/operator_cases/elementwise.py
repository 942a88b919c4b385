"""Element by element: arithmetic, functions, activations in their spellings, broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tests.benchmarks.operator_cases.case import CaseBuilder, OperatorCase, one_node, shape_text

_TOKENS = (1, 128, 3072)
_IMAGE = (1, 64, 56, 56)

# name, shape of the second operand
_BINARY: tuple[tuple[str, Sequence[int], Sequence[int]], ...] = (
    ("Add", _IMAGE, _IMAGE),
    ("Add", (16 << 20,), (16 << 20,)),
    ("Mul", _IMAGE, (1, 64, 1, 1)),
    ("Mul", _IMAGE, (1, 1, 56, 56)),
    ("Add", _TOKENS, (3072,)),
    ("Sub", (1, 37, 29, 31), (37, 1, 31)),
    ("Div", _IMAGE, _IMAGE),
    ("Max", _IMAGE, (1,)),
    ("Add", (128, 1), (1, 3000)),
    ("Mul", (100, 100, 3), (3,)),
    ("PRelu", _IMAGE, (64, 1, 1)),
)
# name, lowest value where the domain is bounded
_FUNCTIONS: tuple[tuple[str, float | None], ...] = (
    ("Exp", None),
    ("Log", 0.1),
    ("Sqrt", 0.1),
    ("Reciprocal", 0.1),
    ("Sin", None),
    ("Cos", None),
    ("Tan", -1.0),
    ("Asin", -1.0),
    ("Atan", None),
    ("Sinh", None),
    ("Erf", None),
    ("Tanh", None),
    ("Sigmoid", None),
    ("Softplus", None),
    ("Softsign", None),
    ("Floor", None),
    ("Round", None),
    ("Sign", None),
    ("Abs", None),
    ("Neg", None),
)
_ACTIVATIONS = (
    "Relu",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Celu",
    "HardSigmoid",
    "HardSwish",
    "Mish",
    "ThresholdedRelu",
    "Gelu",
)


def cases() -> Iterator[OperatorCase]:
    """All cases of the file."""
    for operator, left, right in _BINARY:
        name = f"{operator}: {shape_text(left)} and {shape_text(right)}"
        low = 0.5 if operator == "Div" else None
        yield one_node("elementwise", name, operator, left, right, low=low)
    for operator, low in _FUNCTIONS:
        name = f"{operator}: {shape_text(_TOKENS)}"
        yield one_node("function", name, operator, _TOKENS, low=low)
    for operator in _ACTIVATIONS:
        yield one_node("activation", f"{operator}: {shape_text(_IMAGE)}", operator, _IMAGE)
    for name, write in _SPELLED_OUT.items():
        yield _spelled_out(name, write, _TOKENS)
    for name in ("SiLU", "hard-swish by clip", "mish spelled out"):
        yield _between_convolutions(name, _SPELLED_OUT[name])
    for name, build in _OTHERS.items():
        yield OperatorCase("elementwise", name, build)


def _spelled_out(
    name: str, write: Callable[[CaseBuilder, str], str], shape: Sequence[int]
) -> OperatorCase:
    return OperatorCase(
        "activation", f"{name}: {shape_text(shape)}", lambda net: write(net, net.input(*shape))
    )


def _between_convolutions(name: str, write: Callable[[CaseBuilder, str], str]) -> OperatorCase:
    return OperatorCase(
        "activation",
        f"{name} between convs: {shape_text(_IMAGE)}",
        lambda net: net.conv(write(net, net.conv(net.input(1, 16, 56, 56), 16, 64)), 64, 16),
    )


def _gelu(net: CaseBuilder, data: str) -> str:
    erf = net.node("Erf", net.node("Div", data, net.constant(math.sqrt(2.0))))
    product = net.node("Mul", data, net.node("Add", erf, net.constant(1.0)))
    return net.node("Mul", product, net.constant(0.5))


def _gelu_tanh(net: CaseBuilder, data: str) -> str:
    cube = net.node("Mul", net.node("Pow", data, net.constant(3.0)), net.constant(0.044715))
    inner = net.node("Mul", net.node("Add", data, cube), net.constant(math.sqrt(2.0 / math.pi)))
    outer = net.node("Add", net.node("Tanh", inner), net.constant(1.0))
    return net.node("Mul", net.node("Mul", data, net.constant(0.5)), outer)


def _gelu_sigmoid(net: CaseBuilder, data: str) -> str:
    return net.node("Mul", data, net.node("Sigmoid", net.node("Mul", data, net.constant(1.702))))


def _hard_swish(net: CaseBuilder, data: str) -> str:
    shifted = net.node("Add", data, net.constant(3.0))
    clipped = net.node("Clip", shifted, net.constant(0.0), net.constant(6.0))
    return net.node("Div", net.node("Mul", data, clipped), net.constant(6.0))


def _mish(net: CaseBuilder, data: str) -> str:
    return net.node("Mul", data, net.node("Tanh", net.node("Softplus", data)))


_SPELLED_OUT: dict[str, Callable[[CaseBuilder, str], str]] = {
    "GELU by erf": _gelu,
    "GELU by tanh": _gelu_tanh,
    "GELU by sigmoid": _gelu_sigmoid,
    "SiLU": lambda net, data: net.node("Mul", data, net.node("Sigmoid", data)),
    "hard-swish by clip": _hard_swish,
    "mish spelled out": _mish,
    "squared ReLU": lambda net, data: net.node("Pow", net.node("Relu", data), net.constant(2.0)),
    "Pow 0.5": lambda net, data: net.node("Pow", net.node("Abs", data), net.constant(0.5)),
    "Pow -1": lambda net, data: net.node("Pow", data, net.constant(-1.0)),
    "Pow 2.2": lambda net, data: net.node("Pow", net.node("Abs", data), net.constant(2.2)),
}


def _where(net: CaseBuilder) -> str:
    return net.node("Where", net.mask(*_IMAGE), net.input(*_IMAGE), net.input(*_IMAGE))


def _where_broadcast(net: CaseBuilder) -> str:
    allowed = net.mask(1, 1, 128, 128)
    return net.node("Where", allowed, net.input(1, 12, 128, 128), net.constant(-1e9))


def _comparison(net: CaseBuilder) -> str:
    greater = net.node("Greater", net.input(*_IMAGE), net.input(*_IMAGE))
    return net.node("Cast", greater, to=1)


def _power(net: CaseBuilder) -> str:
    return net.node("Pow", net.input(1, 128, 768, low=0.1), net.input(1, 128, 768))


def _modulo(net: CaseBuilder) -> str:
    return net.node("Mod", net.indices(1000, 128, 768), net.constant(np.array(7)))


def _from_bytes(net: CaseBuilder) -> str:
    floats = net.node("Cast", net.bytes(1, 3, 224, 224), to=1)
    centred = net.node("Sub", net.node("Div", floats, net.constant(255.0)), net.constant(0.5))
    return net.node("Div", centred, net.constant(np.array([0.2, 0.25, 0.3]).reshape(1, 3, 1, 1)))


def _quantised(net: CaseBuilder) -> str:
    scale, zero = net.constant(0.05), net.constant(np.array(128, np.uint8))
    return net.node("QuantizeLinear", net.input(*_IMAGE), scale, zero)


def _from_quantised(net: CaseBuilder) -> str:
    scale, zero = net.constant(0.05), net.constant(np.array(128, np.uint8))
    return net.node("DequantizeLinear", net.bytes(*_IMAGE), scale, zero)


def _excitation(net: CaseBuilder) -> str:
    """Squeeze and excitation between convolutions."""
    data = net.conv(net.input(1, 16, 28, 28), 16, 96)
    mean = net.node("GlobalAveragePool", data)
    gate = net.conv(net.node("Relu", net.conv(mean, 96, 24)), 24, 96)
    return net.conv(net.node("Mul", data, net.node("Sigmoid", gate)), 96, 16)


def _residual_sum(net: CaseBuilder) -> str:
    data = net.conv(net.input(1, 16, 56, 56), 16, 64)
    return net.conv(net.node("Relu", net.node("Add", data, net.input(1, 64, 56, 56))), 64, 16)


_OTHERS: dict[str, Callable[[CaseBuilder], str]] = {
    "Where: 1x64x56x56": _where,
    "Where of a mask: 1x12x128x128": _where_broadcast,
    "Greater, Cast: 1x64x56x56": _comparison,
    "Pow of two tensors: 1x128x768": _power,
    "Mod of integers: 128x768": _modulo,
    "image from bytes: 1x3x224x224": _from_bytes,
    "QuantizeLinear: 1x64x56x56": _quantised,
    "DequantizeLinear: 1x64x56x56": _from_quantised,
    "squeeze and excitation between convs: 1x96x28x28": _excitation,
    "residual sum with a plain input between convs: 1x64x56x56": _residual_sum,
}
