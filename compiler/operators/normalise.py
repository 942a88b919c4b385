"""Softmax and normalisations: kernels of several stages, numerically stable, in the data's type."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.expr.nodes import (
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
    axes_of,
    axis_attribute,
    broadcast_load,
    broadcast_shapes,
    check,
    check_dtype,
    check_same_dtype,
    float_attribute,
    given,
    int_attribute,
    optional,
    pointwise,
    present,
)
from compiler.types.dtypes import FLOATS
from compiler.types.tensor_type import TensorType

# --- softmax ------------------------------------------------------------------------------------


def _infer_softmax(attributes: Attributes, types: Types) -> TensorType:
    type = present(types, 0)
    check_dtype(type, FLOATS)
    axis_attribute(attributes, "axis", len(type.shape))
    return type


def _maximum(builder: KernelBuilder, data: Tensor, axis: int) -> Tensor:
    """Add the stage "max": the largest element along `axis`, which the result does not have."""
    axes = axes_of(data.shape)

    def body(*indices: Expr) -> Expr:
        *outer, position = indices
        return data[(*outer[:axis], position, *outer[axis:])]

    return builder.stage(
        "max", [*axes[:axis], *axes[axis + 1 :]], body, reduce=[axes[axis]], combiner="max"
    )


def _softmax(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data = given(inputs, 0)
    axis = axis_attribute(attributes, "axis", len(type.shape))
    axes = axes_of(type.shape)
    largest = _maximum(builder, data, axis)
    exponential = pointwise(
        builder,
        "exp",
        type.shape,
        lambda i: unary("exp", sub(data[tuple(i)], largest[(*i[:axis], *i[axis + 1 :])])),
    )
    total = builder.stage(
        "sum",
        [*axes[:axis], *axes[axis + 1 :]],
        lambda *i: exponential[(*i[:axis], i[-1], *i[axis:-1])],
        reduce=[axes[axis]],
        combiner="sum",
    )
    return pointwise(
        builder,
        "softmax",
        type.shape,
        lambda i: mul(
            exponential[tuple(i)], unary("reciprocal", total[(*i[:axis], *i[axis + 1 :])])
        ),
    )


def _log_softmax(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    """x - max - log(sum(exp(x - max)))."""
    data = given(inputs, 0)
    axis = axis_attribute(attributes, "axis", len(type.shape))
    axes = axes_of(type.shape)
    outer = [*axes[:axis], *axes[axis + 1 :]]
    largest = _maximum(builder, data, axis)

    def exponential(*indices: Expr) -> Expr:
        *rest, position = indices
        element = data[(*rest[:axis], position, *rest[axis:])]
        return unary("exp", sub(element, largest[tuple(rest)]))

    total = builder.stage("exp_sum", outer, exponential, reduce=[axes[axis]], combiner="sum")
    log_sum = builder.stage("log_sum", outer, lambda *i: unary("log", total[i]))

    def value(indices: Sequence[Expr]) -> Expr:
        rest = (*indices[:axis], *indices[axis + 1 :])
        # The differences first: max + log(sum) would lose the digits of a small logarithm.
        return sub(sub(data[tuple(indices)], largest[rest]), log_sum[rest])

    return pointwise(builder, "log_softmax", type.shape, value)


# --- layer_norm ---------------------------------------------------------------------------------


def _infer_layer_norm(attributes: Attributes, types: Types) -> TensorType:
    data = present(types, 0)
    check_dtype(data, FLOATS)
    axis = axis_attribute(attributes, "axis", len(data.shape))
    float_attribute(attributes, "epsilon")
    for name, type in zip(("scale", "bias"), types[1:], strict=False):
        if type is None:
            continue
        check_same_dtype(data, type)
        normalised = data.shape[axis:]
        check(
            broadcast_shapes(type.shape, data.shape) == data.shape,
            f"the {name} {type} does not broadcast to the normalised axes {list(normalised)}",
        )
    return data


def _layer_norm(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    """Two passes: the mean, then the mean square of the deviations from it."""
    data, scale, bias = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
    axis = axis_attribute(attributes, "axis", len(type.shape))
    axes = axes_of(type.shape)
    outer, normalised = axes[:axis], axes[axis:]
    inverse_count = const(1 / math.prod(type.shape[axis:]), type.dtype)
    total = builder.stage("sum", outer, lambda *i: data[i], reduce=normalised, combiner="sum")

    def deviation(indices: Sequence[Expr]) -> Expr:
        return sub(data[tuple(indices)], mul(total[tuple(indices[:axis])], inverse_count))

    squares = builder.stage(
        "square_sum",
        outer,
        lambda *i: mul(deviation(i), deviation(i)),
        reduce=normalised,
        combiner="sum",
    )
    epsilon = const(float_attribute(attributes, "epsilon"), type.dtype)
    inverse_deviation = builder.stage(
        "inverse_deviation",
        outer,
        lambda *i: unary("rsqrt", add(mul(squares[i], inverse_count), epsilon)),
    )

    def value(indices: Sequence[Expr]) -> Expr:
        result = mul(deviation(indices), inverse_deviation[tuple(indices[:axis])])
        result = mul(result, broadcast_load(scale, indices, type.shape))
        return result if bias is None else add(result, broadcast_load(bias, indices, type.shape))

    return pointwise(builder, "layer_norm", type.shape, value)


# --- batch_norm ---------------------------------------------------------------------------------


def _infer_batch_norm(attributes: Attributes, types: Types) -> TensorType:
    data = present(types, 0)
    check_dtype(data, FLOATS)
    check(len(data.shape) >= 2, f"{data} does not have the axes N and C")
    float_attribute(attributes, "epsilon")
    for position, name in enumerate(("scale", "bias", "mean", "variance"), start=1):
        type = present(types, position)
        check_same_dtype(data, type)
        check(
            type.shape == data.shape[1:2],
            f"the {name} must have the shape [{data.shape[1]}], not {type}",
        )
    return data


def _batch_norm(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data, scale, bias, mean, variance = (given(inputs, position) for position in range(5))
    epsilon = const(float_attribute(attributes, "epsilon"), type.dtype)
    factor = builder.stage(
        "factor",
        [("i1", type.shape[1])],
        lambda channel: mul(scale[channel], unary("rsqrt", add(variance[channel], epsilon))),
    )

    def value(indices: Sequence[Expr]) -> Expr:
        channel = indices[1]
        deviation = sub(data[tuple(indices)], mean[channel])
        return add(mul(deviation, factor[channel]), bias[channel])

    return pointwise(builder, "batch_norm", type.shape, value)


# --- lrn ----------------------------------------------------------------------------------------


def _infer_lrn(attributes: Attributes, types: Types) -> TensorType:
    data = present(types, 0)
    check_dtype(data, FLOATS)
    check(len(data.shape) >= 2, f"{data} does not have the axes N and C")
    check(int_attribute(attributes, "size") >= 1, "the size must be at least 1")
    for name in ("alpha", "beta", "bias"):
        float_attribute(attributes, name)
    return data


def _lrn(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    """Krizhevsky et al. 2012, section 3.3: squares are summed over `size` adjacent channels."""
    data, size = given(inputs, 0), int_attribute(attributes, "size")
    alpha, beta = (float_attribute(attributes, name) for name in ("alpha", "beta"))
    bias = const(float_attribute(attributes, "bias"), type.dtype)
    channels, before = type.shape[1], (size - 1) // 2

    def square(*indices: Expr) -> Expr:
        n, c, *spatial, tap = indices
        channel = sub(add(c, tap), integer(before))
        inside = all_of(binary("ge", channel, integer(0)), binary("lt", channel, integer(channels)))
        element = data[(n, channel, *spatial)]
        return select(inside, mul(element, element), const(0, type.dtype))

    total = builder.stage(
        "square_sum", axes_of(type.shape), square, reduce=[("r", size)], combiner="sum"
    )

    def value(indices: Sequence[Expr]) -> Expr:
        base = add(mul(total[tuple(indices)], const(alpha / size, type.dtype)), bias)
        return mul(data[tuple(indices)], binary("pow", base, const(-beta, type.dtype)))

    return pointwise(builder, "lrn", type.shape, value)


register("softmax", Pattern.OPAQUE, 1, _infer_softmax, _softmax, axis=REQUIRED)
register("log_softmax", Pattern.OPAQUE, 1, _infer_softmax, _log_softmax, axis=REQUIRED)
register(
    "layer_norm",
    Pattern.OPAQUE,
    (2, 3),
    _infer_layer_norm,
    _layer_norm,
    axis=REQUIRED,
    epsilon=1e-5,
)
register("batch_norm", Pattern.OPAQUE, 5, _infer_batch_norm, _batch_norm, epsilon=1e-5)
register(
    "lrn",
    Pattern.OPAQUE,
    1,
    _infer_lrn,
    _lrn,
    size=REQUIRED,
    alpha=1e-4,
    beta=0.75,
    bias=1.0,
)
