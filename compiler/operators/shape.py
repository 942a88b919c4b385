"""Views, and operators that move elements without computing: transpose, concat, pad …"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.expr.nodes import Expr, add, all_of, binary, const, integer, select, sub
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.blocked import BLOCKED, BlockedForm, BlockedRule, BlockedUse, Shape
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Axes,
    OperatorDefinition,
    Pattern,
    Positions,
    define,
    register,
)
from tunefarm.compiler.operators.rules import (
    broadcast_load,
    broadcast_shapes,
    check,
    check_same_dtype,
    pad_stage,
)
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use, axes_of
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import (
    ONE,
    extent_of,
    is_unpadded,
    joined,
    regrouped,
    size_of,
    whole,
)
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

MOST_PIECES = 24
"""Of a concat of blocks that are not whole: each is code of its own."""
PAD_MODES = ("constant", "reflect", "edge", "wrap")


# --- views --------------------------------------------------------------------------------------


def _infer_identity(attributes: Attributes, types: Types) -> TensorType:
    return types.present(0)


def _infer_reshape(attributes: Attributes, types: Types) -> TensorType:
    type = types.present(0)
    result = TensorType(type.dtype, attributes.integers("shape"))
    check(
        result.size == type.size,
        f"{type.size} elements do not fit the shape {list(result.shape)} of {result.size}",
    )
    if type.padded is None:
        return result
    dims = regrouped(type.dims, result.shape)
    if dims is None:
        sizes = ", ".join(map(str, type.true_shape))
        raise ShapeError(f"[{sizes}] does not lie as {list(result.shape)} has it")
    return TensorType.of(type.dtype, dims)


def _infer_part(attributes: Attributes, types: Types) -> TensorType:
    type, offset = types.present(0), attributes.integer("offset")
    result = TensorType(type.dtype, attributes.integers("shape"))
    check(
        0 <= offset <= type.size - result.size,
        f"{type.size} elements have no part of {result.size} from {offset} on",
    )
    return result


def _infer_join(attributes: Attributes, types: Types) -> TensorType:
    parts = [types.present(position) for position in range(len(types))]
    check_same_dtype(*parts)
    result = TensorType(parts[0].dtype, attributes.integers("shape"))
    total = sum(part.size for part in parts)
    check(result.size == total, f"{total} elements do not fit the shape {list(result.shape)}")
    return result


def _copy(attributes: Attributes, use: Use) -> Tensor:
    data = use.input(0)
    return use.pointwise("copy", lambda indices: data[indices])


# --- transpose, concat -------------------------------------------------------------------


def _infer_transpose(attributes: Attributes, types: Types) -> TensorType:
    type, perm = types.present(0), attributes.integers("perm")
    check(
        sorted(perm) == list(range(len(type.shape))),
        f"perm {list(perm)} is no permutation of the {len(type.shape)} axes",
    )
    return TensorType.of(type.dtype, tuple(type.dims[axis] for axis in perm))


def _transpose(attributes: Attributes, use: Use) -> Tensor:
    data, perm = use.input(0), attributes.integers("perm")
    source = [perm.index(axis) for axis in range(len(perm))]
    return use.pointwise(
        "transpose", lambda indices: data[tuple(indices[position] for position in source)]
    )


def _turns_rows(attributes: Attributes) -> bool:
    perm = attributes.integers("perm")
    return bool(perm) and perm[-1] != len(perm) - 1


def _infer_concat(attributes: Attributes, types: Types) -> TensorType:
    """The parts' axis is whole: the importer has another form for one that is not."""
    parts = [types.present(position) for position in range(len(types))]
    first = parts[0]
    axis = attributes.axis("axis", len(first.shape))
    channels = attributes.integers("channels")
    check_same_dtype(*parts)
    shapes = " and ".join(str(list(part.shape)) for part in parts)
    differ = f"the shapes {shapes} differ outside axis {axis}"
    check(all(len(part.shape) == len(first.shape) for part in parts), differ)
    for position in range(len(parts)):
        types.require_whole(position, axis, "a part of a concatenation")
    extent = sum(part.shape[axis] for part in parts)
    if channels:
        block = first.shape[-1]
        blocks = [-(-count // block) for count in channels]
        fits = axis == 1 and blocks == [part.shape[1] for part in parts]
        check(fits and len(first.shape) == 5, f"{shapes} have no {list(channels)} channels")
        extent = -(-sum(channels) // block)
    dims = [whole(extent)] * len(first.shape)
    for other in range(len(dims)):
        if other != axis:
            places = ((position, other) for position in range(len(parts)))
            dims[other] = types.same(*places, otherwise=differ)
    return TensorType.of(first.dtype, tuple(dims))


def _concat(attributes: Attributes, use: Use) -> Tensor:
    parts = [use.input(position) for position in range(len(use.inputs))]
    axis = attributes.axis("axis", len(use.shape))
    channels = attributes.integers("channels")
    if channels:
        runs = _block_runs(channels, use.shape[-1])
        return use.pointwise("concat", lambda indices: _of_runs(parts, runs, indices, use.dtype))
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + part.shape[axis])

    def value(indices: tuple[Expr, ...]) -> Expr:
        def element(number: int) -> Expr:
            moved = list(indices)
            moved[axis] = sub(indices[axis], integer(offsets[number]))
            return parts[number][tuple(moved)]

        return _choice(indices[axis], offsets[:-1], element)

    return use.pointwise("concat", value)


def _choice(position: Expr, starts: Sequence[int], element: Callable[[int], Expr]) -> Expr:
    """The element of that of several ranges which a position is in, by the positions they start at.

    A balanced tree: the depth of nested selects grows with the logarithm of their number.
    """

    def choose(first: int, last: int) -> Expr:
        if last - first == 1:
            return element(first)
        middle = (first + last) // 2
        before = binary("lt", position, integer(starts[middle]))
        return select(before, choose(first, middle), choose(middle, last))

    return choose(0, len(starts))


@frozen
class _Piece:
    """Lanes of a block up to `end`, of a block of a part so many further, `shift` lanes further."""

    end: int
    part: int
    further: int
    shift: int


def _block_runs(channels: Sequence[int], block: int) -> list[tuple[int, tuple[_Piece, ...]]]:
    """What blocks of the joined channels consist of: the number of the block from which on they
    consist of these pieces."""
    starts = [0, *accumulate(channels)]
    runs: list[tuple[int, tuple[_Piece, ...]]] = []
    for number in range(-(-starts[-1] // block)):
        first, pieces = number * block, []
        at, end = first, min(first + block, starts[-1])
        while at < end:
            part = bisect_right(starts, at) - 1
            own, lane = divmod(at - starts[part], block)
            count = min(end - at, starts[part + 1] - at, block - lane)
            at += count
            pieces.append(_Piece(at - first, part, own - number, lane - (at - count - first)))
        if not runs or runs[-1][1] != tuple(pieces):
            runs.append((number, tuple(pieces)))
    return runs


def _of_runs(
    parts: Sequence[Tensor],
    runs: Sequence[tuple[int, tuple[_Piece, ...]]],
    indices: tuple[Expr, ...],
    dtype: DType,
) -> Expr:
    """The element of blocks of joined channels: of which run, and of which of its pieces."""
    image, number, *place, lane = indices

    def element(piece: _Piece) -> Expr:
        further, shift = add(number, integer(piece.further)), add(lane, integer(piece.shift))
        return parts[piece.part][image, further, *place, shift]

    def of_pieces(pieces: Sequence[_Piece]) -> Expr:
        full = pieces[-1].end == parts[0].shape[-1]
        result = element(pieces[-1]) if full else const(0, dtype)
        for piece in reversed(pieces[:-1] if full else pieces):
            result = select(binary("lt", lane, integer(piece.end)), element(piece), result)
        return result

    return _choice(number, [start for start, _ in runs], lambda run: of_pieces(runs[run][1]))


# --- expand, tile, trilu ------------------------------------------------------------------------


def _infer_expand(attributes: Attributes, types: Types) -> TensorType:
    """Padded axes stay; the importer says which of the new ones are padded."""
    type, shape = types.present(0), attributes.integers("shape")
    result = broadcast_shapes(type.shape, shape)
    dims = (ONE,) * (len(result) - len(type.shape)) + type.dims
    for given, extent in zip(dims, result, strict=True):
        if not is_unpadded(given) and extent != extent_of(given):
            raise ShapeError(f"an axis of {size_of(given)} does not expand to {extent}")
    return TensorType.of(
        type.dtype,
        tuple(
            whole(extent) if is_unpadded(given) else given
            for given, extent in zip(dims, result, strict=True)
        ),
    )


def _expand(attributes: Attributes, use: Use) -> Tensor:
    data = use.input(0)
    return use.pointwise("expand", lambda indices: broadcast_load(data, indices, use.shape))


def _infer_tile(attributes: Attributes, types: Types) -> TensorType:
    """Axes with padding are not repeated, or are outermost in what is: [repeats, axis]."""
    type, repeats = types.present(0), attributes.integers("repeats")
    check(
        len(repeats) == len(type.shape),
        f"repeats {list(repeats)} needs one entry for each of the {len(type.shape)} axes",
    )
    counted = zip(repeats, type.dims, strict=True)
    return TensorType.of(type.dtype, tuple(joined(((n, n), *given)) for n, given in counted))


def _tile(attributes: Attributes, use: Use) -> Tensor:
    data = use.input(0)

    def value(indices: tuple[Expr, ...]) -> Expr:
        return data[
            tuple(
                position if extent == old else binary("mod", position, integer(old))
                for position, extent, old in zip(indices, use.shape, data.shape, strict=True)
            )
        ]

    return use.pointwise("tile", value)


def _infer_trilu(attributes: Attributes, types: Types) -> TensorType:
    type = types.present(0)
    check(len(type.shape) >= 2, f"{type} is no matrix")
    attributes.flag("upper")
    attributes.integer("k")
    for axis in (-2, -1):  # rows and columns are counted
        types.require_in_one_piece(0, len(type.shape) + axis, "a triangle")
    return type


def _trilu(attributes: Attributes, use: Use) -> Tensor:
    data = use.input(0)
    keep = "ge" if attributes.flag("upper") else "le"
    diagonal = integer(attributes.integer("k"))

    def value(indices: tuple[Expr, ...]) -> Expr:
        kept = binary(keep, sub(indices[-1], indices[-2]), diagonal)
        return select(kept, data[indices], const(0, data.dtype))

    return use.pointwise("trilu", value)


# --- pad ----------------------------------------------------------------------------------------


def _infer_pad(attributes: Attributes, types: Types) -> TensorType:
    """Only whole axes get more elements here: the importer has another form for others."""
    type, pads = types.present(0), attributes.integers("pads")
    mode = attributes.choice("mode", PAD_MODES)
    attributes.number("value")
    rank = len(type.shape)
    check(len(pads) == 2 * rank, f"pads {list(pads)} needs two entries for each of the {rank} axes")
    fill = types.optional(1)
    if fill is not None:
        check(mode == "constant", f"mode {mode} takes no value input")
        check_same_dtype(type, fill)
        check(fill.size == 1, f"the value must be a scalar, not {fill}")
    dims = list(type.dims)
    for axis, (begin, end) in enumerate(zip(pads[:rank], pads[rank:], strict=True)):
        if begin or end:
            types.require_whole(0, axis, "an axis that is padded")
            dims[axis] = whole(type.shape[axis] + begin + end)
    return TensorType.of(type.dtype, tuple(dims))


def _pad(attributes: Attributes, use: Use) -> Tensor:
    data, fill = use.input(0), use.optional(1)
    begins = attributes.integers("pads")[: len(use.shape)]
    mode = attributes.choice("mode", PAD_MODES)

    def value(indices: tuple[Expr, ...]) -> Expr:
        guards: list[Expr] = []
        source: list[Expr] = []
        for axis, begin in enumerate(begins):
            old, extent = data.shape[axis], use.shape[axis]
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
        outside: Expr = const(attributes.number("value"), data.dtype)
        if fill is not None:
            outside = fill[tuple(integer(0) for _ in fill.shape)]
        return select(all_of(*guards), element, outside)

    return use.pointwise("pad", value)


def _pad_positions(attributes: Attributes) -> Positions:
    return Positions.PLAIN if attributes["mode"] == "constant" else Positions.DIVIDED


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


def _blocked_concat(use: BlockedUse) -> BlockedForm | None:
    """Blocks one after the other, or planes of them side by side.

    Blocks that are not whole are put together of pieces, unless of many.
    """
    types = [use.types.present(position) for position in range(len(use.types))]
    axis = use.attributes.integer("axis")
    if all(map(use.is_whole, types)):
        return BlockedForm(BLOCKED, 0.0) if axis in range(1, len(use.result.shape)) else None
    if axis != 1 or len(use.result.shape) != 4:
        return None
    runs = _block_runs([type.shape[1] for type in types], use.block)
    pieces = sum(len(pieces) for _, pieces in runs)
    return BlockedForm(BLOCKED, 0.0, copies=True) if pieces <= MOST_PIECES else None


def _channels_of_blocks(
    attributes: Attributes, shapes: Sequence[Shape], block: int
) -> dict[str, Attribute]:
    channels = tuple(shape[1] for shape in shapes)
    in_pieces = attributes["axis"] == 1 and any(count % block for count in channels)
    return {"channels": channels} if in_pieces else {}


def _blocked_pad(use: BlockedUse) -> BlockedForm | None:
    """Around the plane; lanes that pad channels have the value already, or there are none."""
    pads, lane = use.attributes.integers("pads"), use.lanes[0]
    moves_channels = len(pads) != 8 or any(pads[axis] for axis in (0, 1, 4, 5))
    if lane is None or moves_channels or use.attributes["mode"] != "constant":
        return None
    is_same = use.types.optional(1) is None and use.attributes.number("value") == lane
    return BlockedForm(BLOCKED, lane) if is_same or use.is_whole(use.result) else None


def _pads_of_blocks(
    attributes: Attributes, shapes: Sequence[Shape], block: int
) -> dict[str, Attribute]:
    pads = attributes.integers("pads")
    return {"pads": (*pads[:4], 0, *pads[4:], 0)}


def _along_same(attributes: Attributes, types: Types, axis: int) -> Axes | None:
    """The axis of the same extent with as many elements outside."""
    before, after = types.present(0).shape, attributes.integers("shape")
    outside = prod(after[:axis])
    alike = (
        source
        for source, extent in enumerate(before)
        if extent == after[axis] and prod(before[:source]) == outside
    )
    found = next(alike, None)
    return None if found is None else (found,)


register(
    OperatorDefinition("identity", Pattern.VIEW, 1, _infer_identity, None, dynamic=True),
    OperatorDefinition(
        "reshape",
        Pattern.VIEW,
        1,
        _infer_reshape,
        None,
        {"shape": REQUIRED},
        along=_along_same,
        identity_if_same_type=True,
        dynamic=True,
    ),
    # What `tunefarm.compiler.plan.share_memory` makes of slices and concats.
    OperatorDefinition(
        "part",
        Pattern.VIEW,
        1,
        _infer_part,
        None,
        {"offset": REQUIRED, "shape": REQUIRED},
    ),
    OperatorDefinition(
        "join",
        Pattern.JOIN,
        (1, None),
        _infer_join,
        None,
        {"shape": REQUIRED},
    ),
)
define("copy", Pattern.INJECTIVE, 1, _infer_identity, _copy, cheap=True, passes=1, dynamic=True)
define(
    "transpose",
    Pattern.INJECTIVE,
    1,
    _infer_transpose,
    _transpose,
    {"perm": REQUIRED},
    cheap=True,
    passes=1,
    turns=_turns_rows,
    along=lambda attributes, types, axis: (attributes.integers("perm")[axis],),
    dynamic=True,
)
define(
    "concat",
    Pattern.INJECTIVE,
    (1, None),
    _infer_concat,
    _concat,
    {"axis": REQUIRED, "channels": ()},
    cheap=True,
    passes=1,
    blocked=BlockedRule(_blocked_concat, joins=True, adapted=_channels_of_blocks),
    piecewise=True,
    dynamic=True,
)
define(
    "expand",
    Pattern.INJECTIVE,
    1,
    _infer_expand,
    _expand,
    {"shape": REQUIRED},
    cheap=True,
    identity_if_same_type=True,
    dynamic=True,
)
define(
    "tile",
    Pattern.INJECTIVE,
    1,
    _infer_tile,
    _tile,
    {"repeats": REQUIRED},
    cheap=True,
    identity_if_same_type=True,
    positions=Positions.DIVIDED,
    dynamic=True,
)
define(
    "trilu",
    Pattern.INJECTIVE,
    1,
    _infer_trilu,
    _trilu,
    {"upper": True, "k": 0},
    cheap=True,
    passes=1,
    piecewise=True,
    dynamic=True,
)
define(
    "pad",
    Pattern.INJECTIVE,
    (1, 2),
    _infer_pad,
    _pad,
    {"pads": REQUIRED, "mode": "constant", "value": 0.0},
    cheap=True,
    blocked=BlockedRule(_blocked_pad, adapted=_pads_of_blocks),
    positions=_pad_positions,
    piecewise=True,
    dynamic=True,
)


# --- border --------------------------------------------------------------------------------------
#
# A border of one value around the plane of data [N, C, spatial...], blocked or not. Convolutions
# assume zeros outside of their data, and leave out products with them. Quantised data has its zero
# point there, which is a product like any other: so it is written.


def _infer_border(attributes: Attributes, types: Types) -> TensorType:
    data, pads = types.present(0), attributes.integers("pads")
    rank = len(pads) // 2
    check(len(pads) % 2 == 0 and min(pads, default=0) >= 0, f"pads {list(pads)} are no border")
    check(2 + rank <= len(data.shape), f"{data} has no {rank} spatial axes")
    check(data.dtype.is_integer, f"{data} is no quantised data")
    least, most = data.dtype.limits
    value = attributes.integer("value")
    check(least <= value <= most, f"the value {value} is none of {data.dtype}")
    spatial = data.shape[2 : 2 + rank]
    padded = (sum(item) for item in zip(spatial, pads[:rank], pads[rank:], strict=True))
    return TensorType(data.dtype, (*data.shape[:2], *padded, *data.shape[2 + rank :]))


def _border(attributes: Attributes, use: Use) -> Tensor:
    data, pads = use.input(0), attributes.integers("pads")
    begins = [0, 0, *pads[: len(pads) // 2], *(0 for _ in use.shape[2 + len(pads) // 2 :])]
    names = [name for name, _ in axes_of(use.shape)]
    value = const(attributes.integer("value"), use.dtype)
    return pad_stage(use.builder, data, names, begins, use.shape, value)


def _blocked_border(use: BlockedUse) -> BlockedForm | None:
    """Where channels are padded, their lanes have the border's value already."""
    lane, value = use.lanes[0], use.attributes.integer("value")
    if lane is None or len(use.result.shape) != 4:
        return None
    return BlockedForm(BLOCKED, lane) if lane == value or use.is_whole(use.result) else None


define(
    "border",
    Pattern.INJECTIVE,
    1,
    _infer_border,
    _border,
    {"pads": REQUIRED, "value": REQUIRED},
    cheap=True,
    passes=1,
    blocked=BlockedRule(_blocked_border),
)
