"""Conversions to 8-bit floats as ONNX's reference evaluator has them: saturated, and rounded."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from tests.compiler.operators.cases import Values, reference
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.operators.evaluate_node import evaluate_node
from tunefarm.compiler.operators.registry import infer_type
from tunefarm.compiler.types.dtypes import EIGHT_BIT_FLOATS, DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import TensorType

NUMBERS = {
    DType.F8E4M3FN: TensorProto.FLOAT8E4M3FN,
    DType.F8E4M3FNUZ: TensorProto.FLOAT8E4M3FNUZ,
    DType.F8E5M2: TensorProto.FLOAT8E5M2,
    DType.F8E5M2FNUZ: TensorProto.FLOAT8E5M2FNUZ,
    DType.F8E8M0: TensorProto.FLOAT8E8M0,
}


def samples() -> Values:
    """Numbers of all sizes, powers of two, what lies half way between them, and beside those."""
    powers = np.exp2(np.arange(-149, 128, dtype=np.float64)).astype(np.float32)
    near = np.concatenate([powers, powers * np.float32(1.5), powers * np.float32(1.1)])
    around = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.inf)])
    special = np.array([0.0, np.inf, np.nan, 448, 464, 465, 57344, 61440, 3.4e38], np.float32)
    both = np.concatenate([around, special]).astype(np.float32)
    return np.concatenate([both, -both])


def assert_same(got: Values, expected: Values) -> None:
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("dtype", sorted(EIGHT_BIT_FLOATS - {DType.F8E8M0}))
def test_what_is_too_large_saturates_if_asked_to(dtype: DType, saturate: bool) -> None:
    x = samples()
    node = Node("cast", ("x",), "y", {"to": str(dtype), "saturate": saturate})
    expected = reference("Cast", x, opset=24, to=NUMBERS[dtype], saturate=int(saturate))
    assert_same(evaluate_node(node, (x,)), expected())


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("rounding", ["up", "down", "nearest"])
def test_powers_of_two_are_rounded_as_asked(rounding: str, saturate: bool) -> None:
    x = samples()
    attributes: dict[str, str | bool] = {
        "to": "f8e8m0",
        "saturate": saturate,
        "rounding": rounding,
    }
    expected = reference(
        "Cast",
        x,
        opset=25,
        to=TensorProto.FLOAT8E8M0,
        saturate=int(saturate),
        round_mode=rounding,
    )
    assert_same(evaluate_node(Node("cast", ("x",), "y", attributes), (x,)), expected())


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"to": "f16", "rounding": "up"}, "f16 is not rounded up"),
        ({"to": "i8", "saturate": True}, "i8 does not saturate"),
    ],
)
def test_attributes_of_other_types_are_refused(
    attributes: dict[str, str | bool], reason: str
) -> None:
    with pytest.raises(ShapeError, match=reason):
        infer_type(Node("cast", ("x",), "y", attributes), (TensorType(DType.F32, (2,)),))
