"""Small ONNX models with one dynamic size, an input's or computed in the run, and what reads it.

A source makes f32[1, CHANNELS, n] and a kind computes something of it; `n` has a bound that is
given. What a run at one size costs should not depend on the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph

CHANNELS = 4
_TOKENS = 6  # whose durations add up to the size

Feed = Callable[[int], dict[str, npt.NDArray[np.generic]]]
"""The inputs of a run with this size."""


@dataclass(slots=True)
class ModelMaker:
    """Nodes under construction; `channels` of the data."""

    channels: int = CHANNELS
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    declared: list[onnx.ValueInfoProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def constant(self, array: object) -> str:
        """A constant's name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def integers(self, *values: int) -> str:
        """A vector of i64."""
        return self.constant(np.array(values, np.int64))

    def weights(self, *shape: int) -> str:
        """Random f32 numbers whose sums of products stay near 1."""
        scale = np.sqrt(np.prod(shape[1:]))
        return self.constant((self.rng.standard_normal(shape) / scale).astype(np.float32))

    def all(self, operator: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """The names of a node's outputs."""
        names = [f"v{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names

    def apply(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The name of a node's first output."""
        return self.all(operator, *inputs, outputs=1, **attributes)[0]

    def port(self, name: str, kind: int, *shape: int | str) -> str:
        """An input."""
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def declare(self, name: str, kind: int, *shape: int | str) -> str:
        """Say what shape a value has."""
        self.declared.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    # --- layers ---------------------------------------------------------------------------------

    def conv(self, data: str, taps: int = 3, **attributes: Any) -> str:
        """A convolution with as many channels."""
        weights = self.weights(self.channels, self.channels, taps)
        return self.apply("Conv", data, weights, self.weights(self.channels), **attributes)

    def same(self, data: str, dilation: int = 1) -> str:
        """A convolution that keeps the length."""
        return self.conv(data, pads=[dilation] * 2, dilations=[dilation])

    def upsampled(self, data: str, stride: int, channels: int = 0) -> str:
        """A transposed convolution that makes the data `stride` times as long."""
        outputs = channels or self.channels
        weights = self.weights(self.channels, outputs, 2 * stride)
        pads = [stride // 2, stride - stride // 2]
        return self.apply("ConvTranspose", data, weights, strides=[stride], pads=pads)

    def dense(self, data: str) -> str:
        """A product with constant weights."""
        return self.apply("MatMul", data, self.weights(self.channels, self.channels))

    def rows(self, data: str) -> str:
        """[1, n, channels]."""
        return self.apply("Transpose", data, perm=[0, 2, 1])

    def scale_and_shift(self) -> tuple[str, str]:
        """What norms multiply with and add."""
        return (
            self.constant(np.full(self.channels, 1.5, np.float32)),
            self.constant(np.full(self.channels, 0.5, np.float32)),
        )


Part = Callable[[ModelMaker, str], str]

# --- sources ------------------------------------------------------------------------------------


def _from_input(maker: ModelMaker, bound: int) -> tuple[str, Feed]:
    def feed(size: int) -> dict[str, npt.NDArray[np.generic]]:
        rng = np.random.default_rng(size)
        return {"x": rng.standard_normal((1, maker.channels, size)).astype(np.float32)}

    return maker.port("x", TensorProto.FLOAT, 1, maker.channels, "n"), feed


def _from_durations(maker: ModelMaker, bound: int) -> tuple[str, Feed]:
    """Each token again and again: a path of zeros and ones times the tokens."""
    durations = maker.port("durations", TensorProto.INT64, _TOKENS)
    tokens = maker.port("tokens", TensorProto.FLOAT, 1, maker.channels, _TOKENS)
    total = maker.apply("ReduceSum", durations, keepdims=0)
    zero, one = (maker.constant(np.int64(number)) for number in (0, 1))
    places = maker.declare(maker.apply("Range", zero, total, one), TensorProto.INT64, "n")
    ends = maker.apply("CumSum", durations, zero)
    ends = maker.apply("Unsqueeze", ends, maker.integers(1))
    begins = maker.apply("Sub", ends, maker.apply("Unsqueeze", durations, maker.integers(1)))
    before = maker.apply("Less", places, ends)
    path = maker.apply("And", before, maker.apply("GreaterOrEqual", places, begins))
    path = maker.apply("Unsqueeze", maker.apply("Cast", path, to=1), maker.integers(0))

    def feed(size: int) -> dict[str, npt.NDArray[np.generic]]:
        rng = np.random.default_rng(size)
        each = np.full(_TOKENS, size // _TOKENS, np.int64)
        each[: size % _TOKENS] += 1
        data = rng.standard_normal((1, maker.channels, _TOKENS)).astype(np.float32)
        return {"durations": each, "tokens": data}

    return maker.apply("MatMul", tokens, path), feed


def _from_condition(maker: ModelMaker, bound: int) -> tuple[str, Feed]:
    """A column, and those of the data that a condition takes."""
    condition = maker.port("condition", TensorProto.BOOL, bound - 1)
    data = maker.port("data", TensorProto.FLOAT, 1, maker.channels, bound - 1)
    taken = maker.apply("Compress", data, condition, axis=2)
    first = maker.constant(maker.rng.standard_normal((1, maker.channels, 1)).astype(np.float32))

    def feed(size: int) -> dict[str, npt.NDArray[np.generic]]:
        rng = np.random.default_rng(size)
        chosen = np.zeros(bound - 1, np.bool_)
        chosen[rng.permutation(bound - 1)[: size - 1]] = True
        data = rng.standard_normal((1, maker.channels, bound - 1)).astype(np.float32)
        return {"condition": chosen, "data": data}

    return maker.apply("Concat", first, taken, axis=2), feed


def _from_shape(maker: ModelMaker, bound: int) -> tuple[str, Feed]:
    """Waves as long as an expression of an input says."""
    wanted = maker.port("wanted", TensorProto.INT64, 1)
    data = maker.port("data", TensorProto.FLOAT, 1, maker.channels, 1)
    size = maker.apply("Sub", wanted, maker.integers(1))
    shape = maker.apply("Concat", maker.integers(1, maker.channels), size, axis=0)
    wide = maker.apply("Expand", data, shape)
    maker.declare(wide, TensorProto.FLOAT, 1, maker.channels, "n")

    def feed(size: int) -> dict[str, npt.NDArray[np.generic]]:
        rng = np.random.default_rng(size)
        data = rng.uniform(0.05, 0.5, (1, maker.channels, 1)).astype(np.float32)
        return {"wanted": np.array([size + 1], np.int64), "data": data}

    phase = maker.apply("CumSum", wide, maker.constant(np.int64(2)))
    wave = maker.apply("Sin", phase)
    shift = maker.constant(np.arange(maker.channels, dtype=np.float32).reshape(1, -1, 1))
    return maker.apply("Add", wave, shift), feed


SOURCES: Final[Mapping[str, Callable[[ModelMaker, int], tuple[str, Feed]]]] = {
    "input": _from_input,
    "durations": _from_durations,
    "condition": _from_condition,
    "shape": _from_shape,
}

# --- kinds --------------------------------------------------------------------------------------


def _residual(maker: ModelMaker, data: str) -> str:
    for dilation in (1, 3):
        active = maker.apply("LeakyRelu", data, alpha=0.1)
        data = maker.apply("Add", data, maker.same(active, dilation))
    return data


def _vocoder(maker: ModelMaker, data: str) -> str:
    """Upsampling and residual blocks, as networks that make sound have them."""
    for stride in (4, 2):
        data = maker.upsampled(maker.apply("LeakyRelu", data, alpha=0.1), stride)
        data = maker.apply("Add", _residual(maker, data), maker.same(data))
    return maker.apply("Tanh", maker.conv(data, taps=7, pads=[3, 3]))


def _gated(maker: ModelMaker, data: str) -> str:
    half = maker.channels // 2
    left, right = maker.all("Split", data, maker.integers(half, half), outputs=2, axis=1)
    gate = maker.apply("Mul", maker.apply("Tanh", left), maker.apply("Sigmoid", right))
    return maker.apply("Conv", gate, maker.weights(maker.channels, half, 1))


def _attention(maker: ModelMaker, data: str) -> str:
    rows = maker.rows(data)
    query, key, value = (maker.dense(rows) for _ in range(3))
    scores = maker.apply("MatMul", query, maker.rows(key))
    return maker.apply("MatMul", maker.apply("Softmax", scores, axis=-1), value)


def _recurrent(maker: ModelMaker, data: str, kind: str, gates: int, directions: int = 1) -> str:
    hidden = 4
    steps = maker.apply("Transpose", data, perm=[2, 0, 1])
    weights = maker.weights(directions, gates * hidden, maker.channels)
    states = maker.weights(directions, gates * hidden, hidden)
    direction = "bidirectional" if directions == 2 else "forward"
    return maker.apply(kind, steps, weights, states, hidden_size=hidden, direction=direction)


def _resized(maker: ModelMaker, data: str, mode: str) -> str:
    scales = maker.constant(np.array([1, 1, 2], np.float32))
    return maker.same(maker.apply("Resize", data, "", scales, mode=mode))


def _quantised(maker: ModelMaker, data: str) -> str:
    """A dynamically quantized product."""
    rows, scale, zero = maker.all("DynamicQuantizeLinear", maker.rows(data), outputs=3)
    weights = maker.rng.integers(-127, 127, (maker.channels, maker.channels)).astype(np.int8)
    product = maker.apply("MatMulInteger", rows, maker.constant(weights), zero)
    return maker.apply("Mul", maker.apply("Cast", product, to=1), scale)


def _axis_reduced(maker: ModelMaker, data: str, operator: str) -> str:
    return maker.apply(operator, maker.same(data), maker.integers(2), keepdims=0)


KINDS: Final[Mapping[str, Part]] = {
    "conv": lambda maker, data: maker.same(data),
    "dilated conv": lambda maker, data: maker.same(data, 3),
    "strided conv": lambda maker, data: maker.conv(data, pads=[1, 1], strides=[2]),
    "depthwise conv": lambda maker, data: maker.apply(
        "Conv", data, maker.weights(maker.channels, 1, 3), pads=[1, 1], group=maker.channels
    ),
    "residual block": _residual,
    "transposed conv by 2": lambda maker, data: maker.upsampled(data, 2),
    "transposed conv by 3": lambda maker, data: maker.upsampled(data, 3),
    "transposed conv by 8": lambda maker, data: maker.upsampled(data, 8),
    "interleaved conv": lambda maker, data: maker.upsampled(data, 8, 2),
    "vocoder": _vocoder,
    "gate": _gated,
    "leaky relu": lambda maker, data: maker.apply("LeakyRelu", data, alpha=0.1),
    "product": lambda maker, data: maker.dense(maker.rows(data)),
    "quantized product": _quantised,
    "layer norm": lambda maker, data: maker.apply(
        "LayerNormalization", maker.rows(data), *maker.scale_and_shift()
    ),
    "instance norm": lambda maker, data: maker.same(
        maker.apply("InstanceNormalization", data, *maker.scale_and_shift())
    ),
    "softmax": lambda maker, data: maker.apply("Softmax", maker.same(data), axis=2),
    "log softmax": lambda maker, data: maker.apply("LogSoftmax", maker.same(data), axis=2),
    "attention": _attention,
    "lstm": lambda maker, data: _recurrent(maker, data, "LSTM", 4),
    "gru both ways": lambda maker, data: _recurrent(maker, data, "GRU", 3, 2),
    "concat": lambda maker, data: maker.same(maker.apply("Concat", data, data, axis=2)),
    "nearest resize": lambda maker, data: _resized(maker, data, "nearest"),
    "linear resize": lambda maker, data: _resized(maker, data, "linear"),
    "sum": lambda maker, data: _axis_reduced(maker, data, "ReduceSum"),
    "maximum": lambda maker, data: _axis_reduced(maker, data, "ReduceMax"),
    "max pool": lambda maker, data: maker.apply(
        "MaxPool", maker.same(data), kernel_shape=[3], strides=[2], pads=[1, 1]
    ),
    "pairs' maximum": lambda maker, data: maker.apply(
        "MaxPool", maker.same(data), kernel_shape=[2], strides=[2]
    ),
    "padded conv": lambda maker, data: maker.conv(
        maker.apply("Pad", data, maker.integers(0, 0, 4, 0, 0, 4))
    ),
    "running sum": lambda maker, data: maker.apply(
        "CumSum", maker.same(data), maker.constant(np.int64(2))
    ),
}


def bounded_model(
    source: str, kind: str, bound: int, *, least: int = 1, channels: int = CHANNELS
) -> tuple[onnx.ModelProto, Graph, Feed]:
    """The model, its graph for sizes from `least` to `bound`, and the inputs of a size."""
    maker = ModelMaker(channels)
    data, feed = SOURCES[source](maker, bound)
    result = KINDS[kind](maker, data)
    maker.nodes.append(helper.make_node("Identity", [result], ["y"]))
    graph = helper.make_graph(
        maker.nodes,
        "bounded",
        maker.inputs,
        [onnx.ValueInfoProto(name="y")],
        maker.constants,
        value_info=maker.declared,
    )
    opsets = [helper.make_opsetid("", 18)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    shapes = None if source == "condition" else {"n": (f"{least}..{bound}",)}
    return proto, import_model_proto(proto, shapes), feed
