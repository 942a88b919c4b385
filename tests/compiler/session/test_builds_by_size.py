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
