"""Reductions over whole axes, positions of extremes, running sums and products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunefarm.compiler.expr.combiners import neutral_element
from tunefarm.compiler.expr.nodes import Expr, binary, cast, const, select, unary
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.blocked import BLOCKED, BlockedForm, BlockedRule, BlockedUse
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Axes,
    OperatorDefinition,
    Pattern,
    Required,
    TypeRule,
    register,
)
from tunefarm.compiler.operators.rules import check, check_dtype, divide_by_count
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use, axes_of
from tunefarm.compiler.types.dtypes import ALL, NUMBERS, DType
from tunefarm.compiler.types.padded_shape import ONE, PaddedShape
from tunefarm.compiler.types.tensor_type import Attribute, TensorType


def _reduced(dims: PaddedShape, axes: Sequence[int], keep: bool) -> PaddedShape:
    kept = [ONE if axis in axes else given for axis, given in enumerate(dims)]
    return tuple(given for axis, given in enumerate(kept) if keep or axis not in axes)


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


def _reduce_stage(attributes: Attributes, use: Use, combiner: str) -> Tensor:
    data, axes = use.input(0), sorted(attributes.integers("axes"))
    keep = attributes.flag("keepdims")
    count = len(use.shape)

    def body(*indices: Expr) -> Expr:
        return data[_source(indices[:count], indices[count:], axes, len(data.shape), keep)]

    return use.builder.stage(
        "reduce",
        axes_of(use.shape),
        body,
        reduce=axes_of([data.shape[axis] for axis in axes], "r"),
        combiner=combiner if axes else "",
    )


def _infer_arg(fill: str) -> TypeRule:
    def infer(attributes: Attributes, types: Types) -> TensorType:
        type = types.present(0)
        check_dtype(type, NUMBERS)
        axis = attributes.axis("axis", len(type.shape))
        attributes.flag("select_last_index")
        types.fill(0, axis, fill)
        return TensorType.of(DType.I64, _reduced(type.dims, (axis,), attributes.flag("keepdims")))

    return infer


def _infer_running(fill: str) -> TypeRule:
    """What comes before an element is there, but for padding between; what comes behind need not
    be."""

    def infer(attributes: Attributes, types: Types) -> TensorType:
        type = types.present(0)
        check_dtype(type, NUMBERS)
        axis = attributes.axis("axis", len(type.shape))
        attributes.flag("exclusive")
        if attributes.flag("reverse") or len(type.dims[axis]) > 1:
            types.fill(0, axis, fill)
        return type

    return infer


def _running(name: str, combiner: str, fill: str) -> OperatorDefinition:
    """Sums or products of all elements up to each one: reductions under a triangular mask.

    Schedules know this form (`tunefarm.compiler.kernels.scan`) and walk along the axis once.
    """

    def expression(attributes: Attributes, use: Use) -> Tensor:
        data = use.input(0)
        axis = attributes.axis("axis", len(use.shape))
        strict = attributes.flag("exclusive")
        if attributes.flag("reverse"):
            included = "gt" if strict else "ge"
        else:
            included = "lt" if strict else "le"
        neutral = neutral_element(combiner, data.dtype)

        def body(*indices: Expr) -> Expr:
            *output, term = indices
            element = data[(*output[:axis], term, *output[axis + 1 :])]
            return select(binary(included, term, output[axis]), element, neutral)

        reduced = axes_of([use.shape[axis]], "r")
        return use.builder.stage(name, axes_of(use.shape), body, reduce=reduced, combiner=combiner)

    attributes: dict[str, Attribute | Required] = {
        "axis": REQUIRED,
        "exclusive": False,
        "reverse": False,
    }
    return OperatorDefinition(
        name,
        Pattern.REDUCTION,
        1,
        _infer_running(fill),
        expression,
        attributes,
        dynamic=True,
    )


def _infer_fold(allowed: frozenset[DType], fill: str) -> TypeRule:
    """Padding that holds `fill` changes nothing; without one axes are whole, as those of means are
    (the importer has another form for others)."""

    def infer(attributes: Attributes, types: Types) -> TensorType:
        type, axes = types.present(0), attributes.integers("axes")
        check_dtype(type, allowed)
        rank = len(type.shape)
        check(len(set(axes)) == len(axes), f"axes {list(axes)} repeat")
        check(
            all(0 <= axis < rank for axis in axes),
            f"axes {list(axes)} are not all axes of a tensor of rank {rank}",
        )
        for axis in axes:
            if fill:
                types.fill(0, axis, fill)
            else:
                types.require_whole(0, axis, "the axis of a mean")
        return TensorType.of(type.dtype, _reduced(type.dims, axes, attributes.flag("keepdims")))

    return infer


def _fold(
    name: str,
    allowed: frozenset[DType],
    combiner: str,
    fill: str,
    *,
    bool_combiner: str = "",
    mean: bool = False,
    of_equals: bool = False,
) -> OperatorDefinition:
    """A reduction over `axes`; `of_equals`: it gives back the one number that all elements are."""

    def expression(attributes: Attributes, use: Use) -> Tensor:
        chosen = bool_combiner if use.dtype is DType.BOOL else combiner
        total = _reduce_stage(attributes, use, chosen)
        count = math.prod(use.input(0).shape) // use.type.size
        if not mean or count == 1:
            return total
        return use.pointwise(name, lambda indices: divide_by_count(total[indices], count))

    def blocked(node: BlockedUse) -> BlockedForm | None:
        """Over H and W, as long as the padding lanes stay all the same."""
        lane, attributes = node.lanes[0], node.attributes
        over_image = sorted(attributes.integers("axes")) == [2, 3]
        if lane is None or not (attributes["keepdims"] and over_image):
            return None
        known = of_equals or lane == 0 or node.is_whole(node.types.present(0))
        return BlockedForm(BLOCKED, lane) if known else None

    def folds(node: BlockedUse) -> bool:
        """All channels, none of which pads a block, in any order: the result is the same."""
        type = node.types.present(0)
        exact = combiner in ("max", "min") or (type.dtype.is_integer and not mean)
        return exact and node.is_whole(type) and 1 in node.attributes.integers("axes")

    def along(attributes: Attributes, types: Types, axis: int) -> Axes | None:
        folded = attributes.integers("axes")
        kept = [each for each in range(len(types.present(0).shape)) if each not in folded]
        if attributes["keepdims"]:
            return (axis,) if axis in kept else None
        return (kept[axis],)

    return OperatorDefinition(
        name,
        Pattern.REDUCTION,
        1,
        _infer_fold(allowed, fill),
        expression,
        {"axes": REQUIRED, "keepdims": True},
        folds_axes=True,
        along=along,
        passes=1,
        blocked=BlockedRule(blocked, folds=folds),
        dynamic=True,
    )


def _extreme(name: str, combiner: str, fill: str) -> OperatorDefinition:
    """First the extreme value, then the first (or last) position that holds it (or a NaN).

    Two reductions in a row over the same data: a kernel of its own, like softmax.
    """

    def expression(attributes: Attributes, use: Use) -> Tensor:
        data = use.input(0)
        axis = attributes.axis("axis", len(data.shape))
        keep = attributes.flag("keepdims")
        last = attributes.flag("select_last_index")
        reduced_axes = axes_of([data.shape[axis]], "r")
        # As many positions as elements fit a vector where they are that narrow.
        counter = DType.I32 if data.shape[axis] < 1 << 31 else DType.I64

        def element(indices: Sequence[Expr]) -> Expr:
            return data[_source(indices[:-1], indices[-1:], (axis,), len(data.shape), keep)]

        extreme = use.builder.stage(
            "reduce",
            axes_of(use.shape),
            lambda *indices: element(indices),
            reduce=reduced_axes,
            combiner=combiner,
        )

        def position(*indices: Expr) -> Expr:
            passed_over = const(-1 if last else data.shape[axis], counter)
            value = element(indices)
            found = binary("eq", value, extreme[indices[:-1]])
            if data.dtype.is_float:
                found = binary("or", found, unary("isnan", value))
            return select(found, cast(counter, indices[-1]), passed_over)

        found = use.builder.stage(
            name,
            axes_of(use.shape),
            position,
            reduce=reduced_axes,
            combiner="max" if last else "min",
        )
        return use.pointwise(f"{name}_i64", lambda indices: cast(DType.I64, found[indices]))

    attributes = {"axis": 0, "keepdims": True, "select_last_index": False}
    return OperatorDefinition(
        name,
        Pattern.OPAQUE,
        1,
        _infer_arg(fill),
        expression,
        attributes,
        dynamic=True,
    )


register(
    _fold("reduce_sum", NUMBERS, "sum", "zero"),
    _fold("reduce_prod", NUMBERS, "prod", "one"),
    _fold("reduce_max", ALL, "max", "lowest", bool_combiner="or", of_equals=True),
    _fold("reduce_min", ALL, "min", "highest", bool_combiner="and", of_equals=True),
    _fold("reduce_mean", NUMBERS, "sum", "", mean=True, of_equals=True),
    _extreme("arg_max", "max", "lowest"),
    _extreme("arg_min", "min", "highest"),
    _running("cumsum", "sum", "zero"),
    _running("cumprod", "prod", "one"),
)
