"""AffineGrid, GridSample, RoiAlign and DeformConv: tables of taps, and sums of data at them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tunefarm.compiler.frontend.converter import converter, dynamic_operand
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers, vector
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import as_whole, compacted, in_one_piece, taken
from tunefarm.compiler.frontend.operators.resize_taps import edge_extended
from tunefarm.compiler.frontend.operators.windows import window_attributes
from tunefarm.compiler.frontend.settle import declared, require
from tunefarm.compiler.operators.sample import MOST_TAPS
from tunefarm.compiler.types.dtypes import FLOATS
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import is_unpadded, size_of, whole
from tunefarm.compiler.types.sizes import Dimension, bounds_of, divide, static_shape
from tunefarm.compiler.types.tensor_type import Array, Attribute

# --- Samples of data with dynamic spatial sizes --------------------------------------------------
#
# Tables of taps are made for the data as it is padded. What lies behind the true size is made what
# the mode of padding has there, or places are moved so that it is not read.


_BESIDE = 2  # elements at each end that samples inside of data may read
_FAR = -2.0  # outside of data whatever its size is


def spatial_sizes(data: Value) -> tuple[Dimension, ...]:
    """The true sizes of the axes behind batch and channels."""
    return tuple(size_of(axis) for axis in data.dims[2:])


def spread_behind(data: Value, padding: str, graph: GraphBuilder) -> Value:
    """The data, of whose spatial axes that are padded all is there: zeros, or the last element."""
    for axis in range(2, data.rank):
        if is_unpadded(data.dims[axis]):
            continue
        if len(data.dims[axis]) > 1:
            data = compacted(data, graph)
        if padding == "zeros":
            data = as_whole(graph.padded.filled(data, axis, "zero"), axis, graph)
        else:
            data = edge_extended(data, axis, graph)
    return data


def left_out(places: Value, sizes: Sequence[Dimension], graph: GraphBuilder) -> Value:
    """Places [..., axes], those more than one element behind the data moved far in front of it.

    Nearer ones are at the last element: of two taps with a share each the largest is another.
    """
    if static_shape(sizes) is not None:
        return places
    ends, own = Numbers(graph.size_vector(sizes, places.dtype), graph), Numbers(places, graph)
    return (own > ends).choose(own.like(_FAR), own.at_most(ends - 1.0)).value


def reflected(places: Value, sizes: Sequence[Dimension], align: bool, graph: GraphBuilder) -> Value:
    """Places [..., axes] mirrored at the borders, or at the middles of those elements if `align`.

    Their nearest two elements are in the data then, or equal to those that are.
    """
    own, low = Numbers(places, graph), 0.0 if align else -0.5
    lengths = [size - 1 - round(2 * low) for size in sizes]
    span = Numbers(graph.size_vector(lengths, places.dtype), graph)
    twice = span + span
    turn = (own - low) % twice.at_least(1.0)
    moved = turn.at_most(twice - turn) + low
    inside = ((own >= low) & (own <= span + low)).choose(own, moved)
    return (span > 0.0).choose(inside, 0.0).value


def mirrored(data: Value, places: Value, align: bool, graph: GraphBuilder) -> tuple[Value, Value]:
    """Data with two elements more at both ends of its spatial axes, which cubic samples at places
    inside read, and the places in it."""
    for axis in range(2, data.rank):
        data = in_one_piece(data, axis, graph)
        size, extent = graph.size(size_of(data.dims[axis])), data.shape[axis] + 2 * _BESIDE
        span = Numbers(size, graph) - 1 if align else Numbers(size, graph)
        twice = span + span
        turn = span.like(np.arange(-_BESIDE, extent - _BESIDE)) % twice.at_least(1)
        back = twice - turn if align else twice - turn - 1
        inside = turn.at_most(back).at_least(0).value
        data = taken(data, axis, inside, whole(extent), graph, there=True)
    return data, (Numbers(places, graph) + float(_BESIDE)).value


_MODES = {"bilinear": "linear", "bicubic": "cubic"}
_FEW_CHANNELS = 8  # of fewer, places fill vectors better than channels
_MOST_SAMPLES = 64  # of a region's bin where their number depends on the region


@converter("GridSample", 16, 20, 22)
def grid_sample(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Places are -1..1 over the data, the innermost axis first."""
    data, grid = node.input(0), node.input(1)
    extents, last = data.shape[2:], grid.shape[-1] if grid.rank else 0
    if data.rank < 3 or grid.rank != data.rank or last != len(extents):
        raise node.bad_shape(f"the grid {grid.type} does not fit {data.type}")
    if grid.shape[0] != data.shape[0]:
        raise node.bad_shape(f"the grid {grid.type} has another batch than {data.type}")
    names = ("nearest", *_MODES) if node.version < 20 else ("linear", "nearest", "cubic")
    mode = node.choice("mode", names[1] if node.version < 20 else "linear", names)
    mode = _MODES.get(mode, mode)
    padding = node.choice("padding_mode", "zeros", ("zeros", "border", "reflection"))
    align = bool(node.integer("align_corners", 0))
    if mode != "nearest" and data.dtype not in FLOATS:
        raise node.unsupported(f"{mode} samples of {data.dtype}")
    shape = (*data.shape[:2], *grid.shape[1:-1])
    if 0 in shape:
        return graph.constant(np.zeros(shape, data.dtype.numpy))
    places = graph.reshape(grid, (grid.shape[0], math.prod(grid.shape[1:-1]), last))
    dtype = data.dtype.wide if data.dtype in FLOATS else grid.dtype.wide
    sizes = spatial_sizes(data)
    places = _in_elements(graph.cast(places, dtype), sizes, align, graph)
    if static_shape(sizes) is None and padding == "reflection":
        places, padding = reflected(places, sizes, align, graph), "border"
        if mode == "cubic":
            data, places = mirrored(data, places, align, graph)
    data = spread_behind(data, padding, graph)
    tables = _Tables(data.shape[2:], mode, padding, align)
    if data.shape[1] < _FEW_CHANNELS:
        found = tables.planes(data, places, graph)
    else:
        found = graph.transpose(tables.rows(data, places, None, graph), (0, 2, 1))
    return graph.reshape(found, shape)


@frozen
class _Tables:
    """What places mean: the attributes of the tables of their taps."""

    extents: tuple[int, ...]
    mode: str
    padding: str
    align: bool = False

    def rows(
        self, data: Value, places: Value, batch: Value | None, graph: GraphBuilder, samples: int = 1
    ) -> Value:
        """Data [N, C, ...] at places [M, samples P, axes] as [M, P, C], samples added up.

        `batch` has for each m the n whose data it means, None: m itself.
        """
        positions, weights = self._taps(places, batch, math.prod(self.extents), samples, graph)
        return self._summed("sample_rows", _as_rows(data, graph), positions, weights, graph)

    def planes(self, data: Value, places: Value, graph: GraphBuilder) -> Value:
        """Data [N, C, ...] at places [N, P, axes] as [N, C, P]."""
        positions, weights = self._taps(places, None, 0, 1, graph)
        planes = graph.reshape(data, (*data.shape[:2], math.prod(self.extents)))
        return self._summed("sample_planes", planes, positions, weights, graph)

    def largest(
        self, data: Value, places: Value, batch: Value, graph: GraphBuilder, samples: int
    ) -> Value:
        """As `rows`, but the largest of all weighted taps."""
        positions, weights = self._taps(places, batch, math.prod(self.extents), samples, graph)
        rows = _as_rows(data, graph)
        return self._summed("sample_rows", rows, positions, weights, graph, combine="max")

    def _taps(
        self, places: Value, batch: Value | None, rows: int, samples: int, graph: GraphBuilder
    ) -> tuple[Value, Value | None]:
        """Positions and weights, [M, taps of all samples, P]; the nearest one needs no weight."""
        tables: dict[str, Attribute] = {
            "extents": self.extents,
            "mode": self.mode,
            "padding": self.padding,
            "align": self.align,
        }
        positions = graph.emit("sample_positions", places, batch, **tables, rows=rows)
        count, taps, every = positions.shape
        shape = (count, taps * samples, every // samples)
        weights = None
        if self.mode != "nearest":
            weights = graph.reshape(graph.emit("sample_weights", places, **tables), shape)
        return graph.reshape(positions, shape), weights

    def _summed(
        self,
        operator: str,
        data: Value,
        positions: Value,
        weights: Value | None,
        graph: GraphBuilder,
        combine: str = "sum",
    ) -> Value:
        taps = positions.shape[1]
        parts = [
            graph.emit(
                operator,
                data,
                positions,
                weights,
                first=first,
                count=min(MOST_TAPS, taps - first),
                guarded=self.padding in ("zeros", "edge"),
                combine=combine,
            )
            for first in range(0, taps, MOST_TAPS)
        ]
        return graph.fold("add" if combine == "sum" else "max", parts)


def _as_rows(data: Value, graph: GraphBuilder) -> Value:
    """[N, C, ...] as [elements of all N, C]."""
    batch, channels = data.shape[:2]
    flat = graph.reshape(data, (batch, channels, math.prod(data.shape[2:])))
    turned = graph.transpose(flat, (0, 2, 1))
    return graph.reshape(turned, (batch * turned.shape[1], channels))


def _in_elements(
    places: Value, extents: Sequence[Dimension], align: bool, graph: GraphBuilder
) -> Value:
    """Places of -1..1 as coordinates of elements, in the order of the data's axes.

    The ends are the middles of the first and of the last element if `align`, else their borders.
    """
    dtype, rank = places.dtype, len(extents)
    if rank > 1:
        starts, steps = (0, 0, rank - 1), (1, 1, -1)
        places = graph.emit("slice", places, starts=starts, steps=steps, shape=places.shape)
    moved = Numbers(places, graph) + 1.0
    if align:
        gaps = Numbers(graph.size_vector([extent - 1 for extent in extents]), graph)
        return (moved * (gaps.cast(dtype) * 0.5)).value
    sizes = Numbers(graph.size_vector(extents), graph)
    return ((moved * sizes.cast(dtype) - 1.0) * 0.5).value


# --- RoiAlign -----------------------------------------------------------------------------------


@converter("RoiAlign", 10, 16, 22)
def roi_align(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Averages (or maxima) of linear samples in the bins that each region is divided in.

    Places more than one element outside of the data are zeros. How many samples a bin has may
    depend on the region (`sampling_ratio` 0): then as many are summed as one as large as the data
    needs, and what its own samples are not is left out.
    """
    data, regions, batch = node.input(0), node.input(1), node.input(2)
    if data.rank != 4 or regions.shape[1:] != (4,) or batch.shape != regions.shape[:1]:
        raise node.bad_shape(f"regions {regions.type} and {batch.type} do not fit {data.type}")
    mode = node.choice("mode", "avg", ("avg", "max"))
    bins = (node.integer("output_height", 1), node.integer("output_width", 1))
    ratio = node.integer("sampling_ratio", 0)
    if min(*bins, ratio + 1) < 1:
        raise node.invalid(f"regions of {list(bins)} bins with {ratio} samples")
    count, channels, extents = regions.shape[0], data.shape[1], data.shape[2:]
    shape = (count, channels, *bins)
    if 0 in shape:
        return graph.constant(np.zeros(shape, data.dtype.numpy))
    starts, sizes = _regions(node, graph.cast(regions, data.dtype.wide), graph)
    sizes = graph.emit("div", sizes, graph.constant(np.array(bins), sizes.dtype))
    samples = (ratio, ratio) if ratio else _most_samples(node, mode, sizes, extents, bins)
    places, weight = _samples(starts, sizes, bins, samples, bool(ratio), graph)
    places = left_out(places, spatial_sizes(data), graph)
    data = spread_behind(data, "edge", graph)
    tables, number = _Tables(extents, "linear", "edge"), math.prod(samples)
    if mode == "max":
        found = tables.largest(data, places, batch, graph, number)
    else:
        found = tables.rows(data, places, batch, graph, number)
        found = graph.emit("mul", found, graph.cast(weight, data.dtype))
    return graph.reshape(graph.transpose(found, (0, 2, 1)), shape)


def _regions(node: OnnxNode, regions: Value, graph: GraphBuilder) -> tuple[Value, Value]:
    """Where regions start and how large they are, in elements: [R, (rows, columns)]."""
    modes = ("half_pixel", "output_half_pixel")
    half = node.version >= 16 and (
        node.choice("coordinate_transformation_mode", modes[0], modes) == modes[0]
    )
    scaled = Numbers(regions, graph) * node.floating("spatial_scale", 1.0)
    corners = (scaled - 0.5 if half else scaled).value
    first, last = (
        graph.emit("slice", corners, starts=(0, at), steps=(1, -1), shape=(regions.shape[0], 2))
        for at in (1, 3)
    )
    sizes = Numbers(last, graph) - Numbers(first, graph)
    return first, (sizes if half else sizes.at_least(1.0)).value


def _most_samples(
    node: OnnxNode, mode: str, sizes: Value, extents: Sequence[int], bins: Sequence[int]
) -> tuple[int, int]:
    """As many samples along each axis as a bin of a region as large as the data has."""
    rows, columns = (-(-extent // count) for extent, count in zip(extents, bins, strict=True))
    if rows * columns > _MOST_SAMPLES or mode == "max":
        raise node.unsupported(
            f"sampling_ratio=0, with up to {rows * columns} samples a bin (at most "
            f"{_MOST_SAMPLES}) and mode={mode}"
        )
    return rows, columns


def _samples(
    starts: Value,
    sizes: Value,
    bins: Sequence[int],
    samples: Sequence[int],
    fixed: bool,
    graph: GraphBuilder,
) -> tuple[Value, Value]:
    """The places of all samples of all bins, [R, samples bins, axes], and what each counts.

    Unless their number is `fixed`, a region has as many as its bins have elements.
    """
    count, dtype = starts.shape[0], starts.dtype
    numbers = np.indices((*samples, *bins)).reshape(4, -1).T
    sample, place = numbers[:, :2], numbers[:, 2:]
    first, size = (Numbers(value, graph).reshape(count, 1, 2) for value in (starts, sizes))
    if fixed:
        inside = size.like(place + (sample + 0.5) / np.array(samples))
        return (size * inside + first).value, graph.scalar(1 / math.prod(samples), dtype)
    own = size.apply("ceil").at_most(size.like(np.array(samples)))
    steps = size.like(sample + 0.5) / own
    places = size * (size.like(place) + steps) + first
    places = (size.like(sample) < own).choose(places, -2.0)
    number = Numbers(graph.emit("reduce_prod", own.value, axes=(2,), keepdims=True), graph)
    return places.value, graph.emit("reciprocal", number.at_least(1.0).value)


# --- DeformConv ---------------------------------------------------------------------------------


@converter("DeformConv", 19, 22)
def deform_conv(node: OnnxNode, graph: GraphBuilder) -> Value:
    """A product of the weights with the samples of each window, whose places the offsets move."""
    data, weights, offset = node.input(0), node.input(1), node.input(2)
    bias, mask = node.optional(3), node.optional(4)
    rank, group = data.rank - 2, node.integer("group", 1)
    kernel = node.integers("kernel_shape", weights.shape[2:])
    groups = node.integer("offset_group", 1)
    batch, channels = data.shape[:2]
    taps, shape = math.prod(kernel), offset.shape[2:]
    fits = (
        rank >= 1
        and kernel == weights.shape[2:]
        and min(group, groups) >= 1
        and channels == weights.shape[1] * group
        and not (weights.shape[0] % group or channels % groups)
        and offset.shape[:2] == (batch, groups * taps * rank)
        and (bias is None or bias.shape == weights.shape[:1])
        and (mask is None or mask.shape == (batch, groups * taps, *shape))
    )
    if not fits or offset.rank != data.rank:
        raise node.bad_shape(f"{data.type}, {weights.type} and {offset.type} do not fit")
    base = _window_places(node, kernel, data, offset, graph)
    planes = offset.dims[2:]
    offset = spread_behind(offset, "zeros", graph)
    mask = None if mask is None else spread_behind(mask, "zeros", graph)
    count = math.prod(shape)
    moved = graph.reshape(offset, (batch * groups, taps, rank, count))
    moved = graph.transpose(moved, (0, 3, 1, 2))  # [N G, windows, taps, axes]
    places = graph.emit("add", moved, graph.constant(base, offset.dtype))
    places = graph.reshape(places, (batch * groups, count * taps, rank))
    data = spread_behind(data, "zeros", graph)
    grouped = graph.reshape(data, (batch * groups, channels // groups, *data.shape[2:]))
    tables = _Tables(data.shape[2:], "linear", "zeros")
    found = tables.rows(grouped, graph.cast(places, data.dtype.wide), None, graph)
    if mask is not None:
        factors = graph.reshape(mask, (batch * groups, taps, count))
        factors = graph.transpose(factors, (0, 2, 1))
        factors = graph.reshape(factors, (batch * groups, count * taps, 1))
        found = graph.emit("mul", found, factors)
    found = graph.reshape(found, (batch, groups, count, taps, channels // groups))
    result = _products(found, weights, group, graph)
    if bias is not None:
        result = graph.emit("add", result, graph.reshape(bias, (1, bias.shape[0], 1)))
    result = graph.reshape(result, (batch, weights.shape[0], *shape))
    return graph.with_dims(result, (*result.dims[:2], *planes))


def _window_places(
    node: OnnxNode, kernel: Sequence[int], data: Value, offset: Value, graph: GraphBuilder
) -> Array:
    """Where the taps of each window lie that nothing moves: [windows, taps, axes]."""
    found = window_attributes(node, tuple(kernel))
    shape, rank = offset.shape[2:], data.rank - 2
    for axis, (size, given) in enumerate(
        zip(spatial_sizes(data), spatial_sizes(offset), strict=True)
    ):
        room = size + found.pads[axis] + found.pads[axis + rank] - found.reach(axis)
        if not isinstance(size, int) and bounds_of(room)[0] < 0:
            reason = f"a window of {found.reach(axis)} may not fit into the size {size}"
            raise graph.refusal(reason, [data], "raise the lower bound of its symbols")
        number = divide(room, found.strides[axis]) + 1
        if bounds_of(room)[0] < 0 or bounds_of(number)[1] != shape[axis]:
            raise node.bad_shape(f"the offsets are for {list(shape)} windows")
        graph.run_time.require_equal(number, given, f"node {graph.source!r}")
    windows = np.indices(tuple(shape)).reshape(rank, -1).T * found.strides
    taps = np.indices(tuple(kernel)).reshape(rank, -1).T * found.dilations
    return np.asarray(windows[:, None, :] + taps[None] - np.array(found.pads[:rank]))


def _products(found: Value, weights: Value, group: int, graph: GraphBuilder) -> Value:
    """Samples [N, groups of offsets, windows, taps, C] by weights, as [N, channels, windows]."""
    batch, groups, count, taps, inner = found.shape
    outputs, own = weights.shape[:2]
    if group == 1:
        samples = graph.transpose(found, (0, 2, 1, 3, 4))
        samples = graph.reshape(samples, (batch, count, groups * taps * inner))
        factors = graph.reshape(weights, (outputs, groups, inner, taps))
        factors = graph.transpose(factors, (1, 3, 2, 0))
        factors = graph.reshape(factors, (groups * taps * inner, outputs))
        return graph.transpose(graph.emit("matmul", samples, factors), (0, 2, 1))
    samples = graph.transpose(found, (0, 2, 1, 4, 3))
    samples = graph.reshape(samples, (batch, count, group, own * taps))
    samples = graph.transpose(samples, (0, 2, 1, 3))
    factors = graph.reshape(weights, (group, outputs // group, own * taps))
    product = graph.emit("matmul", samples, graph.transpose(factors, (0, 2, 1)))
    turned = graph.transpose(product, (0, 1, 3, 2))
    return graph.reshape(turned, (batch, outputs, count))


@dynamic_operand("AffineGrid", at=(1,))
def computed_affine_grid(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """The number of channels is of no importance."""
    batch, *image, _ = declared(node, 1, "the size")
    given = vector(node.input(1), graph)
    if given.shape != (len(image) + 2,):
        raise node.bad_shape(f"the size has {given.shape[0]} entries for {len(image)} dimensions")
    wanted = (batch, 1, *image)
    ignored = Numbers(graph.constant(np.arange(len(wanted)) == 1), graph)
    right = given.equals(given.like(wanted)) | ignored
    require(node, graph, 1, right, f"batch and image of the size must be {[batch, *image]}")
    return node.with_constants({1: graph.integers(wanted)})
