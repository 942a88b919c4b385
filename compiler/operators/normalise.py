"""Softmax and normalisations: kernels of several stages, numerically stable, in the data's type."""

from __future__ import annotations

import math

from compiler.expr.nodes import Expr, add, all_of, binary, const, integer, mul, select, sub, unary
from compiler.kernels.kernel import KernelBuilder, Tensor
from compiler.operators.registry import REQUIRED, OperatorDefinition, Pattern, register
from compiler.operators.rules import (
    broadcast_load,
    broadcast_shapes,
    check,
    check_dtype,
    check_same_dtype,
)
from compiler.operators.use import Attributes, Types, Use, axes_of
from compiler.types.dtypes import FLOATS
from compiler.types.tensor_type import TensorType

# --- softmax ------------------------------------------------------------------------------------


def _infer_softmax(attributes: Attributes, types: Types) -> TensorType:
    type = types.present(0)
    check_dtype(type, FLOATS)
    attributes.axis("axis", len(type.shape))
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


def _softmax(attributes: Attributes, use: Use) -> Tensor:
    data = use.input(0)
    axis = attributes.axis("axis", len(use.shape))
    axes = axes_of(use.shape)
    largest = _maximum(use.builder, data, axis)
    exponential = use.pointwise(
        "exp", lambda i: unary("exp", sub(data[i], largest[(*i[:axis], *i[axis + 1 :])]))
    )
    total = use.builder.stage(
        "sum",
        [*axes[:axis], *axes[axis + 1 :]],
        lambda *i: exponential[(*i[:axis], i[-1], *i[axis:-1])],
        reduce=[axes[axis]],
        combiner="sum",
    )
    return use.pointwise(
        "softmax",
        lambda i: mul(exponential[i], unary("reciprocal", total[(*i[:axis], *i[axis + 1 :])])),
    )


def _log_softmax(attributes: Attributes, use: Use) -> Tensor:
    """x - max - log(sum(exp(x - max)))."""
    data = use.input(0)
    axis = attributes.axis("axis", len(use.shape))
    axes = axes_of(use.shape)
    outer = [*axes[:axis], *axes[axis + 1 :]]
    largest = _maximum(use.builder, data, axis)

    def exponential(*indices: Expr) -> Expr:
        *rest, position = indices
        element = data[(*rest[:axis], position, *rest[axis:])]
        return unary("exp", sub(element, largest[tuple(rest)]))

    total = use.builder.stage("exp_sum", outer, exponential, reduce=[axes[axis]], combiner="sum")
    log_sum = use.builder.stage("log_sum", outer, lambda *i: unary("log", total[i]))

    def value(indices: tuple[Expr, ...]) -> Expr:
        rest = (*indices[:axis], *indices[axis + 1 :])
        # The differences first: max + log(sum) would lose the digits of a small logarithm.
        return sub(sub(data[indices], largest[rest]), log_sum[rest])

    return use.pointwise("log_softmax", value)


# --- layer_norm ---------------------------------------------------------------------------------


def _infer_layer_norm(attributes: Attributes, types: Types) -> TensorType:
    data = types.present(0)
    check_dtype(data, FLOATS)
    axis = attributes.axis("axis", len(data.shape))
    attributes.floating("epsilon")
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


def _layer_norm(attributes: Attributes, use: Use) -> Tensor:
    """Two passes: the mean, then the mean square of the deviations from it."""
    data, scale, bias = use.input(0), use.input(1), use.optional(2)
    axis = attributes.axis("axis", len(use.shape))
    axes = axes_of(use.shape)
    outer, normalised = axes[:axis], axes[axis:]
    inverse_count = const(1 / math.prod(use.shape[axis:]), use.dtype)
    total = use.builder.stage("sum", outer, lambda *i: data[i], reduce=normalised, combiner="sum")

    def deviation(indices: tuple[Expr, ...]) -> Expr:
        return sub(data[indices], mul(total[tuple(indices[:axis])], inverse_count))

    squares = use.builder.stage(
        "square_sum",
        outer,
        lambda *i: mul(deviation(i), deviation(i)),
        reduce=normalised,
        combiner="sum",
    )
    epsilon = const(attributes.floating("epsilon"), use.dtype)
    inverse_deviation = use.builder.stage(
        "inverse_deviation",
        outer,
        lambda *i: unary("rsqrt", add(mul(squares[i], inverse_count), epsilon)),
    )

    def value(indices: tuple[Expr, ...]) -> Expr:
        result = mul(deviation(indices), inverse_deviation[tuple(indices[:axis])])
        result = mul(result, broadcast_load(scale, indices, use.shape))
        return result if bias is None else add(result, broadcast_load(bias, indices, use.shape))

    return use.pointwise("layer_norm", value)


# --- batch_norm ---------------------------------------------------------------------------------


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


# --- lrn ----------------------------------------------------------------------------------------


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


_AXIS = {"axis": REQUIRED}

register(
    OperatorDefinition("softmax", Pattern.OPAQUE, 1, _infer_softmax, _softmax, _AXIS, passes=3),
    OperatorDefinition(
        "log_softmax", Pattern.OPAQUE, 1, _infer_softmax, _log_softmax, _AXIS, passes=3
    ),
    OperatorDefinition(
        "layer_norm",
        Pattern.OPAQUE,
        (2, 3),
        _infer_layer_norm,
        _layer_norm,
        {"axis": REQUIRED, "epsilon": 1e-5},
        passes=3,
    ),
    OperatorDefinition(
        "batch_norm", Pattern.OPAQUE, 5, _infer_batch_norm, _batch_norm, {"epsilon": 1e-5}
    ),
    OperatorDefinition(
        "lrn",
        Pattern.OPAQUE,
        1,
        _infer_lrn,
        _lrn,
        {"size": REQUIRED, "alpha": 1e-4, "beta": 0.75, "bias": 1.0},
    ),
)
