"""A tiny vision transformer: Dosovitskiy et al. (arXiv:2010.11929), at the width of DeiT-Ti
(Touvron et al., arXiv:2012.12877), with attention and norms as PyTorch exports them."""

from __future__ import annotations

from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder, Size
from tunefarm.compiler.frontend.zoo.spelled_out import GELU_GAIN, dense, gelu, layer_norm

_PATCH = 16
_HEADS, _HEAD_FEATURES = 3, 64
_EPSILON = 1e-6


def vit_tiny(net: NetworkBuilder, size: Size) -> None:
    """Add the network to `net`, as large as `size` says."""
    image, classes, layers = size.image or 224, size.classes or 1000, size.layers or 12
    features = max(1, round(_HEADS * size.width)) * _HEAD_FEATURES
    patches = (image // _PATCH) ** 2
    layer = _tokens(net, size.batch, image, features, patches)
    for position in range(layers):
        layer = _layer(net, f"blocks.{position}", layer, (size.batch, patches + 1))
    layer = layer_norm(net, "norm", layer, _EPSILON)
    token = net.node("Gather", [layer.name, net.position("first", 0)], "token", axis=1)
    layer = net.linear("head", Layer(token, features), classes)
    net.output(layer.name, "logits", (size.batch, classes))


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


def _layer(net: NetworkBuilder, name: str, data: Layer, shape: tuple[int, int]) -> Layer:
    """Attention and a perceptron, each after a norm and added to what came in."""
    normal = layer_norm(net, f"{name}.norm1", data, _EPSILON)
    data = net.add(data, _attention(net, f"{name}.attn", normal, shape))
    normal = layer_norm(net, f"{name}.norm2", data, _EPSILON)
    hidden = gelu(net, f"{name}.gelu", dense(net, f"{name}.fc1", normal, 4 * data.channels))
    return net.add(data, dense(net, f"{name}.fc2", hidden, data.channels, gain=GELU_GAIN))


def _attention(net: NetworkBuilder, name: str, data: Layer, shape: tuple[int, int]) -> Layer:
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
