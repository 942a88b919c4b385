"""How networks are drawn: the blocks in whose graphs there is something to decide.

Convolutions with what comes behind them, inverted residuals, branches that are joined, products
that read the same data, and activations, norms and attention that are spelled out.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tests.attack.drawn_model import Drawing, Drawn
from tests.attack.drawn_operators import add_node

CHANNELS = (3, 4, 8, 8, 12, 16, 16, 20, 24)
BLOCKS = (2, 5)
OTHERS = 0.25
"""The share of blocks in whose place there is a node of any kind."""


class _RefusedError(Exception):
    """The drawing does not take a node: onnxruntime refuses it, or its values get too large."""


def draw_network(seed: int) -> Drawn:
    """The network of this seed."""
    d = Drawing(random.Random(seed))
    image = d.rng.random() < 0.75
    x = _image(d) if image else _sequence(d)
    for _ in range(d.rng.randint(*BLOCKS)):
        if d.rng.random() < OTHERS:
            add_node(d)
            continue
        try:
            x = d.rng.choice(_IMAGE_BLOCKS if image else _SEQUENCE_BLOCKS)(d, x)
        except _RefusedError:
            continue
    while not d.nodes:
        add_node(d)
    return d.finished()


def _image(d: Drawing) -> str:
    spatial = d.extent((5, 7, 8, 9, 12))
    return d.input(d.array([d.extent((1, 1, 2)), d.extent(CHANNELS[:7]), spatial, spatial]))


def _sequence(d: Drawing) -> str:
    return d.input(d.array([d.extent((1, 2)), d.extent((4, 5, 9)), d.extent((8, 12, 16))]))


def _node(d: Drawing, operator: str, *operands: str, **attributes: Any) -> str:
    name = d.node(operator, *operands, **attributes)
    if not name:
        raise _RefusedError
    return name


def _number(d: Drawing, value: float) -> str:
    return d.constant(np.array(value, np.float32))


def _weight(d: Drawing, *shape: int) -> str:
    fan = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    return d.constant((d.array(shape) / np.sqrt(fan)).astype(np.float32))


# --- activations, spelled out or not ------------------------------------------------------------


def _activated(d: Drawing, x: str) -> str:
    kind = d.rng.choice(("none", "Relu", "silu", "gelu", "hard_swish", "mish", "Clip"))
    match kind:
        case "none":
            return x
        case "Relu":
            return _node(d, "Relu", x)
        case "Clip":
            return _node(d, "Clip", x, _number(d, 0.0), _number(d, 6.0))
        case "silu":
            return _node(d, "Mul", x, _node(d, "Sigmoid", x))
        case "mish":
            return _node(d, "Mul", x, _node(d, "Tanh", _node(d, "Softplus", x)))
        case "hard_swish":
            ramp = _node(d, "Clip", _node(d, "Add", x, _number(d, 3)), _number(d, 0), _number(d, 6))
            return _node(d, "Div", _node(d, "Mul", x, ramp), _number(d, 6))
    gate = _node(d, "Erf", _node(d, "Div", x, _number(d, np.sqrt(2))))
    half = _node(d, "Mul", x, _node(d, "Add", gate, _number(d, 1)))
    return _node(d, "Mul", half, _number(d, 0.5))


def _softmax(d: Drawing, x: str) -> str:
    if d.rng.random() < 0.4:
        return _node(d, "Softmax", x, axis=-1)
    above = _node(d, "Sub", x, _node(d, "ReduceMax", x, d.integers([-1]), keepdims=1))
    powers = _node(d, "Exp", above)
    return _node(d, "Div", powers, _node(d, "ReduceSum", powers, d.integers([-1]), keepdims=1))


def _normalised(d: Drawing, x: str) -> str:
    axes, width = d.integers([-1]), d.shape(x)[-1]
    centre = _node(d, "Sub", x, _node(d, "ReduceMean", x, axes, keepdims=1))
    square = _node(d, "Pow", centre, _number(d, 2))
    variance = _node(d, "ReduceMean", square, axes, keepdims=1)
    deviation = _node(d, "Sqrt", _node(d, "Add", variance, _number(d, 1e-5)))
    scaled = _node(d, "Mul", _node(d, "Div", centre, deviation), _weight(d, width))
    return _node(d, "Add", scaled, _weight(d, width)) if d.rng.random() < 0.7 else scaled


# --- images -------------------------------------------------------------------------------------


def _convolved(d: Drawing, x: str, outputs: int, size: int, groups: int = 1, step: int = 1) -> str:
    channels = d.shape(x)[1]
    weight = _weight(d, outputs, channels // groups, size, size)
    bias = [_weight(d, outputs)] if d.rng.random() < 0.6 else []
    pads = [size // 2] * 4
    return _node(d, "Conv", x, weight, *bias, group=groups, pads=pads, strides=[step] * 2)


def _convolution(d: Drawing, x: str) -> str:
    step = d.rng.choice((1, 1, 2)) if min(d.shape(x)[2:]) > 4 else 1
    y = _convolved(d, x, d.extent(CHANNELS), d.rng.choice((1, 3, 3)), 1, step)
    return _activated(d, y)


def _residual(d: Drawing, x: str) -> str:
    channels = d.shape(x)[1]
    y = _activated(d, _convolved(d, x, channels, 3))
    y = _node(d, "Add", _convolved(d, y, channels, d.rng.choice((1, 3))), x)
    return _activated(d, y)


def _inverted_residual(d: Drawing, x: str) -> str:
    channels = d.shape(x)[1]
    wide = channels * d.rng.choice((1, 2, 3))
    step = d.rng.choice((1, 1, 2)) if min(d.shape(x)[2:]) > 4 else 1
    y = _activated(d, _convolved(d, x, wide, 1))
    y = _activated(d, _convolved(d, y, wide, 3, wide, step))
    y = _convolved(d, y, channels if d.rng.random() < 0.6 else d.extent(CHANNELS), 1)
    return _node(d, "Add", x, y) if d.shape(x) == d.shape(y) else y


def _branches(d: Drawing, x: str) -> str:
    size = d.rng.choice((1, 1, 3))
    ends = [_convolved(d, x, d.extent(CHANNELS), size) for _ in range(d.rng.choice((2, 3)))]
    ends = [_activated(d, end) for end in ends]
    if d.rng.random() < 0.3:
        ends.append(x)
    return _node(d, "Concat", *ends, axis=1)


def _pooled(d: Drawing, x: str) -> str:
    if min(d.shape(x)[2:]) < 3:
        raise _RefusedError
    kind = d.rng.choice(("MaxPool", "AveragePool"))
    size, step, pad = d.rng.choice(((2, 2, 0), (3, 1, 1), (3, 2, 1)))
    pooled = _node(d, kind, x, kernel_shape=[size] * 2, strides=[step] * 2, pads=[pad] * 4)
    return _activated(d, pooled)


def _excited(d: Drawing, x: str) -> str:
    channels = d.shape(x)[1]
    y = _activated(d, _convolved(d, _node(d, "GlobalAveragePool", x), 4, 1))
    return _node(d, "Mul", x, _node(d, "Sigmoid", _convolved(d, y, channels, 1)))


def _halved(d: Drawing, x: str) -> str:
    channels = d.shape(x)[1]
    if channels < 4:
        raise _RefusedError
    half = [d.integers([value]) for value in (0, channels // 2, 1)]
    first = _node(d, "Slice", x, *half)
    rest = _node(d, "Slice", x, half[1], d.integers([channels]), half[2])
    return _node(d, "Concat", _convolution(d, rest), first, axis=1) if _same(d) else rest


def _same(d: Drawing) -> bool:
    return d.rng.random() < 0.6


# --- sequences ----------------------------------------------------------------------------------


def _dense(d: Drawing, x: str, width: int) -> str:
    y = _node(d, "MatMul", x, _weight(d, d.shape(x)[-1], width))
    return _node(d, "Add", y, _weight(d, width)) if d.rng.random() < 0.7 else y


def _perceptron(d: Drawing, x: str) -> str:
    width = d.shape(x)[-1]
    y = _activated(d, _dense(d, x, width * d.rng.choice((1, 2, 3))))
    return _node(d, "Add", x, _dense(d, y, width))


def _gated(d: Drawing, x: str) -> str:
    width = d.shape(x)[-1]
    gate = _activated(d, _dense(d, x, 2 * width))
    return _dense(d, _node(d, "Mul", gate, _dense(d, x, 2 * width)), width)


def _attention(d: Drawing, x: str) -> str:
    batch, length, width = d.shape(x)
    heads = d.rng.choice((1, 2, 4))
    split = d.integers([batch, length, heads, width // heads])
    query, key, value = (_node(d, "Reshape", _dense(d, x, width), split) for _ in range(3))
    query, value = (_node(d, "Transpose", name, perm=[0, 2, 1, 3]) for name in (query, value))
    key = _node(d, "Transpose", key, perm=[0, 2, 3, 1])
    scores = _node(d, "Mul", _node(d, "MatMul", query, key), _number(d, 0.35))
    mixed = _node(d, "MatMul", _softmax(d, scores), value)
    joined = _node(d, "Transpose", mixed, perm=[0, 2, 1, 3])
    y = _dense(d, _node(d, "Reshape", joined, d.integers([batch, length, width])), width)
    return _node(d, "Add", x, y)


_IMAGE_BLOCKS = (
    *(_convolution, _convolution, _residual, _inverted_residual, _inverted_residual),
    *(_branches, _pooled, _excited, _halved),
)
_SEQUENCE_BLOCKS = (_perceptron, _gated, _attention, _attention, _normalised, _softmax)
