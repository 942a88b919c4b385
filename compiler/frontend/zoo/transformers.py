"""Transformers that read all of their input at once: an encoder of text, and one of images."""

from __future__ import annotations

import math

import numpy as np

from tunefarm.compiler.frontend.zoo.network import (
    GELU_GAIN,
    Layer,
    NetworkBuilder,
    Size,
    dense,
    gelu,
    layer_norm,
    whole_layer_norm,
)

_EPSILON = 1e-12
_HEAD_FEATURES = 64


def encoder(net: NetworkBuilder, size: Size) -> None:
    """A Transformer encoder of BERT-base's width: Devlin et al., BERT (arXiv:1810.04805).

    Four layers of 768 features, 12 heads and 3072 hidden features on 128 tokens. The input are
    embeddings; the outputs are the last layer's features and BERT's pooled first token.
    """
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
    data = whole_layer_norm(net, f"{name}.attention.norm", net.add(attended, data), _EPSILON)
    hidden = dense(net, f"{name}.intermediate", data, 4 * data.channels)
    hidden = Layer(net.node("Gelu", [hidden.name], f"{name}.gelu"), hidden.channels)
    output = dense(net, f"{name}.output", hidden, data.channels)
    return whole_layer_norm(net, f"{name}.output.norm", net.add(output, data), _EPSILON)


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


_PATCH = 16
_VIT_HEADS = 3
_VIT_EPSILON = 1e-6


def vit_tiny(net: NetworkBuilder, size: Size) -> None:
    """A tiny vision transformer: Dosovitskiy et al. (arXiv:2010.11929), at the width of DeiT-Ti
    (Touvron et al., arXiv:2012.12877), with attention and norms as PyTorch exports them.
    """
    image, layers = size.image or 224, size.layers or 12
    features = max(1, round(_VIT_HEADS * size.width)) * _HEAD_FEATURES
    patches = (image // _PATCH) ** 2
    layer = _tokens(net, size.batch, image, features, patches)
    for position in range(layers):
        layer = _vit_layer(net, f"blocks.{position}", layer, (size.batch, patches + 1))
    layer = layer_norm(net, "norm", layer, _VIT_EPSILON)
    token = net.node("Gather", [layer.name, net.position("first", 0)], "token", axis=1)
    net.logits("head", Layer(token, features), size)


def _tokens(net: NetworkBuilder, batch: int, image: int, features: int, patches: int) -> Layer:
    """Patches of the image as tokens after a learned one, with learned positions."""
    pixels = Layer(net.input("input", (batch, 3, image, image)), 3)
    layer = net.conv("patch_embed", pixels, features, _PATCH, stride=_PATCH, gain=1.0, bias=True)
    flat = net.reshape(layer.name, (batch, features, patches), "patch_embed.flat")
    tokens = net.node("Transpose", [flat], "patch_embed.tokens", perm=[0, 2, 1])
    learned = net.weights("cls_token", (batch, 1, features), 1, 1.0)
    tokens = net.node("Concat", [learned, tokens], "tokens", axis=1)
    places = net.weights("pos_embed", (1, patches + 1, features), 1, 0.25)
    return Layer(net.node("Add", [tokens, places], "embedded"), features)


def _vit_layer(net: NetworkBuilder, name: str, data: Layer, shape: tuple[int, int]) -> Layer:
    """Attention and a perceptron, each after a norm and added to what came in."""
    normal = layer_norm(net, f"{name}.norm1", data, _VIT_EPSILON)
    data = net.add(data, _vit_attention(net, f"{name}.attn", normal, shape))
    normal = layer_norm(net, f"{name}.norm2", data, _VIT_EPSILON)
    hidden = gelu(net, f"{name}.gelu", dense(net, f"{name}.fc1", normal, 4 * data.channels))
    return net.add(data, dense(net, f"{name}.fc2", hidden, data.channels, gain=GELU_GAIN))


def _vit_attention(net: NetworkBuilder, name: str, data: Layer, shape: tuple[int, int]) -> Layer:
    """Queries, keys and values of one product; queries and keys each scaled by the root."""
    batch, tokens = shape
    heads = data.channels // _HEAD_FEATURES
    packed = dense(net, f"{name}.qkv", data, 3 * data.channels)
    split = net.reshape(packed.name, (batch, tokens, 3, heads, _HEAD_FEATURES), f"{name}.split")
    turned = net.node("Transpose", [split], f"{name}.turned", perm=[2, 0, 3, 1, 4])
    query, key, value = (
        net.node("Gather", [turned, net.position(f"{name}.{part}.at", at)], f"{name}.{part}")
        for at, part in enumerate(("query", "key", "value"))
    )
    root = net.scalar(f"{name}.scale", _HEAD_FEATURES**-0.25)
    query = net.node("Mul", [query, root], f"{name}.query.scaled")
    key = net.node("Transpose", [key], f"{name}.key.turned", perm=[0, 1, 3, 2])
    key = net.node("Mul", [key, root], f"{name}.key.scaled")
    scores = net.node("MatMul", [query, key], f"{name}.scores")
    weights = net.node("Softmax", [scores], f"{name}.softmax", axis=-1)
    context = net.node("MatMul", [weights, value], f"{name}.context")
    context = net.node("Transpose", [context], f"{name}.context.tokens", perm=[0, 2, 1, 3])
    joined = net.reshape(context, (batch, tokens, data.channels), f"{name}.joined")
    return dense(net, f"{name}.proj", Layer(joined, data.channels), data.channels)
