"""Builds for sizes that come: what is built where."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import ArrayLike
from onnx.parser import parse_model

from tunefarm import compiler
from tunefarm.compiler.errors import InputError
from tunefarm.compiler.frontend.declared_ports import declared_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.session.builds_by_size import VARIED, BuildsBySize
from tunefarm.compiler.session.inference_session import InferenceSession
from tunefarm.compiler.session.ports import NodeArg
from tunefarm.compiler.types.extents import Bounds, Shapes


def ranges(path: Path) -> Callable[..., tuple[Shapes, Bounds]]:
    return declared_model(str(path)).range_of


def test_runs_come_before_the_build_for_a_range(tmp_path: Path) -> None:
    path = tmp_path / "relu.onnx"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    onnx.save(parse_model(text), path)
    priorities = []

    def build(shapes: Shapes) -> Executable:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return compiler.build(path, shapes=shapes)

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    builds = BuildsBySize(str(path), [NodeArg("x", "tensor(float)", ["n"])], build, ranges(path))
    for size in range(1, VARIED + 1):
        builds.executable_for({"x": np.zeros(size, np.float32)})
    assert builds.wait(60)
    assert priorities == [before] * VARIED + [min(before + 5, 19)]


def test_a_program_may_end_while_a_range_is_built(tmp_path: Path) -> None:
    path = tmp_path / "relu.onnx"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    onnx.save(parse_model(text), path)
    script = f"""
import threading
import time
import numpy as np
from concurrent.futures import thread
from tunefarm import compiler
from tunefarm.compiler.frontend.declared_ports import declared_model
from tunefarm.compiler.session.inference_session import BuildsBySize
from tunefarm.compiler.session.ports import NodeArg
def build(shapes):
    if threading.current_thread() is not threading.main_thread():
        while not thread._shutdown:  # from then on no thread is started
            pass
        thread.ThreadPoolExecutor().submit(print)
    return compiler.build({str(path)!r}, shapes=shapes)
inputs = [NodeArg("x", "tensor(float)", ["n"])]
builds = BuildsBySize("relu", inputs, build, declared_model({str(path)!r}).range_of)
for size in (1, 2, 3):
    builds.executable_for({{"x": np.zeros(size, np.float32)}})
thread.ThreadPoolExecutor().submit(time.sleep, 1)  # the interpreter waits for it
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=100)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_runs_of_one_row_have_a_program_of_their_own(tmp_path: Path) -> None:
    """A decoder runs its prompt at once, behind no past, and then token by token."""
    path = tmp_path / "decoder.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[tokens, 4] x, float[past, 4] before) => (float[all, 4] after)
    { after = Concat <axis = 0> (before, x) }"""
    onnx.save(parse_model(text), path)
    asked: list[Shapes] = []

    def build(shapes: Shapes) -> Executable:
        asked.append(shapes)
        return compiler.build(path, shapes=shapes)

    ports = [
        NodeArg("x", "tensor(float)", ["tokens", 4]),
        NodeArg("before", "tensor(float)", ["past", 4]),
    ]
    builds = BuildsBySize(str(path), ports, build, ranges(path))
    for tokens, past in ((5, 0), (1, 5), (1, 6)):
        shapes = {"x": (tokens, 4), "before": (past, 4)}
        builds.executable_for({name: np.zeros(shape) for name, shape in shapes.items()})
    assert builds.wait(60)
    assert asked[VARIED] == {"tokens": ("1|2..10",), "past": ((0, 511),)}


def test_a_loop_over_tokens_is_built_for_a_few_times(tmp_path: Path) -> None:
    """As exporters write decoders: lengths in several inputs, and a sum of them as a name."""
    path = tmp_path / "decoder.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, seq] x, int64[1, seq] places, float[1, past + seq] mask, float[1, past] before)
      => (float[1, all] after)
    { numbers = Cast <to = 1> (places)
      moved = Add (x, numbers)
      joined = Concat <axis = 1> (before, moved)
      after = Mul (joined, mask) }"""
    text = text.replace("past + seq", "total")
    proto = parse_model(text)
    proto.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "past + seq"
    onnx.save(proto, path)
    asked: list[Shapes] = []

    def build(shapes: Shapes) -> Executable:
        asked.append(shapes)
        return compiler.build(path, shapes=shapes)

    ports = [
        NodeArg("x", "tensor(float)", [1, "seq"]),
        NodeArg("places", "tensor(int64)", [1, "seq"]),
        NodeArg("mask", "tensor(float)", [1, "past + seq"]),
        NodeArg("before", "tensor(float)", [1, "past"]),
    ]
    builds = BuildsBySize(str(path), ports, build, ranges(path))
    past = np.zeros((1, 0), np.float32)
    for number, tokens in enumerate((5, *[1] * 80)):
        if number >= VARIED:
            assert builds.wait(60)
        x = np.full((1, tokens), 2, np.float32)
        places = np.arange(past.shape[1], past.shape[1] + tokens)[None]
        mask = np.ones((1, past.shape[1] + tokens), np.float32)
        feed = {"x": x, "places": places, "mask": mask, "before": past}
        executable = builds.executable_for(feed)
        past = executable.run(feed)["after"]
    np.testing.assert_array_equal(past[0], 2 + np.arange(85))
    assert asked[VARIED] == {"seq": ("1|2..10",), "past": ((0, 511),)}
    assert len(asked) == VARIED + 1 and builds.is_range(executable)


def test_sums_that_sizes_contradict_are_dimensions_of_their_own(tmp_path: Path) -> None:
    asked: list[Shapes] = []
    path = tmp_path / "add.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[a] x, float[b] y) => (float[a] r, float[b] s) { r = Relu (x) s = Relu (y) }"""
    proto = parse_model(text)
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "a + 1"
    onnx.save(proto, path)

    def build(shapes: Shapes) -> Executable:
        asked.append(shapes)
        return compiler.build(path, shapes=shapes)

    ports = [NodeArg("x", "tensor(float)", ["a"]), NodeArg("y", "tensor(float)", ["a + 1"])]
    builds = BuildsBySize(str(path), ports, build, ranges(path))
    for a, b in ((2, 3), (4, 5), (9, 7)):
        feed = {"x": np.ones(a, np.float32), "y": np.ones(b, np.float32)}
        np.testing.assert_array_equal(builds.executable_for(feed).run(feed)["s"], feed["y"])
    assert builds.wait(60)
    assert asked[-1] == {"a": ((1, 18),), "a + 1": ((1, 14),)}


def test_batches_that_inputs_name_apart_are_one(tmp_path: Path) -> None:
    """As tf2onnx writes models of several inputs."""
    path = tmp_path / "joined.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[unk__1, 3] x, float[unk__2, 2] y, float[unk__3, 1] z) => (float[b, 6] all)
    { all = Concat <axis = 1> (x, y, z) }"""
    proto = parse_model(text)
    proto.graph.input[2].type.tensor_type.shape.dim[0].ClearField("dim_param")
    onnx.save(proto, path)
    session = InferenceSession(path)
    assert session.builds is not None
    for rows in (5, 1, 7, 9):
        feed = {
            name: np.ones((rows, w), np.float32) for name, w in zip("xyz", (3, 2, 1), strict=True)
        }
        assert session.run(None, feed)[0].shape == (rows, 6)
        assert session.builds.wait(60)
    assert session.builds.is_range(session.executable)


def test_sizes_that_were_alike_by_chance_come_apart(tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[a] x, float[b] y) => (float[a] r, float[b] s) { r = Relu (x) s = Relu (y) }"""
    onnx.save(parse_model(text), path)
    session = InferenceSession(path)
    assert session.builds is not None
    for a, b in ((2, 2), (4, 4), (6, 6), (5, 5), (3, 5), (5, 4)):
        found = session.run(None, {"x": np.ones(a, np.float32), "y": np.ones(b, np.float32)})
        assert [array.size for array in found] == [a, b]
        assert session.builds.wait(60)
        assert session.builds.is_range(session.executable) == ((a, b) in ((5, 5), (5, 4)))


def test_a_range_begins_at_the_sizes_seen_where_smaller_ones_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "windows.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 1, n] x) => (float[1, 1, m] y)
    { w = Constant <value = float[1, 1, 5] {1, 1, 1, 1, 1}> ()  y = Conv (x, w) }"""
    onnx.save(parse_model(text), path)
    session = InferenceSession(path)
    assert session.builds is not None
    for size in (9, 6, 7, 8):
        found = session.run(None, {"x": np.ones((1, 1, size), np.float32)})[0]
        np.testing.assert_array_equal(found, np.full((1, 1, size - 4), 5.0))
        assert session.builds.wait(60)
    assert session.builds.is_range(session.executable)


def test_a_run_like_the_last_is_served_without_a_look_at_the_model(tmp_path: Path) -> None:
    path = tmp_path / "relu.onnx"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    onnx.save(parse_model(text), path)
    ports = [NodeArg("x", "tensor(float)", ["n"])]
    builds = BuildsBySize(
        str(path), ports, lambda shapes: compiler.build(path, shapes=shapes), ranges(path)
    )

    def serve(value: ArrayLike) -> Executable:
        found = builds.executable_for({"x": value})
        assert builds.latest is found
        x = np.arange(len(np.asarray(value)), dtype=np.float32) - 1
        np.testing.assert_array_equal(found.run({"x": x})["y"], np.maximum(x, 0))
        return found

    two, three = serve(np.zeros(2)), serve(np.zeros(3))
    assert two is not three
    assert serve(np.zeros(3)) is serve([0.0] * 3) is three
    assert serve(np.zeros(2)) is two
    with pytest.raises(InputError, match="missing"):
        builds.executable_for({})
    with pytest.raises(InputError, match="no input 'z'"):
        builds.executable_for({"x": np.zeros(2), "z": np.zeros(2)})
    with pytest.raises(InputError, match="declares"):
        builds.executable_for({"x": np.zeros((2, 2))})
    served = serve(np.zeros(4))  # the third size, with which a build for a range begins
    assert builds.wait(60)
    assert builds.is_range(serve(np.zeros(4))) and not builds.is_range(served)


def test_a_name_that_inputs_share_may_stand_for_several_sizes(tmp_path: Path) -> None:
    """As in files whose exporter was told to call axis 1 of every input the width."""
    path = tmp_path / "widths.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, width] x, float[n, width] z) => (float[n, all] y)
    { y = Concat <axis = 1> (x, z) }"""
    onnx.save(parse_model(text), path)
    session = InferenceSession(path)
    builds = session.builds
    assert builds is not None
    theirs = onnxruntime.InferenceSession(path)
    for size in (3, 4, 4, 5, 6, 7):  # as one size first
        for other in (size, 2, 2 * size) if size > 3 else (size,):
            feed = {"x": np.ones((2, size), np.float32), "z": np.zeros((2, other), np.float32)}
            expected = theirs.run(None, feed)[0]
            np.testing.assert_array_equal(session.run(None, feed)[0], expected)
            assert builds.wait(60)
    session.run(None, {"x": np.ones((2, 5), np.float32), "z": np.ones((2, 3), np.float32)})
    assert builds.is_range(session.executable)
