"""Networks with seeded weights, quantised by onnxruntime's `quantize_dynamic`.

Recurrent layers come also with int8 weights that DequantizeLinear nodes read, and in f32.

They are written once into a folder, next to those that packages ship, and measured as these are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from tests.benchmarks.shipped_networks import AUDIO, IMAGE, SIGNAL, WORDS, Array, Network
from tunefarm.compiler.frontend.zoo.models import build_model
from tunefarm.compiler.frontend.zoo.network import Size

PACKAGE = "generated"
_FLOAT, _INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
_STEPS = tuple({"n": n, "b": b} for n, b in ((1, 1), (20, 1), (200, 1), (20, 4), (20, 8)))
_FLOAT_STEPS = tuple({"n": n, "b": b} for n in (1, 200) for b in (1, 4))
_OPSET = 17


@dataclass(slots=True)
class _Writer:
    """Nodes and seeded weights of a network under construction."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, name: str, array: Array) -> str:
        """An initializer."""
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def uniform(self, name: str, shape: tuple[int, ...], bound: float) -> str:
        """Weights that are drawn from -bound to bound."""
        return self.constant(name, self.rng.uniform(-bound, bound, shape).astype(np.float32))

    def node(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """A node with one output."""
        self.nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    def dequantized(self, name: str, shape: tuple[int, ...], bound: float) -> str:
        """Drawn weights as int8 with one scale, and the node that makes floats of them."""
        integers = self.constant(f"{name}.i8", self.rng.integers(-127, 128, shape, np.int8))
        scale = self.constant(f"{name}.scale", np.array(bound / 127, np.float32))
        return self.node("DequantizeLinear", [integers, scale], name)

    def dense(self, name: str, data: str, size: int, features: int) -> str:
        """A fully connected layer over the last axis."""
        weight = self.uniform(f"{name}.weight", (size, features), 1 / math.sqrt(size))
        product = self.node("MatMul", [data, weight], f"{name}.product")
        return self.node("Add", [product, self.uniform(f"{name}.bias", (features,), 0.1)], name)

    def recurrent(self, name: str, data: str, size: int, layer: Recurrent) -> str:
        """A layer over [steps, batch, size]: [steps, batch, directions * hidden]."""
        gates, hidden = {"RNN": 1, "GRU": 3, "LSTM": 4}[layer.operator], layer.hidden
        directions, bound = (2 if layer.both_ways else 1), 1 / math.sqrt(hidden)
        weights = self.dequantized if layer.weights == "qdq" else self.uniform
        inputs = [
            data,
            weights(f"{name}.w", (directions, gates * hidden, size), bound),
            weights(f"{name}.r", (directions, gates * hidden, hidden), bound),
            self.uniform(f"{name}.b", (directions, 2 * gates * hidden), bound),
        ]
        further: dict[str, int] = {"linear_before_reset": 1} if layer.operator == "GRU" else {}
        direction = "bidirectional" if layer.both_ways else "forward"
        states = f"{name}.states"
        self.node(
            layer.operator, inputs, states, hidden_size=hidden, direction=direction, **further
        )
        turned = self.node("Transpose", [states], f"{name}.turned", perm=[0, 2, 1, 3])
        shape = self.constant(f"{name}.shape", np.array([0, 0, -1], np.int64))
        return self.node("Reshape", [turned, shape], name)

    def model(
        self,
        data: tuple[str, int, tuple[int | str, ...]],
        result: tuple[str, tuple[int | str, ...]],
    ) -> onnx.ModelProto:
        """The network from its input (name, element type, shape) to its output (name, shape)."""
        graph = helper.make_graph(
            self.nodes,
            "generated",
            [helper.make_tensor_value_info(*data)],
            [helper.make_tensor_value_info(result[0], _FLOAT, result[1])],
            self.weights,
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8
        )


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Layers of one kind, one after the other; `weights` are dynamic (quantised), qdq or f32."""

    layers: int
    hidden: int
    both_ways: bool = False
    operator: str = "LSTM"
    weights: str = "dynamic"

    @property
    def entering(self) -> int:
        """Features of a step that enter the first layer of a stack."""
        return min(self.hidden, 80)

    @property
    def features(self) -> int:
        """What a step shows."""
        return self.hidden * (2 if self.both_ways else 1)


def _stack(layer: Recurrent) -> onnx.ModelProto:
    """Recurrent layers over [steps, batch, features]."""
    net, size = _Writer(), layer.entering
    data = net.node("Identity", ["x"], "start")
    for number in range(layer.layers):
        data = net.recurrent(f"layer{number}", data, size, layer)
        size = layer.features
    return net.model(("x", _FLOAT, ("n", "b", layer.entering)), (data, ("n", "b", size)))


def _tagger(layer: Recurrent, words: int, tags: int) -> onnx.ModelProto:
    """Word embeddings, recurrent layers over [batch, steps], and the scores of tags."""
    net, size = _Writer(), 128
    table = net.uniform("words.table", (words, size), 1.0)
    data = net.node("Gather", [table, "words"], "embedded")
    data = net.node("Transpose", [data], "steps", perm=[1, 0, 2])
    for number in range(layer.layers):
        data = net.recurrent(f"layer{number}", data, size, layer)
        size = layer.features
    data = net.node("Transpose", [data], "rows", perm=[1, 0, 2])
    data = net.node("Relu", [net.dense("hidden", data, size, 256)], "hidden.relu")
    net.dense("tags", data, 256, tags)
    return net.model(("words", _INT64, ("b", "n")), ("tags", ("b", "n", tags)))


def _speech_block() -> onnx.ModelProto:
    """Convolutions over time, as in separators of speech, before recurrent layers."""
    net, size = _Writer(), 64
    data = "x"
    for number, dilation in enumerate((1, 2, 4, 8)):
        name = f"conv{number}"
        weight = net.uniform(f"{name}.w", (128, size, 3), 1 / math.sqrt(3 * size))
        bias = net.uniform(f"{name}.b", (128,), 0.1)
        data = net.node(
            "Conv", [data, weight, bias], name, dilations=[dilation], pads=[dilation, dilation]
        )
        data, size = net.node("Relu", [data], f"{name}.relu"), 128
    data = net.node("Transpose", [data], "steps", perm=[2, 0, 1])
    data = net.recurrent("layer", data, size, Recurrent(1, 128, True))
    net.dense("mask", data, 256, 64)
    return net.model(("x", _FLOAT, ("b", 64, "n")), ("mask", ("n", "b", 64)))


def _zoo(name: str, layers: int | None = None, dynamic: bool = True) -> onnx.ModelProto:
    return build_model(name, size=Size(layers=layers, dynamic=dynamic))


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a network is made and quantised; `fused` writes what onnxruntime makes of it.

    Without `weights` the model is quantised as it is made.
    """

    made: Callable[[], onnx.ModelProto]
    weights: QuantType | None = QuantType.QInt8
    options: Mapping[str, Any] = field(default_factory=dict)
    fused: bool = False

    def write(self, path: Path) -> None:
        """Write the quantised network to this file."""
        if self.weights is None:
            onnx.save(self.made(), path)
            return
        source = path.with_suffix(".float.onnx")
        onnx.save(self.made(), source)
        target = path.with_suffix(".plain.onnx") if self.fused else path
        quantize_dynamic(source, target, weight_type=self.weights, **self.options)
        if self.fused:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            options.optimized_model_filepath = str(path)
            level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            options.graph_optimization_level = level
            onnxruntime.InferenceSession(target, options, providers=["CPUExecutionProvider"])


_LSTMS = (
    Recurrent(1, 128),
    Recurrent(1, 512),
    Recurrent(2, 256),
    Recurrent(2, 128, True),
    Recurrent(2, 512, True),
    Recurrent(3, 256, True),
)
_DEQUANTIZED = (
    Recurrent(1, 256, False, "LSTM", "qdq"),
    Recurrent(2, 512, True, "LSTM", "qdq"),
    Recurrent(1, 256, False, "GRU", "qdq"),
    Recurrent(2, 512, True, "GRU", "qdq"),
    Recurrent(1, 512, False, "RNN", "qdq"),
)
_FLOATS = tuple(
    Recurrent(1, hidden, False, operator, "f32")
    for operator in ("LSTM", "GRU")
    for hidden in (64, 128, 256, 512)
)
_TAGGER = Recurrent(2, 200, True)


def _name(layer: Recurrent) -> str:
    ways = "both" if layer.both_ways else "one"
    kind = "" if layer.weights == "dynamic" else f"_{layer.weights}"
    return f"{layer.operator.lower()}{kind}_{layer.layers}x{layer.hidden}_{ways}.onnx"


RECIPES: Mapping[str, Recipe] = {
    **{_name(layer): Recipe(partial(_stack, layer)) for layer in _LSTMS},
    **{_name(layer): Recipe(partial(_stack, layer), None) for layer in (*_DEQUANTIZED, *_FLOATS)},
    "tagger.onnx": Recipe(lambda: _tagger(_TAGGER, 5000, 40)),
    "speech_block.onnx": Recipe(_speech_block, QuantType.QUInt8),
    "crnn.onnx": Recipe(lambda: _zoo("crnn", dynamic=False), QuantType.QUInt8),
    "encoder.onnx": Recipe(lambda: _zoo("encoder", 4)),
    "encoder_u8_channels.onnx": Recipe(
        lambda: _zoo("encoder", 4), QuantType.QUInt8, {"per_channel": True}
    ),
    "encoder_fused.onnx": Recipe(lambda: _zoo("encoder", 4), fused=True),
    "decoder_prefill.onnx": Recipe(lambda: _zoo("decoder_prefill", 4)),
    "decoder_step.onnx": Recipe(lambda: _zoo("decoder_step", 4)),
    "resnet18.onnx": Recipe(lambda: _zoo("resnet18"), QuantType.QUInt8),
    "mlp.onnx": Recipe(lambda: _zoo("mlp")),
}
"""By the name of the file."""


def _stacked(layer: Recurrent) -> Network:
    shape, bounds = ("n", "b", layer.entering), {"n": "1..200", "b": "1..8"}
    sizes = _FLOAT_STEPS if layer.weights == "f32" else _STEPS
    return Network(
        PACKAGE, _name(layer), {"x": shape}, {"x": SIGNAL}, sizes, bounds, tolerance=1e-2
    )


_TOKENS = ({"b": 1, "n": 16}, {"b": 1, "n": 128})
_CACHE = ("b", 2, "p", 64)
_PAST = {f"past_key_values.{n}.{part}": _CACHE for n in range(4) for part in ("key", "value")}


def _encoder(file: str) -> Network:
    shapes = {"input": ("b", "n", 768)}
    bounds = {"b": "1..4", "n": "1..128"}
    # A byte that is rounded the other way changes all later ones: pooled outputs of onnxruntime and
    # of its reference differ by 5 % of the largest, each of them by 7 % from the network in f32.
    return Network(PACKAGE, file, shapes, {"input": SIGNAL}, _TOKENS, bounds, tolerance=1e-1)


GENERATED: tuple[Network, ...] = (
    *map(_stacked, (*_LSTMS, *_DEQUANTIZED, *_FLOATS)),
    Network(
        PACKAGE,
        "tagger.onnx",
        {"words": ("b", "n")},
        {"words": WORDS},
        ({"b": 1, "n": 12}, {"b": 4, "n": 40}),
        {"b": "1..4", "n": "1..64"},
        tolerance=6e-2,
    ),
    Network(
        PACKAGE,
        "speech_block.onnx",
        {"x": ("b", 64, "n")},
        {"x": AUDIO},
        ({"b": 1, "n": 100}, {"b": 1, "n": 400}),
        {"b": "1..2", "n": "16..512"},
        tolerance=6e-2,
    ),
    Network(PACKAGE, "crnn.onnx", {"input": (1, 1, 32, 128)}, {"input": IMAGE}, tolerance=6e-2),
    *map(_encoder, ("encoder.onnx", "encoder_u8_channels.onnx", "encoder_fused.onnx")),
    Network(
        PACKAGE,
        "decoder_prefill.onnx",
        {"input_ids": ("b", "n"), "position_ids": ("b", "n")},
        {"input_ids": WORDS, "position_ids": "ones"},
        _TOKENS,
        {"b": "1..4", "n": "1..128"},
        tolerance=6e-2,
    ),
    Network(
        PACKAGE,
        "decoder_step.onnx",
        {
            "input_ids": ("b", 1),
            "position_ids": ("b", 1),
            "attention_mask": ("b", "p + 1"),
            **_PAST,
        },
        {
            "input_ids": WORDS,
            "position_ids": "ones",
            "attention_mask": "ones",
            **dict.fromkeys(_PAST, SIGNAL),
        },
        ({"b": 1, "p": 16, "p + 1": 17}, {"b": 1, "p": 127, "p + 1": 128}),
        {"b": "1..4", "p": "1..127"},
        tolerance=6e-2,
    ),
    Network(
        PACKAGE,
        "resnet18.onnx",
        {"input": ("b", 3, 224, 224)},
        {"input": IMAGE},
        ({"b": 1},),
        {"b": "1..4"},
        tolerance=1e-1,
    ),
    Network(
        PACKAGE,
        "mlp.onnx",
        {"input": ("b", 784)},
        {"input": IMAGE},
        ({"b": 1}, {"b": 16}),
        {"b": "1..16"},
        tolerance=6e-2,
    ),
)


def write(folder: Path, network: Network) -> Path:
    """The file of a generated network, written into the folder unless it is there."""
    target = folder / f"{PACKAGE}-{network.file}"
    if not target.exists():
        RECIPES[network.file].write(target)
    return target
