"""Rows that stay what they are: skipped where a result lies over its input, else copied."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import BOOL, INT64, model, tensor
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.pipeline import Compiled, compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.schedule.apply_schedule import lower

ROWS = 6


def selection(width: int, conditions: tuple[int, int]) -> Compiled:
    """y = Where(c, x, -z) of rows so wide, by conditions of this shape."""
    negative = helper.make_node("Neg", ["z"], ["n"])
    node = helper.make_node("Where", ["c", "x", "n"], ["y"])
    shape = (ROWS, width)
    ports = [tensor("x", shape), tensor("z", shape), tensor("c", conditions, BOOL)]
    return compile_model(import_model_proto(model([negative, node], ports)))


def loops_of(compiled: Compiled) -> str:
    texts = []
    for call in compiled.program.calls:
        if isinstance(call, KernelCall):
            nest = lower(call.kernel, compiled.schedules[call.key].used.schedule)
            verify_loops(nest)
            texts.append(format_loops(nest))
    return "".join(texts)


@pytest.mark.parametrize("width", [45, 64, 100])
def test_rows_with_one_condition_are_skipped(width: int) -> None:
    compiled = selection(width, (ROWS, 1))
    assert "is elsewhere" in loops_of(compiled)
    executable = Executable(compiled.spec)
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal((ROWS, width), dtype=np.float32) for _ in "xz")
    c = np.array([[True], [False], [True], [True], [False], [True]])
    expected = np.where(c, x, -z)
    np.testing.assert_array_equal(executable.run({"x": x, "z": z, "c": c})["y"], expected)
    found = executable.run({"x": x, "z": z, "c": c}, in_place=True)["y"]
    assert found is x
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("width", "conditions"), [(64, (ROWS, 64)), (64, (1, 64)), (2, (ROWS, 1))])
def test_conditions_of_single_elements_and_short_rows_are_not_asked(
    width: int, conditions: tuple[int, int]
) -> None:
    assert "elsewhere" not in loops_of(selection(width, conditions))


def test_a_cache_that_grows_keeps_what_it_holds() -> None:
    node = helper.make_node("Concat", ["past", "new"], ["present"], axis=1)
    ports = [tensor("past", (2, "length", 64)), tensor("new", (2, 1, 64))]
    graph = import_model_proto(model([node], ports, ["present"]), {"length": ("0..9",)})
    compiled = compile_model(graph)
    assert "is elsewhere" in loops_of(compiled)
    executable = Executable(compiled.spec)
    (cache,) = executable.empty_caches({"length": 0}).values()
    rows = [np.full((2, 1, 64), number, np.float32) for number in range(10)]
    for number, row in enumerate(rows):
        cache = executable.run({"past": cache, "new": row}, in_place=True)["present"]
        np.testing.assert_array_equal(cache, np.concatenate(rows[: number + 1], 1))


WIDTH, ROOM = 16, 40


def scattered(tokens: int, starts: bool = True, mode: str = "linear") -> Compiled:
    """present = TensorScatter(past, new, places) of two sequences."""
    names = ["past", "new", *(["places"] if starts else [])]
    node = helper.make_node("TensorScatter", names, ["present"], axis=2, mode=mode)
    ports = [tensor("past", (2, 3, ROOM, WIDTH)), tensor("new", (2, 3, tokens, WIDTH))]
    ports += [tensor("places", (2,), INT64)] if starts else []
    return compile_model(import_model_proto(model([node], ports, ["present"], opset=24)))


@pytest.mark.parametrize("tokens", [1, 5])
def test_rows_that_are_written_are_all_that_a_step_in_place_runs_over(tokens: int) -> None:
    compiled = scattered(tokens)
    whole, rows = loops_of(compiled).split("is elsewhere")[1].split(".new in")
    assert f"0..{ROOM}" in whole
    assert rows.startswith(f" 0..{tokens}:")
    assert "in0[" not in rows
    executable = Executable(compiled.spec)
    rng = np.random.default_rng(0)
    past = rng.standard_normal((2, 3, ROOM, WIDTH), dtype=np.float32)
    new = rng.standard_normal((2, 3, tokens, WIDTH), dtype=np.float32)
    for places in ((0, 7), (ROOM - tokens, ROOM - 2), (-3, ROOM + 9)):  # what is outside is left
        expected = past.copy()
        for row, place in enumerate(places):
            for number in range(tokens):
                if 0 <= place + number < ROOM:
                    expected[row, :, place + number] = new[row, :, number]
        inputs = {"past": past.copy(), "new": new, "places": np.array(places, np.int64)}
        np.testing.assert_array_equal(executable.run(inputs)["present"], expected)
        found = executable.run(inputs, in_place=True)["present"]
        assert found is inputs["past"]
        np.testing.assert_array_equal(found, expected)


def test_rows_that_begin_again_are_asked_for_one_by_one() -> None:
    compiled = scattered(3, mode="circular")
    assert ".new in" not in loops_of(compiled)
    executable = Executable(compiled.spec)
    past = np.zeros((2, 3, ROOM, WIDTH), np.float32)
    new = np.ones((2, 3, 3, WIDTH), np.float32)
    inputs = {"past": past, "new": new, "places": np.array([ROOM - 1, 4])}
    found = executable.run(inputs, in_place=True)["present"]
    written = [np.flatnonzero(found[row, 0, :, 0]).tolist() for row in range(2)]
    assert written == [[0, 1, ROOM - 1], [4, 5, 6]]
