"""Builds for sizes that come: what is built where."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import onnx
from onnx.parser import parse_model

from tunefarm import compiler
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.session.builds_by_size import VARIED, BuildsBySize
from tunefarm.compiler.session.ports import NodeArg
from tunefarm.compiler.types.extents import Shapes


def test_runs_come_before_the_build_for_a_range(tmp_path: Path) -> None:
    path = tmp_path / "relu.onnx"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    onnx.save(parse_model(text), path)
    priorities = []

    def build(shapes: Shapes) -> Executable:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return compiler.build(path, shapes=shapes)

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    builds = BuildsBySize(str(path), [NodeArg("x", "tensor(float)", ["n"])], build)
    for size in range(1, VARIED + 1):
        builds.executable_for({"x": np.zeros(size, np.float32)})
    assert builds.wait(60)
    assert priorities == [before] * VARIED + [19]


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
    builds = BuildsBySize(str(path), ports, build)
    for tokens, past in ((5, 0), (1, 5), (1, 6)):
        shapes = {"x": (tokens, 4), "before": (past, 4)}
        builds.executable_for({name: np.zeros(shape) for name, shape in shapes.items()})
    assert builds.wait(60)
    assert asked[VARIED] == {"x": ("1|2..10", 4), "before": ((0, 12), 4)}
