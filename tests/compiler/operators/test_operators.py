"""Every operator gives what the ONNX reference, onnxruntime or NumPy gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.operators.cases import Case, Values
from tests.compiler.operators.movement_cases import movement_cases
from tests.compiler.operators.pointwise_cases import pointwise_cases
from tests.compiler.operators.quantised_cases import quantised_cases
from tests.compiler.operators.recurrence_cases import recurrence_cases
from tests.compiler.operators.reduction_cases import reduction_cases
from tests.compiler.operators.sampling_cases import sampling_cases
from tests.compiler.operators.window_cases import window_cases
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.operators.evaluate_node import evaluate_node, node_kernel
from tunefarm.compiler.operators.registry import (
    MEMORY,
    Axes,
    Pattern,
    all_operators,
    axes_along,
    complete_attributes,
    infer_type,
    operator,
)
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.sizes import Symbol
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

CASES = [
    *pointwise_cases(),
    *movement_cases(),
    *reduction_cases(),
    *window_cases(),
    *quantised_cases(),
    *recurrence_cases(),
    *sampling_cases(),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_operator_agrees_with_another_implementation(case: Case) -> None:
    expected = case.expected()
    types = tuple(
        None if array is None else TensorType(DType.from_numpy(array.dtype), array.shape)
        for array in case.inputs
    )
    inferred = infer_type(case.node, types)
    assert inferred == TensorType(DType.from_numpy(expected.dtype), expected.shape)
    if operator(case.node.operator).pattern not in MEMORY:
        verify_kernel(node_kernel(case.node, types))
    actual: Values = evaluate_node(case.node, case.inputs)
    assert actual.flags.c_contiguous
    relative = case.relative
    if relative is None:
        relative = 1e-6 if actual.dtype == np.float32 else 1e-12
    if actual.dtype.kind == "f":
        np.testing.assert_allclose(actual, expected, rtol=relative, atol=relative, strict=True)
    else:
        np.testing.assert_array_equal(actual, expected, strict=True)


def test_places_of_a_result_are_made_of_places_along_them() -> None:
    found = set()
    for case in CASES:
        types = [None if array is None else _type_of(array) for array in case.inputs]
        shape = infer_type(case.node, types).shape
        for axis in (axis for axis, extent in enumerate(shape) if extent > 1):
            if axes := axes_along(case.node, types, axis):
                _check_places(case, shape, axis, axes)
                found.add(case.node.operator)
    assert found >= {"add", "matmul", "layer_norm", "softmax", "reduce_max", "transpose"}


def _check_places(case: Case, shape: tuple[int, ...], axis: int, axes: Axes) -> None:
    places = [shape[axis] - 1, 0]
    parts = tuple(
        array if array is None or along is None else np.take(array, places, along)
        for array, along in zip(case.inputs, axes, strict=True)
    )
    attributes = dict(case.node.attributes)
    if "shape" in attributes:
        attributes["shape"] = (*shape[:axis], len(places), *shape[axis + 1 :])
    part: Values = evaluate_node(replace(case.node, attributes=attributes), parts)
    whole: Values = np.take(evaluate_node(case.node, case.inputs), places, axis)
    np.testing.assert_allclose(part, whole, rtol=1e-6, atol=1e-6, err_msg=case.id)


@pytest.mark.parametrize(
    ("operator", "shapes", "attributes", "axes"),
    [
        ("add", [(2, 5, 3), (5, 1)], {}, [(0, None), (1, 0), (2, None)]),
        ("matmul", [(2, 5, 3), (3, 4)], {}, [(0, None), (1, None), (None, 1)]),
        ("layer_norm", [(2, 5, 3), (3,)], {"axis": 2}, [(0, None), (1, None), None]),
        ("softmax", [(5, 3)], {"axis": 0}, [None, (1,)]),
        ("reduce_mean", [(5, 3)], {"axes": (0,), "keepdims": True}, [None, (1,)]),
        ("reduce_mean", [(5, 3)], {"axes": (0,), "keepdims": False}, [(1,)]),
        ("reshape", [(2, 5, 6)], {"shape": (2, 5, 2, 3)}, [(0,), (1,), None, None]),
        ("reshape", [(1, 5, 2, 3)], {"shape": (5, 6)}, [(1,), None]),
        ("attention", [(5, 4), (6, 4), (6, 3), (1, 6)], {}, [(0, None, None, None), None]),
        ("cumsum", [(2, 5)], {"axis": 1}, [None, None]),
        ("dequantize", [(8, 6), (2, 6)], {"to": "f32", "axis": 0, "block": 4}, [None, (1, 1)]),
    ],
)
def test_axes_that_a_result_goes_along(
    operator: str,
    shapes: list[tuple[int, ...]],
    attributes: dict[str, Attribute],
    axes: list[tuple[int | None, ...] | None],
) -> None:
    types = [TensorType(DType.F32, shape) for shape in shapes]
    node = Node(operator, tuple(f"x{number}" for number in range(len(shapes))), "y", attributes)
    assert [axes_along(node, types, axis) for axis in range(len(axes))] == axes


def _type_of(array: Values) -> TensorType:
    return TensorType(DType.from_numpy(array.dtype), array.shape)


def part_of(type: TensorType, axis: int) -> TensorType:
    """The type where 1 element of an axis is there, or more up to all."""
    size = Symbol.of("size", 1, type.shape[axis])
    dims = (*type.dims[:axis], ((size, type.shape[axis]),), *type.dims[axis + 1 :])
    return TensorType.of(type.dtype, dims)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_types_are_stored_alike_however_much_of_an_axis_is_there(case: Case) -> None:
    definition, attributes = operator(case.node.operator), complete_attributes(case.node)
    types = [
        None if array is None else TensorType(DType.from_numpy(array.dtype), array.shape)
        for array in case.inputs
    ]
    stored = infer_type(case.node, types)
    assert stored.padded is None
    for position, type in enumerate(types if definition.dynamic else ()):
        for axis, extent in enumerate(() if type is None else type.shape):
            if type is None or extent < 2:
                continue
            given = Types((*types[:position], part_of(type, axis), *types[position + 1 :]))
            try:
                assert definition.infer(attributes, given) == stored
            except ShapeError as error:
                assert "size" in error.message, "a reason that has to do with the size"


OWN_TESTS = (Pattern.FUNCTION, Pattern.LOOP)


def test_every_registered_operator_has_a_case() -> None:
    tested = {case.node.operator for case in CASES}
    own = [item.name for item in all_operators() if item.pattern not in OWN_TESTS]
    assert [name for name in own if name not in tested] == []
