"""Every operator gives what the ONNX reference, onnxruntime or NumPy gives."""

from __future__ import annotations

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
    Pattern,
    all_operators,
    complete_attributes,
    infer_type,
    operator,
)
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import Symbol
from tunefarm.compiler.types.tensor_type import TensorType

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
