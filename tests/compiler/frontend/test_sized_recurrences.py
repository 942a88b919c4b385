"""Recurrent layers over any number of steps: compiled, they walk those that are there."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node

from tests.compiler.frontend.onnx_models import model, tensor
from tests.onnxruntime_session import assert_agrees
from tests.targets import target_named
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.llvm.emit_kernel import emit_kernel
from tunefarm.compiler.loops.ir import For, LoopNest, walk
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.tensor_type import Array

STEPS, BATCH, SIZE, HIDDEN = 11, 3, 5, 18
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
CASES = [
    (kind, direction, lengths, low)
    for kind, direction in (("RNN", "forward"), ("GRU", "reverse"), ("LSTM", "bidirectional"))
    for lengths in (False, True)
    for low in (1, 0)
    if low or kind != "RNN"
]


def layer(kind: str, direction: str, lengths: bool, hidden: int = HIDDEN) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    directions, rows = 1 + (direction == "bidirectional"), GATES[kind] * hidden
    weights = {
        name: rng.standard_normal((directions, rows, width)).astype(np.float32) / 4
        for name, width in (("w", SIZE), ("r", hidden))
    }
    outputs = ["y", "h", *(["c"] if kind == "LSTM" else [])]
    inputs = ["x", "w", "r", "", *(["n"] if lengths else [])]
    node = make_node(kind, inputs, outputs, hidden_size=hidden, direction=direction)
    given = [tensor("x", ["steps", "batch", SIZE])]
    given += [tensor("n", ["batch"], onnx.TensorProto.INT32)] if lengths else []
    return model([node], given, outputs, weights)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case)))
def built(request: pytest.FixtureRequest) -> tuple[onnx.ModelProto, Executable, int]:
    kind, direction, lengths, low = request.param
    proto = layer(kind, direction, lengths)
    graph = import_model_proto(proto, {"steps": (f"{low}..{STEPS}",), "batch": (f"1..{BATCH}",)})
    compiled = compile_model(graph)
    (recurrence,) = (
        call.kernel
        for call in compiled.program.calls
        if isinstance(call, KernelCall) and "recurrence" in call.operators
    )
    ends = {(limit.stride, limit.extent) for limit in recurrence.limits}
    assert ((BATCH * HIDDEN, STEPS) in ends) == bool(low)
    return proto, Executable(compiled.spec), low


@settings(max_examples=8, deadline=None)
@given(st.integers(1, STEPS), st.integers(1, BATCH), st.integers(0, 99))
def test_steps_that_are_there_give_what_onnxruntime_gives(
    built: tuple[onnx.ModelProto, Executable, int], steps: int, batch: int, seed: int
) -> None:
    proto, executable, _ = built
    rng = np.random.default_rng(seed)
    lengths = len(proto.graph.input) > 1

    def arguments(steps: int, batch: int, scale: float) -> dict[str, Array]:
        x = (scale * rng.standard_normal((steps, batch, SIZE))).astype(np.float32)
        given: dict[str, Array] = {"x": x}
        if lengths:
            given["n"] = rng.integers(1, steps + 1, batch).astype(np.int32)
        return given

    executable.run(arguments(STEPS, BATCH, np.nan))
    assert_agrees(executable.run, proto, arguments(steps, batch, 1.0), atol=1e-4)


def nest_of_recurrence(graph: Graph, target: Target) -> LoopNest:
    """The one recurrence under its default schedule."""
    (recurrence,) = (
        call.kernel
        for call in compile_model(graph).program.calls
        if isinstance(call, KernelCall) and "recurrence" in call.operators
    )
    return lower(recurrence, default_schedule(recurrence, target))


@pytest.mark.parametrize("kind", sorted(GATES))
def test_steps_end_at_their_size_where_nobody_reads_the_last_states(kind: str) -> None:
    """Of an LSTM only the next step reads the cells."""
    proto = layer(kind, "forward", False)
    del proto.graph.output[1:]
    sizes = {"steps": (f"1..{STEPS}",), "batch": (f"1..{BATCH}",)}
    nest = nest_of_recurrence(import_model_proto(proto, sizes), target_named("x86-64-v3"))
    loops = {item.variable: item for item in walk(nest.body) if isinstance(item, For)}
    assert loops["t"].limit is not None


@pytest.mark.parametrize("kind", sorted(GATES))
def test_the_first_step_reads_nothing_before_the_result(kind: str) -> None:
    """Not even with a mask of no lane, which takes long where the memory is nobody's."""
    proto = layer(kind, "forward", False, hidden=32)
    sizes = {"steps": (f"1..{STEPS}",), "batch": (f"1..{BATCH}",)}
    target = target_named("x86-64-v4")
    code, _ = emit_kernel(nest_of_recurrence(import_model_proto(proto, sizes), target), target, "f")
    assert "masked.load" not in code
