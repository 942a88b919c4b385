"""What type rules accept, beside what they refuse and the reason that they give."""

from __future__ import annotations

import re

import pytest

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.operators.registry import infer_type
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute, TensorType


def _type(text: str) -> TensorType | None:
    """A type from its printed form, "f32[2, 3]"; None for "absent"."""
    if text == "absent":
        return None
    dtype, _, shape = text.partition("[")
    return TensorType(DType(dtype), tuple(int(extent) for extent in re.findall(r"-?\d+", shape)))


def _infer(operator: str, inputs: str, attributes: dict[str, Attribute]) -> TensorType:
    types = [_type(text) for text in inputs.split("; ")]
    names = tuple("" if type is None else f"x{i}" for i, type in enumerate(types))
    return infer_type(Node(operator, names, "y", attributes, "layer7"), types)


POOL: dict[str, Attribute] = {"kernel": (3, 3), "shape": (3, 3)}
ACCEPTED: tuple[tuple[str, str, dict[str, Attribute], str], ...] = (
    ("exp", "f64[2, 3]", {}, "f64[2, 3]"),
    ("isnan", "f32[]", {}, "bool[]"),
    ("cast", "bool[3]", {"to": "i8"}, "i8[3]"),
    ("clip", "u8[3]", {"max": 6.0}, "u8[3]"),
    ("add", "i16[7, 1]; i16[1, 5]", {}, "i16[7, 5]"),
    ("pow", "f32[3]; i64[]", {}, "f32[3]"),
    ("less", "u8[2]; u8[]", {}, "bool[2]"),
    ("equal", "bool[2]; bool[2]", {}, "bool[2]"),
    ("bit_shift", "u8[2]; u8[2]", {"direction": "left"}, "u8[2]"),
    ("prelu", "f32[2, 3]; f32[3]", {}, "f32[2, 3]"),
    ("where", "bool[3, 1]; i8[]; i8[4]", {}, "i8[3, 4]"),
    ("identity", "bool[2]", {}, "bool[2]"),
    ("reshape", "i8[2, 6]", {"shape": (3, 4)}, "i8[3, 4]"),
    ("part", "i8[2, 6]", {"offset": 9, "shape": (1, 3)}, "i8[1, 3]"),
    ("join", "i8[2, 6]; i8[3]", {"shape": (5, 3)}, "i8[5, 3]"),
    ("copy", "bool[2]", {}, "bool[2]"),
    ("transpose", "f32[2, 3, 4]", {"perm": (2, 0, 1)}, "f32[4, 2, 3]"),
    ("concat", "f32[2, 3]; f32[2, 1]", {"axis": 1}, "f32[2, 4]"),
    (
        "concat",
        "f32[1, 2, 3, 3, 8]; f32[1, 1, 3, 3, 8]",
        {"axis": 1, "channels": (12, 4)},
        "f32[1, 2, 3, 3, 8]",
    ),
    ("slice", "f32[7]", {"starts": (6,), "steps": (-2,), "shape": (4,)}, "f32[4]"),
    ("expand", "f32[3, 1]", {"shape": (2, 1, 4)}, "f32[2, 3, 4]"),
    ("tile", "f32[3, 2]", {"repeats": (2, 5)}, "f32[6, 10]"),
    ("trilu", "i64[2, 3]", {"k": 7}, "i64[2, 3]"),
    ("shift", "f32[2, 3]; i64[4]", {"axis": 1, "start": 3, "end": 0, "extent": 9}, "f32[2, 9]"),
    (
        "ragged_concat",
        "i64[4]; i8[2, 3]; i8[2, 1]",
        {"axis": 1, "ends": (3,)},
        "i8[2, 3]",
    ),
    ("merge_rows", "i8[2, 3, 4]; i64[2]", {"axis": 1, "rows": 0, "columns": 1}, "i8[2, 12]"),
    ("pad", "f32[3]; f32[]", {"pads": (1, -2)}, "f32[2]"),
    ("gather", "f32[5, 7]; i32[2, 3]", {"axis": 1}, "f32[5, 2, 3]"),
    ("gather_elements", "f32[5, 7]; i64[2, 9]", {"axis": 1}, "f32[2, 9]"),
    ("gather_nd", "f32[5, 7, 3]; i64[5, 4, 1]", {"batch_dims": 1}, "f32[5, 4, 3]"),
    ("one_hot", "i64[5]; f32[2]", {"depth": 3, "axis": 0}, "f32[3, 5]"),
    ("to_blocked", "f32[1, 13, 2, 2]", {"block": 8}, "f32[1, 2, 2, 2, 8]"),
    ("from_blocked", "f32[1, 2, 2, 2, 8]", {"channels": 13}, "f32[1, 13, 2, 2]"),
    ("reduce_sum", "f32[2, 3, 4]", {"axes": (2, 0), "keepdims": False}, "f32[3]"),
    ("reduce_max", "bool[2, 3]", {"axes": (1,)}, "bool[2, 1]"),
    ("arg_max", "u8[2, 3]", {"axis": 1, "keepdims": False}, "i64[2]"),
    ("cumsum", "i32[2, 3]", {"axis": 1}, "i32[2, 3]"),
    ("softmax", "f64[2, 3]", {"axis": 0}, "f64[2, 3]"),
    ("layer_norm", "f32[2, 3, 4]; f32[3, 4]; f32[4]", {"axis": 1}, "f32[2, 3, 4]"),
    ("layer_norm", "f32[2, 3, 4]; f32[4]; absent", {"axis": 2}, "f32[2, 3, 4]"),
    ("batch_norm", "f32[2, 3]; f32[3]; f32[3]; f32[3]; f32[3]", {}, "f32[2, 3]"),
    ("lrn", "f32[1, 4, 2, 2]", {"size": 3}, "f32[1, 4, 2, 2]"),
    ("max_pool", "i8[1, 2, 5, 5]", POOL, "i8[1, 2, 3, 3]"),
    ("average_pool", "f32[1, 2, 5, 5, 8]", {**POOL, "layout": "NCHWc"}, "f32[1, 2, 3, 3, 8]"),
    ("conv", "f32[1, 3, 7, 7]; f32[4, 3, 3, 3]; f32[4]", {}, "f32[1, 4, 5, 5]"),
    ("conv", "f32[1, 4, 9]; f32[6, 2, 3]", {"groups": 2, "strides": (2,)}, "f32[1, 6, 4]"),
    ("conv", "f32[1, 1, 3, 3, 8]; f32[8, 8, 1, 1]", {"layout": "NCHWc"}, "f32[1, 1, 3, 3, 8]"),
    (
        "conv",
        "f32[1, 3, 3, 3]; f32[16, 3, 1, 1]",
        {"layout": "NCHW->NCHWc", "block": 8},
        "f32[1, 2, 3, 3, 8]",
    ),
    ("conv_transpose", "f32[1, 3, 5]; f32[3, 2, 3]", {"shape": (7,)}, "f32[1, 2, 7]"),
    ("matmul", "f32[2, 7, 3]; f32[3, 5]", {}, "f32[2, 7, 5]"),
    ("matmul", "f32[3, 7]; f32[5, 3]", {"transpose_a": True, "transpose_b": True}, "f32[7, 5]"),
)

REFUSED: tuple[tuple[str, str, dict[str, Attribute], str], ...] = (
    ("exp", "i32[2, 3]", {}, "element type i32 (allowed: f32, f64, f16, bf16)"),
    ("isnan", "i8[]", {}, "element type i8"),
    ("neg", "u8[2]", {}, "element type u8"),
    ("cast", "bool[3]", {"to": "f12"}, "attribute to must be one of"),
    ("clip", "u8[3]", {"max": "six"}, "attribute max must be a number"),
    ("leaky_relu", "f32[3]", {"alpha": "x"}, "attribute alpha must be a number"),
    ("gelu", "f32[3]", {"approximate": "fast"}, "one of none, tanh"),
    ("add", "i16[7, 1]; i16[2, 5]", {}, "the shapes [7, 1] and [2, 5] do not broadcast"),
    ("add", "f32[3]; i64[]", {}, "must be equal, not f32, i64"),
    ("add", "bool[3]; bool[3]", {}, "element type bool"),
    ("and", "i8[3]; i8[3]", {}, "element type i8 (allowed: bool)"),
    ("bit_shift", "i8[2]; i8[2]", {"direction": "left"}, "element type i8"),
    ("bit_shift", "u8[2]; u8[2]", {"direction": "up"}, "one of left, right"),
    ("prelu", "f32[3]; f32[2, 3]", {}, "does not broadcast to the data's shape"),
    ("where", "i8[3, 1]; i8[]; i8[4]", {}, "the condition has element type i8"),
    ("reshape", "i8[2, 6]", {"shape": (3, 5)}, "12 elements do not fit the shape [3, 5] of 15"),
    ("part", "i8[2, 6]", {"offset": 9, "shape": (4,)}, "12 elements have no part of 4 from 9 on"),
    ("part", "i8[2, 6]", {"offset": -1, "shape": (4,)}, "no part of 4 from -1 on"),
    ("join", "i8[2, 6]; i8[3]", {"shape": (5, 2)}, "15 elements do not fit the shape [5, 2]"),
    ("join", "i8[2]; u8[2]", {"shape": (4,)}, "i8"),
    ("transpose", "f32[2, 3, 4]", {"perm": (2, 0, 0)}, "is no permutation of the 3 axes"),
    ("concat", "f32[2, 3]; f32[3, 3]", {"axis": 1}, "differ outside axis 1"),
    ("concat", "f32[2, 3]; f32[2, 3]", {"axis": 2}, "axis 2 is not an axis of a tensor of rank 2"),
    ("concat", "f32[2, 3]; f32[2, 3]", {"axis": -1}, "axis -1 is not an axis"),
    ("concat", "f32[2, 3]; absent", {"axis": 0}, "input 1 is required but absent"),
    ("slice", "f32[7]", {"starts": (5,), "steps": (1,), "shape": (4,)}, "reads from 5 to 8"),
    ("slice", "f32[7]", {"starts": (5,), "steps": (0,), "shape": (1,)}, "step of axis 0 is 0"),
    (
        "concat",
        "f32[1, 2, 3, 3, 8]; f32[1, 1, 3, 3, 8]",
        {"axis": 1, "channels": (12, 9)},
        "have no [12, 9] channels",
    ),
    ("expand", "f32[3, 2]", {"shape": (2, 1, 4)}, "do not broadcast"),
    ("tile", "f32[3, 2]", {"repeats": (2,)}, "one entry for each of the 2 axes"),
    ("trilu", "i64[3]", {}, "i64[3] is no matrix"),
    (
        "shift",
        "f32[3]; i64[4]",
        {"axis": 0, "start": 4, "end": 0, "extent": 9},
        "i64[4] has no such element",
    ),
    (
        "merge_rows",
        "i8[2, 3]; i64[2]",
        {"axis": 0, "rows": 0, "columns": 2},
        "i64[2] has no such element",
    ),
    (
        "ragged_concat",
        "i64[4]; i8[2, 3]; i8[3, 1]",
        {"axis": 1, "ends": (3,)},
        "the parts differ outside axis 1",
    ),
    (
        "ragged_concat",
        "i64[4]; i8[3]; i8[1]",
        {"axis": 0, "ends": (0, 1)},
        "2 parts with 2 ends",
    ),
    ("pad", "f32[3]; i32[]", {"pads": (1, -2)}, "must be equal, not f32, i32"),
    ("pad", "f32[3]", {"pads": (1, 2), "mode": "mirror"}, "one of constant, reflect, edge, wrap"),
    ("pad", "f32[3]", {"pads": (-2, -2)}, "the result has the type f32[-1]"),
    ("gather", "f32[5, 7]; f32[2, 3]", {"axis": 1}, "the index tensor has element type f32"),
    ("gather_elements", "f32[5, 7]; i64[6, 9]", {"axis": 1}, "axis 0 of the index tensor"),
    ("gather_nd", "f32[5, 7]; i64[4, 3]", {}, "index tuples of 3 entries"),
    ("one_hot", "i64[5]; f32[3]", {"depth": 3, "axis": 0}, "the values must be [off, on]"),
    ("to_blocked", "f32[13]", {"block": 8}, "needs the axes N and C"),
    ("from_blocked", "f32[1, 2, 2, 2, 8]", {"channels": 8}, "2 blocks of 8 do not hold 8 channels"),
    ("reduce_sum", "f32[2, 3]", {"axes": (2,)}, "axes [2] are not all axes"),
    ("reduce_sum", "f32[2, 3]", {"axes": (1, 1)}, "axes [1, 1] repeat"),
    ("reduce_sum", "bool[2, 3]", {"axes": (1,)}, "element type bool"),
    ("arg_max", "u8[2, 3]", {"axis": 2}, "axis 2 is not an axis"),
    ("softmax", "i32[2, 3]", {"axis": 0}, "element type i32"),
    ("layer_norm", "f32[2, 3, 4]; f32[3]", {"axis": 1}, "does not broadcast to the normalised"),
    ("layer_norm", "f32[3, 4]; f32[2, 3, 4]", {"axis": 1}, "does not broadcast to the normalised"),
    ("batch_norm", "f32[2, 3]; f32[3]; f32[3]; f32[3]; f32[2]", {}, "variance must have the shape"),
    ("lrn", "f32[1, 4, 2, 2]", {"size": 0}, "the size must be at least 1"),
    ("max_pool", "f32[1, 2, 5]", POOL, "does not fit data of 1 spatial axes"),
    ("max_pool", "f32[1, 2, 3, 3]", {**POOL, "strides": (2, 2)}, "outside of the padded data"),
    ("average_pool", "i8[1, 2, 5, 5]", POOL, "element type i8"),
    ("average_pool", "f32[1, 2, 5, 5]", {**POOL, "pads": (1, 1)}, "pads [1, 1] needs 4 entries"),
    ("conv", "f32[1, 3, 7, 7]; f32[4, 2, 3, 3]", {}, "3 channels are not 1 groups of 2"),
    ("conv", "f32[1, 3, 7, 7]; f32[4, 3, 9, 3]", {}, "reaches over 9 does not fit spatial axis 0"),
    ("conv", "f32[1, 3, 7, 7]; f32[4, 3, 3, 3]; f32[3]", {}, "bias must have the shape [4]"),
    ("conv", "f32[1, 3, 7, 7]; f32[4, 3, 3]", {}, "needs a weight of rank 4"),
    ("conv", "f32[1, 4, 9]; f32[5, 2, 3]", {"groups": 2}, "do not divide into 2 groups"),
    ("conv", "f32[1, 1, 3, 3, 8]; f32[6, 8, 1, 1]", {"layout": "NCHWc"}, "no whole blocks of 8"),
    ("conv", "f32[1, 3, 3, 3]; f32[8, 3, 1, 1]", {"layout": "NCHW->NCHWc"}, "attribute block"),
    ("conv_transpose", "f32[1, 3, 5]; f32[2, 2, 3]", {"shape": (7,)}, "the weight 2"),
    ("conv_transpose", "f32[1, 3, 5]; f32[3, 2, 3]", {"shape": (6,)}, "needs a size of 7 or more"),
    ("matmul", "f32[2, 7, 3]; f32[4, 5]", {}, "the inner dimensions 3 and 4 differ"),
    ("matmul", "f32[3]; f32[3, 5]", {}, "two axes of a matrix"),
    ("exp", "f32[2, -1]", {}, "input 0 has the type f32[2, -1]"),
    ("expand", "f32[1]", {"shape": (2**38,)}, "would take 1099511627776 bytes"),
    ("exp", "f32[2]; f32[2]", {}, "takes 1 inputs, not 2"),
    ("conv", "f32[1, 3, 7, 7]", {}, "takes 2 to 3 inputs, not 1"),
    ("add", "f32[2]; absent", {}, "input 1 is required but absent"),
    ("softmax", "f32[2]", {}, "needs the attribute 'axis'"),
    ("softmax", "f32[2]", {"axes": 0}, "has no attribute 'axes' (the nearest is axis)"),
    ("softmax", "f32[2]", {"axis": "last"}, "attribute axis must be an integer"),
    ("transpose", "f32[2]", {"perm": 0}, "attribute perm must be a tuple of integers"),
    ("trilu", "f32[2, 2]", {"upper": 2}, "attribute upper must be true or false"),
)


def _ids(cases: tuple[tuple[str, str, dict[str, Attribute], str], ...]) -> list[str]:
    return [f"{operator}({inputs})-{attributes}" for operator, inputs, attributes, _ in cases]


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "result"), ACCEPTED, ids=_ids(ACCEPTED)
)
def test_type_rule_gives(
    operator: str, inputs: str, attributes: dict[str, Attribute], result: str
) -> None:
    assert str(_infer(operator, inputs, attributes)) == result


@pytest.mark.parametrize(("operator", "inputs", "attributes", "reason"), REFUSED, ids=_ids(REFUSED))
def test_type_rule_refuses_with_the_node_and_a_reason(
    operator: str, inputs: str, attributes: dict[str, Attribute], reason: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        _infer(operator, inputs, attributes)
    assert reason in str(caught.value)
    assert f"{operator} (node layer7)" in str(caught.value)
