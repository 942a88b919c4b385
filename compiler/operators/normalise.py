"""Normalisations of rows: kernels of several stages, numerically stable, in the data's type."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
from tunefarm.compiler.kernels.kernel import KernelBuilder, Tensor
from tunefarm.compiler.operators.blocked import (
    BLOCKED,
    BlockedForm,
    BlockedLayout,
    BlockedRule,
    BlockedUse,
    Shape,
)
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Axes,
    OperatorDefinition,
    Pattern,
    broadcast_along,
    register,
)
from tunefarm.compiler.operators.rules import (
    broadcast_load,
    check,
    check_dtype,
    check_same_dtype,
)
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use, axes_of
from tunefarm.compiler.types.dtypes import FLOATS
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.tensor_type import TensorType

PLAIN = "NCHW"

# --- rows ----------------------------------------------------------------------------------------


@frozen
class _Rows:
    """The operator's data in rows: the elements along the axes `reduced` belong together."""

    use: Use
    reduced: tuple[int, ...]

    @property
    def count(self) -> int:
        """Elements of a row."""
        return math.prod(self.use.shape[axis] for axis in self.reduced)

    def kept(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """The row of an element."""
        return tuple(item for axis, item in enumerate(indices) if axis not in self.reduced)

    def total(self, name: str, term: Callable[[tuple[Expr, ...]], Expr]) -> Tensor:
        """Add a stage: the sum of `term` of an element's indices over each row."""
        axes = axes_of(self.use.shape)
        outer = [axis for number, axis in enumerate(axes) if number not in self.reduced]

        def body(*indices: Expr) -> Expr:
            rest, inner = iter(indices[: len(outer)]), iter(indices[len(outer) :])
            return term(tuple(next(inner if a in self.reduced else rest) for a in range(len(axes))))

        reduce = [axes[axis] for axis in self.reduced]
        return self.use.builder.stage(name, outer, body, reduce=reduce, combiner="sum")

    def each(self, name: str, value: Callable[[tuple[Expr, ...]], Expr]) -> Tensor:
        """Add a stage: a value for each row."""
        axes = axes_of(self.use.shape)
        outer = [axis for number, axis in enumerate(axes) if number not in self.reduced]
        return self.use.builder.stage(name, outer, lambda *row: value(row))

    def inverse_root(self, name: str, squares: Tensor, epsilon: float) -> Tensor:
        """Add a stage: 1 / sqrt(mean of the squares + epsilon) of each row."""
        inverse_count, more = (const(n, self.use.dtype) for n in (1 / self.count, epsilon))
        return self.each(
            name, lambda row: unary("rsqrt", add(mul(squares[row], inverse_count), more))
        )

    def variance(self) -> tuple[Callable[[tuple[Expr, ...]], Expr], Tensor]:
        """Deviations from the mean, and the sum of their squares: two passes over the data."""
        data, inverse_count = self.use.input(0), const(1 / self.count, self.use.dtype)
        total = self.total("sum", lambda indices: data[indices])

        def deviation(indices: tuple[Expr, ...]) -> Expr:
            return sub(data[indices], mul(total[self.kept(indices)], inverse_count))

        squares = self.total("square_sum", lambda i: mul(deviation(i), deviation(i)))
        return deviation, squares


# --- layer_norm, rms_norm ------------------------------------------------------------------------


def _infer_layer_norm(attributes: Attributes, types: Types) -> TensorType:
    data = types.present(0)
    check_dtype(data, FLOATS)
    axis = attributes.axis("axis", len(data.shape))
    attributes.floating("epsilon")
    blocked = attributes.get("layout", PLAIN) == BLOCKED
    for name, type in zip(("scale", "bias"), types[1:], strict=False):
        if type is None:
            continue
        check_same_dtype(data, type)
        if blocked:
            wanted = (data.shape[1] * data.shape[-1], 1, 1)
            check(type.shape == wanted, f"the {name} must be {list(wanted)}, not {type}")
            continue
        mismatch = f"the {name} {type} does not broadcast to the normalised axes "
        types.broadcast_to(0, 1 + (name == "bias"), otherwise=mismatch + str([*data.shape[axis:]]))
    if blocked:
        return data
    for normalised in range(axis, len(data.shape)):
        types.require_whole(0, normalised, "a row that is normalised")
    return TensorType.of(data.dtype, types.broadcast(*types.positions()))


def _parameter(tensor: Tensor, indices: tuple[Expr, ...], use: Use, blocked: bool) -> Expr:
    """The element of a scale or a bias that belongs to an element of the data."""
    if not blocked:
        return broadcast_load(tensor, indices, use.shape)
    channel = add(mul(indices[1], integer(use.shape[-1])), indices[-1])
    return tensor[channel, integer(0), integer(0)]


def _layer_norm(attributes: Attributes, use: Use) -> Tensor:
    """Two passes: the mean, then the mean square of the deviations from it.

    Scale and bias broadcast to the data. Of blocked data, planes are normalised (axis 2).
    """
    scale, bias = use.input(1), use.optional(2)
    blocked = attributes.choice("layout", (PLAIN, BLOCKED)) == BLOCKED
    rank = len(use.shape)
    rows = _Rows(use, tuple(range(attributes.axis("axis", rank), rank - blocked)))
    deviation, squares = rows.variance()
    epsilon = attributes.floating("epsilon")
    inverse_deviation = rows.inverse_root("inverse_deviation", squares, epsilon)

    def value(indices: tuple[Expr, ...]) -> Expr:
        result = mul(deviation(indices), inverse_deviation[rows.kept(indices)])
        result = mul(result, _parameter(scale, indices, use, blocked))
        return result if bias is None else add(result, _parameter(bias, indices, use, blocked))

    return use.pointwise("layer_norm", value)


def _blocked_layer_norm(node: BlockedUse) -> BlockedForm | None:
    """Planes, with a scale and a bias for each channel: padding lanes, all alike, become 0."""
    lane, attributes = node.lanes[0], node.attributes
    channels = (node.result.shape[1], 1, 1) if len(node.result.shape) == 4 else ()
    planes = attributes["axis"] == 2 and attributes["layout"] == PLAIN and bool(channels)
    parameters = [type for type in node.types[1:] if type is not None]
    if lane is None or not math.isfinite(lane) or not planes or not all(node.constants[1:]):
        return None
    fits = all(type.shape == channels for type in parameters)
    return BlockedForm(BLOCKED, 0.0) if fits and attributes.floating("epsilon") > 0 else None


def _padded_parameters(
    attributes: Attributes, shapes: Sequence[Shape], layout: BlockedLayout
) -> list[Shape]:
    return [(-(-channels // layout.gives) * layout.gives, *rest) for channels, *rest in shapes]


def _rms_norm(attributes: Attributes, use: Use) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * scale (Zhang and Sennrich 2019)."""
    data, scale = use.input(0), use.optional(1)
    rank = len(use.shape)
    rows = _Rows(use, tuple(range(attributes.axis("axis", rank), rank)))
    squares = rows.total("square_sum", lambda i: mul(data[i], data[i]))
    inverse_root = rows.inverse_root("inverse_root", squares, attributes.floating("epsilon"))

    def value(indices: tuple[Expr, ...]) -> Expr:
        result = mul(data[indices], inverse_root[rows.kept(indices)])
        return result if scale is None else mul(result, broadcast_load(scale, indices, use.shape))

    return use.pointwise("rms_norm", value)


# --- mean_variance_norm, lp_norm -----------------------------------------------------------------


def _infer_mean_variance_norm(attributes: Attributes, types: Types) -> TensorType:
    data = types.present(0)
    check_dtype(data, FLOATS)
    axes, rank = attributes.integers("axes"), len(data.shape)
    fits = len(set(axes)) == len(axes) and all(0 <= axis < rank for axis in axes)
    check(fits, f"{list(axes)} are not different axes of a tensor of rank {rank}")
    check(bool(axes), "at least one axis is needed")
    attributes.floating("epsilon")
    for axis in axes:
        types.require_whole(0, axis, "an axis that is normalised")
    return data


def _mean_variance_norm(attributes: Attributes, use: Use) -> Tensor:
    """(x - mean) / (sqrt(variance) + epsilon) over any axes."""
    rows = _Rows(use, tuple(sorted(attributes.integers("axes"))))
    deviation, squares = rows.variance()
    epsilon = const(attributes.floating("epsilon"), use.dtype)
    inverse_count = const(1 / rows.count, use.dtype)

    def inverse(row: tuple[Expr, ...]) -> Expr:
        return unary("reciprocal", add(unary("sqrt", mul(squares[row], inverse_count)), epsilon))

    factor = rows.each("inverse_deviation", inverse)
    return use.pointwise("mean_variance_norm", lambda i: mul(deviation(i), factor[rows.kept(i)]))


def _infer_lp_norm(attributes: Attributes, types: Types) -> TensorType:
    data = types.present(0)
    check_dtype(data, FLOATS)
    types.fill(0, attributes.axis("axis", len(data.shape)), "zero")
    check(attributes.integer("p") in (1, 2), "p must be 1 or 2")
    return data


def _lp_norm(attributes: Attributes, use: Use) -> Tensor:
    """x / ||x||_p along an axis; 0 where the norm is 0."""
    data, root = use.input(0), attributes.integer("p") == 2
    rows = _Rows(use, (attributes.axis("axis", len(use.shape)),))
    zero, one = const(0, use.dtype), const(1, use.dtype)

    def term(indices: tuple[Expr, ...]) -> Expr:
        return mul(data[indices], data[indices]) if root else unary("abs", data[indices])

    total = rows.total("total", term)

    def norm(row: tuple[Expr, ...]) -> Expr:
        found = unary("sqrt", total[row]) if root else total[row]
        return select(binary("eq", found, zero), one, found)

    # Divided, not multiplied by the inverse: x / x is 1, which maxima behind it may be compared by.
    norms = rows.each("norm", norm)
    return use.pointwise("lp_norm", lambda i: binary("div", data[i], norms[rows.kept(i)]))


def _along_rows(attributes: Attributes, types: Types, axis: int) -> Axes | None:
    is_row = axis < attributes.integer("axis") and attributes.get("layout", PLAIN) == PLAIN
    return broadcast_along(types, axis) if is_row else None


register(
    OperatorDefinition(
        "layer_norm",
        Pattern.OPAQUE,
        (2, 3),
        _infer_layer_norm,
        _layer_norm,
        {"axis": REQUIRED, "epsilon": 1e-5, "layout": PLAIN},
        along=_along_rows,
        passes=3,
        blocked=BlockedRule(_blocked_layer_norm, padded=_padded_parameters),
        dynamic=True,
    ),
    OperatorDefinition(
        "rms_norm",
        Pattern.OPAQUE,
        (1, 2),
        _infer_layer_norm,
        _rms_norm,
        {"axis": REQUIRED, "epsilon": 1e-5},
        along=_along_rows,
        passes=2,
        dynamic=True,
    ),
    OperatorDefinition(
        "mean_variance_norm",
        Pattern.OPAQUE,
        1,
        _infer_mean_variance_norm,
        _mean_variance_norm,
        {"axes": REQUIRED, "epsilon": 1e-9},
        passes=3,
        dynamic=True,
    ),
    OperatorDefinition(
        "lp_norm",
        Pattern.OPAQUE,
        1,
        _infer_lp_norm,
        _lp_norm,
        {"axis": REQUIRED, "p": 2},
        passes=2,
        dynamic=True,
    ),
)


# --- Normalisations of channels: by given statistics, and by those of adjacent channels ----------


def _infer_batch_norm(attributes: Attributes, types: Types) -> TensorType:
    data = types.present(0)
    check_dtype(data, FLOATS)
    check(len(data.shape) >= 2, f"{data} does not have the axes N and C")
    attributes.floating("epsilon")
    for position, name in enumerate(("scale", "bias", "mean", "variance"), start=1):
        type = types.present(position)
        check_same_dtype(data, type)
        wrong = f"the {name} must have the shape [{data.shape[1]}], not {type}"
        check(len(type.shape) == 1, wrong)
        types.same((0, 1), (position, 0), otherwise=wrong)
    channels = types.same((0, 1), (1, 0), (2, 0), (3, 0), (4, 0))
    return TensorType.of(data.dtype, (data.dims[0], channels, *data.dims[2:]))


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
    types.fill(0, 1, "zero")
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


register(
    OperatorDefinition(
        "batch_norm",
        Pattern.OPAQUE,
        5,
        _infer_batch_norm,
        _batch_norm,
        {"epsilon": 1e-5},
        dynamic=True,
    ),
    OperatorDefinition(
        "lrn",
        Pattern.OPAQUE,
        1,
        _infer_lrn,
        _lrn,
        {"size": REQUIRED, "alpha": 1e-4, "beta": 0.75, "bias": 1.0},
        dynamic=True,
    ),
)


# --- Softmax and its logarithm: the maximum first, so that no exponential overflows --------------


def _infer_softmax(attributes: Attributes, types: Types) -> TensorType:
    type = types.present(0)
    check_dtype(type, FLOATS)
    types.fill(0, attributes.axis("axis", len(type.shape)), "lowest")
    return type


def _infer_probabilities(attributes: Attributes, types: Types) -> TensorType:
    types.needs.known[attributes.integer("axis")] = "zero"  # exp(-inf)
    return _infer_softmax(attributes, types)


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


def _along_others(attributes: Attributes, types: Types, axis: int) -> Axes | None:
    return None if axis == attributes.integer("axis") else (axis,)


register(
    *(
        OperatorDefinition(
            name,
            Pattern.OPAQUE,
            1,
            infer,
            rule,
            _AXIS,
            along=_along_others,
            passes=3,
            reads_rows=True,
            dynamic=True,
        )
        for name, infer, rule in (
            ("softmax", _infer_probabilities, _softmax),
            ("log_softmax", _infer_softmax, _log_softmax),
        )
    )
)
