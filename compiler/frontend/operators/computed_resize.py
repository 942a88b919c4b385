"""Resize and Upsample with scales, sizes or a region that are computed.

The declared shape of the result says how many positions there are and how many elements each is
made of at most; tables of both are computed at run time, as
`tunefarm.compiler.frontend.operators.resize` computes them at import.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tunefarm.compiler.frontend.dynamic_operands import dynamic_operand
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers, vector
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.resize import (
    interpolation,
    upsample_interpolation,
)
from tunefarm.compiler.frontend.operators.resize_weights import weighted_taps
from tunefarm.compiler.frontend.operators.sized_resize import (
    resized_by_computed_scales,
    sizes_from_operand,
)
from tunefarm.compiler.frontend.resize_taps import MAX_TAPS, TIE, Interpolation
from tunefarm.compiler.frontend.settle import declared, expect_constant, require, sized
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import static_shape


@dataclass(frozen=True, slots=True, eq=False)
class _Axis:
    """An axis of known extents: `scale` is an f64 scalar, `length` the extent that it gives.

    `roi` are begin and end of a relative crop, in f32.
    """

    axis: int
    extent: int
    size: int
    scale: Numbers
    length: Numbers
    roi: tuple[Numbers, Numbers] | None


@dynamic_operand("Upsample", at=(1,), padded=True)
def upsample(node: OnnxNode, graph: GraphBuilder) -> Value:
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
    plan = _scaled(node, graph, 1, axes, declared(node, 1, "the list of scales"))
    return _resized(node, plan, upsample_interpolation(node), graph)


@dynamic_operand("Resize", at=(1, 2, 3), padded=True)
def resize(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
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
        plan = _scaled(node, graph, 2, axes, wanted)
    else:
        plan = _sized(node, graph, axes, wanted, policy)
    return _resized(node, _cropped(node, graph, plan) if crops else plan, how, graph)


def _is_given(node: OnnxNode, position: int) -> bool:
    value = node.optional(position)
    return value is not None and 0 not in value.shape


def _scaled(
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
    right = kept.choose(scales, lengths.floor()).equals(
        kept.choose(scales.like(1), scales.like(sizes))
    )
    require(node, graph, position, right, f"the scales must give the shape {list(wanted)}")
    return [
        _Axis(axis, data.shape[axis], wanted[axis], scales.part(i, 1), lengths.part(i, 1), None)
        for i, axis in enumerate(axes)
    ]


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
        given = (scale * extents + 0.5).floor()
        right = given.equals(sizes.like([wanted[axis] for axis in axes]))
        require(node, graph, 3, right, f"the sizes must give the shape {list(wanted)}")
        ratios = scale * sizes.like([1] * len(axes))
    lengths = ratios * extents
    return [
        _Axis(axis, data.shape[axis], wanted[axis], ratios.part(i, 1), lengths.part(i, 1), None)
        for i, axis in enumerate(axes)
    ]


def _cropped(node: OnnxNode, graph: GraphBuilder, plan: list[_Axis]) -> list[_Axis]:
    roi = vector(node.input(1), graph, DType.F32)
    if roi.shape != (2 * len(plan),):
        raise node.bad_shape(f"the region of interest needs {2 * len(plan)} entries")
    return [
        _Axis(
            axis.axis,
            axis.extent,
            axis.size,
            axis.scale,
            axis.length,
            (roi.part(i, 1), roi.part(len(plan) + i, 1)),
        )
        for i, axis in enumerate(plan)
    ]


def _resized(node: OnnxNode, plan: list[_Axis], how: Interpolation, graph: GraphBuilder) -> Value:
    result = node.input(0)
    if how.mode != "nearest" and not result.dtype.is_float:
        raise node.unsupported(f"{how.mode} interpolation of {result.dtype} by computed scales")
    rank = result.rank
    outside: list[Value] = []
    for axis in sorted(plan, key=lambda axis: axis.size / axis.extent):
        if axis.size < 1:
            raise node.bad_shape(f"axis {axis.axis} shrinks to nothing")
        if axis.roi is None and axis.size == axis.extent:  # its scale is checked to be 1
            continue
        places = _positions(axis, how.coordinates, graph)
        if axis.roi is not None:
            beyond = (places < 0) | (places.like(axis.extent - 1) < places)
            outside.append(beyond.reshape(axis.size, *(1,) * (rank - axis.axis - 1)).value)
        result = _resampled(node, result, axis, places, how, graph)
    if not outside:
        return result
    fill = graph.scalar(how.extrapolation, result.dtype)
    return graph.emit("where", graph.fold("or", outside), fill, result)


def _positions(axis: _Axis, mode: str, graph: GraphBuilder) -> Numbers:
    """The input coordinate of each output position in f64, computed in f32 as at import."""
    y = Numbers(graph.constant(np.arange(axis.size, dtype=np.float32)), graph)
    n, whole = axis.extent, axis.length.equals(1)
    scale = axis.scale.cast(DType.F32)
    steps = whole.choose(axis.length.like(1), axis.length - 1).cast(DType.F32)
    if mode == "align_corners":
        found = whole.choose(y * 0, y * (n - 1) / steps)
    elif mode == "asymmetric":
        found = y / scale
    elif mode == "tf_half_pixel_for_nn":
        found = (y + 0.5) / scale
    elif mode == "tf_crop_and_resize" and axis.roi is not None:
        start, end = axis.roi
        middle = y * 0 + (start + end) * 0.5 * (n - 1)
        found = whole.choose(middle, start * (n - 1) + y * (end - start) * (n - 1) / steps)
    elif mode == "pytorch_half_pixel" and axis.size == 1:
        found = y * 0
    else:
        found = (y + 0.5) / scale - 0.5
        if mode == "half_pixel_symmetric":
            lost = axis.length.like(1) - axis.length.like(axis.size) / axis.length
            found = (lost * (n / 2)).cast(DType.F32) + (y + 0.5) / scale - 0.5
    return found.cast(DType.F64)


def _resampled(
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
        index = _nearest(places, how.nearest).at_least(0).at_most(last)
        return graph.emit("gather", data, index.cast(DType.I64).value, axis=axis.axis)
    radius = 1 if how.mode == "linear" else 2
    shrunk = max(axis.extent / (axis.size - 0.5), 1.0) if how.antialias else 1.0
    reach = math.ceil(radius * shrunk)
    if 2 * reach > MAX_TAPS:
        raise node.unsupported(f"interpolation of {2 * reach} elements")
    stretch = axis.scale.at_most(1.0) if how.antialias else places.like(1)
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


def _nearest(places: Numbers, mode: str) -> Numbers:
    below = places.floor()
    share = places - below
    match mode:
        case "round_prefer_floor":
            return below + (share.like(0.5 + TIE) < share).cast(DType.F64)
        case "round_prefer_ceil":
            return below + (share >= 0.5 - TIE).cast(DType.F64)
        case "floor":
            return places.floor()
    return places.ceil()
