"""A Transformer encoder of BERT-base's width: Devlin et al., BERT (arXiv:1810.04805).

Four layers of 768 features, 12 heads and 3072 hidden features on 128 tokens. The input are
embeddings; the outputs are the last layer's features and BERT's pooled first token.
"""

from __future__ import annotations

import math

import numpy as np

from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder, Size
from tunefarm.compiler.frontend.zoo.spelled_out import dense

_EPSILON = 1e-12
_HEAD_FEATURES = 64


def encoder(net: NetworkBuilder, size: Size) -> None:
    """Add the network to `net`, as large as `size` says."""
    tokens, layers = size.tokens or 128, size.layers or 4
    heads = max(1, round(12 * size.width))
    features = heads * _HEAD_FEATURES
    shape = (size.batch, tokens, features)
    outer = (0, 0) if net.dynamic else (size.batch, tokens)
    net.constant("split_heads", np.array([*outer, heads, _HEAD_FEATURES], np.int64))
    net.constant("join_heads", np.array([*outer, features], np.int64))
    net.constant("scale", np.array(1 / math.sqrt(_HEAD_FEATURES), np.float32))
    net.constant("first", np.array(0, np.int64))
    layer = Layer(net.input("input", shape), features)
    for position in range(layers):
        layer = _layer(net, f"layer{position}", layer)
    token = Layer(net.node("Gather", [layer.name, "first"], "pooler.token", axis=1), features)
    pooled = net.linear("pooler.dense", token, features)
    net.output(layer.name, "hidden", shape)
    net.output(net.node("Tanh", [pooled.name]), "pooled", (size.batch, features))


def _layer(net: NetworkBuilder, name: str, data: Layer) -> Layer:
    attended = _attention(net, f"{name}.attention", data)
    data = _layer_norm(net, f"{name}.attention.norm", net.add(attended, data))
    hidden = dense(net, f"{name}.intermediate", data, 4 * data.channels)
    hidden = Layer(net.node("Gelu", [hidden.name], f"{name}.gelu"), hidden.channels)
    output = dense(net, f"{name}.output", hidden, data.channels)
    return _layer_norm(net, f"{name}.output.norm", net.add(output, data))


def _attention(net: NetworkBuilder, name: str, data: Layer) -> Layer:
    """softmax(Q K' / sqrt(64)) V by heads, then a dense layer."""
    query = _heads(net, f"{name}.query", data, (0, 2, 1, 3))
    key = _heads(net, f"{name}.key", data, (0, 2, 3, 1))
    value = _heads(net, f"{name}.value", data, (0, 2, 1, 3))
    scores = net.node("MatMul", [query, key], f"{name}.scores")
    scaled = net.node("Mul", [scores, "scale"], f"{name}.scaled")
    weights = net.node("Softmax", [scaled], f"{name}.softmax", axis=-1)
    context = net.node("MatMul", [weights, value], f"{name}.context")
    context = net.node("Transpose", [context], f"{name}.context_tokens", perm=[0, 2, 1, 3])
    joined = net.node("Reshape", [context, "join_heads"], f"{name}.context_joined")
    return dense(net, f"{name}.output", Layer(joined, data.channels), data.channels)


def _heads(net: NetworkBuilder, name: str, data: Layer, perm: tuple[int, ...]) -> str:
    projected = dense(net, name, data, data.channels)
    split = net.node("Reshape", [projected.name, "split_heads"], f"{name}.split")
    return net.node("Transpose", [split], f"{name}.heads", perm=list(perm))


def _layer_norm(net: NetworkBuilder, name: str, data: Layer) -> Layer:
    scale = net.uniform(f"{name}.weight", data.channels, 0.8, 1.2)
    bias = net.uniform(f"{name}.bias", data.channels, -0.1, 0.1)
    output = net.node(
        "LayerNormalization", [data.name, scale, bias], name, axis=-1, epsilon=_EPSILON
    )
    return Layer(output, data.channels)
