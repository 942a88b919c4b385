"""Softmax and its logarithm: the maximum first, so that no exponential overflows."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr, mul, sub, unary
from tunefarm.compiler.kernels.kernel import KernelBuilder, Tensor
from tunefarm.compiler.operators.padding import PaddedUse
from tunefarm.compiler.operators.registry import REQUIRED, OperatorDefinition, Pattern, register
from tunefarm.compiler.operators.rules import check_dtype
from tunefarm.compiler.operators.use import Attributes, Types, Use, axes_of
from tunefarm.compiler.types.dims import Dims
from tunefarm.compiler.types.dtypes import FLOATS
from tunefarm.compiler.types.tensor_type import TensorType


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


_AXIS = {"axis": REQUIRED}


def _softmax_padding(use: PaddedUse) -> Dims:
    axis = use.attributes.integer("axis")
    use.fill(0, axis, "lowest")
    use.known[axis] = "zero"  # exp(-inf)
    return use.operand(0)


def _log_softmax_padding(use: PaddedUse) -> Dims:
    use.fill(0, use.attributes.integer("axis"), "lowest")
    return use.operand(0)


register(
    *(
        OperatorDefinition(
            name,
            Pattern.OPAQUE,
            1,
            _infer_softmax,
            rule,
            _AXIS,
            passes=3,
            reads_rows=True,
            padding=padding,
        )
        for name, rule, padding in (
            ("softmax", _softmax, _softmax_padding),
            ("log_softmax", _log_softmax, _log_softmax_padding),
        )
    )
)
