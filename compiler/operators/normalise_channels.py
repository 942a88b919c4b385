"""Normalisations of channels: by given statistics, and by those of adjacent channels."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import (
    Expr,
    add,
    all_of,
    binary,
    const,
    integer,
    mul,
    select,
    sub,
    unary,
)
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.padding import PaddedUse
from tunefarm.compiler.operators.registry import REQUIRED, OperatorDefinition, Pattern, register
from tunefarm.compiler.operators.rules import check, check_dtype, check_same_dtype
from tunefarm.compiler.operators.use import Attributes, Types, Use, axes_of
from tunefarm.compiler.types.dims import Dims
from tunefarm.compiler.types.dtypes import FLOATS
from tunefarm.compiler.types.tensor_type import TensorType


def _infer_batch_norm(attributes: Attributes, types: Types) -> TensorType:
    data = types.present(0)
    check_dtype(data, FLOATS)
    check(len(data.shape) >= 2, f"{data} does not have the axes N and C")
    attributes.floating("epsilon")
    for position, name in enumerate(("scale", "bias", "mean", "variance"), start=1):
        type = types.present(position)
        check_same_dtype(data, type)
        check(
            type.shape == data.shape[1:2],
            f"the {name} must have the shape [{data.shape[1]}], not {type}",
        )
    return data


def _batch_norm(attributes: Attributes, use: Use) -> Tensor:
    data, scale, bias, mean, variance = (use.input(position) for position in range(5))
    epsilon = const(attributes.floating("epsilon"), use.dtype)
    factor = use.builder.stage(
        "factor",
        [("i1", use.shape[1])],
        lambda channel: mul(scale[channel], unary("rsqrt", add(variance[channel], epsilon))),
    )

    def value(indices: tuple[Expr, ...]) -> Expr:
        channel = indices[1]
        deviation = sub(data[indices], mean[channel])
        return add(mul(deviation, factor[channel]), bias[channel])

    return use.pointwise("batch_norm", value)


def _infer_lrn(attributes: Attributes, types: Types) -> TensorType:
    data = types.present(0)
    check_dtype(data, FLOATS)
    check(len(data.shape) >= 2, f"{data} does not have the axes N and C")
    check(attributes.integer("size") >= 1, "the size must be at least 1")
    for name in ("alpha", "beta", "bias"):
        attributes.floating(name)
    return data


def _lrn(attributes: Attributes, use: Use) -> Tensor:
    """Krizhevsky et al. 2012, section 3.3: squares are summed over `size` adjacent channels."""
    data, size = use.input(0), attributes.integer("size")
    alpha, beta = (attributes.floating(name) for name in ("alpha", "beta"))
    bias = const(attributes.floating("bias"), use.dtype)
    channels, before = use.shape[1], (size - 1) // 2

    def square(*indices: Expr) -> Expr:
        n, c, *spatial, tap = indices
        channel = sub(add(c, tap), integer(before))
        inside = all_of(binary("ge", channel, integer(0)), binary("lt", channel, integer(channels)))
        element = data[(n, channel, *spatial)]
        return select(inside, mul(element, element), const(0, use.dtype))

    total = use.builder.stage(
        "square_sum", axes_of(use.shape), square, reduce=[("r", size)], combiner="sum"
    )

    def value(indices: tuple[Expr, ...]) -> Expr:
        base = add(mul(total[indices], const(alpha / size, use.dtype)), bias)
        return mul(data[indices], binary("pow", base, const(-beta, use.dtype)))

    return use.pointwise("lrn", value)


def _batch_norm_padding(use: PaddedUse) -> Dims:
    data = use.operand(0)
    channels = use.same((0, 1), *((position, 0) for position in use.present()[1:]))
    return data[0], channels, *data[2:]


def _lrn_padding(use: PaddedUse) -> Dims:
    use.fill(0, 1, "zero")
    return use.operand(0)


register(
    OperatorDefinition(
        "batch_norm",
        Pattern.OPAQUE,
        5,
        _infer_batch_norm,
        _batch_norm,
        {"epsilon": 1e-5},
        padding=_batch_norm_padding,
    ),
    OperatorDefinition(
        "lrn",
        Pattern.OPAQUE,
        1,
        _infer_lrn,
        _lrn,
        {"size": REQUIRED, "alpha": 1e-4, "beta": 0.75, "bias": 1.0},
        padding=_lrn_padding,
    ),
)
