"""Scatters at positions that are not constant, and gathers, compared with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from tests.compiler.frontend.onnx_models import INT64, node, tensor
from tests.compiler.frontend.onnx_models import model as model_of
from tests.onnxruntime_session import assert_agrees, one_thread
from tunefarm import compiler
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto

REDUCTIONS = ("none", "add", "mul", "max", "min")


def model(
    operator: str,
    data: tuple[int, ...],
    indices: tuple[int, ...],
    updates: tuple[int, ...],
    **attributes: Any,
) -> onnx.ModelProto:
    """One node; its indices are an input."""
    inputs = [tensor("x", data), tensor("i", indices, INT64), tensor("u", updates)]
    return model_of([node(operator, "x i u", **attributes)], inputs)


def check(proto: onnx.ModelProto, positions: np.ndarray, seed: int) -> None:
    """Our output is onnxruntime's, which writes in order with one thread."""
    rng = np.random.default_rng(seed)
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in proto.graph.input]
    inputs = {
        "x": rng.standard_normal(shapes[0]).astype(np.float32),
        "i": positions.astype(np.int64),
        "u": rng.standard_normal(shapes[2]).astype(np.float32),
    }
    run = compiler.build(import_model_proto(proto)).run
    assert_agrees(run, proto, inputs, rtol=1e-5, atol=1e-6, options=one_thread())


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    depth=st.integers(1, 3),
    count=st.integers(1, 11),
    reduction=st.sampled_from(REDUCTIONS),
    seed=st.integers(0, 1 << 16),
)
def test_rows_at_computed_positions(
    shape: list[int], depth: int, count: int, reduction: str, seed: int
) -> None:
    depth = min(depth, len(shape))
    limits = np.array(shape[:depth])
    positions = np.random.default_rng(seed).integers(-limits, limits, (count, depth))
    updates = (count, *shape[depth:])
    proto = model("ScatterND", tuple(shape), (count, depth), updates, reduction=reduction)
    check(proto, positions, seed)


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    smaller=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    axis=st.integers(0, 2),
    count=st.integers(1, 9),
    reduction=st.sampled_from(REDUCTIONS),
    seed=st.integers(0, 1 << 16),
)
def test_elements_at_computed_positions(
    shape: list[int], smaller: list[int], axis: int, count: int, reduction: str, seed: int
) -> None:
    axis = min(axis, len(shape) - 1)
    part = [max(1, extent - less) for extent, less in zip(shape, smaller, strict=False)]
    part[axis] = count if reduction != "none" else min(count, shape[axis])
    limit = shape[axis]
    positions = np.random.default_rng(seed).integers(-limit, limit, part)
    proto = model(
        "ScatterElements", tuple(shape), tuple(part), tuple(part), axis=axis, reduction=reduction
    )
    check(proto, positions, seed)


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    once=st.lists(st.booleans(), min_size=3, max_size=3),
    axis=st.integers(0, 2),
    count=st.integers(1, 9),
    reduction=st.sampled_from((*REDUCTIONS, None)),
    is_sized=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
def test_elements_at_positions_that_are_expanded(
    shape: list[int],
    once: list[bool],
    axis: int,
    count: int,
    reduction: str | None,
    is_sized: bool,
    seed: int,
) -> None:
    """Whatever axes positions are expanded along, with fixed sizes and with fewer than the most.

    Without a reduction they are gathered.
    """
    axis, rng = min(axis, len(shape) - 1), np.random.default_rng(seed)
    whole = [*shape[:axis], count, *shape[axis + 1 :]]
    own = [1 if once[at] and at != axis else extent for at, extent in enumerate(whole)]
    nodes = [node("Shape", "u", "whole"), node("Expand", "i whole", "wide")]
    if reduction is None:
        nodes += [node("GatherElements", "x wide", "g", axis=axis), node("Mul", "g u")]
    else:
        nodes.append(node("ScatterElements", "x wide u", axis=axis, reduction=reduction))
    symbols: list[int | str] = [f"s{at}" for at in range(len(shape))]
    reached = [*symbols[:axis], "n", *symbols[axis + 1 :]]
    counted = [1 if extent == 1 else name for extent, name in zip(own, reached, strict=True)]
    inputs = [tensor("x", symbols), tensor("i", counted, INT64), tensor("u", reached)]
    proto = model_of(nodes, inputs)
    limit = shape[axis]
    arrays = {
        "x": rng.standard_normal(shape).astype(np.float32),
        "i": rng.integers(-limit, limit, own),
        "u": rng.standard_normal(whole).astype(np.float32),
    }
    if reduction == "none":  # where several updates have one place, all write the same
        arrays["u"] = np.ones(whole, np.float32)
    shapes: dict[str, list[int | str]] = {"x": [*shape], "i": [*own], "u": [*whole]}
    if is_sized:
        shapes = {
            name: [f"{size}:1..12" if isinstance(size, str) else size for size in sizes]
            for name, sizes in (("x", symbols), ("i", counted), ("u", reached))
        }
    run = compiler.build(import_model_proto(proto, shapes)).run
    assert_agrees(run, proto, arrays, rtol=1e-5, atol=1e-6)


def test_rows_are_gathered_where_all_columns_have_one_place() -> None:
    nodes = [node("Expand", "i shape", "wide"), node("GatherElements", "x wide", axis=1)]
    proto = model_of(nodes, [tensor("x", [2, 5, 3]), tensor("i", [4, 1], INT64)])
    proto.graph.initializer.append(numpy_helper.from_array(np.array([2, 4, 3]), "shape"))
    graph = import_model_proto(proto)
    (gather,) = (each for each in graph.nodes if each.operator.startswith("gather"))
    assert (gather.operator, graph.types[gather.inputs[1]].shape) == ("gather", (4,))


def test_positions_outside_of_the_data_are_left_out() -> None:
    proto = model("ScatterND", (4, 3), (2, 1), (2, 3))
    x, u = np.zeros((4, 3), np.float32), np.ones((2, 3), np.float32)
    outside = np.array([[1], [99]])
    executable = compiler.build(import_model_proto(proto))
    result = executable.run({"x": x, "i": outside, "u": u})["y"]
    np.testing.assert_array_equal(result, [[0] * 3, [1] * 3, [0] * 3, [0] * 3])


def test_many_updates_are_walked_once() -> None:
    rows, count = 1 << 16, 1 << 15  # 2**31 comparisons
    proto = model("ScatterND", (rows, 4), (count, 1), (count, 4), reduction="add")
    check(proto, np.random.default_rng(0).integers(0, rows, (count, 1)), 1)


def test_updates_of_one_element_at_known_positions_are_joined() -> None:
    proto = model("ScatterElements", (1, 5), (1, 300), (1, 300), axis=1, reduction="add")
    positions = np.arange(300).reshape(1, 300) % 3
    proto.graph.initializer.append(numpy_helper.from_array(positions, "i"))
    proto.graph.input.pop(1)
    x, u = np.ones((1, 5), np.float32), np.ones((1, 300), np.float32)
    result = compiler.build(import_model_proto(proto)).run({"x": x, "u": u})["y"]
    np.testing.assert_array_equal(result, [[101, 101, 101, 1, 1]])


def test_positions_beyond_another_axis_are_refused() -> None:
    proto = model("ScatterElements", (4, 3), (2, 5), (2, 5), axis=0)
    with pytest.raises(ImportModelError, match="reach beyond"):
        import_model_proto(proto)
