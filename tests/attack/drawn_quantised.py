"""Draws small models of quantised operators, in all forms that ONNX has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Values: TypeAlias = npt.NDArray[Any]

_EXTENTS = (1, 2, 3, 5, 7, 13)
_CHANNELS = (1, 3, 4, 16, 17, 32)
_OF_TYPE = {"u": np.uint8, "i": np.int8}


@dataclass(frozen=True, slots=True)
class DrawnModel:
    """A model with its inputs.

    `before` names the float that a last QuantizeLinear reads and `scale` is that one's; "" where
    the model's arithmetic is that of integers alone.
    """

    kind: str
    model: onnx.ModelProto
    inputs: dict[str, Values]
    before: str = ""
    scale: float = 1.0

    def expected(self) -> Values:
        """The output, by ONNX's reference evaluator."""
        with np.errstate(all="ignore"):
            outputs: Any = ReferenceEvaluator(self.model).run(None, self.inputs)
        return np.asarray(outputs[0])

    def difference(self, found: Values) -> str:
        """What an output differs in, "" if it is right.

        That is bit-equal; but where floats were rounded before, a number in the middle may go
        either way.
        """
        expected = self.expected()
        if (found.dtype, found.shape) != (expected.dtype, expected.shape):
            kind = f"{found.dtype}{list(found.shape)}"
            return f"{self.kind}: {kind} is not {expected.dtype}{list(expected.shape)}"
        differs = found != expected
        if differs.any() and self.before:
            differs &= ~self.near_ties()
        if not differs.any():
            return ""
        return f"{self.kind}: {found[differs][:8]} is not {expected[differs][:8]}"

    def is_bit_equal(self, found: Values) -> bool:
        """Whether not even a number in the middle went the other way."""
        return np.array_equal(found, self.expected())

    def near_ties(self) -> Values:
        """Where the last rounding is of a number in the middle, within some roundings in f32."""
        shown = onnx.ModelProto()
        shown.CopyFrom(self.model)
        del shown.graph.output[:]
        shown.graph.output.append(helper.make_empty_tensor_value_info(self.before))
        with np.errstate(all="ignore"):
            outputs: Any = ReferenceEvaluator(shown).run(None, self.inputs)
        quanta = outputs[0].astype(np.float64) / self.scale
        distance = np.abs(quanta - np.floor(quanta) - 0.5)
        return np.asarray(distance < np.maximum(np.abs(quanta), 1) * 2.0**-17)


@dataclass(slots=True)
class _Drawer:
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: dict[str, Values] = field(default_factory=dict)
    exact: bool = False

    def choose(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def flip(self) -> bool:
        return bool(self.rng.integers(2))

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def input(self, array: Values) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = array
        return name

    def node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def nodes_of(self, operator: str, inputs: Sequence[str], outputs: int) -> list[str]:
        names = [f"v{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names))
        return names

    def scale(self, shape: tuple[int, ...] = ()) -> Values:
        """Powers of two, with which floats are exact and ties are many, or any numbers."""
        if self.exact:
            return np.exp2(self.rng.integers(-4, 1, shape)).astype(np.float32)
        return self.rng.uniform(0.01, 0.9, shape).astype(np.float32)

    def integers(self, shape: tuple[int, ...], kind: str, small: bool = False) -> Values:
        dtype = _OF_TYPE[kind]
        limits = np.iinfo(dtype)
        low, high = (limits.min // 16, limits.max // 16) if small else (limits.min, limits.max)
        return self.rng.integers(low, high, shape, endpoint=True).astype(dtype)

    def zero(self, kind: str, shape: tuple[int, ...] = ()) -> Values:
        dtype = _OF_TYPE[kind]
        limits = np.iinfo(dtype)
        middle = (int(limits.min) + int(limits.max) + 1) // 2
        chosen = self.choose((0, middle, None))
        if chosen is not None:
            return np.full(shape, chosen, dtype)
        return self.rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)

    def finish(self, kind: str, output: str, before: str = "", scale: float = 1.0) -> DrawnModel:
        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in self.inputs.items()
        ]
        self.nodes.append(helper.make_node("Identity", [output], ["y"]))
        result = helper.make_empty_tensor_value_info("y")
        graph = helper.make_graph(self.nodes, "drawn", inputs, [result], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
        model.ir_version = 10
        inferred = onnx.shape_inference.infer_shapes(model)
        return DrawnModel(kind, inferred, self.inputs, before, scale)


@dataclass(frozen=True, slots=True)
class _Window:
    """A convolution's shapes and attributes."""

    data: tuple[int, ...]
    weight: tuple[int, ...]
    attributes: dict[str, Any]


def _window(d: _Drawer) -> _Window:
    groups = d.choose((1, 1, 1, 2))
    inputs, outputs = (int(d.choose(_CHANNELS)) * groups for _ in range(2))
    if d.choose(range(4)) == 0:  # depthwise
        groups = outputs = inputs
    kernel = [int(d.choose((1, 1, 2, 3))) for _ in range(2)]
    pads = [int(d.choose((0, 0, 1))) if k > 1 else 0 for k in (*kernel, *kernel)]
    extents = [int(d.choose(_EXTENTS)) + k for k in kernel]
    strides = [int(d.choose((1, 1, 2))) for _ in range(2)]
    given = {"pads": pads, "strides": strides, "group": groups, "kernel_shape": kernel}
    return _Window((1, inputs, *extents), (outputs, inputs // groups, *kernel), given)


# --- operators on integers ----------------------------------------------------------------------


def _qlinear_conv(d: _Drawer) -> DrawnModel:
    kind, weight_kind = d.choose(("uu", "ui", "ii")), ""
    kind, weight_kind = kind
    window = _window(d)
    outputs = window.weight[0]
    form = d.choose(((), (outputs,)))
    inputs = [
        d.input(d.integers(window.data, kind)),
        d.constant(d.scale()),
        d.constant(d.zero(kind)),
        d.constant(d.integers(window.weight, weight_kind)),
        d.constant(d.scale(form) / 16),
        d.constant(d.zero(weight_kind, form)),
        d.constant(d.scale() * np.float32(8)),
        d.constant(d.zero(kind)),
    ]
    if d.flip():
        inputs.append(d.constant(d.rng.integers(-5000, 5000, outputs).astype(np.int32)))
    return d.finish("QLinearConv", d.node("QLinearConv", inputs, **window.attributes))


def _matrices(d: _Drawer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    m, k, n = (int(d.choose((*_EXTENTS, 16, 33))) for _ in range(3))
    batch = d.choose(((), (), (2,), (2, 3)))
    return (*batch, m, k), d.choose(((k, n), (*batch, k, n)))


def _qlinear_matmul(d: _Drawer) -> DrawnModel:
    kinds = d.choose(("uu", "ui", "ii"))
    left, right = _matrices(d)
    a = d.input(d.integers(left, kinds[0]))
    drawn = d.integers(right, kinds[1])
    b = d.input(drawn) if d.flip() else d.constant(drawn)
    inputs = [a, d.constant(d.scale()), d.constant(d.zero(kinds[0])), b]
    inputs += [d.constant(d.scale() / 16), d.constant(d.zero(kinds[1]))]
    inputs += [d.constant(d.scale() * np.float32(8)), d.constant(d.zero(kinds[0]))]
    return d.finish("QLinearMatMul", d.node("QLinearMatMul", inputs))


def _matmul_integer(d: _Drawer) -> DrawnModel:
    kinds = d.choose(("uu", "ui", "ii", "iu"))
    left, right = _matrices(d)
    inputs = [d.input(d.integers(left, kinds[0]))]
    drawn = d.integers(right, kinds[1])
    inputs.append(d.constant(drawn) if d.flip() else d.input(drawn))
    zero = d.zero(kinds[0])
    inputs.append(d.constant(zero) if d.flip() else d.input(zero))
    if d.flip():
        form = d.choose(((), (right[-1],)))
        zero = d.zero(kinds[1], form)
        inputs.append(d.constant(zero) if d.flip() else d.input(zero))
    return d.finish("MatMulInteger", d.node("MatMulInteger", inputs))


def _conv_integer(d: _Drawer) -> DrawnModel:
    kinds = d.choose(("uu", "ui", "ii"))
    window = _window(d)
    inputs = [d.input(d.integers(window.data, kinds[0]))]
    inputs.append(d.constant(d.integers(window.weight, kinds[1])))
    zero = d.zero(kinds[0])
    inputs.append(d.constant(zero) if d.flip() else d.input(zero))
    if d.flip():
        inputs.append(d.constant(d.zero(kinds[1])))
    return d.finish("ConvInteger", d.node("ConvInteger", inputs, **window.attributes))


def _dynamic(d: _Drawer) -> DrawnModel:
    """What onnxruntime's quantize_dynamic writes in the place of a product."""
    m, k, n = (int(d.choose(_EXTENTS)) for _ in range(3))
    x = d.input(d.rng.standard_normal((m, k)).astype(np.float32))
    q, scale, zero = d.nodes_of("DynamicQuantizeLinear", [x], 3)
    weight = d.constant(d.integers((k, n), "i"))
    step = d.constant(d.scale((n,)))
    total = d.node("MatMulInteger", [q, weight, zero])
    wide = d.node("Cast", [total], to=TensorProto.FLOAT)
    return d.finish("dynamic", d.node("Mul", [wide, d.node("Mul", [scale, step])]))


# --- operators on floats, between dequantisation and quantisation -------------------------------


def _dequantized(d: _Drawer, shape: tuple[int, ...], kind: str, small: bool = False) -> str:
    q = d.input(d.integers(shape, kind, small))
    return d.node("DequantizeLinear", [q, d.constant(d.scale()), d.constant(d.zero(kind))])


def _quantized(d: _Drawer, kind: str, name: str, steps: float = 1.0) -> tuple[str, float]:
    scale = d.scale() * np.float32(steps)
    parameters = [d.constant(scale), d.constant(d.zero(kind))]
    return d.node("QuantizeLinear", [name, *parameters]), float(scale)


def _weight(d: _Drawer, shape: tuple[int, ...], axis: int) -> tuple[str, Values]:
    """A dequantized constant, and its scales."""
    channels = shape[axis]
    form = d.choose(((), (channels,)))
    scale, kind = d.scale(form) / np.float32(16), d.choose("iiu")
    zero = d.zero(kind, form) if kind == "u" else np.zeros(form, np.int8)
    names = [d.constant(d.integers(shape, kind)), d.constant(scale), d.constant(zero)]
    return d.node("DequantizeLinear", names, axis=axis), scale


def _qdq_conv(d: _Drawer) -> DrawnModel:
    window, kind = _window(d), d.choose("uui")
    q = d.input(d.integers(window.data, kind, d.exact))
    scale = d.scale()
    x = d.node("DequantizeLinear", [q, d.constant(scale), d.constant(d.zero(kind))])
    weight, weight_scale = _weight(d, window.weight, 0)
    inputs = [x, weight]
    if d.flip():
        bias = d.rng.integers(-500, 500, window.weight[0]).astype(np.int32)
        step = np.broadcast_to(scale * weight_scale, bias.shape).astype(np.float32)
        if step.size and d.flip():
            step = np.asarray(step * np.float32(2))  # of another scale than the sums
        zero = np.zeros(bias.shape, np.int32)
        names = [d.constant(item) for item in (bias, step, zero)]
        inputs.append(d.node("DequantizeLinear", names, axis=0))
    name = d.node("Conv", inputs, **window.attributes)
    form = d.choose(("plain", "relu", "clip", "residual"))
    if form == "clip":
        name = d.node("Clip", [name, d.constant(np.float32(0)), d.constant(np.float32(6))])
    if form == "residual":
        other = _dequantized(d, _shape_of(d, name), kind, d.exact)
        name = d.node("Add", [name, other] if d.flip() else [other, name])
    if form in ("relu", "residual"):
        name = d.node("Relu", [name])
    result, scale_of = _quantized(d, kind, name, 8)
    return d.finish(f"QDQ Conv {form}", result, name, scale_of)


def _shape_of(d: _Drawer, name: str) -> tuple[int, ...]:
    """The shape of a value, by running what is there."""
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in d.inputs.items()
    ]
    result = helper.make_empty_tensor_value_info(name)
    graph = helper.make_graph(d.nodes, "part", inputs, [result], d.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    outputs: Any = ReferenceEvaluator(model).run(None, d.inputs)
    return tuple(int(extent) for extent in outputs[0].shape)


def _qdq_matmul(d: _Drawer) -> DrawnModel:
    kind = d.choose("ui")
    left, right = _matrices(d)
    a = _dequantized(d, left, kind, d.exact)
    if d.flip():
        b = _dequantized(d, right, d.choose("ui"), d.exact)
    else:
        b = _weight(d, right[-2:], 1)[0]
    name = d.node("MatMul", [a, b])
    result, scale = _quantized(d, kind, name, 8)
    return d.finish("QDQ MatMul", result, name, scale)


def _qdq_gemm(d: _Drawer) -> DrawnModel:
    m, k, n = (int(d.choose((*_EXTENTS, 32))) for _ in range(3))
    turned = d.flip()
    a = _dequantized(d, (m, k), "u", d.exact)
    b, _ = _weight(d, (n, k) if turned else (k, n), 0 if turned else 1)
    bias = d.constant(np.round(d.rng.uniform(-9, 9, n) * 4).astype(np.float32) / 4)
    name = d.node("Gemm", [a, b, bias], transB=int(turned))
    result, scale = _quantized(d, "u", name, 8)
    return d.finish("QDQ Gemm", result, name, scale)


def _qdq_pointwise(d: _Drawer) -> DrawnModel:
    shape, kind = (1, int(d.choose(_CHANNELS)), 3, int(d.choose(_EXTENTS))), d.choose("ui")
    operator = d.choose(("Add", "Mul", "Sub", "Sigmoid", "HardSwish", "LeakyRelu", "Tanh"))
    count = 2 if operator in ("Add", "Mul", "Sub") else 1
    name = d.node(operator, [_dequantized(d, shape, kind) for _ in range(count)])
    result, scale = _quantized(d, kind, name)
    return d.finish(f"QDQ {operator}", result, name, scale)


def _qdq_movement(d: _Drawer) -> DrawnModel:
    """Operators after which the same numbers are quantised again."""
    channels, kind = int(d.choose(_CHANNELS)), d.choose("ui")
    shape = (1, channels, 5, int(d.choose((3, 5, 7))))
    scale, zero = d.constant(d.scale()), d.constant(d.zero(kind))

    def operand() -> str:
        return d.node("DequantizeLinear", [d.input(d.integers(shape, kind)), scale, zero])

    form = d.choose(("MaxPool", "Transpose", "Concat", "Pad", "Flatten"))
    if form == "MaxPool":
        given = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
        name = d.node(form, [operand()], **given)
    elif form == "Transpose":
        name = d.node(form, [operand()], perm=[0, 2, 3, 1])
    elif form == "Concat":
        other = operand() if d.flip() else _dequantized(d, shape, kind)
        name = d.node(form, [operand(), other], axis=1)
    elif form == "Pad":
        name = d.node(form, [operand(), d.constant(np.array([0, 0, 1, 0, 0, 0, 1, 2]))])
    else:
        name = d.node(form, [operand()])
    result = d.node("QuantizeLinear", [name, scale, zero])
    value = next(numpy_helper.to_array(item) for item in d.constants if item.name == scale)
    return d.finish(f"QDQ {form}", result, name, float(value))


def _parameters(d: _Drawer, kind: str, steps: float = 1.0) -> tuple[list[str], float]:
    """Names of a scale and a zero point, and the scale."""
    scale = d.scale() * np.float32(steps)
    return [d.constant(scale), d.constant(d.zero(kind))], float(scale)


def _image(d: _Drawer) -> tuple[int, ...]:
    return (1, int(d.choose(_CHANNELS)), int(d.choose((3, 5, 8))), int(d.choose((4, 7, 13))))


def _qdq_gated(d: _Drawer) -> DrawnModel:
    """x times a function of it that is quantised in between; flattened, or not."""
    kind, operator = d.choose("ui"), d.choose(("Sigmoid", "HardSigmoid", "Tanh"))
    x = _dequantized(d, _image(d), kind)
    inner = [d.constant(np.float32(1 / 64)), d.constant(d.zero(kind))]
    gate = d.node("QuantizeLinear", [d.node(operator, [x]), *inner])
    name = d.node("Mul", [x, d.node("DequantizeLinear", [gate, *inner])])
    if d.flip():
        name = d.node("Flatten", [name])
    result, scale = _quantized(d, kind, name)
    return d.finish(f"QDQ gated {operator}", result, name, scale)


def _qdq_average(d: _Drawer) -> DrawnModel:
    kind, shape = d.choose("ui"), _image(d)
    x = _dequantized(d, shape, kind)
    form = d.choose(("GlobalAveragePool", "AveragePool", "AveragePool", "ReduceMean"))
    given: dict[str, Any] = {}
    if form == "AveragePool":
        kernel = [int(d.choose((1, 2, 3))) for _ in range(2)]
        strides = [int(d.choose((1, k, k))) for k in kernel]
        pads = [int(d.choose((0, k // 2))) for k in (*kernel, *kernel)]
        given = {"kernel_shape": kernel, "strides": strides, "pads": pads}
        given["count_include_pad"] = int(d.flip())
    inputs = [x]
    if form == "ReduceMean":
        inputs.append(d.constant(np.array(d.choose(((1,), (2, 3), (3,))))))
    name = d.node(form, inputs, **given)
    result, scale = _quantized(d, kind, name)
    return d.finish(f"QDQ {form}", result, name, scale)


def _qdq_transposed(d: _Drawer) -> DrawnModel:
    kind, shape = d.choose("ui"), _image(d)
    x = _dequantized(d, shape, kind, d.exact)
    outputs, taps = int(d.choose(_CHANNELS)), [int(d.choose((1, 2, 3))) for _ in range(2)]
    weight, _ = _weight(d, (shape[1], outputs, *taps), 1)
    pads = [int(d.choose((0, 1))) if k > 1 else 0 for k in (*taps, *taps)]
    strides = [int(d.choose((1, 2))) for _ in range(2)]
    name = d.node("ConvTranspose", [x, weight], strides=strides, pads=pads, kernel_shape=taps)
    result, scale = _quantized(d, kind, name, 8)
    return d.finish("QDQ ConvTranspose", result, name, scale)


def _qdq_shared(d: _Drawer) -> DrawnModel:
    """One dequantisation for a convolution, a function and a sum."""
    kind, shape = d.choose("ui"), _image(d)
    q = d.input(d.integers(shape, kind, d.exact))
    x = d.node("DequantizeLinear", [q, *_parameters(d, kind)[0]])
    weight, _ = _weight(d, (shape[1], shape[1], 1, 1), 0)
    convolved = d.node("Conv", [x, weight])
    gate = d.node(d.choose(("Relu", "Abs", "Sigmoid")), [x])
    name = d.node("Add", [d.node("Add", [convolved, gate]), x])
    result, scale = _quantized(d, kind, name, 8)
    return d.finish("QDQ shared", result, name, scale)


def _qdq_wide(d: _Drawer) -> DrawnModel:
    """16-bit activations between 8-bit weights."""
    to = np.dtype(d.choose((np.uint16, np.int16)))
    limits = np.iinfo(to)
    m, k, n = (int(d.choose((*_EXTENTS, 16))) for _ in range(3))
    data = d.rng.integers(limits.min // 64, limits.max // 64, (m, k)).astype(to)
    zero = d.constant(np.array(d.choose((0, 77)), to))
    step = np.float32(2.0**-8 if d.exact else d.rng.uniform(0.002, 0.01))
    x = d.node("DequantizeLinear", [d.input(data), d.constant(step), zero])
    form = d.choose(("MatMul", "Sigmoid", "Relu"))
    inputs = [x, _weight(d, (k, n), 1)[0]] if form == "MatMul" else [x]
    name = d.node(form, inputs)
    scale = np.float32(2.0**-6 if d.exact else d.rng.uniform(0.01, 0.05))
    result = d.node("QuantizeLinear", [name, d.constant(scale), zero])
    return d.finish(f"QDQ 16 bits {form}", result, name, float(scale))


def _qdq_picked(d: _Drawer) -> DrawnModel:
    """Parts and repetitions, behind something that is computed or not, quantised anew."""
    kind, shape = d.choose("ui"), _image(d)
    name = _dequantized(d, shape, kind)
    if d.flip():
        name = d.node(d.choose(("Relu", "Tanh")), [name])
    form = d.choose(("Slice", "Resize", "Transpose", "Split", "Concat", "Pad"))
    if form == "Slice":
        bounds = [d.constant(np.array(item)) for item in ([1], [3], [2])]
        name = d.node(form, [name, *bounds])
    elif form == "Resize":
        scales = d.constant(np.array([1, 1, 2, 2], np.float32))
        given = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
        name = d.node(form, [name, "", scales], nearest_mode="floor", **given)
    elif form == "Transpose":
        name = d.node(form, [name], perm=[0, 3, 1, 2])
    elif form == "Split":
        sizes = d.constant(np.array([1, shape[3] - 1]))
        parts = [f"{name}_{number}" for number in range(2)]
        d.nodes.append(helper.make_node(form, [name, sizes], parts, axis=3))
        name = parts[1]
    elif form == "Concat":
        name = d.node(form, [name, _dequantized(d, shape, kind)], axis=1)
    else:
        name = d.node(form, [name, d.constant(np.array([0, 0, 1, 0, 0, 0, 1, 2]))])
    result, scale = _quantized(d, kind, name)
    return d.finish(f"QDQ behind {form}", result, name, scale)


def _quantisation(d: _Drawer) -> DrawnModel:
    """Quantisation alone: by channel, by block, of one scale."""
    shape, kind = (2, 6, int(d.choose(_EXTENTS))), d.choose("ui")
    form, given = d.choose((((), {}), ((6,), {"axis": 1}), ((2, 2, shape[2]), {"block_size": 3})))
    scale, zero = d.scale(form), d.zero(kind, form)
    x = d.input((d.rng.standard_normal(shape) * 40).astype(np.float32))
    names = [d.constant(scale), d.constant(zero)]
    q = d.node("QuantizeLinear", [x, *names], **given)
    if d.flip():
        return d.finish("QuantizeLinear", q)
    return d.finish("DequantizeLinear", d.node("DequantizeLinear", [q, *names], **given))


_KINDS: tuple[Callable[[_Drawer], DrawnModel], ...] = (
    _qlinear_conv,
    _qlinear_matmul,
    _matmul_integer,
    _conv_integer,
    _dynamic,
    _qdq_conv,
    _qdq_conv,
    _qdq_matmul,
    _qdq_gemm,
    _qdq_pointwise,
    _qdq_movement,
    _quantisation,
    _qdq_gated,
    _qdq_average,
    _qdq_transposed,
    _qdq_shared,
    _qdq_wide,
    _qdq_picked,
)


def draw(seed: int) -> DrawnModel:
    """The model of this seed; kinds take turns."""
    rng = np.random.default_rng(seed)
    drawer = _Drawer(rng)
    drawer.exact = drawer.flip()
    return _KINDS[seed % len(_KINDS)](drawer)
