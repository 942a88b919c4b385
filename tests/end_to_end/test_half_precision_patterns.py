"""Layers in 16-bit floats become the operators that they become in f32."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tunefarm.compiler import build
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.plan.optimise import Abilities, optimise
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import STRICT_NUMERICS, is_narrow
from tunefarm.compiler.types.tensor_type import Array

TOKENS, HEADS, WIDTH = 6, 2, 8
FEATURES = HEADS * WIDTH
FLOATS = {
    "f32": (TensorProto.FLOAT, DType.F32),
    "f16": (TensorProto.FLOAT16, DType.F16),
    "bf16": (TensorProto.BFLOAT16, DType.BF16),
}


class Layer:
    """Collects the nodes of a layer in one float type, as exporters write them for it."""

    def __init__(self, name: str) -> None:
        self.proto, self.dtype = FLOATS[name]
        self.casts = name != "f32"
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, values: Any, dtype: DType | None = None) -> str:
        name = f"c{len(self.constants)}"
        array = np.asarray(values)
        stored = array.astype((dtype or self.dtype).numpy) if array.dtype.kind == "f" else array
        self.constants.append(numpy_helper.from_array(stored, name))
        return name

    def weights(self, *shape: int) -> str:
        return self.constant(self.random.standard_normal(shape) / np.sqrt(shape[0]))

    def in_f32(self, value: str) -> str:
        return self.node("Cast", value, to=TensorProto.FLOAT) if self.casts else value

    def stored(self, value: str) -> str:
        return self.node("Cast", value, to=self.proto) if self.casts else value

    def dense(self, value: str) -> str:
        return self.node("MatMul", value, self.weights(FEATURES, FEATURES))

    def heads(self, value: str) -> str:
        shape = self.constant(np.array([1, TOKENS, HEADS, WIDTH]))
        return self.node("Transpose", self.node("Reshape", value, shape), perm=[0, 2, 1, 3])

    def joined(self, value: str) -> str:
        tokens = self.node("Transpose", value, perm=[0, 2, 1, 3])
        return self.node("Reshape", tokens, self.constant(np.array([1, TOKENS, FEATURES])))

    def part(self, value: str, start: int, end: int) -> str:
        bounds = (self.constant(np.array([number])) for number in (start, end, 3))
        return self.node("Slice", value, *bounds)

    def model(self, result: str) -> onnx.ModelProto:
        shape = (1, TOKENS, FEATURES)
        x = helper.make_tensor_value_info("x", self.proto, shape)
        y = helper.make_tensor_value_info(result, self.proto, shape)
        graph = helper.make_graph(self.nodes, "layer", [x], [y], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def encoder_layer(name: str) -> onnx.ModelProto:
    """Norms and GELU spelled out in the layer's type, attention with a mask."""
    layer = Layer(name)

    def norm(value: str) -> str:
        mean = layer.node("ReduceMean", value, axes=[-1])
        deviation = layer.node("Sub", value, mean)
        square = layer.node("Pow", deviation, layer.constant(2.0))
        variance = layer.node("ReduceMean", square, axes=[-1])
        root = layer.node("Sqrt", layer.node("Add", variance, layer.constant(1e-5)))
        scaled = layer.node("Mul", layer.node("Div", deviation, root), layer.weights(FEATURES))
        return layer.node("Add", scaled, layer.weights(FEATURES))

    query, key, value = (layer.heads(layer.dense("x")) for _ in range(3))
    turned = layer.node("Transpose", key, perm=[0, 1, 3, 2])
    scores = layer.node("MatMul", query, turned)
    scaled = layer.node("Div", scores, layer.constant(np.sqrt(WIDTH)))
    hidden = np.where(np.arange(TOKENS) < TOKENS - 1, 0.0, -1e4).reshape(1, 1, 1, TOKENS)
    masked = layer.node("Add", scaled, layer.constant(hidden))
    weights = layer.node("Softmax", masked, axis=-1)
    context = layer.joined(layer.node("MatMul", weights, value))
    first = norm(layer.node("Add", "x", layer.dense(context)))
    wide = layer.dense(first)
    error = layer.node("Erf", layer.node("Div", wide, layer.constant(np.sqrt(2.0))))
    gate = layer.node("Add", error, layer.constant(1.0))
    gelu = layer.node("Mul", layer.node("Mul", wide, gate), layer.constant(0.5))
    return layer.model(norm(layer.node("Add", first, layer.dense(gelu))))


def llama_layer(name: str) -> onnx.ModelProto:
    """Norms and softmax with casts to f32 and back, rotary embedding, SwiGLU."""
    layer = Layer(name)
    angles = np.outer(np.arange(TOKENS), 10.0 ** -np.arange(WIDTH // 2))
    angles = np.concatenate([angles, angles], axis=-1)
    cosine, sine = layer.constant(np.cos(angles)), layer.constant(np.sin(angles))

    def norm(value: str) -> str:
        wide = layer.in_f32(value)
        square = layer.node("Pow", wide, layer.constant(2.0, DType.F32))
        mean = layer.node("ReduceMean", square, axes=[-1])
        shifted = layer.node("Add", mean, layer.constant(1e-5, DType.F32))
        inverse = layer.node("Reciprocal", layer.node("Sqrt", shifted))
        normal = layer.stored(layer.node("Mul", wide, inverse))
        return layer.node("Mul", layer.weights(FEATURES), normal)

    def turned(value: str) -> str:
        first, last = layer.part(value, 0, WIDTH // 2), layer.part(value, WIDTH // 2, WIDTH)
        other = layer.node("Concat", layer.node("Neg", last), first, axis=-1)
        straight = layer.node("Mul", value, cosine)
        return layer.node("Add", straight, layer.node("Mul", other, sine))

    normal = norm("x")
    query, key = (turned(layer.heads(layer.dense(normal))) for _ in range(2))
    value = layer.heads(layer.dense(normal))
    scores = layer.node("MatMul", query, layer.node("Transpose", key, perm=[0, 1, 3, 2]))
    scaled = layer.node("Mul", scores, layer.constant(1 / np.sqrt(WIDTH)))
    causal = np.triu(np.full((TOKENS, TOKENS), -3e4), k=1)
    masked = layer.node("Add", scaled, layer.constant(causal))
    weights = layer.stored(layer.node("Softmax", layer.in_f32(masked), axis=-1))
    context = layer.joined(layer.node("MatMul", weights, value))
    first = layer.node("Add", "x", layer.dense(context))
    normal = norm(first)
    gate = layer.dense(normal)
    swish = layer.node("Mul", gate, layer.node("Sigmoid", gate))
    both = layer.node("Mul", swish, layer.dense(normal))
    return layer.model(layer.node("Add", first, layer.dense(both)))


LAYERS = {"encoder": encoder_layer, "llama": llama_layer}


def operators(model: onnx.ModelProto) -> Counter[str]:
    """What the layer consists of, but for conversions, where no narrow products are summed."""
    graph = optimise(import_model_proto(model), 16, can=Abilities(summed=()))
    moves = ("cast", "reshape", "transpose")
    return Counter(node.operator for node in graph.nodes if node.operator not in moves)


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_same_operators_are_recognised(layer: str, name: str) -> None:
    wanted = operators(LAYERS[layer]("f32"))
    assert wanted["attention"] == 1
    assert operators(LAYERS[layer](name)) == wanted


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("layer", LAYERS)
def test_outputs_are_those_of_the_reference(layer: str, name: str) -> None:
    dtype, model = FLOATS[name][1], LAYERS[layer](name)
    x = np.random.default_rng(1).standard_normal((1, TOKENS, FEATURES)).astype(dtype.numpy)
    outputs: Any = ReferenceEvaluator(LAYERS[layer]("f32")).run(None, {"x": x.astype(np.float32)})
    expected: Array = np.asarray(outputs[0])
    (got,) = build(import_model_proto(model)).run({"x": x}).values()
    assert got.dtype == dtype.numpy
    error = np.abs(np.subtract(got.astype(np.float32), expected)).max()
    assert error <= 8 * dtype.epsilon * np.abs(expected).max()


def test_where_each_operator_rounds_nothing_is_recognised() -> None:
    graph = optimise(import_model_proto(llama_layer("bf16")), 16, numerics=STRICT_NUMERICS)
    found = {node.operator for node in graph.nodes if is_narrow(graph.types[node.output].dtype)}
    assert not found & {"attention", "rms_norm", "rotary", "swish"}
