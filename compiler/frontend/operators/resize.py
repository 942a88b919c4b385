"""Resize and Upsample: separable interpolation, axis by axis."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.frontend.converter import converter, dynamic_operand
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers, vector
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import as_whole, with_axis
from tunefarm.compiler.frontend.operators.resize_taps import (
    MAX_TAPS,
    Division,
    Floats,
    Integers,
    Interpolation,
    ResizedAxis,
    Scaling,
    SizedAxis,
    cropped_off,
    divided_positions,
    edge_extended,
    fixed_scale,
    kept_aspect,
    nearest,
    positions_along,
    resized_by_computed_scales,
    sampled,
    scaled_number,
    scaled_size,
    sizes_from_operand,
    tap_count,
    taps_of,
    weighted_taps,
)
from tunefarm.compiler.frontend.settle import bounded, declared, expect_constant, require, sized
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import is_unpadded, size_of
from tunefarm.compiler.types.sizes import bounds_of, static_shape

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
_POLICIES = ("stretch", "not_larger", "not_smaller")
_TAP_BYTES = 32  # of a tap at one position, while it is computed


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
        plan = _cropped(node, plan) if how.coordinates == "tf_crop_and_resize" else plan
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
) -> tuple[ResizedAxis, ...]:
    if len(scales) != len(axes) or not all(math.isfinite(s) and s > 0 for s in scales):
        raise node.bad_shape(f"the scales {list(scales)} do not fit {data.type}")
    return tuple(
        ResizedAxis(
            axis,
            data.shape[axis],
            scaled_number(data.shape[axis], scale),
            scale,
            sizes=_scaled_sizes(node, data, axis, scale),
        )
        for axis, scale in zip(axes, scales, strict=True)
    )


def _scaled_sizes(node: OnnxNode, data: Value, axis: int, scale: float) -> SizedAxis | None:
    """The true sizes of a padded axis."""
    if is_unpadded(data.dims[axis]):
        return None
    given = size_of(data.dims[axis])
    wanted = scaled_size(given, scale)
    if wanted is None:
        raise node.unsupported(f"the scale {scale} of a dynamic size")
    return SizedAxis(given, wanted, scale)


def _run_time_sizes(
    node: OnnxNode, data: Value, axes: tuple[int, ...], graph: GraphBuilder
) -> tuple[ResizedAxis, ...]:
    """Axes resized to sizes of which some, or those of the data, are dynamic."""
    wanted = node.sizes(3, "the list of sizes")
    if len(wanted) != len(axes):
        raise node.bad_shape(f"the sizes do not fit {data.type}")
    policy = node.choice("keep_aspect_ratio_policy", "stretch", _POLICIES)
    sizes = [size_of(data.dims[axis]) for axis in axes]
    scale: Value | None = None
    if policy != "stretch":
        scale, wanted = kept_aspect(sizes, wanted, policy == "not_larger", graph)
    plan = []
    for axis, given, size in zip(axes, sizes, wanted, strict=True):
        extent, most = data.shape[axis], bounds_of(size)[1]
        is_known = isinstance(given, int) and isinstance(size, int) and scale is None
        found = None if is_known else SizedAxis(given, size, scale)
        plan.append(ResizedAxis(axis, extent, most, most / extent, sizes=found))
    return tuple(plan)


def _sized_axes(
    node: OnnxNode, data: Value, sizes: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[ResizedAxis, ...]:
    if len(sizes) != len(axes) or any(size < 1 for size in sizes):
        raise node.bad_shape(f"the sizes {list(sizes)} do not fit {data.type}")
    policy = node.choice("keep_aspect_ratio_policy", "stretch", _POLICIES)
    ratios = [size / data.shape[axis] for axis, size in zip(axes, sizes, strict=True)]
    if policy != "stretch":
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        sizes = tuple(math.floor(scale * data.shape[axis] + 0.5) for axis in axes)
        ratios = [scale] * len(axes)
    return tuple(
        ResizedAxis(axis, data.shape[axis], size, ratio)
        for axis, size, ratio in zip(axes, sizes, ratios, strict=True)
    )


def _cropped(node: OnnxNode, plan: tuple[ResizedAxis, ...]) -> tuple[ResizedAxis, ...]:
    roi = _given(node, 1, "the region of interest")
    if roi is None or len(roi) != 2 * len(plan):
        raise node.bad_shape(f"the region of interest needs {2 * len(plan)} entries")
    starts, ends = roi[: len(plan)], roi[len(plan) :]
    return tuple(
        replace(axis, roi=crop)
        for axis, crop in zip(plan, zip(starts, ends, strict=True), strict=True)
    )


def _resize(
    node: OnnxNode,
    data: Value,
    plan: tuple[ResizedAxis, ...],
    how: Interpolation,
    graph: GraphBuilder,
) -> Value:
    """The data resized along every axis of the plan.

    Integers are interpolated as f32. As in onnxruntime what is behind the point is dropped, and
    with `antialias` each pass rounds; what lies beyond the ends of the type is cut off there.
    """
    if not data.dtype.is_integer or how.mode == "nearest":
        return _resized(node, data, plan, how, graph)
    floats = graph.cast(data, DType.F32)
    if how.antialias:
        for axis in sorted(plan, key=attrgetter("axis"), reverse=True):  # along rows first
            floats = _resized(node, floats, (axis,), how, graph)
            floats = _within(_rounded(floats, graph), data.dtype, graph)
    else:
        floats = _within(_resized(node, floats, plan, how, graph), data.dtype, graph)
    return graph.cast(floats, data.dtype)


def _rounded(floats: Value, graph: GraphBuilder) -> Value:
    """Numbers rounded to integers, halves away from zero."""
    half = graph.scalar(0.5, DType.F32)
    size = graph.emit("floor", graph.emit("add", graph.emit("abs", floats), half))
    return graph.emit("mul", graph.emit("sign", floats), size)


def _within(floats: Value, dtype: DType, graph: GraphBuilder) -> Value:
    """Numbers cut off at the ends of an integer type, or the last f32 within them."""
    least, most = (np.float32(limit) for limit in dtype.limits)
    if int(most) > dtype.limits[1]:
        most = np.nextafter(most, np.float32(0))
    return graph.emit("clip", floats, min=float(least), max=float(most))


def _resized(
    node: OnnxNode,
    data: Value,
    plan: tuple[ResizedAxis, ...],
    how: Interpolation,
    graph: GraphBuilder,
) -> Value:
    sizes = {axis.axis: axis.size for axis in plan}
    shape = [sizes.get(axis, extent) for axis, extent in enumerate(data.shape)]
    graph.check_array(shape, data.dtype.bytes)
    result, masks = data, list[Value]()
    for axis in plan:
        if axis.sizes is not None:
            result = _resize_sized(node, result, axis, axis.sizes, how, graph)
            if how.coordinates == "tf_crop_and_resize":
                masks.append(cropped_off(data.rank, axis, axis.sizes, how, graph))
    plan = tuple(axis for axis in plan if axis.sizes is None)
    outside: list[tuple[int, npt.NDArray[np.bool_]]] = []
    for axis in sorted(plan, key=_cheapest_first):
        if axis.size < 1:
            raise node.bad_shape(f"axis {axis.axis} of {data.type} shrinks to nothing")
        graph.check_array((tap_count(axis, how), axis.size), _TAP_BYTES)
        positions = positions_along(axis, how.coordinates, graph)
        if how.coordinates == "tf_crop_and_resize":
            beyond = (positions < 0) | (positions > axis.extent - 1)
            if beyond.any():
                outside.append((axis.axis, beyond))
        result = _resize_axis(node, result, axis, positions, how, graph)
    for position, beyond in outside:
        masks.append(graph.constant(beyond.reshape(-1, *(1,) * (data.rank - position - 1))))
    for mask in masks:
        fill = graph.scalar(how.extrapolation, data.dtype)
        result = graph.emit("where", mask, fill, result)
    return result


def _resize_axis(
    node: OnnxNode,
    data: Value,
    axis: ResizedAxis,
    positions: Floats,
    how: Interpolation,
    graph: GraphBuilder,
) -> Value:
    if axis.size == axis.extent and np.array_equal(positions, np.arange(axis.size)):
        return data
    indices, weights = taps_of(axis, positions, how, graph)
    if len(indices) > MAX_TAPS:
        raise node.unsupported(f"interpolation of {len(indices)} elements")
    return _resampled(data, axis, np.stack(indices), weights, graph)


def _resize_sized(
    node: OnnxNode,
    data: Value,
    axis: ResizedAxis,
    sizes: SizedAxis,
    how: Interpolation,
    graph: GraphBuilder,
) -> Value:
    """An axis with padding: as it is, by a scale that settles all positions, or by sizes."""
    crops = how.coordinates == "tf_crop_and_resize"
    if sizes.given == sizes.wanted and sizes.scale in (None, 1.0) and not crops:
        return data
    if axis.size < 1:
        raise graph.refusal(f"resizing axis {axis.axis} of {data.type}", [data])
    if len(data.dims[axis.axis]) > 1:
        data = graph.padded.dense(data)
        axis = replace(axis, extent=data.shape[axis.axis])
    scale = fixed_scale(sizes.given, sizes.wanted, sizes.scale, how.coordinates)
    smooths = how.antialias and (scale is None or scale < 1)
    inside = how.exclude_outside and how.mode == "cubic"  # of two elements the other is the last
    if scale is not None and not ((smooths or inside) and how.mode != "nearest"):
        whole = replace(axis, scale=scale, size=bounds_of(sizes.wanted)[1])
        positions = positions_along(whole, how.coordinates, graph)
        if _stays_inside(whole, positions, scale, sizes, how, graph):
            read = as_whole(data, axis.axis, graph)
        else:
            read = edge_extended(data, axis.axis, graph)
        resized = _resize_axis(node, read, whole, positions, how, graph)
        return with_axis(resized, axis.axis, ((sizes.wanted, whole.size),), graph)
    return sampled(data, axis.axis, sizes.wanted, sizes.scale, how, graph, axis.roi)


def _stays_inside(
    axis: ResizedAxis,
    positions: Floats,
    scale: float,
    sizes: SizedAxis,
    how: Interpolation,
    graph: GraphBuilder,
) -> bool:
    """Whether no result of any size is made of elements behind the last one, as by integer scales
    to the nearest; elsewhere the last one stands for them."""
    low, high = bounds_of(sizes.given)
    counts = np.arange(max(low, 1), high + 1)
    last = np.minimum(np.ceil(counts * scale).astype(np.int64), axis.size) - 1
    read = np.maximum.accumulate(np.max(taps_of(axis, positions, how, graph)[0], axis=0))
    return bool(np.all(read[np.maximum(last, 0)] < counts))


def _cheapest_first(axis: ResizedAxis) -> tuple[float, int]:
    """Axes that shrink before axes that grow; of the latter the last, whose vectors cost most."""
    ratio = axis.size / axis.extent
    return ratio, axis.axis if ratio < 1 else -axis.axis


def _resampled(
    data: Value,
    axis: ResizedAxis,
    indices: Integers,
    weights: list[Floats] | None,
    graph: GraphBuilder,
) -> Value:
    """The data along one axis; `indices` are [taps, positions]."""
    if weights is not None and not data.dtype.is_float:
        return _weighted_gathers(data, axis.axis, indices, weights, graph)
    tables: list[Value] = []
    form = divided_positions(axis, indices)
    if form is None:
        form = Division(1, 1, (0,) * len(indices))
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


# --- Resize and Upsample with scales, sizes or a region that are computed ------------------------
#
# The declared shape of the result says how many positions there are and how many elements each is
# made of at most; tables of both are computed at run time, as those above are at import.


@dataclass(frozen=True, slots=True, eq=False)
class _Axis:
    """An axis of known extents, and its scaling in f64, of which the crop is in f32."""

    axis: int
    extent: int
    size: int
    scaling: Scaling


def _axes(
    data: Value, axes: tuple[int, ...], wanted: tuple[int, ...], scales: Numbers, lengths: Numbers
) -> list[_Axis]:
    """The axes by these scales, which give these lengths."""
    found = []
    for number, axis in enumerate(axes):
        extent, size = data.shape[axis], wanted[axis]
        scale, length = scales.part(number, 1), lengths.part(number, 1)
        whole = scale.like([0.0]), scale.like([1.0])
        scaling = Scaling(scale.like([extent]), scale.like([size]), scale, length, whole)
        found.append(_Axis(axis, extent, size, scaling))
    return found


@dynamic_operand("Upsample", at=(1,), padded=True)
def computed_upsample(node: OnnxNode, graph: GraphBuilder) -> Value:
    """By scales that give the declared shape."""
    return _upsampled(node, graph)


def _upsampled(node: OnnxNode, graph: GraphBuilder) -> Value:
    axes = tuple(range(node.input(0).rank))
    declared_sizes = node.declared_sizes() or sizes_from_operand(node, graph, 1, axes)
    if declared_sizes is not None and static_shape(declared_sizes) is None:
        how = upsample_interpolation(node)
        return resized_by_computed_scales(node, graph, 1, axes, declared_sizes, how)
    if node.input(0).padded is not None:
        raise node.not_settled(1, "the list of scales")
    plan = _computed_scaled(node, graph, 1, axes, declared(node, 1, "the list of scales"))
    return _computed_resized(node, plan, upsample_interpolation(node), graph)


@dynamic_operand("Resize", at=(1, 2, 3), padded=True)
def computed_resize(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """By scales, or to sizes, that give the declared shape."""
    if node.version == 10:
        return _upsampled(node, graph)
    data, how = node.input(0), interpolation(node)
    given = node.integers("axes", tuple(range(data.rank)))
    node.axes(given, data.rank)
    axes = tuple(node.axis(axis, data.rank) for axis in given)
    at = 3 if _is_given(node, 3) else 2
    meaning = "the list of sizes" if at == 3 else "the list of scales"
    sizes = node.declared_sizes()
    if sizes is None and at == 2 and node.is_computed(at):
        text = sizes_from_operand(node, graph, 2, axes)
        if text is not None:
            return resized_by_computed_scales(node, graph, 2, axes, text, how)
    if sizes is not None and static_shape(sizes) is None and node.is_computed(at):
        if at == 2:
            return resized_by_computed_scales(node, graph, 2, axes, sizes, how)
        listed = [sizes[axis] for axis in axes]
        return node.with_constants({3: sized(node, graph, 3, listed, meaning)})
    if sizes is None and at == 3 and node.is_computed(3):
        channels = 2 if data.rank > 2 else 0  # batch and channels of an image are not resized
        kept = {at: data.true_shape[axis] for at, axis in enumerate(axes) if axis < channels}
        return bounded(node, graph, 3, meaning, kept=kept)
    if data.padded is not None:
        if not node.is_computed(at) and how.coordinates != "tf_crop_and_resize":
            return node.with_constants({1: graph.constant(np.zeros(0, np.float32))})
        raise node.not_settled(at if node.is_computed(at) else 1, meaning)
    policy = node.choice(
        "keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller")
    )
    wanted = declared(node, at if node.is_computed(at) else 1, meaning)
    if len(wanted) != data.rank:
        raise node.bad_shape(f"{data.type} is not resized to the declared {list(wanted)}")
    crops = how.coordinates == "tf_crop_and_resize"
    if at == 3 and policy == "stretch" and node.is_computed(3):
        extents = [wanted[axis] for axis in axes]
        node = node.with_constants({3: expect_constant(node, graph, 3, extents, meaning)})
    if not node.is_computed(at) and not (crops and node.is_computed(1)):
        unused = {} if crops else {1: graph.constant(np.zeros(0, np.float32))}
        return node.with_constants(unused)
    if at == 2:
        plan = _computed_scaled(node, graph, 2, axes, wanted)
    else:
        plan = _sized(node, graph, axes, wanted, policy)
    return _computed_resized(
        node, _computed_cropped(node, graph, plan) if crops else plan, how, graph
    )


def _is_given(node: OnnxNode, position: int) -> bool:
    value = node.optional(position)
    return value is not None and 0 not in value.shape


def _computed_scaled(
    node: OnnxNode,
    graph: GraphBuilder,
    position: int,
    axes: tuple[int, ...],
    wanted: tuple[int, ...],
) -> list[_Axis]:
    """The axes by scales that give the declared extents; 1 where an axis keeps its own."""
    data = node.input(0)
    scales = vector(node.input(position), graph, DType.F64)
    if scales.shape != (len(axes),) or len(wanted) != data.rank:
        raise node.bad_shape(f"{scales.shape[0]} scales do not fit {data.type}")
    extents = scales.like([data.shape[axis] for axis in axes])
    lengths = scales * extents
    sizes = [wanted[axis] for axis in axes]
    kept = Numbers(graph.constant(np.array(sizes) == extents.value.array), graph)
    right = kept.choose(scales, lengths.apply("floor")).equals(
        kept.choose(scales.like(1), scales.like(sizes))
    )
    require(node, graph, position, right, f"the scales must give the shape {list(wanted)}")
    return _axes(data, axes, wanted, scales, lengths)


def _sized(
    node: OnnxNode,
    graph: GraphBuilder,
    axes: tuple[int, ...],
    wanted: tuple[int, ...],
    policy: str,
) -> list[_Axis]:
    """The axes by one scale for all of them, or by a scale for each where they are stretched."""
    data = node.input(0)
    sizes = vector(node.input(3), graph, DType.F64)
    if sizes.shape != (len(axes),):
        raise node.bad_shape(f"{sizes.shape[0]} sizes do not fit {data.type}")
    extents = sizes.like([data.shape[axis] for axis in axes])
    ratios = sizes / extents
    if policy != "stretch":
        scale = ratios.part(0, 1)
        for i in range(1, len(axes)):
            other = ratios.part(i, 1)
            scale = scale.at_most(other) if policy == "not_larger" else scale.at_least(other)
        given = (scale * extents + 0.5).apply("floor")
        right = given.equals(sizes.like([wanted[axis] for axis in axes]))
        require(node, graph, 3, right, f"the sizes must give the shape {list(wanted)}")
        ratios = scale * sizes.like([1] * len(axes))
    return _axes(data, axes, wanted, ratios, ratios * extents)


def _computed_cropped(node: OnnxNode, graph: GraphBuilder, plan: list[_Axis]) -> list[_Axis]:
    roi = vector(node.input(1), graph, DType.F32)
    if roi.shape != (2 * len(plan),):
        raise node.bad_shape(f"the region of interest needs {2 * len(plan)} entries")
    ends = [(roi.part(i, 1), roi.part(len(plan) + i, 1)) for i in range(len(plan))]
    return [
        replace(axis, scaling=replace(axis.scaling, roi=crop))
        for axis, crop in zip(plan, ends, strict=True)
    ]


def _computed_resized(
    node: OnnxNode, plan: list[_Axis], how: Interpolation, graph: GraphBuilder
) -> Value:
    result = node.input(0)
    if how.mode != "nearest" and not result.dtype.is_float:
        raise node.unsupported(f"{how.mode} interpolation of {result.dtype} by computed scales")
    rank, crops = result.rank, how.coordinates == "tf_crop_and_resize"
    outside: list[Value] = []
    for axis in sorted(plan, key=lambda axis: axis.size / axis.extent):
        if axis.size < 1:
            raise node.bad_shape(f"axis {axis.axis} shrinks to nothing")
        if not crops and axis.size == axis.extent:  # its scale is checked to be 1
            continue
        places = axis.scaling.positions(axis.size, how.coordinates).cast(DType.F64)
        if crops:
            beyond = (places < 0) | (places.like(axis.extent - 1) < places)
            outside.append(beyond.reshape(axis.size, *(1,) * (rank - axis.axis - 1)).value)
        result = _computed_resampled(node, result, axis, places, how, graph)
    if not outside:
        return result
    fill = graph.scalar(how.extrapolation, result.dtype)
    return graph.emit("where", graph.fold("or", outside), fill, result)


def _computed_resampled(
    node: OnnxNode,
    data: Value,
    axis: _Axis,
    places: Numbers,
    how: Interpolation,
    graph: GraphBuilder,
) -> Value:
    last = float(axis.extent - 1)
    places = places.equals(places).choose(places, 0)  # no NaN, which is no place
    places = places.at_least(-2.0 * axis.extent - 2).at_most(3.0 * axis.extent + 2)
    if how.mode == "nearest":
        index = nearest(places, how.nearest).at_least(0).at_most(last)
        return graph.emit("gather", data, index.cast(DType.I64).value, axis=axis.axis)
    shrunk = max(axis.extent / (axis.size - 0.5), 1.0) if how.antialias else 1.0
    reach = math.ceil(how.radius * shrunk)
    if 2 * reach > MAX_TAPS:
        raise node.unsupported(f"interpolation of {2 * reach} elements")
    stretch = axis.scaling.scale.at_most(1.0) if how.antialias else places.like(1)
    indices, weights = weighted_taps(places, places.like(last), stretch, reach, how)
    return graph.emit(
        "resample",
        data,
        indices.cast(DType.I32).value,
        weights.cast(data.dtype).value,
        axis=axis.axis,
        size=axis.size,
        offsets=(0,) * (2 * reach),
        tabled=True,
        weighted=True,
    )
