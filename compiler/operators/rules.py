"""What type rules and tensor expressions share: checks, broadcasting and padding."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.expr.nodes import (
    Const,
    Expr,
    all_of,
    binary,
    cast,
    const,
    integer,
    mul,
    select,
    stored_as,
    sub,
)
from tunefarm.compiler.kernels.kernel import KernelBuilder, Tensor
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

INDICES = frozenset((DType.I32, DType.I64))


# --- checks -------------------------------------------------------------------------------------


def check(condition: bool, reason: str) -> None:
    """Raise `ShapeError(reason)` unless the condition holds."""
    if not condition:
        raise ShapeError(reason)


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


ACCUMULATORS = ("", DType.F32.value, DType.I32.value)
"""What the attribute `accumulator` of a contraction may be; "": the operands' own type."""


def sum_dtype(attributes: Attributes, left: TensorType, right: TensorType) -> DType:
    """The type of a contraction's sums and of its result: the operands', or its `accumulator`.

    With an accumulator the operands are narrower: integers of any signs for i32, floats of one type
    for f32. Raises `ShapeError` for operands that do not fit it, or each other.
    """
    name = attributes.choice("accumulator", ACCUMULATORS)
    if not name:
        check_same_dtype(left, right)
        return left.dtype
    accumulator = DType(name)
    for what, type in (("the left operand", left), ("the right operand", right)):
        narrower = type.dtype.bytes < accumulator.bytes and accumulator.holds(type.dtype)
        check(narrower, f"{what} of {type} is not narrower than its accumulator {accumulator}")
    if accumulator.is_float:
        check_same_dtype(left, right)
    return accumulator


# --- expressions --------------------------------------------------------------------------------


def product(attributes: Attributes, left: Expr, right: Expr) -> Expr:
    """A contraction's product of two elements, in the type of its sums."""
    name = attributes.choice("accumulator", ACCUMULATORS)
    return mul(cast(DType(name), left), cast(DType(name), right)) if name else mul(left, right)


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


def divide_by_count(total: Expr, count: int) -> Expr:
    """`total / count`: a multiplication in f32, an exact division in f64 and integers."""
    if count == 1:
        return total
    if total.dtype is DType.F32:
        return mul(total, const(1.0 / count, total.dtype))
    return binary("div", total, const(count, total.dtype))


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

    def stored(*indices: Expr) -> Expr:
        return stored_as(data.stored or data.dtype, body(*indices))

    padded = builder.stage("pad", list(zip(names, extents, strict=True)), stored)
    return padded if data.stored is None else padded.widened()
