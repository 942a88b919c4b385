"""Writes a model of floats as a quantised one, in the form of onnxruntime's quantize_static.

Activations are u8 with a zero point, their ranges those that inputs of a seed give; weights i8 by
output channel, without zero points; biases i32 in units of the sums. Batch norms are folded into
the convolutions before them first, and activations that a range cuts the same way (relu, clip) go
away. What computes in floats keeps doing so.

In the QOperator form operators work on integers instead of floats:

    Conv(Dequantize(x), Dequantize(w), Dequantize(b)) -> Quantize   becomes   QLinearConv

and so for products, additions and others, those of com.microsoft where ONNX has none. Operators
that only move elements read and give integers as they are. What has no such form stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.tensor_type import Array

Run: TypeAlias = Callable[[Mapping[str, Array]], Mapping[str, Array]]
Prepare: TypeAlias = Callable[[Graph], Run]
"""Makes a graph ready to run: a function from its inputs to its outputs, by name."""

Range: TypeAlias = tuple[float, float]

SAMPLES = 4

_WITH_WEIGHTS = ("Conv", "Gemm", "MatMul")
_COMPUTED = ("Add", "Mul", "Sigmoid", "LeakyRelu", "Concat", "GlobalAveragePool", "AveragePool")
_MOVED = ("MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Resize")
_CUT = ("Relu", "Clip")


def quantised(model: onnx.ModelProto, prepare: Prepare, seed: int = 0) -> onnx.ModelProto:
    """The quantised model, with the ranges of `SAMPLES` runs on normally distributed inputs."""
    folded = _without_batch_norms(model)
    ranges = _ranges(folded, prepare, seed)
    return _Writer(folded, ranges).run()


# --- what comes first ---------------------------------------------------------------------------


def _without_batch_norms(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with batch norms folded into the convolutions that they alone read."""
    folded = onnx.ModelProto()
    folded.CopyFrom(model)
    graph = folded.graph
    arrays = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    producers = {node.output[0]: node for node in graph.node}
    for node in list(graph.node):
        if node.op_type != "BatchNormalization":
            continue
        before = producers.get(node.input[0])
        if before is None or before.op_type != "Conv":
            continue
        factor, shift, mean, variance = (arrays[name].astype(np.float64) for name in node.input[1:])
        epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        factor = factor / np.sqrt(variance + epsilon)
        weight, *bias = before.input[1:]
        scaled = arrays[weight] * factor.reshape(-1, *(1,) * (arrays[weight].ndim - 1))
        offset = arrays[bias[0]] if bias else 0.0
        arrays[weight] = scaled.astype(np.float32)
        name = bias[0] if bias else weight.replace("weight", "bias")
        arrays[name] = ((offset - mean) * factor + shift).astype(np.float32)
        del before.input[2:]
        before.input.append(name)
        before.output[0] = node.output[0]
        graph.node.remove(node)
    used = {name for node in graph.node for name in node.input}
    del graph.initializer[:]
    graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in arrays.items() if name in used
    )
    return folded


def _ranges(model: onnx.ModelProto, prepare: Prepare, seed: int) -> dict[str, Range]:
    """The minimum and maximum of each float that operators read or give."""
    shown = onnx.shape_inference.infer_shapes(model)
    floats = [
        value
        for value in (*shown.graph.value_info, *shown.graph.output)
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    ]
    outputs = {value.name: value for value in floats}
    del shown.graph.output[:]
    shown.graph.output.extend(outputs.values())
    found: dict[str, Range] = {}
    rng, run = np.random.default_rng(seed), prepare(import_model_proto(shown))
    for _ in range(SAMPLES):
        inputs = {value.name: _drawn(value, rng) for value in model.graph.input}
        for name, array in (*inputs.items(), *run(inputs).items()):
            if array.dtype.kind != "f":
                continue
            low, high = found.get(name, (0.0, 0.0))
            found[name] = min(low, float(array.min())), max(high, float(array.max()))
    return found


def _drawn(value: onnx.ValueInfoProto, rng: np.random.Generator) -> Array:
    tensor = value.type.tensor_type
    shape = [dimension.dim_value for dimension in tensor.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 8, shape).astype(dtype)


# --- the model ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Writer:
    """Rewrites the nodes in order; `quantised` has the values that come as integers by now."""

    model: onnx.ModelProto
    ranges: Mapping[str, Range]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    readers: dict[str, list[onnx.NodeProto]] = field(default_factory=dict)
    parameters: dict[str, tuple[str, str]] = field(default_factory=dict)  # value -> scale, zero
    renamed: dict[str, str] = field(default_factory=dict)  # output -> what computes it

    def run(self) -> onnx.ModelProto:
        graph = self.model.graph
        self.arrays = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        skipped: dict[str, str] = {}
        for node in graph.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = [skipped.get(name, name) for name in node.input]
            if self._is_cut_anyway(copy):
                skipped[node.output[0]] = copy.input[0]
                continue
            self._node(copy)
        result = onnx.ModelProto()
        result.CopyFrom(self.model)
        del result.graph.node[:], result.graph.initializer[:], result.graph.value_info[:]
        result.graph.node.extend(self.nodes)
        used = {name for node in self.nodes for name in node.input}
        result.graph.initializer.extend(
            self.constants.get(name) or numpy_helper.from_array(self.arrays[name], name)
            for name in sorted(used & {*self.constants, *self.arrays})
        )
        onnx.checker.check_model(result)
        return result

    def _node(self, node: onnx.NodeProto) -> None:
        floats = [name for name in node.input if name in self.ranges]
        if not self._computes_quantised(node, floats):
            self.nodes.append(self._reading(node, {name: self._float(name) for name in floats}))
            return
        read = {name: self._dequantized(name) for name in floats}
        output, moved = node.output[0], node.op_type in _MOVED
        if node.op_type in _WITH_WEIGHTS:
            read |= self._weights(node)
        if moved:
            self.parameters[output] = self.parameters[floats[0]]
        written = self._reading(node, read)
        last = self._last_of_cuts(node)
        if self._stays_float(node):
            self.nodes.append(written)
            return
        shown = output in {value.name for value in self.model.graph.output}
        if shown:
            written.output[0] = f"{output}_QuantizeLinear_Input"
        self.nodes.append(written)
        self._quantized(output, written.output[0], moved, last, shown)

    def _computes_quantised(self, node: onnx.NodeProto, floats: list[str]) -> bool:
        """Is it an operator that is quantised, on values that may be?"""
        if not floats or node.output[0] not in self.ranges:
            return False
        others = [name for name in node.input if name in self.arrays]
        if node.op_type in _WITH_WEIGHTS:
            return all(self.arrays[name].dtype == np.float32 for name in others)
        if node.op_type in _COMPUTED:
            return not others
        known = floats[0] in self.parameters
        return node.op_type in (*_MOVED, *_CUT) and known

    def _stays_float(self, node: onnx.NodeProto) -> bool:
        """Is the result read by one addition of a constant alone, as its bias?"""
        readers = self.readers.get(node.output[0], [])
        return node.op_type == "MatMul" and len(readers) == 1 and _adds_constant(readers[0], self)

    def _is_cut_anyway(self, node: onnx.NodeProto) -> bool:
        """A relu or clip behind one quantised operator, which then has its range."""
        if node.op_type not in _CUT or not self.nodes:
            return False
        source, result = node.input[0], node.output[0]
        alone = len(self.readers.get(source, ())) == 1 and source in self.parameters
        outputs = {value.name for value in self.model.graph.output}
        return alone and not {source, result} & outputs

    def _last_of_cuts(self, node: onnx.NodeProto) -> str:
        """The value whose range the result has: that behind a relu or clip that goes away."""
        name = str(node.output[0])
        outputs = {value.name for value in self.model.graph.output}
        while name not in outputs:
            readers = self.readers.get(name, [])
            if len(readers) != 1 or readers[0].op_type not in _CUT:
                break
            name = str(readers[0].output[0])
        return name

    # --- values ---------------------------------------------------------------------------------

    def _quantized(self, name: str, source: str, moved: bool, last: str, shown: bool) -> None:
        if not moved:
            self.parameters[name] = self._activation_parameters(name, self.ranges[last])
        quantised = f"{name}_QuantizeLinear_Output"
        scale, zero = self.parameters[name]
        self._emit("QuantizeLinear", [source, scale, zero], quantised)
        read = name if shown else f"{name}_DequantizeLinear_Output"
        self._emit("DequantizeLinear", [quantised, scale, zero], read)
        self.renamed[name] = read

    def _dequantized(self, name: str) -> str:
        """The value as read from integers."""
        if name not in self.parameters:
            self._quantized(name, name, False, name, False)
        return self._float(name)

    def _float(self, name: str) -> str:
        return self.renamed.get(name, name)

    def _activation_parameters(self, name: str, found: Range) -> tuple[str, str]:
        low, high = min(found[0], 0.0), max(found[1], 0.0)
        scale = np.float32((high - low) / 255.0) if high > low else np.float32(1)
        zero = np.uint8(round(-low / float(scale)))
        return self._constant(f"{name}_scale", scale), self._constant(f"{name}_zero_point", zero)

    def _weights(self, node: onnx.NodeProto) -> dict[str, str]:
        """The names that stand for weight and bias, if these are constants."""
        weight, *bias = node.input[1:]
        if weight not in self.arrays:
            return {}
        array = self.arrays[weight]
        turned = any(a.name == "transB" and a.i for a in node.attribute)
        axis = 0 if node.op_type == "Conv" or turned else array.ndim - 1
        others = tuple(other for other in range(array.ndim) if other != axis)
        largest = np.abs(array).max(axis=others)
        scale = np.where(largest > 0, largest / np.float32(127), 1).astype(np.float32)
        shape = [-1 if other == axis else 1 for other in range(array.ndim)]
        quanta = np.clip(np.rint(array / scale.reshape(shape)), -127, 127).astype(np.int8)
        zero = np.zeros(scale.shape, np.int8)
        read = {weight: self._constant_dequantized(weight, quanta, scale, zero, axis)}
        if bias and bias[0] in self.arrays:
            step = self.constants[self.parameters[node.input[0]][0]]
            units = (numpy_helper.to_array(step) * scale).astype(np.float32)
            sums = np.rint(self.arrays[bias[0]].astype(np.float64) / units).astype(np.int32)
            none = np.zeros(units.shape, np.int32)
            read[bias[0]] = self._constant_dequantized(bias[0], sums, units, none, 0)
        return read

    def _constant_dequantized(
        self, name: str, quanta: Array, scale: Array, zero: Array, axis: int
    ) -> str:
        inputs = [
            self._constant(f"{name}_quantized", quanta),
            self._constant(f"{name}_scale", scale),
            self._constant(f"{name}_zero_point", zero),
        ]
        output = f"{name}_DequantizeLinear_Output"
        self._emit("DequantizeLinear", inputs, output, axis=axis)
        return output

    # --- nodes ----------------------------------------------------------------------------------

    def _constant(self, name: str, array: Any) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def _emit(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> None:
        name = output.removesuffix("_Output") if output.endswith("_Output") else f"{output}_float"
        self.nodes.append(helper.make_node(operator, inputs, [output], name, **attributes))

    def _reading(self, node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
        """The node with other inputs."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [names.get(name, name) for name in node.input]
        return copy


def _adds_constant(node: onnx.NodeProto, writer: _Writer) -> bool:
    return node.op_type == "Add" and any(name in writer.arrays for name in node.input)


_OURS = {
    "Add": "QLinearAdd",
    "Mul": "QLinearMul",
    "Sigmoid": "QLinearSigmoid",
    "LeakyRelu": "QLinearLeakyRelu",
    "GlobalAveragePool": "QLinearGlobalAveragePool",
    "Concat": "QLinearConcat",
    "Gemm": "QGemm",
}
_MOVED_INTEGERS = ("MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice")


def with_qoperators(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in QOperator form, without what nothing reads any more; checked by onnx.checker."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    producers = {output: node for node in graph.node for output in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    nodes: list[onnx.NodeProto] = []
    replaced: set[str] = set()  # outputs of the quantizations that operators do themselves
    for node in graph.node:
        if node.output[0] in replaced:
            continue
        after = readers.get(node.output[0], [])
        quantize = after[0] if [item.op_type for item in after] == ["QuantizeLinear"] else None
        written = None if quantize is None else _on_integers(node, quantize, producers)
        if written is None or quantize is None:
            nodes.append(node)
        else:
            replaced.add(quantize.output[0])
            nodes.append(written)
    kept = _needed(nodes, {value.name for value in graph.output})
    del graph.node[:]
    graph.node.extend(kept)
    used = {name for node in kept for name in node.input}
    constants = [item for item in graph.initializer if item.name in used]
    del graph.initializer[:]
    graph.initializer.extend(constants)
    if any(node.domain for node in kept):
        result.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.checker.check_model(result)
    return result


def _on_integers(
    node: onnx.NodeProto, quantize: onnx.NodeProto, producers: dict[str, onnx.NodeProto]
) -> onnx.NodeProto | None:
    """The node as one on integers that gives what `quantize` gave; None where there is none."""
    operands: list[list[str]] = []
    for position, name in enumerate(node.input):
        before = producers.get(name)
        if before is not None and before.op_type == "DequantizeLinear":
            operands.append(list(before.input))
        elif node.op_type in _MOVED_INTEGERS and position > 0:
            operands.append([name])  # a shape
        else:
            return None
    result = list(quantize.input[1:])
    if node.op_type in _MOVED_INTEGERS:
        if operands[0][1:] != result:
            return None
        inputs = [operands[0][0], *(item for rest in operands[1:] for item in rest)]
        return _like(node, node.op_type, inputs, quantize)
    biases = [operand[0] for operand in operands[2:]]
    match node.op_type:
        case "Conv":
            inputs = [*operands[0], *operands[1], *result, *biases]
            return _like(node, "QLinearConv", inputs, quantize)
        case "MatMul":
            inputs = [*operands[0], *operands[1], *result]
            return _like(node, "QLinearMatMul", inputs, quantize)
        case "Gemm":
            inputs = [*operands[0], *operands[1], *(biases or [""]), *result]
        case "Concat":
            inputs = [*result, *(item for operand in operands for item in operand)]
        case _:
            inputs = [*(item for operand in operands for item in operand), *result]
    ours = _OURS.get(node.op_type)
    return None if ours is None else _like(node, ours, inputs, quantize, "com.microsoft")


def _like(
    node: onnx.NodeProto,
    operator: str,
    inputs: Sequence[str],
    quantize: onnx.NodeProto,
    domain: str = "",
) -> onnx.NodeProto:
    """The node as another operator, with its attributes."""
    result = helper.make_node(
        operator, list(inputs), list(quantize.output), f"{node.name}_quant", domain=domain
    )
    result.attribute.extend(item for item in node.attribute if item.name != "beta")
    return result


def _needed(nodes: Sequence[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """The nodes that outputs depend on, in their order."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
    return kept[::-1]
