"""Resize and Upsample: separable interpolation, axis by axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from compiler.frontend.converter import converter
from compiler.frontend.graph_builder import GraphBuilder, Value
from compiler.frontend.onnx_node import OnnxNode
from compiler.frontend.operators.padded_moves import with_axis
from compiler.frontend.operators.sized_resize import (
    edge_extended,
    fixed_scale,
    sampled,
    scaled_size,
)
from compiler.types.dims import is_whole, size_of
from compiler.types.dtypes import DType
from compiler.types.sizes import Dimension, bounds_of

_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
MAX_TAPS = 128
_MAX_DIVISOR = 16  # of positions: beyond it a table is as fast,
_WHOLE_ROW = 256  # but for rows so short that all of their positions are known when compiling
_TAP_BYTES = 32  # of a tap at one position, while it is computed

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SizedAxis:
    """True sizes of an axis before and behind, and the scale; None: that of the sizes."""

    given: Dimension
    wanted: Dimension
    scale: float | None


@dataclass(frozen=True, slots=True)
class Axis:
    """How one axis is resized: `scale` is output by input, `roi` a relative crop.

    Extents are those of the padded axis where sizes are known at run time only.
    """

    axis: int
    extent: int
    size: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)
    sizes: SizedAxis | None = None


@dataclass(frozen=True, slots=True)
class Interpolation:
    """The attributes of a resize."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    antialias: bool
    exclude_outside: bool
    extrapolation: float


@converter("Upsample", 7, 9)
@converter("Resize", 10)
def upsample(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Before opset 11: asymmetric coordinates, the nearest below."""
    data = node.input(0)
    if node.has("scales"):
        scales = node.floats("scales")
    else:
        scales = tuple(node.constant(1, "the list of scales").reshape(-1).tolist())
    axes = _scaled_axes(node, data, scales, tuple(range(data.rank)))
    return _resize(node, data, axes, upsample_interpolation(node), graph)


def upsample_interpolation(node: OnnxNode) -> Interpolation:
    """How Upsample resizes, and Resize before opset 11."""
    mode = node.choice("mode", "nearest", ("nearest", "linear"))
    return Interpolation(mode, "asymmetric", "floor", -0.75, False, False, 0.0)


@converter("Resize", 11, 13, 18, 19)
def resize(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, how = node.input(0), interpolation(node)
    axes = tuple(
        node.axis(axis, data.rank) for axis in node.integers("axes", tuple(range(data.rank)))
    )
    node.axes(axes, data.rank)
    scales = _given(node, 2, "the list of scales")
    wanted = node.optional(3)
    if wanted is not None and wanted.sizes is not None and scales is None:
        plan = _run_time_sizes(node, data, axes, graph)
        return _resize(node, data, plan, how, graph)
    sizes = _given(node, 3, "the list of sizes")
    if (scales is None) == (sizes is None):
        raise node.invalid("needs either scales or sizes")
    if data.padded is not None and scales is None:
        plan = _run_time_sizes(node, data, axes, graph)
    elif scales is not None:
        plan = _scaled_axes(node, data, scales, axes)
    else:
        plan = _sized_axes(node, data, tuple(int(size) for size in sizes or ()), axes)
    if how.coordinates == "tf_crop_and_resize":
        plan = _cropped(node, plan)
    return _resize(node, data, plan, how, graph)


def interpolation(node: OnnxNode) -> Interpolation:
    """How the attributes of a Resize say."""
    return Interpolation(
        node.choice("mode", "nearest", ("nearest", "linear", "cubic")),
        node.choice("coordinate_transformation_mode", "half_pixel", _COORDINATES),
        node.choice("nearest_mode", "round_prefer_floor", _NEAREST),
        node.floating("cubic_coeff_a", -0.75),
        bool(node.integer("antialias", 0)),
        bool(node.integer("exclude_outside", 0)),
        node.floating("extrapolation_value", 0.0),
    )


def _given(node: OnnxNode, position: int, meaning: str) -> tuple[float, ...] | None:
    """A constant vector; None when it is absent or empty."""
    if node.optional(position) is None:
        return None
    array = node.constant(position, meaning).reshape(-1)
    return tuple(array.tolist()) if array.size else None


def _scaled_axes(
    node: OnnxNode, data: Value, scales: tuple[float, ...], axes: tuple[int, ...]
) -> tuple[Axis, ...]:
    if len(scales) != len(axes) or not all(math.isfinite(s) and s > 0 for s in scales):
        raise node.bad_shape(f"the scales {list(scales)} do not fit {data.type}")
    return tuple(
        Axis(
            axis,
            data.shape[axis],
            math.floor(data.shape[axis] * scale),
            scale,
            sizes=_scaled_sizes(node, data, axis, scale),
        )
        for axis, scale in zip(axes, scales, strict=True)
    )


def _scaled_sizes(node: OnnxNode, data: Value, axis: int, scale: float) -> SizedAxis | None:
    """The true sizes of a padded axis."""
    if is_whole(data.dims[axis]):
        return None
    given = size_of(data.dims[axis])
    wanted = scaled_size(given, scale)
    if wanted is None:
        raise node.unsupported(f"the scale {scale} of a size that is known at run time only")
    return SizedAxis(given, wanted, scale)


def _run_time_sizes(
    node: OnnxNode, data: Value, axes: tuple[int, ...], graph: GraphBuilder
) -> tuple[Axis, ...]:
    """Axes resized to sizes of which some, or those of the data, are known at run time only."""
    if node.string("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise graph.refusal("a policy for the aspect ratio", [data])
    wanted = node.sizes(3, "the list of sizes")
    if len(wanted) != len(axes):
        raise node.bad_shape(f"the sizes do not fit {data.type}")
    plan = []
    for axis, size in zip(axes, wanted, strict=True):
        given = size_of(data.dims[axis])
        extent, most = data.shape[axis], bounds_of(size)[1]
        sized = None if isinstance(given, int) and isinstance(size, int) else (given, size, None)
        found = None if sized is None else SizedAxis(*sized)
        plan.append(Axis(axis, extent, most, most / extent, sizes=found))
    return tuple(plan)


def _sized_axes(
    node: OnnxNode, data: Value, sizes: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[Axis, ...]:
    if len(sizes) != len(axes) or any(size < 1 for size in sizes):
        raise node.bad_shape(f"the sizes {list(sizes)} do not fit {data.type}")
    policies = ("stretch", "not_larger", "not_smaller")
    policy = node.choice("keep_aspect_ratio_policy", "stretch", policies)
    ratios = [size / data.shape[axis] for axis, size in zip(axes, sizes, strict=True)]
    if policy != "stretch":
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        sizes = tuple(math.floor(scale * data.shape[axis] + 0.5) for axis in axes)
        ratios = [scale] * len(axes)
    return tuple(
        Axis(axis, data.shape[axis], size, ratio)
        for axis, size, ratio in zip(axes, sizes, ratios, strict=True)
    )


def _cropped(node: OnnxNode, plan: tuple[Axis, ...]) -> tuple[Axis, ...]:
    roi = _given(node, 1, "the region of interest")
    if roi is None or len(roi) != 2 * len(plan):
        raise node.bad_shape(f"the region of interest needs {2 * len(plan)} entries")
    starts, ends = roi[: len(plan)], roi[len(plan) :]
    return tuple(
        replace(axis, roi=crop)
        for axis, crop in zip(plan, zip(starts, ends, strict=True), strict=True)
    )


def _resize(
    node: OnnxNode, data: Value, plan: tuple[Axis, ...], how: Interpolation, graph: GraphBuilder
) -> Value:
    sizes = {axis.axis: axis.size for axis in plan}
    shape = [sizes.get(axis, extent) for axis, extent in enumerate(data.shape)]
    graph.check_array(shape, data.dtype.bytes)
    result = data
    for axis in plan:
        if axis.sizes is not None:
            result = _resize_sized(node, result, axis, axis.sizes, how, graph)
    plan = tuple(axis for axis in plan if axis.sizes is None)
    outside: list[tuple[int, npt.NDArray[np.bool_]]] = []
    for axis in sorted(plan, key=_cheapest_first):
        if axis.size < 1:
            raise node.bad_shape(f"axis {axis.axis} of {data.type} shrinks to nothing")
        graph.check_array((_tap_count(axis, how), axis.size), _TAP_BYTES)
        positions = _positions(axis, how.coordinates)
        if how.coordinates == "tf_crop_and_resize":
            beyond = (positions < 0) | (positions > axis.extent - 1)
            if beyond.any():
                outside.append((axis.axis, beyond))
        result = _resize_axis(node, result, axis, positions, how, graph)
    for position, beyond in outside:
        mask = graph.constant(beyond.reshape(-1, *(1,) * (data.rank - position - 1)))
        fill = graph.scalar(how.extrapolation, data.dtype)
        result = graph.emit("where", mask, fill, result)
    return result


def _resize_axis(
    node: OnnxNode,
    data: Value,
    axis: Axis,
    positions: Floats,
    how: Interpolation,
    graph: GraphBuilder,
) -> Value:
    if axis.size == axis.extent and np.array_equal(positions, np.arange(axis.size)):
        return data
    indices, weights = _taps(axis, positions, how)
    if len(indices) > MAX_TAPS:
        raise node.unsupported(f"interpolation of {len(indices)} elements")
    return _resampled(data, axis, np.stack(indices), weights, graph)


def _resize_sized(
    node: OnnxNode,
    data: Value,
    axis: Axis,
    sizes: SizedAxis,
    how: Interpolation,
    graph: GraphBuilder,
) -> Value:
    """An axis with padding: as it is, by a scale that settles all positions, or by sizes."""
    if sizes.given == sizes.wanted and sizes.scale in (None, 1.0):
        return data
    if axis.size < 1 or len(data.dims[axis.axis]) > 1:
        raise graph.refusal(f"resizing axis {axis.axis} of {data.type}", [data])
    scale = fixed_scale(sizes.given, sizes.wanted, sizes.scale, how.coordinates)
    if scale is not None:
        # Where the last element is repeated, positions behind it may be read as well.
        edge = edge_extended(data, axis.axis, graph)
        whole = replace(axis, scale=scale, size=bounds_of(sizes.wanted)[1])
        positions = _positions(whole, how.coordinates)
        resized = _resize_axis(node, edge, whole, positions, how, graph)
        return with_axis(resized, axis.axis, ((sizes.wanted, whole.size),), graph)
    plain = not (how.antialias or how.exclude_outside or how.mode == "cubic")
    if not plain or how.coordinates == "tf_crop_and_resize" or not data.dtype.is_float:
        raise graph.refusal("this interpolation at positions that depend on a size", [data])
    forms = (how.mode, how.coordinates, how.nearest)
    return sampled(data, axis.axis, sizes.wanted, sizes.scale, forms, graph)


def _positions(axis: Axis, mode: str) -> Floats:
    """The input coordinate of each output position, by the formulas of ONNX's Resize.

    Scales are float32, and so is this arithmetic: in a wider one 3 / 0.6f would fall short of 5.
    """
    return _coordinates(axis, mode, np.arange(axis.size, dtype=np.float32)).astype(np.float64)


def _coordinates(axis: Axis, mode: str, y: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    n, length = axis.extent, axis.scale * axis.extent
    match mode:
        case "align_corners":
            return y * 0 if length == 1 else y * (n - 1) / (length - 1)
        case "asymmetric":
            return y / axis.scale
        case "tf_half_pixel_for_nn":
            return (y + 0.5) / axis.scale
        case "tf_crop_and_resize":
            start, end = axis.roi
            if length == 1:
                return y * 0 + 0.5 * (start + end) * (n - 1)
            return start * (n - 1) + y * (end - start) * (n - 1) / (length - 1)
        case "pytorch_half_pixel" if axis.size == 1:
            return y * 0
        case "half_pixel_symmetric":
            offset = n / 2 * (1 - axis.size / length)
            return offset + (y + 0.5) / axis.scale - 0.5
    return (y + 0.5) / axis.scale - 0.5


def _taps(
    axis: Axis, positions: Floats, how: Interpolation
) -> tuple[list[Integers], list[Floats] | None]:
    """For each tap the input positions and the weights; one tap without weights is `nearest`."""
    if how.mode == "nearest":
        return [_clamped(_nearest(positions, how.nearest), axis.extent)], None
    kernel, _ = _kernel(how)
    scale = _sampling(axis, how)
    reach = _reach(axis, how)
    base = np.floor(positions).astype(np.int64)
    offsets = range(1 - reach, reach + 1)
    indices = [base + offset for offset in offsets]
    weights = [kernel((index - positions) * scale) for index in indices]
    if how.exclude_outside:
        inside = [(index >= 0) & (index < axis.extent) for index in indices]
        weights = [np.where(keep, w, 0.0) for keep, w in zip(inside, weights, strict=True)]
    total = np.sum(weights, axis=0)
    total = np.where(total == 0, 1.0, total)
    clamped = [_clamped(index, axis.extent) for index in indices]
    return _met(np.stack(clamped, axis=1), np.stack(weights, axis=1) / total[:, np.newaxis])


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


def _tap_count(axis: Axis, how: Interpolation) -> int:
    """How many input positions an output position is made of, weights of 0 included."""
    return 1 if how.mode == "nearest" else 2 * _reach(axis, how)


def _reach(axis: Axis, how: Interpolation) -> int:
    """How many input positions the interpolation kernel reaches to each side."""
    _, radius = _kernel(how)
    return math.ceil(radius / _sampling(axis, how))


def _sampling(axis: Axis, how: Interpolation) -> float:
    """By how much the interpolation kernel is stretched."""
    return min(axis.scale, 1.0) if how.antialias else 1.0


def _clamped(indices: Integers, extent: int) -> Integers:
    return np.clip(indices, 0, extent - 1)


def _nearest(positions: Floats, mode: str) -> Integers:
    match mode:
        case "round_prefer_floor":
            rounded = np.ceil(positions - 0.5)
        case "round_prefer_ceil":
            rounded = np.floor(positions + 0.5)
        case "floor":
            rounded = np.floor(positions)
        case _:
            rounded = np.ceil(positions)
    return rounded.astype(np.int64)


def _kernel(how: Interpolation) -> tuple[Callable[[Floats], Floats], int]:
    """The interpolation kernel and its radius.

    Cubic convolution as in Keys, Cubic Convolution Interpolation for Digital Image Processing,
    with the free parameter `cubic`.
    """
    if how.mode == "linear":
        return (lambda x: np.maximum(1 - np.abs(x), 0.0)), 1
    a = how.cubic

    def cubic(x: Floats) -> Floats:
        d = np.abs(x)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return cubic, 2


def _cheapest_first(axis: Axis) -> tuple[float, int]:
    """Axes that shrink before axes that grow; of the latter the last, whose vectors cost most."""
    ratio = axis.size / axis.extent
    return ratio, axis.axis if ratio < 1 else -axis.axis


def _resampled(
    data: Value, axis: Axis, indices: Integers, weights: list[Floats] | None, graph: GraphBuilder
) -> Value:
    """The data along one axis; `indices` are [taps, positions]."""
    if weights is not None and not data.dtype.is_float:
        return _weighted_gathers(data, axis.axis, indices, weights, graph)
    tables: list[Value] = []
    form = _divided_positions(axis, indices)
    if form is None:
        form = _Division(1, 1, (0,) * len(indices))
        tables.append(graph.constant(indices, DType.I32))
    if weights is not None:
        tables.append(graph.constant(np.stack(weights), data.dtype))
    return graph.emit(
        "resample",
        data,
        *tables,
        axis=axis.axis,
        size=axis.size,
        step=form.step,
        divisor=form.divisor,
        offsets=form.offsets,
        tabled=len(tables) > (weights is not None),
        weighted=weights is not None,
    )


@dataclass(frozen=True, slots=True)
class _Division:
    """Tap t of position i reads the element (i * step + offsets[t]) // divisor, or the nearest."""

    step: int
    divisor: int
    offsets: tuple[int, ...]


def _divided_positions(axis: Axis, indices: Integers) -> _Division | None:
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
            return _Division(step, divisor, found)
    return None


def _offset(row: Integers, step: int, divisor: int, extent: int) -> int | None:
    """The number o with clamp((i * step + o) // divisor) == row[i] for all i, the least one."""
    moved = np.arange(len(row)) * step
    least, most = row * divisor - moved, (row + 1) * divisor - 1 - moved
    above, below = row > 0, row < extent - 1
    if not above.any():
        return int(most.min()) if below.any() else 0
    low = int(least[above].max())
    return None if below.any() and low > most[below].min() else low


def _weighted_gathers(
    data: Value,
    axis: int,
    indices: Integers,
    weights: list[Floats],
    graph: GraphBuilder,
) -> Value:
    """Of integers, whose weights are integers too."""
    parts: list[Value] = []
    for tap, index in enumerate(indices):
        part = graph.emit("gather", data, graph.constant(index), axis=axis)
        column = weights[tap].reshape(-1, *(1,) * (data.rank - axis - 1))
        part = graph.emit("mul", part, graph.constant(column, data.dtype))
        parts.append(part)
    return graph.fold("add", parts)
