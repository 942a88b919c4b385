"""Channels and pixels that change places in blocks: depth to space and back, channel shuffle.

A block of rows and columns times the channels behind it is what depth consists of, in an `order`
with the outermost first: of (y, x) within the block and the channel c, "yxc" is what ONNX calls
DCR, "cyx" what it calls CRD (torch's pixel shuffle), "xyc" the order of YOLO's focus.

With `split` the data has an axis for each of these parts and is turned: a kernel of its own takes
blocks of it. Else elements are read where they are, so that what is next to them shares the kernel.
"""

from __future__ import annotations

from collections.abc import Callable

from tunefarm.compiler.expr.nodes import Expr, add, binary, integer, mul
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Pattern,
    Positions,
    Required,
    Transpose,
    TransposeRule,
    define,
)
from tunefarm.compiler.operators.rules import check
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

ORDERS = ("yxc", "cyx", "xyc")
NEAR_STEP = 3  # between pixels of a vector: a few shuffles pick them
NEAR_BLOCK = 4  # of pixels from as many channels that make a vector
_Indices = tuple[Expr, ...]


# --- depth to space, space to depth -------------------------------------------------------------


def _block(attributes: Attributes, type: TensorType) -> int:
    attributes.choice("order", ORDERS)
    block = attributes.integer("block")
    check(len(type.shape) == 4, f"the data must have the axes N, C, H, W, not {type}")
    check(block >= 1, f"the block must be at least 1, not {block}")
    return block


def _parts(attributes: Attributes, channels: int) -> list[tuple[str, int]]:
    """What depth consists of, the outermost first, with the extents."""
    order, block = attributes.choice("order", ORDERS), attributes.integer("block")
    return [(part, channels if part == "c" else block) for part in order]


def _depth_to_space_turn(attributes: Attributes, type: TensorType) -> Transpose:
    block = _block(attributes, type)
    batch, depth, rows, columns = type.shape
    check(depth % block**2 == 0, f"{depth} channels are no blocks of {block} x {block}")
    parts = _parts(attributes, depth // block**2)
    split = (batch, *(extent for _, extent in parts), rows, columns)
    result = (batch, depth // block**2, rows * block, columns * block)
    return Transpose(split, _depth_to_space_perm(attributes, 6), result, block <= NEAR_BLOCK)


def _depth_to_space_perm(attributes: Attributes, rank: int) -> tuple[int, ...]:
    order = attributes.choice("order", ORDERS)
    c, y, x = (1 + order.index(part) for part in "cyx")
    return 0, c, 4, y, 5, x


def _space_to_depth_turn(attributes: Attributes, type: TensorType) -> Transpose:
    block = _block(attributes, type)
    batch, channels, rows, columns = type.shape
    whole = rows % block == 0 and columns % block == 0
    check(whole, f"{rows} x {columns} pixels are no blocks of {block} x {block}")
    split = (batch, channels, rows // block, block, columns // block, block)
    result = (batch, channels * block**2, rows // block, columns // block)
    return Transpose(split, _space_to_depth_perm(attributes, 6), result, block <= NEAR_STEP)


def _space_to_depth_perm(attributes: Attributes, rank: int) -> tuple[int, ...]:
    places = {"c": 1, "y": 3, "x": 5}
    return 0, *(places[part] for part in attributes.choice("order", ORDERS)), 2, 4


def _depth_to_space(attributes: Attributes, data: Tensor, indices: _Indices) -> Expr:
    block = integer(attributes.integer("block"))
    batch, channel, row, column = indices
    places = {"c": channel, "y": binary("mod", row, block), "x": binary("mod", column, block)}
    depth: Expr | None = None
    for part, extent in _parts(attributes, data.shape[1] // attributes.integer("block") ** 2):
        outer = None if depth is None else mul(depth, integer(extent))
        depth = places[part] if outer is None else add(outer, places[part])
    assert depth is not None
    row, column = (binary("floordiv", place, block) for place in (row, column))
    return data[batch, depth, row, column]


def _space_to_depth(attributes: Attributes, data: Tensor, indices: _Indices) -> Expr:
    block = integer(attributes.integer("block"))
    batch, depth, row, column = indices
    (outermost, _), *inner = _parts(attributes, data.shape[1])
    places: dict[str, Expr] = {}
    for part, extent in reversed(inner):
        places[part] = binary("mod", depth, integer(extent))
        depth = binary("floordiv", depth, integer(extent))
    places[outermost] = depth
    row, column = (add(mul(a, block), places[b]) for a, b in ((row, "y"), (column, "x")))
    return data[batch, places["c"], row, column]


# --- channel shuffle ----------------------------------------------------------------------------


def _channel_shuffle_turn(attributes: Attributes, type: TensorType) -> Transpose:
    groups = attributes.integer("groups")
    check(len(type.shape) >= 2, f"the data must have the axes N and C, not {type}")
    batch, channels, *rest = type.shape
    check(groups >= 1 and channels % groups == 0, f"{channels} channels are no {groups} groups")
    split = (batch, groups, channels // groups, *rest)
    return Transpose(split, _channel_shuffle_perm(attributes, len(split)), type.shape)


def _channel_shuffle_perm(attributes: Attributes, rank: int) -> tuple[int, ...]:
    return 0, 2, 1, *range(3, rank)


def _channel_shuffle(attributes: Attributes, data: Tensor, indices: _Indices) -> Expr:
    """The first channel of each group, then the second ones (Zhang et al., arXiv:1707.01083)."""
    groups = integer(attributes.integer("groups"))
    members = integer(data.shape[1] // attributes.integer("groups"))
    batch, channel, *places = indices
    group, member = binary("mod", channel, groups), binary("floordiv", channel, groups)
    return data[(batch, add(mul(group, members), member), *places)]


# --- registration -------------------------------------------------------------------------------

_Perm = Callable[[Attributes, int], tuple[int, ...]]
_Element = Callable[[Attributes, Tensor, _Indices], Expr]


def _register(
    name: str, turn: TransposeRule, perm: _Perm, element: _Element, **given: Attribute | Required
) -> None:
    """Register the operator whose result has the `element` of its data; `turn` is what `split`
    splits and turns, in the order `perm` of so many axes."""

    def infer(attributes: Attributes, types: Types) -> TensorType:
        type = types.present(0)
        if not attributes.flag("split"):
            return TensorType(type.dtype, turn(attributes, type).result)
        order = perm(attributes, len(type.shape))
        fits = sorted(order) == list(range(len(type.shape)))
        check(fits, f"{type} does not have the axes of data that is split")
        return TensorType(type.dtype, tuple(type.shape[axis] for axis in order))

    def expression(attributes: Attributes, use: Use) -> Tensor:
        data = use.input(0)
        if not attributes.flag("split"):
            return use.pointwise(name, lambda indices: element(attributes, data, indices))
        order = perm(attributes, len(use.shape))
        source = [order.index(axis) for axis in range(len(order))]
        return use.pointwise("transpose", lambda i: data[tuple(i[place] for place in source)])

    def positions(attributes: Attributes) -> Positions:
        return Positions.PLAIN if attributes.flag("split") else Positions.DIVIDED

    define(
        name,
        Pattern.INJECTIVE,
        1,
        infer,
        expression,
        {**given, "split": False},
        cheap=True,
        passes=1,
        positions=positions,
        transpose=turn,
    )


_register(
    "depth_to_space",
    _depth_to_space_turn,
    _depth_to_space_perm,
    _depth_to_space,
    block=REQUIRED,
    order=ORDERS[0],
)
_register(
    "space_to_depth",
    _space_to_depth_turn,
    _space_to_depth_perm,
    _space_to_depth,
    block=REQUIRED,
    order=ORDERS[0],
)
_register(
    "channel_shuffle",
    _channel_shuffle_turn,
    _channel_shuffle_perm,
    _channel_shuffle,
    groups=REQUIRED,
)
