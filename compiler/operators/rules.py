"""What type rules and tensor expressions share: attribute access, checks, axes and padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from compiler.errors import ShapeError
from compiler.expr.nodes import (
    Const,
    Expr,
    add,
    all_of,
    binary,
    const,
    integer,
    mul,
    select,
    sub,
)
from compiler.kernels.kernel import KernelBuilder, Tensor
from compiler.operators.registry import Attributes, Tensors, Types
from compiler.types.dtypes import DType
from compiler.types.tensor_type import TensorType

PointBody: TypeAlias = Callable[[Sequence[Expr]], Expr]

INDICES = frozenset((DType.I32, DType.I64))


# --- attributes ---------------------------------------------------------------------------------


def int_attribute(attributes: Attributes, name: str) -> int:
    """An integer attribute; `ShapeError` when it is something else."""
    value = attributes[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ShapeError(f"attribute {name} must be an integer, not {value!r}")
    return value


def ints_attribute(attributes: Attributes, name: str) -> tuple[int, ...]:
    """A tuple of integers; `ShapeError` when it is something else."""
    value = attributes[name]
    if not isinstance(value, tuple):
        raise ShapeError(f"attribute {name} must be a tuple of integers, not {value!r}")
    integers = tuple(item for item in value if isinstance(item, int))
    if len(integers) != len(value):
        raise ShapeError(f"attribute {name} must be a tuple of integers, not {value!r}")
    return integers


def float_attribute(attributes: Attributes, name: str) -> float:
    """A number as a float; `ShapeError` when it is something else."""
    value = attributes[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ShapeError(f"attribute {name} must be a number, not {value!r}")
    return float(value)


def number_attribute(attributes: Attributes, name: str) -> int | float:
    """A bool, integer or float as it is; `ShapeError` when it is something else."""
    value = attributes[name]
    if not isinstance(value, (int, float)):
        raise ShapeError(f"attribute {name} must be a number, not {value!r}")
    return value


def bool_attribute(attributes: Attributes, name: str) -> bool:
    """A flag (bool, or ONNX's 0 and 1); `ShapeError` when it is something else."""
    value = attributes[name]
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise ShapeError(f"attribute {name} must be true or false, not {value!r}")


def choice_attribute(attributes: Attributes, name: str, choices: Sequence[str]) -> str:
    """One of a few words; `ShapeError` lists them."""
    value = attributes[name]
    if not isinstance(value, str) or value not in choices:
        raise ShapeError(f"attribute {name} must be one of {', '.join(choices)}, not {value!r}")
    return value


def axis_attribute(attributes: Attributes, name: str, rank: int) -> int:
    """An axis of a tensor of this rank, 0 <= axis < rank."""
    axis = int_attribute(attributes, name)
    check(0 <= axis < rank, f"{name} {axis} is not an axis of a tensor of rank {rank}")
    return axis


# --- checks -------------------------------------------------------------------------------------


def check(condition: bool, reason: str) -> None:
    """Raise `ShapeError(reason)` unless the condition holds."""
    if not condition:
        raise ShapeError(reason)


def present(types: Types, position: int) -> TensorType:
    """The type of an input that the arity check has found present."""
    type = types[position]
    if type is None:
        raise ShapeError(f"input {position} is required but absent")
    return type


def given(inputs: Tensors, position: int) -> Tensor:
    """An input that the arity check has found present."""
    tensor = inputs[position]
    if tensor is None:
        raise ValueError(f"input {position} is absent")
    return tensor


def optional(inputs: Tensors, position: int) -> Tensor | None:
    """An input, or None when it is absent or not even listed."""
    return inputs[position] if position < len(inputs) else None


def check_dtype(type: TensorType, allowed: frozenset[DType], what: str = "the input") -> None:
    """Raise `ShapeError` unless the element type is one of those allowed."""
    if type.dtype not in allowed:
        names = ", ".join(dtype for dtype in DType if dtype in allowed)
        raise ShapeError(f"{what} has element type {type.dtype} (allowed: {names})")


def check_same_dtype(*types: TensorType) -> None:
    """Raise `ShapeError` unless all element types are equal."""
    if len({type.dtype for type in types}) > 1:
        names = ", ".join(type.dtype for type in types)
        raise ShapeError(f"the element types must be equal, not {names}")


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape of shapes under NumPy broadcasting; `ShapeError` when there is none."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for position, extent in enumerate(shape, start=rank - len(shape)):
            if extent == 1 or result[position] == extent:
                continue
            if result[position] != 1:
                listed = " and ".join(str(list(shape)) for shape in shapes)
                raise ShapeError(f"the shapes {listed} do not broadcast")
            result[position] = extent
    return tuple(result)


# --- expressions --------------------------------------------------------------------------------


def axes_of(shape: Sequence[int], prefix: str = "i") -> list[tuple[str, int]]:
    """Axes i0, i1, … over a shape."""
    return [(f"{prefix}{position}", extent) for position, extent in enumerate(shape)]


def broadcast_load(tensor: Tensor, indices: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The element of `tensor` that broadcasting puts at `indices` of a tensor of `shape`."""
    skipped = len(shape) - len(tensor.shape)
    chosen = [
        integer(0)
        if extent == 1 and shape[skipped + position] != 1
        else indices[skipped + position]
        for position, extent in enumerate(tensor.shape)
    ]
    return tensor[tuple(chosen)]


def pointwise(builder: KernelBuilder, hint: str, shape: Sequence[int], body: PointBody) -> Tensor:
    """Add a stage of `shape` whose body gets the tuple of its indices."""
    return builder.stage(hint, axes_of(shape), lambda *indices: body(indices))


def lowest(dtype: DType) -> Const:
    """The identity of `max`: minus infinity, or the smallest integer."""
    if dtype.is_float:
        return const(-math.inf, dtype)
    return const(False if dtype is DType.BOOL else int(np.iinfo(dtype.numpy).min), dtype)


def highest(dtype: DType) -> Const:
    """The identity of `min`: plus infinity, or the largest integer."""
    if dtype.is_float:
        return const(math.inf, dtype)
    return const(True if dtype is DType.BOOL else int(np.iinfo(dtype.numpy).max), dtype)


def divide_by_count(total: Expr, count: int) -> Expr:
    """`total / count`: a multiplication in f32, an exact division in f64 and integers."""
    if count == 1:
        return total
    if total.dtype is DType.F32:
        return mul(total, const(1.0 / count, total.dtype))
    return binary("div", total, const(count, total.dtype))


def window_reach(outputs: int, kernel: int, stride: int, dilation: int) -> int:
    """How many consecutive (padded) input positions a row of sliding windows reads."""
    return (outputs - 1) * stride + (kernel - 1) * dilation + 1


def window_index(output: Expr, tap: Expr, stride: int, dilation: int) -> Expr:
    """The (padded) input position that tap `tap` of window `output` reads."""
    return add(mul(output, integer(stride)), mul(tap, integer(dilation)))


def pad_stage(
    builder: KernelBuilder,
    data: Tensor,
    names: Sequence[str],
    begins: Sequence[int],
    extents: Sequence[int],
    value: Const,
) -> Tensor:
    """Add the stage "pad": `data` shifted by `begins` in a tensor of `extents`, else `value`.

    Only what lies outside `data` is guarded. When nothing does, `data` itself is returned.
    """
    if all(
        begin == 0 and extent <= old
        for begin, extent, old in zip(begins, extents, data.shape, strict=True)
    ):
        return data

    def body(*indices: Expr) -> Expr:
        guards: list[Expr] = []
        moved: list[Expr] = []
        for position, begin, extent, old in zip(indices, begins, extents, data.shape, strict=True):
            source = sub(position, integer(begin))
            if begin > 0:
                guards.append(binary("ge", position, integer(begin)))
            if extent - begin > old:
                guards.append(binary("lt", position, integer(begin + old)))
            moved.append(source)
        return select(all_of(*guards), data[tuple(moved)], value) if guards else data[tuple(moved)]

    return builder.stage("pad", list(zip(names, extents, strict=True)), body)


def spatial_names(rank: int, prefix: str) -> list[str]:
    """Names of spatial axes, outermost first: od, oh, ow for the prefix o and rank 3."""
    if rank <= 3:
        return [prefix + letter for letter in "dhw"[3 - rank :]]
    return [f"{prefix}{position}" for position in range(rank)]
