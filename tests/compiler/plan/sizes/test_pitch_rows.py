"""Rows of planes whose width is dynamic lie side by side, and nothing else of a value moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.targets import target_named
from tunefarm import compiler
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.flatten_axes import flatten_axes
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall, RowPitch, ViewCall
from tunefarm.compiler.kernels.kernel_sizes import as_logical, as_stored
from tunefarm.compiler.kernels.merge_axes import merge_axes
from tunefarm.compiler.kernels.serialize import kernel_from_json, kernel_to_json
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.plan.sizes.pitches import VECTOR
from tunefarm.compiler.target import Target

SIDE = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution, a 1x1 one, a pool, a resize and a sum: all that walks planes."""
    rng = np.random.default_rng(0)
    taps = (rng.standard_normal((16, 3, 3, 3)) / 5).astype(np.float32)
    mixed = (rng.standard_normal((16, 16, 1, 1)) / 4).astype(np.float32)
    depth = (rng.standard_normal((16, 1, 5, 5)) / 5).astype(np.float32)
    node = helper.make_node
    graph = helper.make_graph(
        [
            node("Conv", ["x", "taps"], ["a"], pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "mixed"], ["c"]),
            node("Conv", ["c", "depth"], ["d"], pads=[2, 2, 2, 2], group=16),
            node("MaxPool", ["d"], ["e"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Resize", ["e", "", "scales"], ["f"], mode="nearest"),
            node("Concat", ["f", "f"], ["g"], axis=1),
            node("ReduceMean", ["g"], ["y"], axes=[1], keepdims=1),
            node("Transpose", ["f"], ["z"], perm=[0, 2, 3, 1]),
        ],
        "planes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1, "p", "q"]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", "p", "q", 16]),
        ],
        [
            numpy_helper.from_array(taps, "taps"),
            numpy_helper.from_array(mixed, "mixed"),
            numpy_helper.from_array(depth, "depth"),
            numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
        ],
    )
    path = tmp_path_factory.mktemp("planes") / "planes.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path


SHAPES = {"n": ("1..2",), "h": (f"2..{SIDE}",), "w": (f"2..{SIDE}",)}


def kernels(model: Path, target: Target) -> list[FusedKernel]:
    calls = kernels_of(model, target, SHAPES).calls
    return [call.kernel for call in calls if isinstance(call, KernelCall)]


def test_outputs_are_right_at_all_widths(model: Path) -> None:
    session = onnxruntime.InferenceSession(str(model))
    rng = np.random.default_rng(1)
    for threads in (1, 2):
        built = compiler.build(model, shapes=SHAPES, threads=threads)
        for shape in [(1, 2, 2), (2, 9, 40), (1, 40, 9), (2, 16, 16), (1, 23, 37), (2, 40, 40)]:
            x = rng.standard_normal((shape[0], 3, *shape[1:])).astype(np.float32)
            found, expected = built.run({"x": x}), session.run(["y", "z"], {"x": x})
            for name, values in zip(("y", "z"), expected, strict=True):
                np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-4)


def test_values_between_kernels_have_a_pitch_and_ports_have_none(model: Path) -> None:
    target = target_named("x86-64-v3")
    program = kernels_of(model, target, SHAPES)
    pitches = {
        call.output: call.kernel.pitch for call in program.calls if isinstance(call, KernelCall)
    }
    assert sum(pitch is not None for pitch in pitches.values()) >= 4
    assert all(pitches.get(name) is None for name in program.outputs)
    readers = [
        (name, buffer.pitch)
        for call in program.calls
        if isinstance(call, KernelCall)
        for name, buffer in zip(call.inputs, call.kernel.inputs, strict=True)
    ]
    for name, pitch in readers:
        wanted = pitches.get(name)
        assert (pitch is None) == (wanted is None) or name in program.inputs
        if isinstance(pitch, RowPitch) and wanted is not None:
            assert (pitch.row, pitch.plane, pitch.number, pitch.margin, pitch.multiple) == (
                wanted.row,
                wanted.plane,
                wanted.number,
                wanted.margin,
                wanted.multiple,
            )


LINES = SHAPES | {"h": (16,)}
"""Images of a fixed height, as lines of text and spectrograms are."""


def test_outputs_of_lines_are_right_at_all_widths(model: Path) -> None:
    session, rng = onnxruntime.InferenceSession(str(model)), np.random.default_rng(2)
    built = compiler.build(model, shapes=LINES)
    for images, width in [(1, 2), (2, 9), (1, 16), (2, 37), (1, 40), (2, 3)]:
        x = rng.standard_normal((images, 3, 16, width)).astype(np.float32)
        found, expected = built.run({"x": x}), session.run(["y", "z"], {"x": x})
        for name, values in zip(("y", "z"), expected, strict=True):
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-4)


def test_all_rows_of_lines_are_apart_by_what_is_there(model: Path) -> None:
    """Whatever axes a kernel has for them: images and channels begin with a row."""
    own = [kernel for kernel in kernels(model, target_named("x86-64-v3")) if kernel.pitch]
    lines = kernels_of(model, target_named("x86-64-v3"), LINES)
    pitched = [
        (call.kernel.pitch, lines.types[call.output].size)
        for call in lines.calls
        if isinstance(call, KernelCall) and call.kernel.pitch
    ]
    assert len(pitched) >= len(own)
    assert all(pitch.plane == size for pitch, size in pitched)


def test_a_square_of_dynamic_sides_has_no_planes() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        squares (float[n,n] x) => (y) { a = Relu (x)  b = Softmax (a)  y = Add (a, b) }"""
    )
    built = compiler.build(import_model_proto(model, {"n": ("20..21",)}))
    x = np.random.default_rng(3).standard_normal((21, 21)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_allclose(
        built.run({"x": x})["y"], session.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6
    )


def test_rows_of_vectors_begin_at_whole_vectors(model: Path) -> None:
    target = target_named("x86-64-v4")
    pitches = [kernel.pitch for kernel in kernels(model, target) if kernel.pitch is not None]
    assert any(pitch.column == 1 for pitch in pitches)
    for pitch in pitches:
        assert pitch.multiple == (16 if pitch.column == 1 else 1)


def test_matrix_tiles_find_narrow_rows_at_their_bounds(model: Path) -> None:
    target = target_named("sapphirerapids")
    assert any(kernel.pitch is not None for kernel in kernels(model, target))
    for kernel in kernels(model, target):
        for buffer in kernel.inputs:
            assert buffer.pitch is None or buffer.dtype.bytes >= 4


def test_kernels_with_a_pitch_survive_json_and_keep_rows_and_columns_apart(model: Path) -> None:
    target = target_named("x86-64-v3")
    found = [kernel for kernel in kernels(model, target) if kernel.pitch is not None]
    assert found
    for kernel in found:
        assert kernel_from_json(kernel_to_json(kernel)) == kernel
        assert kernel.pitch is not None
        names = [axis.name for axis in kernel.output.axes]
        rows = next(
            number
            for number in range(len(names) - 1)
            if kernel.output.shape[number : number + 2] == (kernel.pitch.rows, kernel.pitch.extent)
        )
        for merge in (merge_axes, flatten_axes):
            with pytest.raises(ScheduleError):
                merge(kernel, names[rows], names[rows + 1])


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Planes of two sizes, one of them made of views, whose pixels become columns of one row."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    graph = helper.make_graph(
        [
            node("Conv", ["x", "taps"], ["a"], pads=[1, 1, 1, 1]),
            node("ConvTranspose", ["a", "spread"], ["b"], strides=[2, 2]),
            node("Relu", ["b"], ["c"]),
            node("Reshape", ["a", "rows"], ["d"]),
            node("Reshape", ["c", "rows"], ["e"]),
            node("Concat", ["d", "e"], ["y"], axis=2),
            node("Relu", ["d"], ["f"]),
            node("Concat", ["d", "f"], ["g"], axis=1),
            node("Transpose", ["g"], ["z"], perm=[0, 2, 1]),
        ],
        "merged",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16, "p"]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", "q", 32]),
        ],
        [
            numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 5, name)
            for name, shape in (("taps", (16, 3, 3, 3)), ("spread", (16, 16, 2, 2)))
        ]
        + [numpy_helper.from_array(np.array([0, 16, -1]), "rows")],
    )
    path = tmp_path_factory.mktemp("merged") / "merged.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path


@pytest.mark.parametrize("images", [1, 2])
def test_pixels_in_one_row_are_right_at_all_sizes(merged: Path, images: int) -> None:
    session = onnxruntime.InferenceSession(str(merged))
    rng = np.random.default_rng(1)
    shapes = {**SHAPES, "n": (f"1..{images}",)}
    for threads in (1, 2):
        built = compiler.build(merged, shapes=shapes, threads=threads)
        for shape in [(1, 2, 2), (2, 9, 40), (1, 40, 9), (2, 16, 16), (1, 23, 37), (2, 40, 40)]:
            count = min(shape[0], images)
            x = rng.standard_normal((count, 3, *shape[1:])).astype(np.float32)
            found, expected = built.run({"x": x}), session.run(["y", "z"], {"x": x})
            for name, values in zip(("y", "z"), expected, strict=True):
                np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-4)


def test_rows_that_are_merged_are_written_side_by_side(merged: Path) -> None:
    program = kernels_of(merged, target_named("x86-64-v3"), SHAPES)
    calls = [call for call in program.calls if isinstance(call, KernelCall)]
    assert not any("gather" in call.kernel.name for call in calls)
    views = {call.input: call.output for call in program.calls if isinstance(call, ViewCall)}
    beside = [
        call for call in calls if (p := call.kernel.pitch) and (p.margin, p.multiple) == (0, 1)
    ]
    assert len(beside) == 2
    for call in beside:
        assert program.types[views[call.output]].shape[1:] == (
            call.kernel.output.shape[1],
            call.kernel.output.shape[2] * call.kernel.output.shape[3],
        )


def test_views_of_planes_have_the_pitch_of_what_they_are_views_of(merged: Path) -> None:
    program = kernels_of(merged, target_named("x86-64-v3"), SHAPES)
    calls = [call for call in program.calls if isinstance(call, KernelCall)]
    made = {call.output: call.kernel.pitch for call in calls}
    roots: dict[str, str] = {}
    for call in program.calls:
        if isinstance(call, ViewCall):
            roots[call.output] = roots.get(call.input, call.input)
    pairs = [
        (made.get(roots[name]), buffer.pitch)
        for call in calls
        for name, buffer in zip(call.inputs, call.kernel.inputs, strict=True)
        if name in roots
    ]
    alike = [(p, q) for p, q in pairs if isinstance(p, RowPitch) and p.margin + p.multiple > 1]
    assert alike
    for one, other in alike:
        assert isinstance(other, RowPitch)
        assert replace(one, sizes="") == replace(other, sizes="")


@given(
    planes=st.integers(1, 3),
    rows=st.integers(1, 4),
    extent=st.integers(1, 7),
    column=st.sampled_from((1, 8)),
    size=st.integers(0, 9),
    margin=st.integers(0, 3),
    multiple=st.sampled_from((1, 4)),
)
@settings(max_examples=50, deadline=None)
def test_what_is_stored_is_what_was_there(
    planes: int, rows: int, extent: int, column: int, size: int, margin: int, multiple: int
) -> None:
    pitch = RowPitch(column, extent, rows, "sizes", 0, margin, multiple)
    sizes = {"sizes": np.array([size])}
    shape = (planes, rows, extent, column)
    array = np.arange(planes * rows * extent * column, dtype=np.float32).reshape(shape)
    stored = as_stored(array, pitch, sizes)
    columns = pitch.columns(sizes)
    flat = stored.reshape(planes, -1)
    for row in range(rows):
        for place in range(columns):
            at = (row * columns + place) * column
            np.testing.assert_array_equal(flat[:, at : at + column], array[:, row, place])
    there = as_logical(stored, pitch, sizes)[:, :, :columns]
    np.testing.assert_array_equal(there, array[:, :, :columns])


def sequences() -> onnx.ModelProto:
    """Steps of a batch, with features longer than a vector: products, moves, a recurrence."""
    rng, node = np.random.default_rng(4), helper.make_node

    def constant(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) / 5).astype(np.float32), name)

    nodes = [
        node("MatMul", ["x", "wide"], ["a"]),
        node("Tanh", ["a"], ["b"]),
        node("LSTM", ["b", "w", "r"], ["c"], hidden_size=24, direction="bidirectional"),
        node("Transpose", ["c"], ["d"], perm=[0, 2, 1, 3]),
        node("Reshape", ["d", "flat"], ["e"]),
        node("LayerNormalization", ["e", "scale"], ["f"], axis=-1),
        node("MatMul", ["f", "narrow"], ["g"]),
        node("Softmax", ["g"], ["h"], axis=1),
        node("Concat", ["h", "x"], ["y"], axis=2),
        node("ReduceMax", ["b"], ["z"], axes=[0], keepdims=0),
    ]
    values: dict[str, list[int | str | None]]
    values = {"x": ["n", "b", 40], "y": ["n", "b", 80], "z": ["b", 48]}
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in values.items()
    ]
    constants = [
        *(constant("wide", 40, 48), constant("w", 2, 96, 48), constant("r", 2, 96, 24)),
        *(constant("scale", 48), constant("narrow", 48, 40)),
        numpy_helper.from_array(np.array([0, 0, 48], np.int64), "flat"),
    ]
    graph = helper.make_graph(nodes, "sequences", ports[:1], ports[1:], constants)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


STEPS = {"n": ("1..20",), "b": ("1..8",)}


def test_a_batch_of_sequences_lies_as_close_as_there_are_sequences() -> None:
    program = kernels_of(import_model_proto(sequences(), STEPS), target_named("x86-64-v3"))
    pitches = [
        call.kernel.pitch
        for call in program.calls
        if isinstance(call, KernelCall) and call.kernel.pitch is not None
    ]
    found = [pitch for pitch in pitches if pitch.column > VECTOR and pitch.extent == 8]
    assert len(found) >= 2
    for pitch in found:
        for batch in (1, 3, 8):
            sizes = {pitch.sizes: np.array([batch] * (pitch.number + 1))}
            assert pitch.columns(sizes) == batch


def test_outputs_of_sequences_are_right_at_all_sizes() -> None:
    model, rng = sequences(), np.random.default_rng(5)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for threads in (1, 2):
        built = compiler.build(import_model_proto(model, STEPS), threads=threads)
        for n, b in [(1, 1), (1, 8), (3, 2), (5, 7), (6, 3), (7, 1), (19, 5), (20, 8)]:
            x = rng.standard_normal((n, b, 40)).astype(np.float32)
            found, expected = built.run({"x": x}), session.run(["y", "z"], {"x": x})
            for name, values in zip(("y", "z"), expected, strict=True):
                np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)
