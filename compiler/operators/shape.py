"""Views, and operators that move elements without computing: transpose, concat, slice, pad …"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import ShapeError
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
    axis_attribute,
    bool_attribute,
    broadcast_load,
    broadcast_shapes,
    check,
    check_same_dtype,
    choice_attribute,
    given,
    int_attribute,
    ints_attribute,
    number_attribute,
    optional,
    pointwise,
    present,
)
from compiler.types.tensor_type import TensorType

PAD_MODES = ("constant", "reflect", "edge", "wrap")


# --- views --------------------------------------------------------------------------------------


def _infer_identity(attributes: Attributes, types: Types) -> TensorType:
    return present(types, 0)


def _infer_reshape(attributes: Attributes, types: Types) -> TensorType:
    type = present(types, 0)
    result = TensorType(type.dtype, ints_attribute(attributes, "shape"))
    check(
        result.size == type.size,
        f"{type.size} elements do not fit the shape {list(result.shape)} of {result.size}",
    )
    return result


# --- transpose, concat, slice -------------------------------------------------------------------


def _infer_transpose(attributes: Attributes, types: Types) -> TensorType:
    type, perm = present(types, 0), ints_attribute(attributes, "perm")
    check(
        sorted(perm) == list(range(len(type.shape))),
        f"perm {list(perm)} is no permutation of the {len(type.shape)} axes",
    )
    return TensorType(type.dtype, tuple(type.shape[axis] for axis in perm))


def _transpose(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data, perm = given(inputs, 0), ints_attribute(attributes, "perm")
    source = [perm.index(axis) for axis in range(len(perm))]
    return pointwise(
        builder,
        "transpose",
        type.shape,
        lambda indices: data[tuple(indices[position] for position in source)],
    )


def _infer_concat(attributes: Attributes, types: Types) -> TensorType:
    parts = [present(types, position) for position in range(len(types))]
    first = parts[0]
    axis = axis_attribute(attributes, "axis", len(first.shape))
    check_same_dtype(*parts)
    rest = (*first.shape[:axis], *first.shape[axis + 1 :])
    for part in parts[1:]:
        check(
            len(part.shape) == len(first.shape)
            and (*part.shape[:axis], *part.shape[axis + 1 :]) == rest,
            f"the shapes {list(first.shape)} and {list(part.shape)} differ outside axis {axis}",
        )
    total = sum(part.shape[axis] for part in parts)
    return TensorType(first.dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :]))


def _concat(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    parts = [given(inputs, position) for position in range(len(inputs))]
    axis = axis_attribute(attributes, "axis", len(type.shape))
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + part.shape[axis])

    def value(indices: Sequence[Expr]) -> Expr:
        def choose(first: int, last: int) -> Expr:
            # A balanced tree: the depth of nested selects grows with the logarithm of the inputs.
            if last - first == 1:
                moved = list(indices)
                moved[axis] = sub(indices[axis], integer(offsets[first]))
                return parts[first][tuple(moved)]
            middle = (first + last) // 2
            before = binary("lt", indices[axis], integer(offsets[middle]))
            return select(before, choose(first, middle), choose(middle, last))

        return choose(0, len(parts))

    return pointwise(builder, "concat", type.shape, value)


def _infer_slice(attributes: Attributes, types: Types) -> TensorType:
    type = present(types, 0)
    starts, steps, shape = (
        ints_attribute(attributes, name) for name in ("starts", "steps", "shape")
    )
    check(
        len(starts) == len(steps) == len(shape) == len(type.shape),
        f"starts, steps and shape need one entry for each of the {len(type.shape)} axes",
    )
    for axis, (start, step, count, extent) in enumerate(
        zip(starts, steps, shape, type.shape, strict=True)
    ):
        last = start + (count - 1) * step
        check(step != 0, f"the step of axis {axis} is 0")
        check(
            count < 1 or (0 <= start < extent and 0 <= last < extent),
            f"axis {axis} reads from {start} to {last}, but has the extent {extent}",
        )
    return TensorType(type.dtype, shape)


def _slice(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data = given(inputs, 0)
    starts, steps = ints_attribute(attributes, "starts"), ints_attribute(attributes, "steps")

    def value(indices: Sequence[Expr]) -> Expr:
        return data[
            tuple(
                add(mul(position, integer(step)), integer(start))
                for position, start, step in zip(indices, starts, steps, strict=True)
            )
        ]

    return pointwise(builder, "slice", type.shape, value)


# --- expand, tile, trilu ------------------------------------------------------------------------


def _infer_expand(attributes: Attributes, types: Types) -> TensorType:
    type = present(types, 0)
    return TensorType(type.dtype, broadcast_shapes(type.shape, ints_attribute(attributes, "shape")))


def _expand(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data = given(inputs, 0)
    return pointwise(
        builder, "expand", type.shape, lambda indices: broadcast_load(data, indices, type.shape)
    )


def _infer_tile(attributes: Attributes, types: Types) -> TensorType:
    type, repeats = present(types, 0), ints_attribute(attributes, "repeats")
    check(
        len(repeats) == len(type.shape),
        f"repeats {list(repeats)} needs one entry for each of the {len(type.shape)} axes",
    )
    shape = tuple(extent * count for extent, count in zip(type.shape, repeats, strict=True))
    return TensorType(type.dtype, shape)


def _tile(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data = given(inputs, 0)

    def value(indices: Sequence[Expr]) -> Expr:
        return data[
            tuple(
                position if extent == old else binary("mod", position, integer(old))
                for position, extent, old in zip(indices, type.shape, data.shape, strict=True)
            )
        ]

    return pointwise(builder, "tile", type.shape, value)


def _infer_trilu(attributes: Attributes, types: Types) -> TensorType:
    type = present(types, 0)
    check(len(type.shape) >= 2, f"{type} is no matrix")
    bool_attribute(attributes, "upper")
    int_attribute(attributes, "k")
    return type


def _trilu(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data = given(inputs, 0)
    keep = "ge" if bool_attribute(attributes, "upper") else "le"
    diagonal = integer(int_attribute(attributes, "k"))

    def value(indices: Sequence[Expr]) -> Expr:
        kept = binary(keep, sub(indices[-1], indices[-2]), diagonal)
        return select(kept, data[tuple(indices)], const(0, data.dtype))

    return pointwise(builder, "trilu", type.shape, value)


# --- pad ----------------------------------------------------------------------------------------


def _infer_pad(attributes: Attributes, types: Types) -> TensorType:
    type, pads = present(types, 0), ints_attribute(attributes, "pads")
    mode = choice_attribute(attributes, "mode", PAD_MODES)
    number_attribute(attributes, "value")
    rank = len(type.shape)
    check(len(pads) == 2 * rank, f"pads {list(pads)} needs two entries for each of the {rank} axes")
    fill = types[1] if len(types) > 1 else None
    if fill is not None:
        check(mode == "constant", f"mode {mode} takes no value input")
        check_same_dtype(type, fill)
        check(fill.size == 1, f"the value must be a scalar, not {fill}")
    shape = tuple(
        extent + begin + end
        for extent, begin, end in zip(type.shape, pads[:rank], pads[rank:], strict=True)
    )
    return TensorType(type.dtype, shape)


def _pad(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data, fill = given(inputs, 0), optional(inputs, 1)
    begins = ints_attribute(attributes, "pads")[: len(type.shape)]
    mode = choice_attribute(attributes, "mode", PAD_MODES)

    def value(indices: Sequence[Expr]) -> Expr:
        guards: list[Expr] = []
        source: list[Expr] = []
        for axis, begin in enumerate(begins):
            old, extent = data.shape[axis], type.shape[axis]
            moved = sub(indices[axis], integer(begin))
            below, above = begin > 0, extent - begin > old
            if mode == "constant":
                guards += [binary("ge", moved, integer(0))] if below else []
                guards += [binary("lt", moved, integer(old))] if above else []
                source.append(moved)
            else:
                source.append(_inside(moved, old, mode) if below or above else moved)
        element = data[tuple(source)]
        if not guards:
            return element
        outside: Expr = const(number_attribute(attributes, "value"), data.dtype)
        if fill is not None:
            outside = fill[tuple(integer(0) for _ in fill.shape)]
        return select(all_of(*guards), element, outside)

    return pointwise(builder, "pad", type.shape, value)


def _inside(position: Expr, extent: int, mode: str) -> Expr:
    """`position`, which may lie outside of 0..extent-1, mapped inside as `mode` says."""
    last = integer(extent - 1)
    if mode == "edge" or extent == 1:
        return binary("max", binary("min", position, last), integer(0))
    if mode == "wrap":
        return binary("mod", position, integer(extent))
    if mode == "reflect":
        period = integer(2 * (extent - 1))
        wrapped = binary("mod", position, period)
        return binary("min", wrapped, sub(period, wrapped))
    raise ShapeError(f"unknown pad mode {mode!r}")


register("identity", Pattern.VIEW, 1, _infer_identity, None)
register("reshape", Pattern.VIEW, 1, _infer_reshape, None, shape=REQUIRED)
register("transpose", Pattern.INJECTIVE, 1, _infer_transpose, _transpose, perm=REQUIRED)
register("concat", Pattern.INJECTIVE, (1, None), _infer_concat, _concat, axis=REQUIRED)
register(
    "slice",
    Pattern.INJECTIVE,
    1,
    _infer_slice,
    _slice,
    starts=REQUIRED,
    steps=REQUIRED,
    shape=REQUIRED,
)
register("expand", Pattern.INJECTIVE, 1, _infer_expand, _expand, shape=REQUIRED)
register("tile", Pattern.INJECTIVE, 1, _infer_tile, _tile, repeats=REQUIRED)
register("trilu", Pattern.INJECTIVE, 1, _infer_trilu, _trilu, upper=True, k=0)
register(
    "pad", Pattern.INJECTIVE, (1, 2), _infer_pad, _pad, pads=REQUIRED, mode="constant", value=0.0
)
