"""What elements each position of a resized axis is made of, of static and of dynamic sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.frontend.data_sizes import positions
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers, vector
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import (
    along,
    as_whole,
    taken,
    with_axis,
)
from tunefarm.compiler.frontend.settle import require, sized
from tunefarm.compiler.frontend.size_tables import (
    Between,
    UndecidedError,
    applied,
    real_of,
    whole_number,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import Axis, size_of, whole
from tunefarm.compiler.types.sizes import (
    Dimension,
    Symbol,
    bounds_of,
    divide,
    greater,
    quotient,
    smaller,
)
from tunefarm.compiler.types.tensor_type import Array

# --- Where resizing reads along an axis, and by what weights: the formulas of ONNX's Resize ------


_MAX_DIVISOR = 16  # of positions: beyond it a table is as fast,
_WHOLE_ROW = 256  # but for rows so short that all of their positions are known when compiling

MAX_TAPS = 128  # elements that one of the result is made of
TIE = 1e-6
"""How far from the middle of two elements a position still counts as there, for its rounding: 17.5
of 21 elements out of 18 is 14.500001 in float32. It is onnxruntime's number."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@frozen
class SizedAxis:
    """True sizes of an axis before and behind, and the scale; None: that of the sizes.

    A scale that depends on sizes is a scalar of f32.
    """

    given: Dimension
    wanted: Dimension
    scale: float | Value | None


@frozen
class ResizedAxis:
    """How one axis is resized: `scale` is output by input, `roi` a relative crop.

    Extents are those of the padded axis where sizes are dynamic.
    """

    axis: int
    extent: int
    size: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)
    sizes: SizedAxis | None = None


@frozen
class Interpolation:
    """The attributes of a resize."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    antialias: bool
    exclude_outside: bool
    extrapolation: float

    @property
    def radius(self) -> int:
        """How far the interpolation kernel reaches."""
        return 1 if self.mode == "linear" else 2


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """What positions along an axis follow from, known or computed at run time.

    Numbers of elements before and behind, the scale, the number that it gives, and a relative crop.
    """

    extent: Numbers
    size: Numbers
    scale: Numbers
    length: Numbers
    roi: tuple[Numbers, Numbers]

    def positions(self, count: int, mode: str) -> Numbers:
        """The input coordinate of each output position, by the formulas of ONNX's Resize.

        Scales are float32, and so is this arithmetic: in a wider one 3 / 0.6f would fall short
        of 5.
        """
        graph, scale, last = self.scale.graph, _f32(self.scale), self.extent - 1
        y = Numbers(graph.constant(np.arange(count, dtype=np.float32)), graph)
        match mode:
            case "align_corners":
                return y * _f32(last) / self._steps()
            case "asymmetric":
                return y / scale
            case "tf_half_pixel_for_nn":
                return (y + 0.5) / scale
            case "tf_crop_and_resize":
                start, end = self.roi
                across = y * _f32(end - start) * _f32(last) / self._steps()
                last = last.cast(start.dtype)
                middle = y * 0 + _f32((start + end) * 0.5 * last)
                return self.length.equals(1).choose(middle, _f32(start * last) + across)
            case "pytorch_half_pixel":
                return (self.size < 2).choose(y * 0, (y + 0.5) / scale - 0.5)
            case "half_pixel_symmetric":
                lost = 1 - self.size / self.length
                return _f32(lost * (self.extent * 0.5)) + (y + 0.5) / scale - 0.5
        return (y + 0.5) / scale - 0.5

    def _steps(self) -> Numbers:
        """From the first position to the last, if there are two."""
        return _f32(self.length.equals(1).choose(self.length.like(1), self.length - 1))


def _f32(numbers: Numbers) -> Numbers:
    return numbers.cast(DType.F32)


def positions_along(axis: ResizedAxis, mode: str, graph: GraphBuilder) -> Floats:
    """The positions of an axis of which all is known."""

    def number(value: float) -> Numbers:
        return Numbers(graph.scalar(value, DType.F64), graph)

    scaling = Scaling(
        number(axis.extent),
        number(axis.size),
        number(axis.scale),
        number(axis.scale * axis.extent),
        (number(axis.roi[0]), number(axis.roi[1])),
    )
    return _known(scaling.positions(axis.size, mode)).astype(np.float64)


def _known(numbers: Numbers) -> Array:
    """The contents of numbers that are known."""
    array = numbers.value.array
    assert array is not None
    return array


def taps_of(
    axis: ResizedAxis, positions: Floats, how: Interpolation, graph: GraphBuilder
) -> tuple[list[Integers], list[Floats] | None]:
    """For each tap the input positions and the weights; one tap without weights is `nearest`."""
    places = Numbers(graph.constant(positions), graph)
    if how.mode == "nearest":
        return [_clamped(_known(nearest(places, how.nearest)), axis.extent)], None
    last, stretch = places.like(axis.extent - 1), places.like(_sampling(axis, how))
    indices, weights = map(_known, _weights(places, last, stretch, _reach(axis, how), how))
    return _met(_clamped(indices.T, axis.extent), np.asarray(weights.T, np.float64))


def _met(indices: Integers, weights: Floats) -> tuple[list[Integers], list[Floats] | None]:
    """Make one of the taps of an output position that read the same element, and drop idle ones.

    So a constant stays exactly that, and what has no weight cannot make 0 times infinity. Arrays
    are [positions, taps]. A position of fewer taps than others shares one's weight among several,
    which sums up to the same bits again: w/4 + w/4 + w/2.
    """
    positions = []
    for row, column in zip(indices.tolist(), weights.tolist(), strict=True):
        met: dict[int, float] = {}
        for index, weight in zip(row, column, strict=True):
            met[index] = met.get(index, 0.0) + weight
        taps = {index: weight for index, weight in met.items() if weight}
        if len(met) == 1 and taps:
            taps = {row[0]: 1.0}
        positions.append(taps or {row[0]: 0.0})
    most = max(map(len, positions))
    if most == 1 and all(weight == 1 for taps in positions for weight in taps.values()):
        return [np.array([index for taps in positions for index in taps])], None
    rows = zip(positions, indices.tolist(), strict=True)
    merged = np.array([_shared(taps, row, most) for taps, row in rows])
    return (
        [merged[:, tap, 0].astype(np.int64) for tap in range(most)],
        [merged[:, tap, 1] for tap in range(most)],
    )


def _shared(taps: dict[int, float], row: list[int], count: int) -> list[tuple[int, float]]:
    """`count` taps with these weights, in place where the row has as many: a division knows it."""
    if count == len(row):
        held = [
            index if index in taps else min(taps, key=lambda to: abs(to - index)) for index in row
        ]
    else:
        first = next(iter(taps))
        held = [first] * (count - len(taps)) + list(taps)
    result: list[tuple[int, float]] = []
    left = dict(taps)
    for position, index in reversed(list(enumerate(held))):
        share = left[index] / 2 if index in held[:position] else left[index]
        left[index] -= share
        result.append((index, share))
    return result[::-1]


def tap_count(axis: ResizedAxis, how: Interpolation) -> int:
    """How many input positions an output position is made of, weights of 0 included."""
    return 1 if how.mode == "nearest" else 2 * _reach(axis, how)


def _reach(axis: ResizedAxis, how: Interpolation) -> int:
    """How many input positions the interpolation kernel reaches to each side."""
    return math.ceil(how.radius / _sampling(axis, how))


def _sampling(axis: ResizedAxis, how: Interpolation) -> float:
    """By how much the interpolation kernel is stretched."""
    return min(axis.scale, 1.0) if how.antialias else 1.0


def _clamped(indices: Array, extent: int) -> Integers:
    return np.clip(indices.astype(np.int64), 0, extent - 1)


def nearest(places: Numbers, mode: str) -> Numbers:
    """The numbers of the elements that are nearest to places, as floats."""
    below = places.apply("floor")
    share = places - below
    match mode:
        case "round_prefer_floor":
            return below + (share.like(0.5 + TIE) < share).cast(places.dtype)
        case "round_prefer_ceil":
            return below + (share >= 0.5 - TIE).cast(places.dtype)
        case "floor":
            return below
    return places.apply("ceil")


@frozen
class Division:
    """Tap t of position i reads the element (i * step + offsets[t]) // divisor, or the nearest."""

    step: int
    divisor: int
    offsets: tuple[int, ...]


def divided_positions(axis: ResizedAxis, indices: Integers) -> Division | None:
    """The division that gives all `indices`, [taps, positions]; None where a table has to."""
    corners = (axis.size - 1) / (axis.extent - 1) if min(axis.size, axis.extent) > 1 else 1.0
    for scale in dict.fromkeys((axis.size / axis.extent, axis.scale, corners)):
        most = axis.size if axis.size <= _WHOLE_ROW else _MAX_DIVISOR
        ratio = Fraction(1 / scale).limit_denominator(max(most, 1))
        if abs(ratio * axis.size - axis.size / scale) > 1:
            continue
        step, divisor = ratio.numerator, ratio.denominator
        offsets = [_offset(row, step, divisor, axis.extent) for row in indices]
        found = tuple(offset for offset in offsets if offset is not None)
        if step and len(found) == len(offsets):
            return Division(step, divisor, found)
    return None


def _offset(row: Integers, step: int, divisor: int, extent: int) -> int | None:
    """The number o with clamp((i * step + o) // divisor) == row[i] for all i, the smallest one."""
    moved = np.arange(len(row)) * step
    least, most = row * divisor - moved, (row + 1) * divisor - 1 - moved
    above, below = row > 0, row < extent - 1
    if not above.any():
        return int(most.min()) if below.any() else 0
    low = int(least[above].max())
    return None if below.any() and low > most[below].min() else low


# --- Weights of interpolation, at positions that are known or computed at run time ---------------


def weighted_taps(
    places: Numbers, last: Numbers, stretch: Numbers, reach: int, how: Interpolation
) -> tuple[Numbers, Numbers]:
    """The elements that each of the places, a vector of f64, is made of, and their weights.

    Both are [2 * reach, places]. `last` is the last element that there is, and `stretch` what
    distances are multiplied by.
    """
    indices, weights = _weights(places, last, stretch, reach, how)
    # An element without weight may be infinite, and 0 times that is no number: take a near one.
    near = (places + 0.5).apply("floor")
    indices = weights.equals(0).choose(near, indices).at_least(0).at_most(last)
    return indices, weights


def _weights(
    places: Numbers, last: Numbers, stretch: Numbers, reach: int, how: Interpolation
) -> tuple[Numbers, Numbers]:
    """As `weighted_taps`, of elements that may lie outside."""
    offsets = places.like(np.arange(1 - reach, reach + 1)).reshape(2 * reach, 1)
    indices = places.apply("floor") + offsets
    weights = _kernel_weights((indices - places) * stretch, how)
    if how.exclude_outside:
        inside = (indices >= 0) & (last >= indices)
        weights = inside.choose(weights, 0)
    total = weights.sum(0)
    return indices, weights / total.equals(0).choose(total.like(1), total)


def _kernel_weights(x: Numbers, how: Interpolation) -> Numbers:
    """The interpolation kernel.

    Cubic convolution as in Keys, Cubic Convolution Interpolation for Digital Image Processing,
    with the free parameter `cubic`.
    """
    d = x.apply("abs")
    if how.mode == "linear":
        return (1 - d).at_least(0)
    a = how.cubic
    near = ((d * (a + 2)) - (a + 3)) * d * d + 1
    far = ((d * a - 5 * a) * d + 8 * a) * d - 4 * a
    return (d.like(1) >= d).choose(near, (d < 2).choose(far, 0))


# --- Interpolation along dynamic axes ------------------------------------------------------------


_WHOLE = (0.0, 1.0)
"""The crop that takes nothing off."""
_MOST_TRIED = 1 << 22
"""Sizes of an axis for which a fraction is tried instead of a scale."""
_FIXED = ("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn")
"""Coordinates that depend on the scale alone."""


def scaled_size(size: Dimension, scale: float) -> Dimension | None:
    """The size times a scale, rounded down; None where no fraction says it for all sizes.

    The product is one of f32, as in ONNX's shape inference and onnxruntime: 10 times 2.3 is 23
    there, though the scale is a little less than 2.3.
    """
    if isinstance(size, int):
        return scaled_number(size, scale)
    low, high = size.bounds
    if high - low > _MOST_TRIED:
        return None
    numbers = np.arange(low, high + 1, dtype=np.int64)
    wanted, exact = _scaled(numbers, scale), Fraction(float(np.float32(scale)))
    for digits in range(1, 6):
        ratio = exact.limit_denominator(10**digits)
        if np.array_equal(numbers * ratio.numerator // ratio.denominator, wanted):
            return divide(size * ratio.numerator, ratio.denominator)
    if np.array_equal(numbers * exact.numerator // exact.denominator, wanted):
        return divide(size * exact.numerator, exact.denominator)
    return None


def scaled_number(size: int, scale: float) -> int:
    """A number times a scale, rounded down as in `scaled_size`."""
    return int(_scaled(np.array([size]), scale)[0])


def _scaled(numbers: npt.NDArray[np.int64], scale: float) -> npt.NDArray[np.int64]:
    products: npt.NDArray[np.float32] = numbers.astype(np.float32) * np.float32(scale)
    return np.floor(products).astype(np.int64)


def fixed_scale(
    given: Dimension, wanted: Dimension, scale: float | Value | None, coordinates: str
) -> float | None:
    """The scale, if all positions follow from it, whatever the sizes are; None if they do not.

    A `scale` of None is that of the sizes.
    """
    if coordinates not in _FIXED or isinstance(scale, Value):
        return None
    if coordinates.startswith("pyt") and bounds_of(wanted)[0] < 2:
        return None
    if scale is not None:
        return scale
    larger, smaller = quotient(wanted, given), quotient(given, wanted)
    if isinstance(larger, int):
        return float(larger)
    return 1 / smaller if isinstance(smaller, int) else None


def edge_extended(data: Value, axis: int, graph: GraphBuilder) -> Value:
    """The data with its last true element in all of an axis' padding; the axis is whole then."""
    last = graph.size(size_of(data.dims[axis]) - 1)
    places = graph.emit("min", positions(data.shape[axis], graph), last)
    return taken(data, axis, places, whole(data.shape[axis]), graph, there=True)


def sampled(
    data: Value,
    axis: int,
    wanted: Dimension,
    scale: float | Value | None,
    how: Interpolation,
    graph: GraphBuilder,
    roi: tuple[float, float] = _WHOLE,
) -> Value:
    """An axis resized to a size, at positions that are computed at run time.

    A `scale` of None is that of the sizes; a value is a scalar of f32. `roi` is a relative crop.
    """
    extent = bounds_of(wanted)[1]
    dims: Axis = ((wanted, extent),)
    given = size_of(data.dims[axis])
    places = _sized_positions(given, wanted, scale, how, graph, roi)
    last = graph.size(given - 1)
    if how.mode == "nearest":
        index = nearest(places, how.nearest).cast(DType.I64).value
        return taken(data, axis, _sized_clamped(index, last, graph), dims, graph, there=True)
    if how.antialias or how.exclude_outside:
        blended = _blended(data, axis, places, wanted, scale, how, graph)
        return with_axis(blended, axis, dims, graph)
    below = places.apply("floor")
    first = below.cast(DType.I64).value
    weight = (places - below).cast(data.dtype).value
    terms = []
    for number, factor in _taps(along(weight, axis, data.rank, graph), how, graph):
        index = graph.emit("add", first, graph.scalar(number, DType.I64))
        element = taken(data, axis, _sized_clamped(index, last, graph), dims, graph, there=True)
        terms.append(graph.emit("mul", as_whole(element, axis, graph), factor))
    return with_axis(graph.fold("add", terms), axis, dims, graph)


def cropped_off(
    rank: int, axis: ResizedAxis, sizes: SizedAxis, how: Interpolation, graph: GraphBuilder
) -> Value:
    """Which positions of an axis lie outside of the data, as what broadcasts along it."""
    places = _sized_positions(sizes.given, sizes.wanted, sizes.scale, how, graph, axis.roi)
    last = Numbers(graph.size(sizes.given - 1, DType.F32), graph)
    outside = (places < 0) | (last < places)
    beyond = along(outside.value, axis.axis, rank, graph)
    return with_axis(beyond, 0, ((sizes.wanted, bounds_of(sizes.wanted)[1]),), graph)


def kept_aspect(
    given: Sequence[Dimension], wanted: Sequence[Dimension], smallest: bool, graph: GraphBuilder
) -> tuple[Value, tuple[Dimension, ...]]:
    """One scale for all axes, the smallest or the largest of theirs, and the sizes by it.

    Halves are rounded up, as in (2 size wanted / given + 1) / 2, rounded down.
    """
    pairs = list(zip(given, wanted, strict=True))
    nearest = smaller if smallest else greater

    def by_scale(size: Dimension) -> Dimension:
        ways = [divide(2 * size * new + old, 2 * old) for old, new in pairs]
        return reduce(nearest, ways)

    scales = [_scale(old, new, None, graph) for old, new in pairs]
    scale = graph.fold("min" if smallest else "max", scales)
    return scale, tuple(map(by_scale, given))


def _most_taps(
    given: Dimension, wanted: Dimension, scale: float | Value | None, how: Interpolation
) -> int:
    """Of how many elements each of the result is made at most: shrinking smooths over many."""
    if not how.antialias:
        return 2 * how.radius
    most = bounds_of(given)[1] / max(bounds_of(wanted)[0], 1)
    shrunk = 1 / scale if isinstance(scale, float) else most
    return 2 * math.ceil(how.radius * max(shrunk, 1.0))


def _blended(
    data: Value,
    axis: int,
    places: Numbers,
    wanted: Dimension,
    scale: float | Value | None,
    how: Interpolation,
    graph: GraphBuilder,
) -> Value:
    """Sums of as many elements as the largest shrinking asks for, whose weights are computed."""
    given = size_of(data.dims[axis])
    taps = _most_taps(given, wanted, scale, how)
    if taps > MAX_TAPS:
        raise graph.refusal(
            f"smoothing over up to {taps} elements (at most {MAX_TAPS})",
            [data],
            "raise the lower bound of the size that is asked for, or lower the upper one of the "
            "data's",
            [given, wanted],
        )
    at = places.cast(DType.F64)
    by = Numbers(_scale(given, wanted, scale, graph), graph).cast(DType.F64)
    last = Numbers(graph.size(given - 1), graph).cast(DType.F64)
    stretch = by.at_most(1.0) if how.antialias else at.like(1)
    indices, weights = weighted_taps(at, last, stretch, taps // 2, how)
    return graph.emit(
        "resample",
        as_whole(data, axis, graph),
        indices.cast(DType.I32).value,
        weights.cast(data.dtype).value,
        axis=axis,
        size=places.shape[0],
        offsets=(0,) * taps,
        tabled=True,
        weighted=True,
    )


def sizes_from_operand(
    node: OnnxNode, graph: GraphBuilder, position: int, axes: Sequence[int]
) -> list[Dimension] | None:
    """The sizes that scales, the operand at a position, give where sizes say the scales."""
    scales, shape = graph.recorded_sizes(node.input(position)), list(node.input(0).true_shape)
    if scales is None or scales.shape != (len(axes),):
        return None
    try:
        for axis, scale in zip(axes, scales, strict=True):
            extent = real_of(shape[axis], DType.F32)
            number = whole_number(applied(np.multiply, scale, extent))
            if isinstance(number, Between):
                name = graph.unused_symbol(f"{node.outputs[0]}_{axis}")
                number = Symbol.of(name, number.low, number.high)
            shape[axis] = number
    except UndecidedError:
        return None
    return shape


def resized_by_computed_scales(
    node: OnnxNode,
    graph: GraphBuilder,
    position: int,
    axes: Sequence[int],
    wanted: Sequence[Dimension],
    how: Interpolation,
) -> Value:
    """Axes resized by scales, the operand at a position, to the declared shape, some of which is
    dynamic."""
    data = node.input(0)
    scales = vector(node.input(position), graph, DType.F32)
    if scales.shape != (len(axes),) or len(wanted) != data.rank:
        raise node.bad_shape(f"{scales.shape[0]} scales do not fit {data.type}")
    blends = how.mode != "nearest" and not data.dtype.is_float
    crops = how.coordinates == "tf_crop_and_resize"
    if crops or blends:
        raise graph.refusal("this interpolation by scales that are computed", [data], sizes=wanted)
    data = graph.padded.dense(data)
    given = [data.true_shape[axis] for axis in axes]
    extents = Numbers(graph.size_vector(given, DType.F32), graph)
    shape = (scales * extents).apply("floor").cast(DType.I64)
    asked = node.with_constants({position: shape.value})
    sized(asked, graph, position, [wanted[axis] for axis in axes], "the scaled shape")
    for number, axis in enumerate(axes):
        scale = scales.part(number, 1).reshape()
        if wanted[axis] == data.true_shape[axis]:
            require(node, graph, position, scale.equals(1), f"the scale of axis {axis} must be 1")
            continue
        data = sampled(data, axis, wanted[axis], scale.value, how, graph)
    return data


def _taps(share: Value, how: Interpolation, graph: GraphBuilder) -> list[tuple[int, Value]]:
    """Elements counted from the one before a position, with their weights; the position lies a
    `share` of the way to the next one."""

    def number(value: float) -> Value:
        return graph.scalar(value, share.dtype)

    rest = graph.emit("sub", number(1.0), share)
    if how.mode == "linear":
        return [(0, rest), (1, share)]

    def polynomial(distance: Value, *coefficients: float) -> Value:
        total = number(coefficients[0])
        for coefficient in coefficients[1:]:
            total = graph.emit("add", graph.emit("mul", total, distance), number(coefficient))
        return total

    a = how.cubic  # Keys 1981
    near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
    one = number(1.0)
    return [
        (-1, polynomial(graph.emit("add", share, one), *far)),
        (0, polynomial(share, *near)),
        (1, polynomial(rest, *near)),
        (2, polynomial(graph.emit("add", rest, one), *far)),
    ]


def _scale(
    given: Dimension, wanted: Dimension, scale: float | Value | None, graph: GraphBuilder
) -> Value:
    """The scale in f32, that of the sizes where there is none."""
    if isinstance(scale, Value):
        return scale
    if scale is not None:
        return graph.scalar(scale, DType.F32)
    return graph.emit("div", graph.size(wanted, DType.F32), graph.size(given, DType.F32))


def _sized_positions(
    given: Dimension,
    wanted: Dimension,
    scale: float | Value | None,
    how: Interpolation,
    graph: GraphBuilder,
    roi: tuple[float, float],
) -> Numbers:
    """The positions in the data, of a dynamic size, in f32."""
    extent = Numbers(graph.size(given, DType.F32), graph)
    by = Numbers(_scale(given, wanted, scale, graph), graph)
    scaling = Scaling(
        extent,
        Numbers(graph.size(wanted, DType.F32), graph),
        by,
        by * extent,
        (by.like(roi[0]), by.like(roi[1])),
    )
    return scaling.positions(bounds_of(wanted)[1], how.coordinates)


def _sized_clamped(index: Value, last: Value, graph: GraphBuilder) -> Value:
    bounded = graph.emit("max", index, graph.scalar(0, DType.I64))
    return graph.emit("min", bounded, last)
