"""Attention as one operator: softmax(scale Q K' + masks) V, of Vaswani et al. (arXiv:1706.03762).

The division by the sum of a row's exponentials comes after the product with V, where there are
fewer elements: sum(e v) / sum(e) for sum(e / sum(e) v).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tunefarm.compiler.expr.nodes import (
    Expr,
    add,
    binary,
    cast,
    const,
    integer,
    mul,
    select,
    sub,
    unary,
)
from tunefarm.compiler.kernels.attention import fits_tiles, weight_of
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.fill import check_sizes, is_within
from tunefarm.compiler.operators.registry import Axes, Pattern, define
from tunefarm.compiler.operators.rules import (
    broadcast_load,
    broadcast_shapes,
    check,
    check_dtype,
    check_same_dtype,
    product,
    sum_dtype,
)
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use, axes_of
from tunefarm.compiler.types.dtypes import FLOATS, DType
from tunefarm.compiler.types.tensor_type import TensorType

Shape = tuple[int, ...]


def _perm(attributes: Attributes, name: str, rank: int) -> Shape:
    """The order of an operand's axes; that in which it lies where none is given."""
    perm = attributes.integers(name) or tuple(range(rank))
    check(sorted(perm) == list(range(rank)), f"{name} {perm} is no order of {rank} axes")
    return perm


def _turned(shape: Shape, perm: Shape) -> Shape:
    return tuple(shape[axis] for axis in perm)


def _shapes(
    attributes: Attributes, query: Shape, key: Shape, value: Shape
) -> tuple[Shape, Shape, Shape]:
    """Query, key and value as stacks of matrices, in the order that the attributes say."""
    turned = [
        _turned(shape, _perm(attributes, name, len(shape)))
        for name, shape in (("query_perm", query), ("key_perm", key), ("value_perm", value))
    ]
    return turned[0], turned[1], turned[2]


def _infer(attributes: Attributes, types: Types) -> TensorType:
    operands = [types.present(position) for position in range(3)]
    check_dtype(operands[0], FLOATS)
    check_same_dtype(*operands)
    dtype = sum_dtype(attributes, *operands[:2])
    rank = len(operands[0].shape)
    check(
        rank >= 2 and all(len(type.shape) == rank for type in operands),
        "query, key and value need the same number of axes, at least the two of a matrix",
    )
    query, key, value = _shapes(attributes, *(type.shape for type in operands))
    check(query[-1] == key[-1], f"queries have {query[-1]} features and keys {key[-1]}")
    check(key[-2] == value[-2], f"there are {key[-2]} keys and {value[-2]} values")
    attributes.floating("scale")
    attributes.floating("masked")
    check(attributes.floating("softcap") >= 0, "softcap is negative")
    attributes.flag("zeroed")
    batch = broadcast_shapes(query[:-2], key[:-2], value[:-2])
    scores = (*batch, query[-2], key[-2])
    if attributes.integer("filled") >= 0:
        position = len(types) - 1 - attributes.flag("causal")
        check_sizes(attributes, types.present(position), "filled")
    if attributes.flag("causal"):
        bounds = types.present(len(types) - 1)
        fits = bounds.dtype is DType.I64 and bounds.shape in ((1,), (2,))
        check(fits, f"{bounds} is no bound of keys, nor two")
    end = _masks_end(attributes, len(types))
    if attributes.flag("sink"):
        sink, rows = types.present(end), (*scores[:-1], 1)
        check_dtype(sink, frozenset({dtype}))
        fits = broadcast_shapes(sink.shape, rows) == rows
        check(fits, f"the sink {sink} does not broadcast to the rows {list(rows)}")
    for position in range(3, end):
        mask = types.present(position)
        check(
            mask.dtype in (DType.BOOL, dtype),
            f"a mask has element type {mask.dtype}, not bool or that of the scores",
        )
        check(
            broadcast_shapes(mask.shape, scores) == scores,
            f"the mask {mask} does not broadcast to the scores {list(scores)}",
        )
    result = (*batch, query[-2], value[-1])
    return TensorType(dtype, _turned(result, _perm(attributes, "perm", rank)))


def _masks_end(attributes: Attributes, count: int) -> int:
    """The number of operands up to the last mask."""
    sizes = (attributes.integer("filled") >= 0) + attributes.flag("causal")
    return count - sizes - attributes.flag("sink")


def _element(tensor: Tensor, perm: Shape, indices: Sequence[Expr], shape: Shape) -> Expr:
    """The element at `indices` of a stack of this shape, once the tensor's axes are in order."""
    chosen: dict[int, Expr] = {}
    for axis, position, extent in zip(perm, indices, shape, strict=True):
        chosen[axis] = position if tensor.shape[axis] == extent else integer(0)
    return tensor[tuple(chosen[axis] for axis in range(len(perm)))]


def _attention(attributes: Attributes, use: Use) -> Tensor:
    query, key, value = (use.input(position) for position in range(3))
    rank = len(use.shape)
    perms = [_perm(attributes, name, rank) for name in ("query_perm", "key_perm", "value_perm")]
    shapes = _shapes(attributes, query.shape, key.shape, value.shape)
    batch = broadcast_shapes(*(shape[:-2] for shape in shapes))
    queries, keys, values = (shape[-2:] for shape in shapes)
    outer = axes_of(batch, "b")
    rows, columns = ("m", queries[0]), ("n", keys[0])
    builder = use.builder

    def term(*indices: Expr) -> Expr:
        *stack, m, n, k = indices
        return product(
            attributes,
            _element(query, perms[0], (*stack, m, k), (*batch, *queries)),
            _element(key, perms[1], (*stack, n, k), (*batch, *keys)),
        )

    scores = builder.stage(
        "scores", [*outer, rows, columns], term, reduce=[("k", queries[1])], combiner="sum"
    )
    is_key, zeroed = _keys(attributes, use), attributes.flag("zeroed")
    is_seen = _seen(attributes, use)
    masked = _masked(attributes, use, scores, [*outer, rows, columns], is_key)
    largest = builder.stage(
        "max", [*outer, rows], lambda *i: masked[i], reduce=[columns], combiner="max"
    )
    exponential = builder.stage(
        "exp",
        [*outer, rows, columns],
        lambda *i: weight_of(masked[i], largest[i[:-1]], zeroed),
    )
    total = builder.stage(
        "sum", [*outer, rows], lambda *i: exponential[i], reduce=[columns], combiner="sum"
    )
    order = _perm(attributes, "perm", rank)
    axes = [*outer, rows, ("d", values[1])]
    places = [order.index(axis) for axis in range(rank)]

    def weighted(*indices: Expr) -> Expr:
        *position, n = indices
        *stack, m, d = (position[place] for place in places)
        weight = exponential[(*stack, m, n)]
        element = cast(use.dtype, _element(value, perms[2], (*stack, n, d), (*batch, *values)))
        if is_key is not None:
            element = select(is_key(n), element, const(0, use.dtype))
        term = mul(weight, element)
        return term if is_seen is None else select(is_seen(m, n), term, const(0, use.dtype))

    products = builder.stage(
        "weighted", [axes[axis] for axis in order], weighted, reduce=[columns], combiner="sum"
    )

    def quotient(*position: Expr) -> Expr:
        row = tuple(position[place] for place in places[:-1])
        divisor = _divisor(attributes, use, row, total, largest)
        return mul(products[position], unary("reciprocal", divisor))

    return builder.stage("attention", [axes[axis] for axis in order], quotient)


def _divisor(
    attributes: Attributes, use: Use, row: tuple[Expr, ...], total: Tensor, largest: Tensor
) -> Expr:
    """The sum of a row's weights and that of its sink.

    The largest score of a row adds 1 to its sum, which is 0 only where weights are zeroed.
    """
    zeroed = attributes.flag("zeroed")
    divisor = binary("max", total[row], const(1, use.dtype)) if zeroed else total[row]
    if not attributes.flag("sink"):
        return divisor
    sink = use.input(_masks_end(attributes, len(use.inputs)))
    score = broadcast_load(sink, (*row, integer(0)), (*total.shape, 1))
    return add(divisor, weight_of(score, largest[row], zeroed))


IsKey: TypeAlias = Callable[[Expr], Expr]
"""Whether there is a key of this number."""

IsSeen: TypeAlias = Callable[[Expr, Expr], Expr]
"""Whether the query of a number sees the key of another one."""


def _keys(attributes: Attributes, use: Use) -> IsKey | None:
    """The keys, where they are dynamic."""
    number, since = attributes.integer("filled"), attributes.integer("since")
    if number < 0:
        return None
    sizes = use.input(len(use.inputs) - 1 - attributes.flag("causal"))
    return lambda key: is_within(key, sizes, number, since)


def _seen(attributes: Attributes, use: Use) -> IsSeen | None:
    """The keys that a query sees, where that is only some in front of it."""
    if not attributes.flag("causal"):
        return None
    bounds = use.input(len(use.inputs) - 1)
    since = 1 if bounds.shape[0] > 1 else -1
    return lambda query, key: is_within(sub(key, query), bounds, 0, since)


def _masked(
    attributes: Attributes,
    use: Use,
    scores: Tensor,
    axes: list[tuple[str, int]],
    is_key: IsKey | None,
) -> Tensor:
    """The scores with the scale and all masks, in the order of the inputs."""
    scale, outside = attributes.floating("scale"), attributes.floating("masked")
    softcap = attributes.floating("softcap")
    end = _masks_end(attributes, len(use.inputs))
    masks, is_seen = [use.input(position) for position in range(3, end)], _seen(attributes, use)
    if scale == 1.0 and not softcap and not masks and is_key is None and is_seen is None:
        return scores

    def body(*indices: Expr) -> Expr:
        score: Expr = scores[indices]
        if scale != 1.0:
            score = mul(score, const(scale, use.dtype))
        if softcap:
            score = mul(unary("tanh", score), const(softcap, use.dtype))
        for mask in masks:
            element = broadcast_load(mask, indices, scores.shape)
            if mask.dtype is DType.BOOL:
                score = select(element, score, const(outside, use.dtype))
            else:
                score = add(score, element)
        if is_key is not None:
            score = select(is_key(indices[-1]), score, const(-math.inf, use.dtype))
        if is_seen is not None:
            seen = is_seen(indices[-2], indices[-1])
            score = select(seen, score, const(-math.inf, use.dtype))
        return score

    return use.builder.stage("masked", axes, body)


def _work(attributes: Attributes, types: Types, result: TensorType) -> int:
    operands = (types.present(position).shape for position in range(3))
    query, key, value = _shapes(attributes, *operands)
    return result.size // value[-1] * key[-2] * (query[-1] + value[-1])


def _fits_tiles(attributes: Attributes, types: Types) -> bool:
    """Whether both products are in matrix tiles where factors are narrow: see `fits_tiles`."""
    if attributes.floating("softcap"):
        return False  # what is stored between scores and their largest no schedule knows
    operands = (types.present(position).shape for position in range(3))
    query, key, value = _shapes(attributes, *operands)
    return fits_tiles(query[-2], key[-2], query[-1], value[-1])


def _along(attributes: Attributes, types: Types, axis: int) -> Axes | None:
    """Rows of queries, each of which sees its keys whatever its number."""
    rank = len(types.present(0).shape)
    if _perm(attributes, "perm", rank)[axis] != rank - 2:
        return None
    rows = _perm(attributes, "query_perm", rank)[rank - 2]
    extent, end = types.present(0).shape[rows], _masks_end(attributes, len(types))
    found: list[int | None] = [None] * len(types)
    found[0] = rows
    for position in range(3, end + attributes.flag("sink")):
        shape = types.present(position).shape
        if len(shape) >= 2 and shape[-2] == extent:
            found[position] = len(shape) - 2
    return tuple(found)


define(
    "attention",
    Pattern.CONTRACTION,
    (3, None),
    _infer,
    _attention,
    {
        "query_perm": (),
        "key_perm": (),
        "value_perm": (),
        "perm": (),
        "scale": 1.0,
        "softcap": 0.0,
        "masked": -math.inf,
        "filled": -1,
        "since": -1,
        "causal": False,
        "zeroed": False,
        "sink": False,
        "accumulator": "",
    },
    along=_along,
    diagonal="causal",
    work=_work,
    factors=3,
    fits_tiles=_fits_tiles,
    ends_in_cast=True,
)
"""`attention(query, key, value, mask…)`. Where it is `causal` the last operand is a vector of one
bound or two: query m sees key n only if n - m is below the first, and not below the second. With
`filled` the operand before that is a vector of sizes, and keys from number `sizes[filled]` on, and
those before `sizes[since]` where that is not -1, are padding, and so are their values. Where it is
`zeroed`, weights that are NaN, as those of a query whose keys are all masked by -inf, are 0. With a
`softcap` scores are softcap * tanh(scale Q K') before masks. With a `sink` the operand behind the
masks is one more score of each row, that no value belongs to; where it is so much larger than the
others that its weight by them is infinite, theirs are 0.
"""
