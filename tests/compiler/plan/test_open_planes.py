"""Drawn networks over planes of open height and width, compiled: onnxruntime's at each size.

Each is run at its greatest size on NaN first, so that all that is left in memory is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_attribute

from tests.compiler.frontend.onnx_models import model, node, tensor
from tests.onnxruntime_session import assert_agrees
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.tensor_type import Array

LEAST, GREATEST = 9, 27
CHANNELS = (12, 16)  # fewer than a block has, and as many
Step = Callable[[str, str], list[onnx.NodeProto]]


def _one(operator: str, *more: str, **attributes: Any) -> Step:
    return lambda x, y: [onnx.helper.make_node(operator, [x, *more], [y], **attributes)]


def _conv(taps: int, stride: int = 1, dilation: int = 1, **attributes: Any) -> Step:
    pads = [dilation * (taps // 2)] * 4
    return _one(
        "Conv", f"w{taps}", strides=[stride] * 2, dilations=[dilation] * 2, pads=pads, **attributes
    )


def _skip(x: str, y: str) -> list[onnx.NodeProto]:
    """Convolved and added to what it was, and beside it through another convolution."""
    return [
        node("Conv", f"{x} w3", f"{y}_c", pads=[1] * 4),
        node("Relu", f"{y}_c", f"{y}_r"),
        node("Add", f"{y}_r {x}", f"{y}_s"),
        node("Concat", f"{y}_s {x}", f"{y}_b", axis=1),
        onnx.helper.make_node("Conv", [f"{y}_b", "wide"], [y], pads=[1] * 4),
    ]


def _squeezed(x: str, y: str) -> list[onnx.NodeProto]:
    """Scaled by its means, as in squeeze and excitation."""
    return [
        onnx.helper.make_node("GlobalAveragePool", [x], [f"{y}_m"]),
        node("Sigmoid", f"{y}_m", f"{y}_g"),
        onnx.helper.make_node("Mul", [x, f"{y}_g"], [y]),
    ]


def _down_and_up(x: str, y: str) -> list[onnx.NodeProto]:
    return [
        node("Conv", f"{x} w3", f"{y}_d", pads=[1] * 4, strides=[2, 2]),
        onnx.helper.make_node("ConvTranspose", [f"{y}_d", "up"], [y], strides=[2, 2]),
    ]


def _by_channel(x: str, y: str) -> list[onnx.NodeProto]:
    """A convolution of each channel: as many groups as its weight has."""
    return [onnx.helper.make_node("Conv", [x, "each"], [y], pads=[1] * 4)]


STEPS: tuple[Step, ...] = (
    _conv(1),
    _conv(3),
    _conv(3),
    _conv(3, stride=2),
    _conv(3, dilation=2),
    _conv(5, stride=2),
    _by_channel,
    _one("Conv", "w3", auto_pad="SAME_UPPER"),
    _one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    _one("MaxPool", kernel_shape=[2, 2], strides=[1, 1]),
    _one("AveragePool", kernel_shape=[3, 3], pads=[1] * 4),
    _one("Resize", "", "twice", mode="nearest", coordinate_transformation_mode="asymmetric"),
    _one("Resize", "", "twice", mode="linear"),
    _one("Sigmoid"),
    _one("InstanceNormalization", "scale", "scale"),
    _skip,
    _squeezed,
    _down_and_up,
)


def _constants(channels: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Array:
        values: Array = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return values.astype(np.float32)

    square = {f"w{taps}": weight(channels, channels, taps, taps) for taps in (1, 3, 5)}
    return square | {
        "wide": weight(channels, 2 * channels, 3, 3),
        "each": weight(channels, 1, 3, 3),
        "up": weight(channels, channels, 2, 2),
        "scale": np.ones(channels, np.float32),
        "twice": np.array([1, 1, 2, 2], np.float32),
    }


def _network(steps: list[Step], channels: int) -> onnx.ModelProto:
    nodes: list[onnx.NodeProto] = []
    for number, step in enumerate(steps):
        nodes += step(f"v{number}", f"v{number + 1}")
    for step_node in nodes:
        if "each" in step_node.input:
            step_node.attribute.append(make_attribute("group", channels))
    given_shape = tensor("v0", ["batch", channels, "height", "width"])
    return model(nodes, [given_shape], [f"v{len(steps)}"], _constants(channels))


def _bounds(channels: int) -> tuple[tuple[int, int] | int, ...]:
    return (1, 2), channels, (LEAST, GREATEST), (LEAST, GREATEST)


def test_maxima_over_part_of_a_block_of_channels_stay_blocked() -> None:
    pool = _one("MaxPool", kernel_shape=[3, 3], pads=[1] * 4)
    proto = _network([_conv(3), pool, _conv(3)], CHANNELS[0])
    compiled = compile_model(import_model_proto(proto, {"v0": _bounds(CHANNELS[0])}))
    (pools,) = [item for item in compiled.kernels.values() if "max_pool" in item.name]
    assert len(pools.output.shape) == 5


@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(
    channels=st.sampled_from(CHANNELS),
    steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=4),
    sizes=st.lists(
        st.tuples(st.integers(1, 2), *[st.integers(LEAST, GREATEST)] * 2), min_size=2, max_size=3
    ),
)
def test_planes_of_any_size_give_what_is_there(
    channels: int, steps: list[Step], sizes: list[tuple[int, int, int]]
) -> None:
    proto = _network(steps, channels)
    graph = import_model_proto(proto, {"v0": _bounds(channels)})
    executable = Executable(compile_model(graph).spec)
    executable.run({"v0": np.full((2, channels, GREATEST, GREATEST), np.nan, np.float32)})
    rng = np.random.default_rng(1)
    for batch, height, width in sizes:
        data = rng.standard_normal((batch, channels, height, width)).astype(np.float32)
        assert_agrees(executable.run, proto, {"v0": data}, rtol=1e-3, atol=2e-3)
