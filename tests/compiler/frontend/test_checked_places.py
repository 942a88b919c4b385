"""Indices in models with dynamic shapes: each must be of what is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.compiler.frontend.onnx_models import integers, model, node, tensor
from tunefarm import compiler
from tunefarm.compiler.errors import InputError, ShapeError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.runtime.execution.executable import Executable

DATA = np.arange(6, dtype=np.float32).reshape(2, 3)  # two of at most four rows are there


def _built(operator: str, *shape: int | str) -> Executable:
    inputs = [tensor("x", ["n", 3]), tensor("i", shape, TensorProto.INT64)]
    proto = model(f"{operator} x i", inputs, opset=18)
    bounds = {name: ("1..4",) for name in ("n", *shape) if isinstance(name, str)}
    return compiler.build(import_model_proto(proto, bounds))


def _inputs(indices: Any) -> dict[str, Any]:
    return {"x": DATA, "i": np.array(indices, np.int64)}


@pytest.mark.parametrize("indices", [[2, 0], [0, -3], [-5, 1], [9, 9]])
def test_an_index_outside_of_what_is_there_is_refused(indices: list[int]) -> None:
    with pytest.raises(InputError, match=r"input 'i' is \[.*\]: Gather node 'y' has an index out"):
        _built("Gather", "k").run(_inputs(indices))


def _embedded(*sizes: int | str) -> Executable:
    """Rows of a table of three, at indices of these sizes: as tokens are embedded."""
    inputs = [tensor("i", sizes, TensorProto.INT64)]
    proto = model("Gather table i", inputs, constants={"table": np.eye(3, dtype="f4")})
    bounds = {name: ("1..4",) for name in sizes if isinstance(name, str)}
    return compiler.build(import_model_proto(proto, bounds))


@pytest.mark.parametrize("indices", [[3], [0, 1, 2, -4], [300, 0]])
def test_an_index_outside_of_a_table_is_refused_in_a_model_with_open_sizes(
    indices: list[int],
) -> None:
    executable = _embedded("k")
    found = executable.run({"i": np.array([2, -3])})["y"]
    np.testing.assert_array_equal(found, np.eye(3)[[2, 0]])
    with pytest.raises(InputError, match=r"Gather node 'y' has an index .* axis 0, of which 3 "):
        executable.run({"i": np.array(indices)})


def test_models_without_open_sizes_compute_nothing_beside_their_kernels() -> None:
    executable = _embedded(2)
    assert len(executable.kernels) == 1 and executable.signature.is_fixed


def test_negative_indices_count_from_the_end_of_what_is_there() -> None:
    rows = _built("Gather", "k").run(_inputs([-1, 0, -2]))["y"]
    np.testing.assert_array_equal(rows, DATA[[-1, 0, -2]])


def test_so_are_indices_of_elements() -> None:
    executable = _built("GatherElements", 2, 3)
    found = executable.run(_inputs([[-1, 0, 1], [0, -2, 1]]))["y"]
    np.testing.assert_array_equal(
        found, np.take_along_axis(DATA, np.array([[1, 0, 1], [0, 0, 1]]), 0)
    )
    with pytest.raises(InputError, match="GatherElements node 'y' has an index outside of axis 0"):
        executable.run(_inputs([[0, 0, 2], [0, 0, 0]]))


def _run(
    operator: str, inputs: dict[str, list[int | str]], call: dict[str, Any], **how: Any
) -> Any:
    """y of an operator on inputs of these shapes, n in 1..4 and q in 1..3, in a run with `call`."""
    opset = how.pop("opset", 18)
    types = {"i": TensorProto.INT64}
    proto = model(
        [node(operator, " ".join(inputs), **how)],
        [tensor(name, shape, types.get(name, TensorProto.FLOAT)) for name, shape in inputs.items()],
        opset=opset,
    )
    used = {axis for shape in inputs.values() for axis in shape if isinstance(axis, str)}
    bounds = {
        name: given for name, given in {"n": ("1..4",), "q": ("1..3",)}.items() if name in used
    }
    return compiler.build(import_model_proto(proto, bounds)).run(call)["y"]


def test_tuples_count_from_the_end_of_what_is_there_and_must_be_inside() -> None:
    shapes: dict[str, list[int | str]] = {"x": ["n", 3], "i": [2, 2]}
    found = _run("GatherND", shapes, _inputs([[-1, 0], [0, -3]]))
    np.testing.assert_array_equal(found, DATA[[1, 0], [0, 0]])
    with pytest.raises(InputError, match=r"GatherND node 'y' .*axes 0 to 1, of .*\(n is 2\)"):
        _run("GatherND", shapes, _inputs([[0, 0], [2, 0]]))


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize("wrong", [2, -3])
def test_scatters_refuse_places_behind_what_is_there(reduction: str, wrong: int) -> None:
    rows: dict[str, list[int | str]] = {"x": ["n", 3], "i": [1, 1], "u": [1, 3]}
    call = {**_inputs([[wrong]]), "u": np.ones((1, 3), np.float32)}
    with pytest.raises(InputError, match="ScatterND node 'y' has an index outside of axis 0"):
        _run("ScatterND", rows, call, reduction=reduction)
    elements: dict[str, list[int | str]] = {"x": ["n", 3], "i": [1, 3], "u": [1, 3]}
    with pytest.raises(InputError, match="ScatterElements node 'y' has an index outside of axis 0"):
        _run("ScatterElements", elements, {**call, **_inputs([[0, wrong, 1]])}, reduction=reduction)


def test_a_scatter_refuses_more_places_than_the_data_has_beside_its_axis() -> None:
    shapes: dict[str, list[int | str]] = {"x": ["n", 3], "i": ["q", 1], "u": ["q", 1]}
    call = {**_inputs(np.zeros((3, 1))), "u": np.ones((3, 1), np.float32)}
    with pytest.raises(InputError, match=r"sizes do not fit .* q is 3 .*node 'y'"):
        _run("ScatterElements", shapes, call, axis=1)


@pytest.mark.parametrize("operator", ["GatherND", "ScatterND"])
def test_a_constant_behind_the_greatest_size_is_refused_at_import(operator: str) -> None:
    inputs = [tensor("x", ["n", 3]), tensor("u", [1, 3])][: 1 if operator == "GatherND" else 2]
    single = node(operator, "x i" if operator == "GatherND" else "x i u")
    proto = model([single], inputs, constants={"i": integers(9).reshape(1, 1)}, opset=18)
    with pytest.raises(ShapeError, match="index 9 is out of range for a dimension of 4"):
        import_model_proto(proto, {"n": ("1..4",)})


def test_no_indices_at_all_are_inside() -> None:
    nodes = "places = NonZero x; tuples = Transpose places; GatherND x tuples"
    proto = model(nodes, [tensor("x", ["n", 3])], opset=18)
    executable = compiler.build(import_model_proto(proto, {"n": ("1..4",)}))
    assert executable.run({"x": np.zeros((2, 3), np.float32)})["y"].shape == (0,)
    assert executable.run({"x": DATA})["y"].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("count", [3, -1])
def test_more_results_than_there_are_elements_are_refused(count: int) -> None:
    inputs = [tensor("x", ["n", 3]), tensor("k", [1], TensorProto.INT64)]
    proto = model("y places = TopK x k axis=0", inputs, opset=18)
    executable = compiler.build(import_model_proto(proto, {"n": ("1..4",)}))
    with pytest.raises(InputError, match=r"input 'k' .* asks for k results .* \(n is 2\)"):
        executable.run({"x": DATA, "k": np.array([count])})
    assert executable.run({"x": DATA, "k": np.array([1])})["y"].tolist() == [[3, 4, 5]]


def test_a_condition_that_is_true_behind_the_data_is_refused() -> None:
    inputs = [tensor("x", ["n", 3]), tensor("c", ["m"], TensorProto.BOOL)]
    proto = model("Compress x c axis=0", inputs, opset=18)
    bounds = {"n": ("1..4",), "m": ("1..4",)}
    executable = compiler.build(import_model_proto(proto, bounds))
    assert executable.run({"x": DATA, "c": np.array([False, True, False])})["y"].shape == (1, 3)
    with pytest.raises(InputError, match="Compress node 'y' takes an element behind axis 0"):
        executable.run({"x": DATA, "c": np.array([True, False, True])})


def test_a_sequence_that_is_longer_than_the_data_is_refused() -> None:
    inputs = [tensor("x", ["n", 1]), tensor("i", [1], TensorProto.INT64)]
    single = node("ReverseSequence", "x i", time_axis=0, batch_axis=1)
    executable = compiler.build(
        import_model_proto(model([single], inputs, opset=18), {"n": ("1..4",)})
    )
    call = {"x": DATA.reshape(6, 1)[:3], "i": np.array([2])}
    assert executable.run(call)["y"].tolist() == [[1], [0], [2]]
    with pytest.raises(InputError, match=r"a sequence longer than axis 0, of n .* \(n is 3\)"):
        executable.run({**call, "i": np.array([4])})


CACHE: dict[str, list[int | str]] = {"x": [1, "n"], "u": [1, "q"], "i": [1]}


@pytest.mark.parametrize(("mode", "start"), [("linear", 1), ("circular", 2), ("circular", 7)])
def test_a_part_of_a_cache_is_written_by_a_part_of_an_update(mode: str, start: int) -> None:
    call = {"x": DATA[:1], "u": np.array([[7, 8]], np.float32), "i": np.array([start])}
    expected = DATA[:1].copy()
    expected[0, [start % 3, (start + 1) % 3]] = 7, 8
    found = _run("TensorScatter", CACHE, call, axis=1, mode=mode, opset=24)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("start", [2, -1])
def test_an_update_that_does_not_fit_into_the_cache_is_refused(start: int) -> None:
    call = {"x": DATA[:1], "u": np.array([[7, 8]], np.float32), "i": np.array([start])}
    with pytest.raises(InputError, match=r"writes q elements .* \(n is 3, q is 2\)"):
        _run("TensorScatter", CACHE, call, axis=1, opset=24)
