"""Operators that read their data at positions taken from an index tensor.

Indices count from the end when negative. ONNX calls other indices an error; a kernel clamps them,
so that no model and no measurement with random inputs can read outside of a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.expr.nodes import Expr, add, binary, cast, integer, select
from compiler.kernels.kernel import KernelBuilder, Tensor
from compiler.operators.registry import (
    REQUIRED,
    Attributes,
    Pattern,
    Tensors,
    Types,
    register,
)
from compiler.operators.rules import (
    INDICES,
    axis_attribute,
    check,
    check_dtype,
    given,
    int_attribute,
    pointwise,
    present,
)
from compiler.types.dtypes import NUMBERS, DType
from compiler.types.tensor_type import TensorType


def _wrapped(position: Expr, extent: int) -> Expr:
    """A loaded index as an i64; negative ones count from the end."""
    position = cast(DType.I64, position)
    negative = binary("lt", position, integer(0))
    return select(negative, add(position, integer(extent)), position)


def _position(position: Expr, extent: int) -> Expr:
    """A loaded index as a position in 0..extent-1, whatever its value."""
    wrapped = _wrapped(position, extent)
    return binary("max", binary("min", wrapped, integer(extent - 1)), integer(0))


def _infer_gather(attributes: Attributes, types: Types) -> TensorType:
    data, indices = present(types, 0), present(types, 1)
    check_dtype(indices, INDICES, "the index tensor")
    axis = axis_attribute(attributes, "axis", len(data.shape))
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    return TensorType(data.dtype, shape)


def _gather(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data, picks = given(inputs, 0), given(inputs, 1)
    axis = axis_attribute(attributes, "axis", len(data.shape))
    end = axis + len(picks.shape)

    def value(indices: Sequence[Expr]) -> Expr:
        position = _position(picks[tuple(indices[axis:end])], data.shape[axis])
        return data[(*indices[:axis], position, *indices[end:])]

    return pointwise(builder, "gather", type.shape, value)


def _infer_gather_elements(attributes: Attributes, types: Types) -> TensorType:
    data, indices = present(types, 0), present(types, 1)
    check_dtype(indices, INDICES, "the index tensor")
    axis = axis_attribute(attributes, "axis", len(data.shape))
    check(
        len(indices.shape) == len(data.shape),
        f"the data has {len(data.shape)} axes, the index tensor {len(indices.shape)}",
    )
    for other, (picked, extent) in enumerate(zip(indices.shape, data.shape, strict=True)):
        check(
            other == axis or picked <= extent,
            f"axis {other} of the index tensor has the extent {picked}, the data's {extent}",
        )
    return TensorType(data.dtype, indices.shape)


def _gather_elements(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data, picks = given(inputs, 0), given(inputs, 1)
    axis = axis_attribute(attributes, "axis", len(data.shape))

    def value(indices: Sequence[Expr]) -> Expr:
        position = _position(picks[tuple(indices)], data.shape[axis])
        return data[(*indices[:axis], position, *indices[axis + 1 :])]

    return pointwise(builder, "gather_elements", type.shape, value)


def _infer_gather_nd(attributes: Attributes, types: Types) -> TensorType:
    data, indices = present(types, 0), present(types, 1)
    check_dtype(indices, INDICES, "the index tensor")
    batch = int_attribute(attributes, "batch_dims")
    check(len(indices.shape) >= 1, "the index tensor is a scalar")
    check(
        0 <= batch < min(len(data.shape), len(indices.shape)),
        f"batch_dims {batch} is not less than both ranks",
    )
    check(
        data.shape[:batch] == indices.shape[:batch],
        f"the first {batch} extents of the data and of the index tensor differ",
    )
    depth = indices.shape[-1]
    check(
        batch + depth <= len(data.shape),
        f"index tuples of {depth} entries after {batch} batch axes, for data of {data}",
    )
    return TensorType(data.dtype, (*indices.shape[:-1], *data.shape[batch + depth :]))


def _gather_nd(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data, picks = given(inputs, 0), given(inputs, 1)
    batch, depth = int_attribute(attributes, "batch_dims"), picks.shape[-1]
    outer = len(picks.shape) - 1

    def value(indices: Sequence[Expr]) -> Expr:
        positions = [
            _position(picks[(*indices[:outer], integer(entry))], data.shape[batch + entry])
            for entry in range(depth)
        ]
        return data[(*indices[:batch], *positions, *indices[outer:])]

    return pointwise(builder, "gather_nd", type.shape, value)


def _infer_one_hot(attributes: Attributes, types: Types) -> TensorType:
    indices, values = present(types, 0), present(types, 1)
    check_dtype(indices, NUMBERS, "the index tensor")
    check(values.shape == (2,), f"the values must be [off, on], not {values}")
    axis = axis_attribute(attributes, "axis", len(indices.shape) + 1)
    depth = int_attribute(attributes, "depth")
    return TensorType(values.dtype, (*indices.shape[:axis], depth, *indices.shape[axis:]))


def _one_hot(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    picks, values = given(inputs, 0), given(inputs, 1)
    axis = axis_attribute(attributes, "axis", len(type.shape))
    depth = int_attribute(attributes, "depth")

    def value(indices: Sequence[Expr]) -> Expr:
        hot = _wrapped(picks[(*indices[:axis], *indices[axis + 1 :])], depth)
        return select(binary("eq", hot, indices[axis]), values[integer(1)], values[integer(0)])

    return pointwise(builder, "one_hot", type.shape, value)


register("gather", Pattern.INJECTIVE, 2, _infer_gather, _gather, axis=0)
register("gather_elements", Pattern.INJECTIVE, 2, _infer_gather_elements, _gather_elements, axis=0)
register("gather_nd", Pattern.INJECTIVE, 2, _infer_gather_nd, _gather_nd, batch_dims=0)
register("one_hot", Pattern.INJECTIVE, 2, _infer_one_hot, _one_hot, depth=REQUIRED, axis=REQUIRED)
