"""NetworkBuilder: writes an ONNX model layer by layer, with seeded weights of sane scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from tunefarm.compiler.types.frozen import frozen

Floats = npt.NDArray[np.float32]
Extent: TypeAlias = int | tuple[int, int]
"""Of a window: both of its sides, or (rows, columns)."""

OPSET = 20
IR_VERSION = 10


@frozen
class Size:
    """What may be reduced, for tests: None and 1.0 mean the published size."""

    batch: int = 1
    image: int | None = None  # height and width in pixels
    width: float = 1.0  # factor on the number of channels (features)
    classes: int | None = None
    tokens: int | None = None
    layers: int | None = None
    dynamic: bool = False  # batch, tokens and image are dynamic

    def channels(self, published: int) -> int:
        """The number of channels under the width factor, a multiple of 4."""
        if self.width == 1.0:
            return published
        return max(4, 4 * round(published * self.width / 4))


@frozen
class Layer:
    """The output of a layer: its name and the number of channels or features."""

    name: str
    channels: int


class NetworkBuilder:
    """Collects nodes and initializers of one model; values are float32.

    Weights are normal with variance gain / fan_in (He et al., Delving Deep into Rectifiers: gain 2
    after a ReLU keeps the scale of activations; 1 after a linear layer). Builders of the same seed
    and `family` draw the same ones.
    """

    def __init__(self, name: str, seed: int, family: str = "", dynamic: bool = False) -> None:
        self.name = name
        self.dynamic = dynamic
        self._random = np.random.default_rng([seed, *(family or name).encode()])
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._counts: dict[str, int] = {}

    def input(self, name: str, shape: Sequence[int], element: int = onnx.TensorProto.FLOAT) -> str:
        """Declare an input; `element` is one of ONNX's element types."""
        self._inputs.append(helper.make_tensor_value_info(name, element, list(shape)))
        return name

    def output(self, value: str, name: str, shape: Sequence[int]) -> None:
        """Make `value` an output of the model, and rename it."""
        for node in self._nodes:
            node.input[:] = [name if used == value else used for used in node.input]
            node.output[:] = [name if made == value else made for made in node.output]
        self._outputs.append(
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(shape))
        )

    def node(self, operator: str, inputs: Sequence[str], name: str = "", **attributes: Any) -> str:
        """Add a node and return its output; `name` is its name, by default counted."""
        (output,) = self.nodes(operator, inputs, 1, name, **attributes)
        return output

    def nodes(
        self, operator: str, inputs: Sequence[str], count: int, name: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node of `count` outputs and return these."""
        if not name:
            number = self._counts.get(operator, 0)
            self._counts[operator] = number + 1
            name = f"{operator.lower()}_{number}"
        outputs = [f"{name}_output{number or ''}" for number in range(count)]
        self._nodes.append(
            helper.make_node(operator, list(inputs), outputs, name=name, **attributes)
        )
        return tuple(outputs)

    def constant(self, name: str, array: npt.NDArray[np.generic]) -> str:
        """Add an initializer."""
        self._initializers.append(numpy_helper.from_array(array, name))
        return name

    def scalar(self, name: str, value: float) -> str:
        """Add a single float32."""
        return self.constant(name, np.array(value, np.float32))

    def floats(self, name: str, *values: float) -> str:
        """Add a vector of float32."""
        return self.constant(name, np.array(values, np.float32))

    def position(self, name: str, value: int) -> str:
        """Add a single int64."""
        return self.constant(name, np.array(value, np.int64))

    def integers(self, name: str, *values: int) -> str:
        """Add a vector of int64: a shape, axes, positions."""
        return self.constant(name, np.array(values, np.int64))

    def weights(self, name: str, shape: Sequence[int], fan_in: int, gain: float) -> str:
        """Add normally distributed weights of variance gain / fan_in."""
        values = self._random.standard_normal(tuple(shape), np.float32)
        values *= np.float32(math.sqrt(gain / fan_in))
        return self.constant(name, values)

    def uniform(self, name: str, shape: int | Sequence[int], low: float, high: float) -> str:
        """Add uniformly distributed values."""
        return self.constant(name, self._random.uniform(low, high, shape).astype(np.float32))

    def conv(
        self,
        name: str,
        data: Layer,
        channels: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        gain: float = 2.0,
        bias: bool = False,
    ) -> Layer:
        """A square 2-D convolution."""
        inner = data.channels // groups
        shape = (channels, inner, kernel, kernel)
        weight = self.weights(f"{name}.weight", shape, inner * kernel * kernel, gain)
        inputs = [data.name, weight]
        if bias:
            inputs.append(self.uniform(f"{name}.bias", channels, -0.1, 0.1))
        output = self.node(
            "Conv",
            inputs,
            name,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[padding] * 4,
            dilations=[dilation, dilation],
            group=groups,
        )
        return Layer(output, channels)

    def conv_transpose(self, name: str, data: Layer, channels: int, kernel: int) -> Layer:
        """A transposed convolution whose stride is its kernel, so that windows do not overlap."""
        shape = (data.channels, channels, kernel, kernel)
        weight = self.weights(f"{name}.weight", shape, data.channels, 1.0)
        bias = self.uniform(f"{name}.bias", channels, -0.1, 0.1)
        output = self.node(
            "ConvTranspose",
            [data.name, weight, bias],
            name,
            kernel_shape=[kernel, kernel],
            strides=[kernel, kernel],
        )
        return Layer(output, channels)

    def batch_norm(self, name: str, data: Layer, gain: float = 1.0) -> Layer:
        """Batch normalisation with statistics near, but not at, mean 0 and variance 1."""
        parameters = [
            self.uniform(f"{name}.weight", data.channels, 0.8 * gain, 1.2 * gain),
            self.uniform(f"{name}.bias", data.channels, -0.1, 0.1),
            self.uniform(f"{name}.running_mean", data.channels, -0.1, 0.1),
            self.uniform(f"{name}.running_var", data.channels, 0.8, 1.25),
        ]
        output = self.node("BatchNormalization", [data.name, *parameters], name, epsilon=1e-5)
        return Layer(output, data.channels)

    def relu(self, data: Layer) -> Layer:
        """Add the network to `net`, as large as `size` says."""
        return Layer(self.node("Relu", [data.name]), data.channels)

    def add(self, left: Layer, right: Layer) -> Layer:
        """Add the network to `net`, as large as `size` says."""
        return Layer(self.node("Add", [left.name, right.name]), left.channels)

    def max_pool(
        self,
        data: Layer,
        kernel: Extent,
        stride: Extent,
        padding: Extent = 0,
        ceil_mode: bool = False,
    ) -> Layer:
        """Add the network to `net`, as large as `size` says."""
        output = self.node(
            "MaxPool",
            [data.name],
            kernel_shape=_sides(kernel),
            strides=_sides(stride),
            pads=_sides(padding) * 2,
            ceil_mode=int(ceil_mode),
        )
        return Layer(output, data.channels)

    def concat(self, *parts: Layer) -> Layer:
        """Feature maps side by side along their channels."""
        output = self.node("Concat", [part.name for part in parts], axis=1)
        return Layer(output, sum(part.channels for part in parts))

    def reshape(
        self, value: str, shape: Sequence[int], name: str, dynamic: Sequence[int] = ()
    ) -> str:
        """To a shape that is a constant: `dynamic` where sizes are dynamic."""
        shape = dynamic if self.dynamic and dynamic else shape
        return self.node("Reshape", [value, self.integers(f"{name}.shape", *shape)], name)

    def global_average_pool(self, data: Layer) -> Layer:
        """Global average pooling, flattened to [batch, channels]."""
        pooled = self.node("GlobalAveragePool", [data.name])
        return Layer(self.node("Flatten", [pooled], axis=1), data.channels)

    def linear(self, name: str, data: Layer, features: int, gain: float = 1.0) -> Layer:
        """A fully connected layer on [batch, features]."""
        shape = (features, data.channels)
        weight = self.weights(f"{name}.weight", shape, data.channels, gain)
        bias = self.uniform(f"{name}.bias", features, -0.1, 0.1)
        output = self.node("Gemm", [data.name, weight, bias], name, transB=1)
        return Layer(output, features)

    def image(self, size: Size, pixels: int) -> Layer:
        """Declare the input of square images in colours, of so many published pixels a side."""
        side = size.image or pixels
        return Layer(self.input("input", (size.batch, 3, side, side)), 3)

    def logits(self, name: str, data: Layer, size: Size, gain: float = 1.0) -> None:
        """A fully connected layer to the classes, 1,000 as published, which is the output."""
        classes = size.classes or 1000
        layer = self.linear(name, data, classes, gain)
        self.output(layer.name, "logits", (size.batch, classes))

    def name_axes(self, symbols: Mapping[str, Sequence[str]]) -> None:
        """Name axes of inputs and outputs that are dynamic; "": as it is."""
        for info in (*self._inputs, *self._outputs):
            names = symbols.get(info.name) or symbols.get(info.name.split(".")[0], ())
            for dimension, name in zip(info.type.tensor_type.shape.dim, names, strict=False):
                if name:
                    dimension.dim_param = name

    def model(self) -> onnx.ModelProto:
        """The finished model, checked."""
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, self._initializers
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            producer_name="tunefarm",
            ir_version=IR_VERSION,
        )
        onnx.checker.check_model(model)
        return model


def _sides(extent: Extent) -> list[int]:
    return [extent, extent] if isinstance(extent, int) else list(extent)


# --- Layers in the primitive operators in which PyTorch's exporters spell them out ---------------


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


def scaled(net: NetworkBuilder, name: str, data: Layer, factor: float, **how: str) -> Layer:
    """An image resized by a factor."""
    scales = net.floats(f"{name}.scales", 1.0, 1.0, factor, factor)
    return Layer(net.node("Resize", [data.name, "", scales], name, **how), data.channels)


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


def whole_layer_norm(net: NetworkBuilder, name: str, data: Layer, epsilon: float) -> Layer:
    """Layer normalisation over the last axis, by the operator of opset 17."""
    scale = net.uniform(f"{name}.weight", data.channels, 0.8, 1.2)
    bias = net.uniform(f"{name}.bias", data.channels, -0.1, 0.1)
    inputs = [data.name, scale, bias]
    output = net.node("LayerNormalization", inputs, name, axis=-1, epsilon=epsilon)
    return Layer(output, data.channels)


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
