"""A decoder language model of the LLaMA kind (Touvron et al., arXiv:2302.13971) with grouped-query
attention (Ainslie et al., arXiv:2305.13245), as exported for `prefill` and for one `step`.

Six layers of 512 features, 8 heads on 2 of keys and values, 1408 hidden features, 128 positions.
Rotary embedding (Su et al., arXiv:2104.09864) is worked out of the positions within the model.
Outputs are the logits of each token and each layer's keys and values, which a step takes again.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from tunefarm.compiler.frontend.zoo.network import (
    SILU_GAIN,
    Layer,
    NetworkBuilder,
    Size,
    dense,
    rms_norm,
    silu,
)
from tunefarm.compiler.types.frozen import frozen

_HEADS, _HEADS_OF_A_GROUP, _HEAD_FEATURES = 8, 4, 64
_HIDDEN, _LAYERS, _WORDS, _POSITIONS = 1408, 6, 8192, 128
_ROTARY_BASE = 10000.0
_EPSILON = 1e-6
_MASKED = float(np.finfo(np.float32).min)


@frozen
class _Shape:
    """What the layers have in common; positions in the cache come before the tokens."""

    batch: int
    tokens: int
    cached: int
    heads: int
    groups: int
    hidden: int

    @property
    def features(self) -> int:
        return self.heads * _HEAD_FEATURES


def decoder_prefill(net: NetworkBuilder, size: Size) -> None:
    """All tokens of a prompt at once; none sees a later one."""
    _decoder(net, size, size.tokens or _POSITIONS, 0)


def decoder_step(net: NetworkBuilder, size: Size) -> None:
    """One token after a cache; `attention_mask` says which positions it sees."""
    _decoder(net, size, 1, (size.tokens or _POSITIONS) - 1)


def _decoder(net: NetworkBuilder, size: Size, tokens: int, cached: int) -> None:
    heads = max(2, round(_HEADS * size.width))
    groups = max(1, heads // _HEADS_OF_A_GROUP)
    shape = _Shape(size.batch, tokens, cached, heads, groups, size.channels(_HIDDEN))
    words = size.classes or _WORDS
    ids = net.input("input_ids", (size.batch, tokens), onnx.TensorProto.INT64)
    mask = _attention_mask(net, shape) if cached else _causal_mask(net, tokens, ids)
    rotary = _rotary_tables(net, shape)
    table = net.weights("embed_tokens.weight", (words, shape.features), 1, 1.0)
    data = Layer(net.node("Gather", [table, ids], "embed_tokens"), shape.features)
    for number in range(size.layers or _LAYERS):
        name = f"layers.{number}"
        normal = rms_norm(net, f"{name}.input_norm", data, _EPSILON)
        data = net.add(data, _attention(net, f"{name}.self_attn", normal, shape, rotary, mask))
        normal = rms_norm(net, f"{name}.post_norm", data, _EPSILON)
        data = net.add(data, _perceptron(net, f"{name}.mlp", normal, shape.hidden))
    data = rms_norm(net, "norm", data, _EPSILON)
    logits = dense(net, "lm_head", data, words, bias=False)
    net.output(logits.name, "logits", (size.batch, tokens, words))


def _causal_mask(net: NetworkBuilder, tokens: int, ids: str) -> str:
    mask = net.constant(
        "causal_mask", np.triu(np.full((1, 1, tokens, tokens), _MASKED, np.float32), 1)
    )
    if not net.dynamic:
        return mask
    shape = net.node("Shape", [ids], "mask.shape", start=1)
    ends = net.node("Concat", [shape, shape], "mask.ends", axis=0)
    starts, axes = net.integers("mask.starts", 0, 0), net.integers("mask.axes", 2, 3)
    return net.node("Slice", [mask, starts, ends, axes], "mask")


def _attention_mask(net: NetworkBuilder, shape: _Shape) -> str:
    """(1 - mask) times the lowest number, [batch, 1, 1, positions]."""
    positions = (shape.batch, shape.cached + shape.tokens)
    mask = net.input("attention_mask", positions, onnx.TensorProto.INT64)
    wide = net.node("Unsqueeze", [mask, net.integers("mask.axes", 1, 2)], "mask.wide")
    seen = net.node("Cast", [wide], "mask.seen", to=onnx.TensorProto.FLOAT)
    unseen = net.node("Sub", [net.scalar("mask.one", 1.0), seen], "mask.unseen")
    return net.node("Mul", [unseen, net.scalar("mask.lowest", _MASKED)], "mask")


def _rotary_tables(net: NetworkBuilder, shape: _Shape) -> tuple[str, str]:
    """Cosines and sines of positions times frequencies, [batch, 1, tokens, head features]."""
    positions = net.input("position_ids", (shape.batch, shape.tokens), onnx.TensorProto.INT64)
    exponents = np.arange(0, _HEAD_FEATURES, 2, dtype=np.float32) / _HEAD_FEATURES
    frequencies = net.constant(
        "rotary.frequencies", (_ROTARY_BASE**-exponents).astype(np.float32)[None, :, None]
    )
    wide = net.node("Unsqueeze", [positions, net.integers("rotary.row", 1)], "rotary.wide")
    places = net.node("Cast", [wide], "rotary.places", to=onnx.TensorProto.FLOAT)
    angles = net.node("MatMul", [frequencies, places], "rotary.matmul")
    angles = net.node("Transpose", [angles], "rotary.angles", perm=[0, 2, 1])
    both = net.node("Concat", [angles, angles], "rotary.both", axis=-1)
    heads = net.integers("rotary.heads", 1)
    cosines, sines = (
        net.node("Unsqueeze", [net.node(operator, [both]), heads], f"rotary.{operator.lower()}")
        for operator in ("Cos", "Sin")
    )
    return cosines, sines


def _attention(
    net: NetworkBuilder, name: str, data: Layer, shape: _Shape, rotary: tuple[str, str], mask: str
) -> Layer:
    query = _rotated(net, f"{name}.q", _heads(net, f"{name}.q", data, shape, shape.heads), rotary)
    key = _rotated(net, f"{name}.k", _heads(net, f"{name}.k", data, shape, shape.groups), rotary)
    value = _heads(net, f"{name}.v", data, shape, shape.groups)
    key = _cached(net, name, "key", key, shape)
    value = _cached(net, name, "value", value, shape)
    keys, values = (
        _of_each_head(net, f"{name}.{part}", cache, shape)
        for part, cache in (("keys", key), ("values", value))
    )
    turned = net.node("Transpose", [keys], f"{name}.keys.turned", perm=[0, 1, 3, 2])
    scores = net.node("MatMul", [query, turned], f"{name}.scores")
    root = net.scalar(f"{name}.root", math.sqrt(_HEAD_FEATURES))
    scaled = net.node("Div", [scores, root], f"{name}.scaled")
    masked = net.node("Add", [scaled, mask], f"{name}.masked")
    weights = net.node("Softmax", [masked], f"{name}.softmax", axis=-1)
    context = net.node("MatMul", [weights, values], f"{name}.context")
    context = net.node("Transpose", [context], f"{name}.context.tokens", perm=[0, 2, 1, 3])
    whole = (shape.batch, shape.tokens, shape.features)
    joined = net.reshape(context, whole, f"{name}.joined", (0, 0, shape.features))
    return dense(net, f"{name}.o", Layer(joined, shape.features), shape.features, bias=False)


def _heads(net: NetworkBuilder, name: str, data: Layer, shape: _Shape, heads: int) -> str:
    """A projection as [batch, heads, tokens, head features]."""
    projected = dense(net, name, data, heads * _HEAD_FEATURES, bias=False)
    apart = (shape.batch, shape.tokens, heads, _HEAD_FEATURES)
    split = net.reshape(projected.name, apart, f"{name}.split", (0, 0, *apart[2:]))
    return net.node("Transpose", [split], f"{name}.heads", perm=[0, 2, 1, 3])


def _rotated(net: NetworkBuilder, name: str, heads: str, rotary: tuple[str, str]) -> str:
    """x cos + (-second half, first half) sin."""
    middle, axis = _HEAD_FEATURES // 2, net.integers(f"{name}.axis", 3)
    bounds = [net.integers(f"{name}.at{at}", at) for at in (0, middle, _HEAD_FEATURES)]
    first = net.node("Slice", [heads, bounds[0], bounds[1], axis], f"{name}.first")
    second = net.node("Slice", [heads, bounds[1], bounds[2], axis], f"{name}.second")
    negated = net.node("Neg", [second], f"{name}.negated")
    turned = net.node("Concat", [negated, first], f"{name}.turned", axis=-1)
    by_cosine = net.node("Mul", [heads, rotary[0]], f"{name}.by_cosine")
    by_sine = net.node("Mul", [turned, rotary[1]], f"{name}.by_sine")
    return net.node("Add", [by_cosine, by_sine], f"{name}.rotated")


def _cached(net: NetworkBuilder, name: str, kind: str, made: str, shape: _Shape) -> str:
    """After those of the cache, if there is one; an output of the model."""
    number = name.split(".")[1]
    if shape.cached:
        past = (shape.batch, shape.groups, shape.cached, _HEAD_FEATURES)
        before = net.input(f"past_key_values.{number}.{kind}", past)
        made = net.node("Concat", [before, made], f"{name}.{kind}.cached", axis=2)
    present = (shape.batch, shape.groups, shape.cached + shape.tokens, _HEAD_FEATURES)
    name = f"present.{number}.{kind}"
    net.output(made, name, present)
    return name


def _of_each_head(net: NetworkBuilder, name: str, cache: str, shape: _Shape) -> str:
    """Keys or values repeated for each head of their group: [batch, heads, positions, features]."""
    positions, repeats = shape.cached + shape.tokens, shape.heads // shape.groups
    if repeats == 1:
        return cache
    wide = net.node("Unsqueeze", [cache, net.integers(f"{name}.axes", 2)], f"{name}.wide")
    spread = (shape.batch, shape.groups, repeats, positions, _HEAD_FEATURES)
    spread = (1, 1, repeats, 1, 1) if net.dynamic else spread
    spread_to = net.integers(f"{name}.spread_to", *spread)
    repeated = net.node("Expand", [wide, spread_to], f"{name}.repeated")
    heads = (shape.batch, shape.heads, positions, _HEAD_FEATURES)
    return net.reshape(repeated, heads, f"{name}.heads", (0, shape.heads, -1, _HEAD_FEATURES))


def _perceptron(net: NetworkBuilder, name: str, data: Layer, hidden: int) -> Layer:
    """SwiGLU: Shazeer, GLU Variants Improve Transformer (arXiv:2002.05202)."""
    gate = silu(net, dense(net, f"{name}.gate_proj", data, hidden, bias=False))
    up = dense(net, f"{name}.up_proj", data, hidden, bias=False)
    gated = Layer(net.node("Mul", [gate.name, up.name], f"{name}.gated"), hidden)
    return dense(net, f"{name}.down_proj", gated, data.channels, gain=SILU_GAIN, bias=False)
