"""Reductions over whole axes, positions of extremes, and running sums."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.expr.nodes import Expr, binary, const, integer, select, unary
from compiler.kernels.kernel import KernelBuilder, Tensor
from compiler.operators.registry import (
    REQUIRED,
    Attributes,
    ExpressionRule,
    Pattern,
    Tensors,
    TypeRule,
    Types,
    register,
)
from compiler.operators.rules import (
    axes_of,
    axis_attribute,
    bool_attribute,
    check,
    check_dtype,
    divide_by_count,
    given,
    ints_attribute,
    pointwise,
    present,
)
from compiler.types.dtypes import ALL, NUMBERS, DType
from compiler.types.tensor_type import TensorType


def _reduced_shape(shape: Sequence[int], axes: Sequence[int], keep: bool) -> tuple[int, ...]:
    kept = [1 if axis in axes else extent for axis, extent in enumerate(shape)]
    return tuple(extent for axis, extent in enumerate(kept) if keep or axis not in axes)


def _infer_reduce(allowed: frozenset[DType]) -> TypeRule:
    def infer(attributes: Attributes, types: Types) -> TensorType:
        type, axes = present(types, 0), ints_attribute(attributes, "axes")
        check_dtype(type, allowed)
        rank = len(type.shape)
        check(len(set(axes)) == len(axes), f"axes {list(axes)} repeat")
        check(
            all(0 <= axis < rank for axis in axes),
            f"axes {list(axes)} are not all axes of a tensor of rank {rank}",
        )
        keep = bool_attribute(attributes, "keepdims")
        return TensorType(type.dtype, _reduced_shape(type.shape, axes, keep))

    return infer


def _source(
    output: Sequence[Expr], reduced: Sequence[Expr], axes: Sequence[int], rank: int, keep: bool
) -> tuple[Expr, ...]:
    """The data's indices, from those of the result and those of the reduced axes."""
    remaining, taken = iter(output), iter(reduced)
    indices = []
    for axis in range(rank):
        if axis not in axes:
            indices.append(next(remaining))
            continue
        if keep:
            next(remaining)
        indices.append(next(taken))
    return tuple(indices)


def _reduce_stage(
    builder: KernelBuilder, attributes: Attributes, data: Tensor, type: TensorType, combiner: str
) -> Tensor:
    axes = sorted(ints_attribute(attributes, "axes"))
    keep = bool_attribute(attributes, "keepdims")
    count = len(type.shape)

    def body(*indices: Expr) -> Expr:
        return data[_source(indices[:count], indices[count:], axes, len(data.shape), keep)]

    return builder.stage(
        "reduce",
        axes_of(type.shape),
        body,
        reduce=axes_of([data.shape[axis] for axis in axes], "r"),
        combiner=combiner if axes else "",
    )


def _reduce_expression(combiner: str, bool_combiner: str = "") -> ExpressionRule:
    def expression(
        builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
    ) -> Tensor:
        chosen = bool_combiner if type.dtype is DType.BOOL else combiner
        return _reduce_stage(builder, attributes, given(inputs, 0), type, chosen)

    return expression


def _reduce_mean(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data = given(inputs, 0)
    total = _reduce_stage(builder, attributes, data, type, "sum")
    count = TensorType(data.dtype, data.shape).size // type.size
    if count == 1:
        return total
    return pointwise(
        builder,
        "reduce_mean",
        type.shape,
        lambda indices: divide_by_count(total[tuple(indices)], count),
    )


def _infer_arg(attributes: Attributes, types: Types) -> TensorType:
    type = present(types, 0)
    check_dtype(type, NUMBERS)
    axis = axis_attribute(attributes, "axis", len(type.shape))
    bool_attribute(attributes, "select_last_index")
    keep = bool_attribute(attributes, "keepdims")
    return TensorType(DType.I64, _reduced_shape(type.shape, (axis,), keep))


def _arg_expression(name: str, combiner: str) -> ExpressionRule:
    """First the extreme value, then the first (or last) position that holds it (or a NaN)."""

    def expression(
        builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
    ) -> Tensor:
        data = given(inputs, 0)
        axis = axis_attribute(attributes, "axis", len(data.shape))
        keep = bool_attribute(attributes, "keepdims")
        last = bool_attribute(attributes, "select_last_index")
        reduced_axes = axes_of([data.shape[axis]], "r")

        def element(indices: Sequence[Expr]) -> Expr:
            return data[_source(indices[:-1], indices[-1:], (axis,), len(data.shape), keep)]

        extreme = builder.stage(
            "reduce",
            axes_of(type.shape),
            lambda *indices: element(indices),
            reduce=reduced_axes,
            combiner=combiner,
        )

        def position(*indices: Expr) -> Expr:
            passed_over = integer(-1 if last else data.shape[axis])
            value = element(indices)
            found = binary("eq", value, extreme[indices[:-1]])
            if data.dtype.is_float:
                found = binary("or", found, unary("isnan", value))
            return select(found, indices[-1], passed_over)

        return builder.stage(
            name,
            axes_of(type.shape),
            position,
            reduce=reduced_axes,
            combiner="max" if last else "min",
        )

    return expression


def _infer_cumsum(attributes: Attributes, types: Types) -> TensorType:
    type = present(types, 0)
    check_dtype(type, NUMBERS)
    axis_attribute(attributes, "axis", len(type.shape))
    bool_attribute(attributes, "exclusive")
    bool_attribute(attributes, "reverse")
    return type


def _cumsum(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data = given(inputs, 0)
    axis = axis_attribute(attributes, "axis", len(type.shape))
    strict = bool_attribute(attributes, "exclusive")
    if bool_attribute(attributes, "reverse"):
        included = "gt" if strict else "ge"
    else:
        included = "lt" if strict else "le"

    def body(*indices: Expr) -> Expr:
        *output, term = indices
        element = data[(*output[:axis], term, *output[axis + 1 :])]
        return select(binary(included, term, output[axis]), element, const(0, data.dtype))

    return builder.stage(
        "cumsum",
        axes_of(type.shape),
        body,
        reduce=axes_of([type.shape[axis]], "r"),
        combiner="sum",
    )


for _name, _allowed, _expression in (
    ("reduce_sum", NUMBERS, _reduce_expression("sum")),
    ("reduce_prod", NUMBERS, _reduce_expression("prod")),
    ("reduce_max", ALL, _reduce_expression("max", "or")),
    ("reduce_min", ALL, _reduce_expression("min", "and")),
    ("reduce_mean", NUMBERS, _reduce_mean),
):
    register(
        _name,
        Pattern.REDUCTION,
        1,
        _infer_reduce(_allowed),
        _expression,
        axes=REQUIRED,
        keepdims=True,
    )
# Two reductions in a row over the same data: a kernel of its own, like softmax.
for _name, _combiner in (("arg_max", "max"), ("arg_min", "min")):
    register(
        _name,
        Pattern.OPAQUE,
        1,
        _infer_arg,
        _arg_expression(_name, _combiner),
        axis=0,
        keepdims=True,
        select_last_index=False,
    )
register(
    "cumsum",
    Pattern.REDUCTION,
    1,
    _infer_cumsum,
    _cumsum,
    axis=REQUIRED,
    exclusive=False,
    reverse=False,
)
