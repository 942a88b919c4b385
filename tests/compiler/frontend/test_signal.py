"""Transforms of any length and axis, and samples at computed places, against other engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.helper import make_node

from tests.compiler.frontend.onnx_models import integers, model, outputs_of, tensor
from tests.compiler.operators.cases import reference, runtime
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.operators.signal import plan_transform, smooth_length
from tunefarm.compiler.types.tensor_type import Array

DOUBLE = 11


def node(operator: str, inputs: list[str], outputs: list[str], **given: Any) -> Any:
    return make_node(operator, inputs, outputs, **given)


def _graph(
    operator: str, data: Array, constants: dict[str, Array], inputs: str, **given: Any
) -> Any:
    kind = DOUBLE if data.dtype == np.float64 else 1
    made = node(operator, inputs.split(" "), ["y"], **given)
    proto = model([made], [tensor("x", data.shape, kind)], constants=constants, opset=20)
    proto.graph.output[0].type.tensor_type.elem_type = kind
    return import_model_proto(proto)


def _parts(values: Any) -> Any:
    return np.stack([values.real, values.imag], axis=-1)


@pytest.mark.parametrize("length", [1, 2, 5, 16, 30, 101, 127, 360, 1009, 2 * 1009, 4096, 5000])
@pytest.mark.parametrize("parts", [1, 2])
def test_transforms_of_any_length_are_those_of_numpy(length: int, parts: int) -> None:
    data = np.random.default_rng(length).standard_normal((2, length, parts))
    whole = data[..., 0] + (1j * data[..., 1] if parts == 2 else 0)
    spectrum = np.fft.fft(whole, axis=1)
    scale = float(np.sqrt(length))
    found = {
        name: outputs_of(_graph("DFT", data, {"a": integers(1)}, "x  a", **given), {"x": data})[0]
        for name, given in (("forward", {}), ("inverse", {"inverse": 1}), ("half", {"onesided": 1}))
    }
    np.testing.assert_allclose(found["forward"], _parts(spectrum), atol=1e-9 * scale)
    np.testing.assert_allclose(found["inverse"], _parts(np.fft.ifft(whole, axis=1)), atol=1e-11)
    half = _parts(spectrum)[:, : length // 2 + 1]
    np.testing.assert_allclose(found["half"], half, atol=1e-9 * scale)


@pytest.mark.parametrize("length", [1, 8, 9, 1018, 1019])
def test_half_a_spectrum_gives_the_real_signal(length: int) -> None:
    half = np.random.default_rng(1).standard_normal((3, length // 2 + 1, 2))
    constants = {"n": integers(length).reshape(()), "a": integers(1).reshape(())}
    graph = _graph("DFT", half, constants, "x n a", inverse=1, onesided=1)
    expected = np.fft.irfft(half[..., 0] + 1j * half[..., 1], length, axis=1)[..., None]
    np.testing.assert_allclose(outputs_of(graph, {"x": half})[0], expected, atol=1e-9)


@pytest.mark.parametrize(("length", "axis"), [(7, 0), (5, 1), (12, 2), (9, -2)])
def test_signals_are_cut_or_filled_to_the_length_along_any_axis(length: int, axis: int) -> None:
    data = np.random.default_rng(2).standard_normal((6, 7, 9, 2)).astype(np.float32)
    given = {"n": integers(length).reshape(()), "a": integers(axis).reshape(())}
    graph = _graph("DFT", data, given, "x n a")
    expected = np.fft.fft(data[..., 0] + 1j * data[..., 1], length, axis % 4 if axis >= 0 else 2)
    found = compiler.build(graph).run({"x": data})["y"]
    np.testing.assert_allclose(found, _parts(expected), rtol=1e-4, atol=1e-4)


def test_large_transforms_are_cheaper_than_one_product() -> None:
    for length in (256, 1000, 1009, 4096):
        assert plan_transform(length).cost < 4.0 * length * length
    assert plan_transform(8).first == 0
    for least in (3, 100, 2017):
        found = smooth_length(least)
        assert least <= found < 1.3 * least


@pytest.mark.parametrize(("length", "step", "windowed"), [(16, 4, True), (25, 10, False)])
def test_frames_are_transformed_as_in_onnxruntime(length: int, step: int, windowed: bool) -> None:
    signal = np.random.default_rng(3).standard_normal((2, 93, 1)).astype(np.float32)
    window = np.hanning(length).astype(np.float32) if windowed else None
    frames = np.array(step), window, np.array(length)
    expected = runtime("STFT", signal, *frames, opset=17)()
    constants = {"s": np.array(step), "n": np.array(length)}
    if window is not None:
        constants["w"] = window
    made = node("STFT", ["x", "s", "w" if windowed else "", "n"], ["y"])
    proto = model([made], [tensor("x", signal.shape)], constants=constants, opset=17)
    (found,) = outputs_of(import_model_proto(proto), {"x": signal})
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


# --- samples ------------------------------------------------------------------------------------


def _run(operator: str, opset: int, given: dict[str, Any], *inputs: Array | None) -> Any:
    """By machine code."""
    names = ["" if array is None else f"x{number}" for number, array in enumerate(inputs)]
    present = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    kinds = {"float32": 1, "int64": 7, "float64": DOUBLE}
    values = [tensor(name, array.shape, kinds[str(array.dtype)]) for name, array in present.items()]
    proto = model([node(operator, names, ["y"], **given)], values, opset=opset)
    (found,) = compiler.build(import_model_proto(proto)).run(present).values()
    return found


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_samples_agree_with_onnxruntime(mode: str, padding: str, align: int) -> None:
    rng = np.random.default_rng(align)
    for channels, extents in ((3, (5, 7)), (17, (6, 1)), (2, (3, 4, 5))):
        if len(extents) == 3 and mode == "cubic":
            continue
        data = rng.standard_normal((2, channels, *extents)).astype(np.float32)
        places = rng.uniform(-1.4, 1.4, (2, 4, 3, *extents[2:], len(extents))).astype(np.float32)
        given: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": align}
        if 1 in extents and (align or padding == "reflection"):
            continue  # onnxruntime divides by the extent less 1
        expected = runtime("GridSample", data, places, **given)()
        found = _run("GridSample", 20, given, data, places)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_samples_outside_are_zeros_whatever_the_data_is() -> None:
    data = np.full((1, 9, 2, 2), np.inf, np.float32)
    places = np.full((1, 1, 1, 2), 7, np.float32)
    assert not _run("GridSample", 20, {}, data, places).any()
    assert np.isfinite(_run("GridSample", 20, {}, data[:, :1], places)).all()


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("opset", [10, 16])
def test_regions_agree_with_onnxruntime(mode: str, ratio: int, opset: int) -> None:
    if mode == "max" and not ratio:
        return  # is refused
    rng = np.random.default_rng(4)
    data = rng.standard_normal((2, 9, 11, 13)).astype(np.float32)
    first = rng.uniform(-2, 10, (7, 2))
    regions = np.concatenate([first, first + rng.uniform(0.1, 14, (7, 2))], 1).astype(np.float32)
    batch = rng.integers(0, 2, 7)
    given = {"mode": mode, "output_height": 3, "output_width": 2, "sampling_ratio": ratio}
    given |= {"spatial_scale": 0.75}
    expected = runtime("RoiAlign", data, regions, batch, opset=opset, **given)()
    found = _run("RoiAlign", opset, given, data, regions, batch)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("group", "groups"), [(1, 1), (2, 1), (1, 2), (2, 4)])
def test_deformed_convolutions_agree_with_onnxruntime(group: int, groups: int) -> None:
    rng = np.random.default_rng(5)
    data = rng.standard_normal((2, 8, 7, 6)).astype(np.float32)
    weights = rng.standard_normal((6, 8 // group, 3, 2)).astype(np.float32)
    shape = (4, 4)
    offsets = rng.uniform(-3, 3, (2, groups * 12, *shape)).astype(np.float32)
    bias, mask = rng.standard_normal(6).astype(np.float32), None
    if groups == 2:
        mask = rng.uniform(0, 1, (2, groups * 6, *shape)).astype(np.float32)
    given = {"group": group, "offset_group": groups, "pads": [1, 0, 1, 1], "strides": [2, 1]}
    given |= {"dilations": [1, 3]}
    inputs = (data, weights, offsets, bias, mask)
    expected = runtime("DeformConv", *inputs, opset=19, **given)()
    np.testing.assert_allclose(_run("DeformConv", 19, given, *inputs), expected, 1e-3, 1e-3)


def test_unpooling_puts_maxima_where_they_were() -> None:
    data = np.random.default_rng(6).permutation(2 * 3 * 36).reshape(2, 3, 6, 6).astype(np.float32)
    windows = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("MaxPool", ["x"], ["p", "i"], **windows),
        node("MaxUnpool", ["p", "i"], ["y"], **windows),
    ]
    proto = model(nodes, [tensor("x", data.shape)], opset=20)
    found = compiler.build(import_model_proto(proto)).run({"x": data})["y"]
    pooled = data.reshape(2, 3, 3, 2, 3, 2).max(axis=(3, 5))
    largest = np.repeat(np.repeat(pooled, 2, 2), 2, 3) == data
    np.testing.assert_array_equal(found, np.where(largest, data, 0))


@pytest.mark.parametrize("opset", [9, 14])
def test_statistics_of_training_are_those_of_the_data(opset: int) -> None:
    data = np.random.default_rng(7).standard_normal((4, 3, 5)).astype(np.float32)
    values = zip("sbmv", (2, 1, 0, 1), strict=True)
    parameters = {name: np.full(3, value, np.float32) for name, value in values}
    given = {"training_mode": 1} if opset == 14 else {}
    outputs = ["y", "mean", "variance"]
    made = node("BatchNormalization", ["x", *parameters], outputs, momentum=0.75, **given)
    proto = model([made], [tensor("x", data.shape)], outputs, parameters, opset=opset)
    found = outputs_of(import_model_proto(proto), {"x": data})
    mean, variance = data.mean(axis=(0, 2)), data.var(axis=(0, 2))
    normal = (data - mean[:, None]) / np.sqrt(variance + 1e-5)[:, None]
    np.testing.assert_allclose(found[0], 2 * normal + 1, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], 0.25 * mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[2], 0.75 + 0.25 * variance, rtol=1e-4)


def test_a_seed_draws_what_the_reference_draws_and_runs_repeat_it() -> None:
    given: dict[str, Any] = {"shape": [3, 4], "seed": 5.0, "mean": 1.0, "scale": 2.0, "dtype": 1}
    expected = reference("RandomNormal", opset=22, **given)()
    for seed in (True, False):
        own = given if seed else {name: v for name, v in given.items() if name != "seed"}
        made = [node("RandomNormal", [], ["r"], **own), node("Add", ["r", "x"], ["y"])]
        executable = compiler.build(import_model_proto(model(made, [tensor("x", [1])], opset=20)))
        zero = {"x": np.zeros(1, np.float32)}
        first, second = (executable.run(zero)["y"].copy() for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert np.array_equal(first, expected) == seed


def test_classes_are_drawn_as_often_as_they_are_likely() -> None:
    logits = np.log(np.array([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25]], np.float32))
    found = _run("Multinomial", 20, {"sample_size": 4000, "seed": 1.0}, logits)
    shares = [np.bincount(row, minlength=3) / 4000 for row in found]
    np.testing.assert_allclose(shares, np.exp(logits), atol=0.03)
