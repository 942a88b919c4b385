"""Winograd's minimal filtering as a rewrite of a blocked 3x3 convolution.

Y = A^T [(G g G^T) * (B^T d B)] A over tiles of m x m outputs (Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", 2016, sections 4.1 to 4.3): (m + 2)^2 small matrix products instead
of 9 m^2 multiply-adds per output, at the price of the transforms and of some rounding.

Narrow floats that are summed in f32 are converted first: the data where it is padded, the filter
when it is transformed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Select,
    add,
    all_of,
    binary,
    cast,
    const,
    index,
    integer,
    mul,
    select,
    unary,
)
from tunefarm.compiler.expr.parts import conjuncts
from tunefarm.compiler.expr.walk import postorder
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.numerics import is_narrow

Matrix = tuple[tuple[Fraction, ...], ...]


def _matrix(text: str) -> Matrix:
    return tuple(tuple(Fraction(item) for item in row.split()) for row in text.strip().split("\n"))


@frozen
class Transforms:
    """The matrices of F(m, 3): data [m+2, m+2], output [m, m+2]; `types.winograd_filter` has that
    of the filter."""

    data: Matrix
    output: Matrix


TRANSFORMS = {
    2: Transforms(
        _matrix("1 0 -1 0\n0 1 1 0\n0 -1 1 0\n0 1 0 -1"),
        _matrix("1 1 1 0\n0 1 -1 -1"),
    ),
    4: Transforms(
        _matrix(
            "4 0 -5 0 1 0\n0 -4 -4 1 1 0\n0 4 -4 -1 1 0\n0 -2 -1 2 1 0\n0 2 -1 -2 1 0\n0 4 0 -5 0 1"
        ),
        _matrix("1 1 1 1 1 0\n0 1 -1 2 -2 0\n0 1 1 4 4 0\n0 1 -1 8 -8 1"),
    ),
}


@frozen
class BlockedConv:
    """A convolution on blocked data by its parts, whatever its axes are called.

    The operands may be narrower than the sums, which are f32.
    """

    n: Axis
    ocb: Axis
    oh: Axis
    ow: Axis
    oci: Axis
    icb: Axis
    ici: Axis
    data: Load
    weight: Load
    block: int  # channels of one of the data
    inputs: int  # channels that the filter has, with or without those that pad the last block


def blocked_conv(kernel: FusedKernel) -> BlockedConv | None:
    """The anchor's parts if it is a blocked f32 convolution that Winograd's form exists for.

    3x3, stride 1, one group, constant weights; else None.
    """
    anchor = kernel.stage(kernel.anchor)
    if (len(anchor.axes), len(anchor.reduce_axes)) != (5, 4):
        return None
    if anchor.dtype is not DType.F32 or anchor.accumulates is not DType.F32:
        return None
    (n, ocb, oh, ow, oci), (icb, ici, kh, kw) = anchor.axes, anchor.reduce_axes
    guard, term = _guarded(anchor.body)
    factors = _factors(term)
    if (kh.extent, kw.extent) != (3, 3) or factors is None:
        return None
    data, weight = factors
    taps = (binary("add", index(a.name), index(tap.name)) for a, tap in ((oh, kh), (ow, kw)))
    plain = (index(n.name), index(icb.name), *taps, index(ici.name))
    shapes = {buffer.name: buffer.shape for buffer in kernel.inputs}
    shapes |= {stage.name: stage.shape for stage in kernel.stages}
    block = shapes[data.buffer][-1]
    channels = [
        add(mul(index(blocks.name), integer(lanes)), index(lane.name))
        for blocks, lane, lanes in ((ocb, oci, oci.extent), (icb, ici, block))
    ]
    packed = (*channels, index(kh.name), index(kw.name))
    constant = {buffer.name for buffer in kernel.inputs if buffer.constant}
    if data.indices != plain or weight.indices != packed or weight.buffer not in constant:
        return None
    inputs = kernel.buffer(weight.buffer).shape[1]
    if guard not in (None, binary("lt", channels[1], integer(inputs))):
        return None
    found = BlockedConv(n, ocb, oh, ow, oci, icb, ici, data, weight, block, inputs)
    return None if plane_ends(kernel, found) is None else found


def plane_ends(kernel: FusedKernel, conv: BlockedConv) -> dict[str, list[tuple[Expr, int]]] | None:
    """By axis of a plane the sizes, and what is added to them, beyond which nothing is needed.

    From the limits, and from what fills the result; None where one is about parts of a plane. A
    size may count several rows or columns at once, as those that a pool of stride 2 reads.
    """
    shape = kernel.output.shape
    axes = [axis.name for axis in kernel.output.axes]
    ends: dict[str, list[tuple[Expr, int]]] = {conv.oh.name: [], conv.ow.name: []}
    named = dict(zip(axes[2:4], ends.values(), strict=False))
    body = kernel.output.body
    while isinstance(body, Select):
        for part in conjuncts(body.condition):
            match part:
                case Binary(op="lt", left=Index(name=name), right=Load() as size) if name in named:
                    named[name].append((size, 0))
        body = body.then
    filled = sum(map(len, ends.values()))
    stages = kernel.stages[[s.name for s in kernel.stages].index(kernel.anchor) + 1 :]
    if filled != sum(_compares_sizes(node) for s in stages for node in postorder(s.body)):
        return None
    for limit in kernel.limits:
        if limit.stride % math.prod(shape[2:]) == 0:
            continue  # of images or channels
        if shape != kernel.stage(kernel.anchor).shape:
            return None
        size = Load(DType.I64, limit.sizes, (integer(limit.number),))
        for position in (2, 3):
            inner = math.prod(shape[position + 1 :])
            together, rest = divmod(limit.stride, inner)
            if not rest and together * limit.extent == shape[position]:
                end = mul(size, integer(together)) if together > 1 else size
                named[axes[position]].append((end, together * limit.offset))
                break
        else:
            return None
    return ends


def ends_within_planes(kernel: FusedKernel) -> bool:
    """Whether rows or columns of a blocked convolution's result end at run time.

    Then its tiles stay in rows, each of which has as many as there are columns.
    """
    conv = blocked_conv(kernel)
    ends = None if conv is None else plane_ends(kernel, conv)
    return ends is not None and any(ends.values())


def _compares_sizes(node: Expr) -> bool:
    """Whether a node compares a position with a size."""
    match node:
        case Binary(op="lt", right=Load(dtype=DType.I64, indices=(Const(),))):
            return True
    return False


def _guarded(body: Expr) -> tuple[Expr | None, Expr]:
    """The condition under which there is a term, None for always, and the term."""
    if isinstance(body, Select) and body.otherwise == const(0, body.dtype):
        return body.condition, body.then
    return None, body


def _factors(body: Expr) -> tuple[Load, Load] | None:
    """Data and weight of a body data * weight, converted from narrow floats or not."""
    if not isinstance(body, Binary) or body.op != "mul":
        return None
    data, weight = (_unconverted(side) for side in (body.left, body.right))
    if not isinstance(data, Load) or not isinstance(weight, Load) or data.dtype != weight.dtype:
        return None
    return data, weight


def _unconverted(factor: Expr) -> Expr:
    """A narrow float before it is converted to f32; any other factor as it is."""
    if isinstance(factor, Cast) and is_narrow(factor.operand.dtype):
        return factor.operand
    return factor


def apply_winograd(kernel: FusedKernel, m: int, *, in_rows: bool = False) -> FusedKernel:
    """The same kernel with its convolution in Winograd's form.

    The anchor becomes the stages `data.rows`, `data.both` (transformed data), `products`,
    `output.rows` and, under its own name, the transformed-back output. Tiles are numbered along one
    axis, or along two if `in_rows` and where a plane ends at run time. The weight input becomes the
    transformed filter [m+2, m+2, OC, IC]. The anchor of the result is `products`.
    """
    if m not in TRANSFORMS:
        raise ScheduleError(f"no Winograd transform F({m}, 3)")
    conv = blocked_conv(kernel)
    if conv is None:
        raise ScheduleError("Winograd needs a blocked 3x3 convolution of stride 1")
    anchor = kernel.stage(kernel.anchor)
    position = [stage.name for stage in kernel.stages].index(anchor.name)
    before, source = _padded_to_tiles(kernel, conv, m, position)
    stages = _stages(anchor, source, conv, m, in_rows or ends_within_planes(kernel))
    weight = kernel.buffer(conv.weight.buffer)
    outputs, channels = weight.shape[:2]
    inputs = tuple(
        replace(buffer, shape=(m + 2, m + 2, outputs, channels), dtype=anchor.dtype)
        if buffer.name == weight.name
        else buffer
        for buffer in kernel.inputs
    )
    return replace(
        kernel,
        inputs=inputs,
        stages=(*before, *stages, *kernel.stages[position + 1 :]),
        anchor="products",
    )


def _padded_to_tiles(
    kernel: FusedKernel, conv: BlockedConv, m: int, position: int
) -> tuple[tuple[Stage, ...], str]:
    """The stages before the anchor, and the one with its data, which covers whole tiles."""
    data = conv.data.buffer
    need = [-(-axis.extent // m) * m + 2 for axis in (conv.oh, conv.ow)]
    limits = plane_ends(kernel, conv) or {}
    ends = [limits.get(axis.name, []) for axis in (conv.oh, conv.ow)]
    before = kernel.stages[:position]
    for stage in before:
        if stage.name == data:
            plane = [axis.name for axis in stage.axes[2:4]]
            body = stage.body
            if [stage.shape[2], stage.shape[3]] != need:
                body = _zero_outside(body, plane, stage.shape[2:4])
            body = _zero_behind(body, plane, ends)
            axes = (*stage.axes[:2], *map(Axis, plane, need), stage.axes[4])
            grown = replace(stage, axes=axes, body=_as_summed(body))
            return tuple(grown if other is stage else other for other in before), data
    shape = kernel.buffer(data).shape
    names = ["n", "icb", "ih", "iw", "ici"]
    load = Load(conv.data.dtype, data, tuple(index(name) for name in names))
    axes = tuple(
        Axis(name, extent)
        for name, extent in zip(names, (*shape[:2], *need, shape[4]), strict=True)
    )
    body = _zero_behind(_zero_outside(load, ["ih", "iw"], shape[2:4]), ["ih", "iw"], ends)
    return (*before, Stage("pad", axes, (), "", _as_summed(body))), "pad"


def _as_summed(body: Expr) -> Expr:
    """Data in the type of the sums."""
    return cast(DType.F32, body) if is_narrow(body.dtype) else body


def _zero_outside(body: Expr, names: Sequence[str], extents: Sequence[int]) -> Expr:
    conditions = [
        Binary(DType.BOOL, "lt", index(name), integer(extent))
        for name, extent in zip(names, extents, strict=True)
    ]
    both = Binary(DType.BOOL, "and", conditions[0], conditions[1])
    return select(both, body, const(0, body.dtype))


def _zero_behind(
    body: Expr, names: Sequence[str], ends: Sequence[Sequence[tuple[Expr, int]]]
) -> Expr:
    """The data with zeros where no window that is needed reads it.

    A tile's results are sums of all of its data, of which what is not needed may be NaN.
    """
    inside = [
        binary("lt", add(index(name), integer(-offset - 2)), size)
        for name, sizes in zip(names, ends, strict=True)
        for size, offset in sizes
    ]
    if not inside:
        return body
    zero = const(0, body.dtype)
    if isinstance(body, Select) and body.otherwise == zero:  # one condition for all lanes
        return select(all_of(*inside, body.condition), body.then, zero)
    return select(all_of(*inside), body, zero)


def combination(row: Sequence[Fraction], term: Callable[[int], Expr]) -> Expr:
    """sum of row[i] * term(i), without the zeros and without multiplications by one."""
    result: Expr | None = None
    for i, factor in enumerate(row):
        if factor == 0:
            continue
        value = term(i)
        if result is None:
            result = _scaled(value, factor)
        elif factor == -1:
            result = binary("sub", result, value)
        else:
            result = add(result, _scaled(value, factor))
    assert result is not None
    return result


def _scaled(value: Expr, factor: Fraction) -> Expr:
    if factor == 1:
        return value
    if factor == -1:
        return unary("neg", value)
    return mul(value, Const(value.dtype, float(factor)))


def _rows(matrix: Matrix, row: Expr, term: Callable[[int], Expr]) -> Expr:
    """The combination that the index `row` selects; unrolled, that is decided at compile time."""
    result = combination(matrix[-1], term)
    for i in range(len(matrix) - 2, -1, -1):
        condition = Binary(DType.BOOL, "eq", row, integer(i))
        result = select(condition, combination(matrix[i], term), result)
    return result


# Long: five stages, each with the closure that reads the one before.
def _stages(
    anchor: Stage, source: str, conv: BlockedConv, m: int, by_rows_of_tiles: bool
) -> tuple[Stage, ...]:
    transforms, size = TRANSFORMS[m], m + 2
    extents = {name: getattr(conv, name).extent for name in ("n", "ocb", "oci", "icb", "ici")}
    rows, columns = -(-conv.oh.extent // m), -(-conv.ow.extent // m)
    dtype = anchor.dtype
    n, icb, th, tw, x, y, ici = (index(i) for i in ("n", "icb", "th", "tw", "x", "y", "ici"))
    ocb, oci, p = (index(i) for i in ("ocb", "oci", "p"))
    tiles, tile_axes = ((th, tw), "th tw") if by_rows_of_tiles else ((index("t"),), "t")
    extents |= {"th": rows, "tw": columns, "t": rows * columns, "x": size, "y": size, "p": m}
    extents["ici"] = conv.block  # of the data, of which the filter may have fewer

    def axes(names: str) -> tuple[Axis, ...]:
        return tuple(Axis(name, extents[name]) for name in names.split())

    def pixel(i: int) -> Expr:
        row = add(mul(th, integer(m)), integer(i))
        column = add(mul(tw, integer(m)), y)
        return Load(dtype, source, (n, icb, row, column, ici))

    by_rows = Stage(
        "data.rows", axes("n icb th tw x y ici"), (), "", _rows(transforms.data, x, pixel)
    )

    def row_result(j: int) -> Expr:
        return Load(dtype, "data.rows", (n, icb, th, tw, x, integer(j), ici))

    both = Stage(
        "data.both", axes("n x y icb th tw ici"), (), "", _rows(transforms.data, y, row_result)
    )
    position: tuple[Expr, ...] = tiles
    if not by_rows_of_tiles:
        position = tuple(binary(op, tiles[0], integer(columns)) for op in ("floordiv", "mod"))
    oc = add(mul(ocb, integer(conv.oci.extent)), oci)
    ic = add(mul(icb, integer(conv.block)), ici)
    term = mul(
        Load(dtype, "data.both", (n, x, y, icb, *position, ici)),
        Load(dtype, conv.weight.buffer, (x, y, oc, ic)),
    )
    guard, _ = _guarded(anchor.body)
    if guard is not None:
        term = select(binary("lt", ic, integer(conv.inputs)), term, const(0, dtype))
    summed = (Axis("icb", conv.icb.extent), Axis("ici", conv.ici.extent))
    products = Stage("products", axes(f"n x y ocb {tile_axes} oci"), summed, "sum", term)

    def product(i: int) -> Expr:
        return Load(dtype, "products", (n, integer(i), y, ocb, *tiles, oci))

    names = f"n ocb {tile_axes} p y oci"
    output_rows = Stage("output.rows", axes(names), (), "", _rows(transforms.output, p, product))
    image, block, oh, ow, lane = (index(axis.name) for axis in anchor.axes)
    tile = tuple(binary("floordiv", place, integer(m)) for place in (oh, ow))
    if not by_rows_of_tiles:
        tile = (add(mul(tile[0], integer(columns)), tile[1]),)

    def output_row(j: int) -> Expr:
        inside = binary("mod", oh, integer(m))
        return Load(dtype, "output.rows", (image, block, *tile, inside, integer(j), lane))

    back = _rows(transforms.output, binary("mod", ow, integer(m)), output_row)
    final = Stage(anchor.name, anchor.axes, (), "", back)
    return by_rows, both, products, output_rows, final
