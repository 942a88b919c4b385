"""What goes along an axis: softmax, norms, reductions, arg reductions, scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from tests.benchmarks.operator_cases.case import CaseBuilder, OperatorCase, one_node, shape_text

_SOFTMAX: tuple[tuple[str, Sequence[int], int], ...] = (
    ("Softmax", (12, 128, 128), -1),
    ("Softmax", (6, 197, 197), -1),
    ("Softmax", (64, 1000), -1),
    ("Softmax", (1, 32000), -1),
    ("Softmax", (1, 128256), -1),
    ("Softmax", (4, 50257), -1),
    ("Softmax", (4096, 7), -1),
    ("Softmax", (50000, 3), -1),
    ("Softmax", (8, 400, 2), 1),
    ("Softmax", (1, 21, 65, 65), 1),
    ("Softmax", (1, 2, 256, 256), 1),
    ("Softmax", (8, 100, 60), 1),
    ("Softmax", (100, 3000), 0),
    ("LogSoftmax", (64, 1000), -1),
    ("LogSoftmax", (1, 80, 60, 60), 1),
)
_NORMS: tuple[tuple[str, Sequence[int]], ...] = (
    ("layer norm", (1, 128, 768)),
    ("layer norm", (1, 197, 193)),
    ("layer norm spelled out", (1, 128, 768)),
    ("layer norm over channels", (1, 96, 28, 28)),
    ("RMS norm spelled out", (1, 128, 768)),
    ("RMS norm spelled out", (1, 33, 515)),
    ("RMS norm by Mul", (1, 128, 768)),
    ("instance norm", (1, 64, 64, 64)),
    ("instance norm", (1, 21, 33, 35)),
    ("instance norm", (1, 256, 16, 16)),
    ("group norm", (1, 64, 32, 32)),
    ("group norm spelled out", (1, 64, 32, 32)),
    ("batch norm", (1, 64, 56, 56)),
    ("batch norm", (1, 37, 29, 31)),
    ("L2 norm", (128, 512)),
    ("L2 norm spelled out", (1, 128, 20, 20)),
    ("mean variance norm", (1, 32, 40, 40)),
)
_REDUCE: tuple[tuple[str, Sequence[int], Sequence[int]], ...] = (
    ("ReduceMean", (1, 64, 56, 56), (2, 3)),
    ("ReduceMean", (1, 128, 768), (1,)),
    ("ReduceMean", (64, 197, 33), (1,)),
    ("ReduceMean", (1, 64, 56, 56), (1,)),
    ("ReduceSum", (512, 1024), (0,)),
    ("ReduceSum", (512, 1024), (1,)),
    ("ReduceSum", (1000000,), (0,)),
    ("ReduceSum", (16, 37, 53), (0, 2)),
    ("ReduceSum", (100000, 3), (1,)),
    ("ReduceMax", (1, 80, 100, 100), (1,)),
    ("ReduceMax", (64, 100000), (1,)),
    ("ReduceMean", (50, 1000, 3), (1,)),
    ("ReduceMax", (64, 1000), (1,)),
    ("ReduceMin", (30, 40, 50), (0,)),
    ("ReduceProd", (256, 300), (1,)),
    ("ReduceL2", (256, 512), (1,)),
    ("ReduceL1", (1, 64, 40, 40), (1,)),
    ("ReduceLogSumExp", (64, 1000), (1,)),
    ("ReduceSumSquare", (1, 32, 64, 64), (2, 3)),
)
_ARG: tuple[tuple[str, Sequence[int], int], ...] = (
    ("ArgMax", (100000, 3), 1),
    ("ArgMax", (1, 21, 129, 129), 1),
    ("ArgMax", (64, 1000), 1),
    ("ArgMax", (1, 32000), 1),
    ("ArgMin", (300, 200), 0),
    ("ArgMax", (1, 17, 64, 48), 1),
    ("ArgMax", (1000, 7), 1),
)
_SCANS: tuple[tuple[Sequence[int], int, dict[str, int]], ...] = (
    ((512, 512), 1, {}),
    ((512, 512), 0, {}),
    ((1, 100000), 1, {}),
    ((8, 77, 65), 1, {}),
    ((64, 1000), 1, {"reverse": 1, "exclusive": 1}),
)


def cases() -> Iterator[OperatorCase]:
    """All cases of the file."""
    for operator, shape, axis in _SOFTMAX:
        yield _along("softmax", operator, shape, axis)
    yield OperatorCase("reduce", "Mul, ReduceSum over 1: 500x768", _row_products)
    yield OperatorCase("reduce", "concat, relu, global average pool: 1x832x7x7", _joined_and_pooled)
    yield OperatorCase("softmax", "Where, Softmax: 1x4x64x64", _masked_softmax)
    for name, shape in (("Softmax over channels", (1, 21, 64, 64)), ("ArgMax", (1, 21, 64, 64))):
        yield _after_convolution(name, shape)
    for name, shape in _NORMS:
        yield OperatorCase("norm", f"{name}: {shape_text(shape)}", partial(_norm, name, shape))
    for name in ("instance norm", "group norm", "batch norm", "group norm spelled out"):
        yield _norm_between(name, (1, 64, 32, 32))
    for operator, shape, axes in _REDUCE:
        name = f"{operator} over {','.join(map(str, axes))}: {shape_text(shape)}"
        yield one_node("reduce", name, operator, shape, constants=[axes])
    for operator, shape, axis in _ARG:
        yield _along("arg reduce", operator, shape, axis)
    for shape, axis, attributes in _SCANS:
        name = f"CumSum over {axis}: {shape_text(shape)} {' '.join(attributes)}".strip()
        yield one_node("scan", name, "CumSum", shape, constants=[axis], **attributes)


def _along(family: str, operator: str, shape: Sequence[int], axis: int) -> OperatorCase:
    name = f"{operator} over {axis}: {shape_text(shape)}"
    return one_node(family, name, operator, shape, axis=axis)


def _row_products(net: CaseBuilder) -> str:
    products = net.node("Mul", net.input(500, 768), net.input(500, 768))
    return net.node("ReduceSum", products, net.constant(np.array([1])))


def _joined_and_pooled(net: CaseBuilder) -> str:
    summed = net.node("Add", net.input(1, 512, 7, 7), net.input(1, 512, 7, 7))
    joined = net.node("Concat", summed, net.input(1, 320, 7, 7), axis=1)
    return net.node("GlobalAveragePool", net.node("Relu", joined))


def _masked_softmax(net: CaseBuilder) -> str:
    least = net.constant(np.array(np.finfo(np.float32).min))
    scores = net.node("Where", net.mask(1, 1, 64, 64), least, net.input(1, 4, 64, 64))
    return net.node("Softmax", scores, axis=-1)


def _norm(name: str, shape: Sequence[int], net: CaseBuilder) -> str:
    return _NORM_WRITERS[name](net, net.input(*shape), shape)


def _after_convolution(name: str, shape: Sequence[int]) -> OperatorCase:
    def write(net: CaseBuilder) -> str:
        scores = net.conv(net.input(1, 16, *shape[2:]), 16, shape[1])
        return net.node(name.split()[0], scores, axis=1)

    family = "softmax" if name.startswith("Softmax") else "arg reduce"
    return OperatorCase(family, f"conv, {name}: {shape_text(shape)}", write)


def _norm_between(name: str, shape: Sequence[int]) -> OperatorCase:
    def write(net: CaseBuilder) -> str:
        data = net.conv(net.input(1, 16, *shape[2:]), 16, shape[1])
        data = _NORM_WRITERS[name](net, net.node("Relu", data), shape)
        return net.conv(net.node("Relu", data), shape[1], 16)

    return OperatorCase("norm", f"{name} between convs: {shape_text(shape)}", write)


def _layer_norm(net: CaseBuilder, data: str, shape: Sequence[int]) -> str:
    scale, bias = net.weight(shape[-1]), net.weight(shape[-1])
    return net.node("LayerNormalization", data, scale, bias, axis=-1, epsilon=1e-5)


def _centred(net: CaseBuilder, data: str, axes: Sequence[int]) -> str:
    """Less its mean, over its standard deviation."""
    over = net.constant(np.array(axes))
    centred = net.node("Sub", data, net.node("ReduceMean", data, over))
    square = net.node("Pow", centred, net.constant(2.0))
    variance = net.node("ReduceMean", square, over)
    deviation = net.node("Sqrt", net.node("Add", variance, net.constant(1e-5)))
    return net.node("Div", centred, deviation)


def _layer_norm_spelled_out(net: CaseBuilder, data: str, shape: Sequence[int]) -> str:
    scaled = net.node("Mul", _centred(net, data, [-1]), net.weight(shape[-1]))
    return net.node("Add", scaled, net.weight(shape[-1]))


def _layer_norm_over_channels(net: CaseBuilder, data: str, shape: Sequence[int]) -> str:
    scaled = net.node("Mul", _centred(net, data, [1]), net.weight(shape[1], 1, 1))
    return net.node("Add", scaled, net.weight(shape[1], 1, 1))


def _rms_norm(net: CaseBuilder, data: str, shape: Sequence[int], *, power: bool = True) -> str:
    square = net.node("Pow", data, net.constant(2.0)) if power else net.node("Mul", data, data)
    mean = net.node("ReduceMean", square, net.constant(np.array([-1])))
    root = net.node("Sqrt", net.node("Add", mean, net.constant(1e-6)))
    if power:
        return net.node("Mul", net.node("Div", data, root), net.weight(shape[-1]))
    return net.node(
        "Mul", net.weight(shape[-1]), net.node("Mul", data, net.node("Reciprocal", root))
    )


def _instance_norm(net: CaseBuilder, data: str, shape: Sequence[int]) -> str:
    return net.node("InstanceNormalization", data, net.weight(shape[1]), net.weight(shape[1]))


def _group_norm(net: CaseBuilder, data: str, shape: Sequence[int]) -> str:
    """Of the first version, with a scale and a bias per group."""
    groups = 8
    grouped = net.node("Reshape", data, net.constant(np.array([shape[0], groups, -1])))
    normal = net.node(
        "InstanceNormalization", grouped, *[net.constant(np.full(groups, v)) for v in (1.0, 0.0)]
    )
    back = net.node("Reshape", normal, net.constant(np.array(shape)))
    scaled = net.node("Mul", back, net.weight(shape[1], 1, 1))
    return net.node("Add", scaled, net.weight(shape[1], 1, 1))


def _group_norm_spelled_out(net: CaseBuilder, data: str, shape: Sequence[int]) -> str:
    apart = np.array([shape[0], 8, shape[1] // 8, *shape[2:]])
    grouped = net.node("Reshape", data, net.constant(apart))
    normal = _centred(net, grouped, [2, 3, 4])
    back = net.node("Reshape", normal, net.constant(np.array(shape)))
    scaled = net.node("Mul", back, net.weight(shape[1], 1, 1))
    return net.node("Add", scaled, net.weight(shape[1], 1, 1))


def _batch_norm(net: CaseBuilder, data: str, shape: Sequence[int]) -> str:
    spread = net.constant(np.linspace(0.5, 2.0, shape[1]))
    statistics = [net.weight(shape[1]) for _ in range(3)]
    return net.node("Relu", net.node("BatchNormalization", data, *statistics, spread))


def _unit_length_spelled_out(net: CaseBuilder, data: str, shape: Sequence[int]) -> str:
    length = net.node("ReduceL2", data, net.constant(np.array([1])))
    longest = net.node("Clip", length, net.constant(1e-12))
    return net.node("Div", data, net.node("Expand", longest, net.constant(np.array(shape))))


_NORM_WRITERS: dict[str, Callable[[CaseBuilder, str, Sequence[int]], str]] = {
    "layer norm": _layer_norm,
    "layer norm spelled out": _layer_norm_spelled_out,
    "layer norm over channels": _layer_norm_over_channels,
    "RMS norm spelled out": _rms_norm,
    "RMS norm by Mul": lambda net, data, shape: _rms_norm(net, data, shape, power=False),
    "instance norm": _instance_norm,
    "group norm": _group_norm,
    "group norm spelled out": _group_norm_spelled_out,
    "batch norm": _batch_norm,
    "L2 norm": lambda net, data, shape: net.node("LpNormalization", data, axis=-1, p=2),
    "L2 norm spelled out": _unit_length_spelled_out,
    "mean variance norm": lambda net, data, shape: net.node("MeanVarianceNormalization", data),
}
