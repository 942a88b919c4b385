"""Layers in the primitive operators in which PyTorch's exporters spell them out."""

from __future__ import annotations

import math

from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder

SILU_GAIN = 2.8  # of a layer after SiLU, which keeps 0.36 of a normal value's square
GELU_GAIN = 2.35  # of a layer after GELU, which keeps 0.425


def silu(net: NetworkBuilder, data: Layer) -> Layer:
    """x sigmoid(x): Ramachandran et al., Searching for Activation Functions (arXiv:1710.05941)."""
    gate = net.node("Sigmoid", [data.name])
    return Layer(net.node("Mul", [data.name, gate]), data.channels)


def gelu(net: NetworkBuilder, name: str, data: Layer) -> Layer:
    """x (1 + erf(x / sqrt(2))) / 2: Hendrycks and Gimpel (arXiv:1606.08415)."""
    root = net.scalar(f"{name}.root", math.sqrt(2.0))
    erf = net.node("Erf", [net.node("Div", [data.name, root], f"{name}.div")], f"{name}.erf")
    added = net.node("Add", [erf, net.scalar(f"{name}.one", 1.0)], f"{name}.add")
    product = net.node("Mul", [data.name, added], f"{name}.mul")
    halved = net.node("Mul", [product, net.scalar(f"{name}.half", 0.5)], f"{name}.halved")
    return Layer(halved, data.channels)


def layer_norm(net: NetworkBuilder, name: str, data: Layer, epsilon: float) -> Layer:
    """Layer normalisation over the last axis, as before opset 17."""
    axes = net.integers(f"{name}.axes", -1)
    mean = net.node("ReduceMean", [data.name, axes], f"{name}.mean", keepdims=1)
    centred = net.node("Sub", [data.name, mean], f"{name}.sub")
    squared = net.node("Pow", [centred, net.scalar(f"{name}.two", 2.0)], f"{name}.pow")
    variance = net.node("ReduceMean", [squared, axes], f"{name}.variance", keepdims=1)
    safe = net.node("Add", [variance, net.scalar(f"{name}.epsilon", epsilon)], f"{name}.safe")
    deviation = net.node("Sqrt", [safe], f"{name}.sqrt")
    normal = net.node("Div", [centred, deviation], f"{name}.div")
    weight = net.uniform(f"{name}.weight", data.channels, 0.8, 1.2)
    bias = net.uniform(f"{name}.bias", data.channels, -0.1, 0.1)
    scaled = net.node("Mul", [normal, weight], f"{name}.mul")
    return Layer(net.node("Add", [scaled, bias], f"{name}.add"), data.channels)


def rms_norm(net: NetworkBuilder, name: str, data: Layer, epsilon: float) -> Layer:
    """x / sqrt(mean of squares): Zhang and Sennrich (arXiv:1910.07467), over the last axis."""
    squared = net.node("Pow", [data.name, net.scalar(f"{name}.two", 2.0)], f"{name}.pow")
    axes = net.integers(f"{name}.axes", -1)
    mean = net.node("ReduceMean", [squared, axes], f"{name}.mean", keepdims=1)
    safe = net.node("Add", [mean, net.scalar(f"{name}.epsilon", epsilon)], f"{name}.add")
    root = net.node("Sqrt", [safe], f"{name}.sqrt")
    inverse = net.node("Div", [net.scalar(f"{name}.one", 1.0), root], f"{name}.div")
    normal = net.node("Mul", [data.name, inverse], f"{name}.mul")
    weight = net.uniform(f"{name}.weight", data.channels, 0.8, 1.2)
    return Layer(net.node("Mul", [weight, normal], f"{name}.scaled"), data.channels)


def dense(
    net: NetworkBuilder,
    name: str,
    data: Layer,
    features: int,
    *,
    gain: float = 1.0,
    bias: bool = True,
) -> Layer:
    """A fully connected layer on [..., features]: MatMul and Add."""
    weight = net.weights(f"{name}.weight", (data.channels, features), data.channels, gain)
    product = net.node("MatMul", [data.name, weight], f"{name}.matmul")
    if not bias:
        return Layer(product, features)
    added = net.uniform(f"{name}.bias", features, -0.1, 0.1)
    return Layer(net.node("Add", [product, added], f"{name}.add"), features)
