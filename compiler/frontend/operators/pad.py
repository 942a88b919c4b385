"""Padding."""

from __future__ import annotations

import math

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.padded_moves import pad_axis

_MODES = ("constant", "reflect", "edge", "wrap")


@converter("Pad", 1, 2)
def pad_by_attributes(node: OnnxNode, graph: GraphBuilder) -> Value:
    pads = node.integers("paddings" if node.version == 1 else "pads")
    fill = graph.scalar(node.floating("value", 0.0), node.input(0).dtype)
    return _pad(node, node.input(0), pads, fill, graph)


@converter("Pad", 11, 13, 18, 19, 21, 23, 24, 25)
def pad(node: OnnxNode, graph: GraphBuilder) -> Value:
    """`axes` names the axes that `pads` is for; negative pads crop."""
    data = node.input(0)
    if node.input(1).sizes is not None:
        return _sized_pad(node, data, graph)
    given = node.constant_integers(1, "the list of pads")
    axes: tuple[int, ...] = tuple(range(data.rank))
    if node.optional(3) is not None:
        listed = node.constant_integers(3, "the list of axes")
        node.axes(listed, data.rank)
        axes = tuple(node.axis(axis, data.rank) for axis in listed)
    if len(given) != 2 * len(axes):
        raise node.bad_shape(f"{len(given)} pads do not fit {len(axes)} axes")
    pads = [0] * (2 * data.rank)
    for position, axis in enumerate(axes):
        pads[axis] = given[position]
        pads[data.rank + axis] = given[len(axes) + position]
    return _pad(node, data, tuple(pads), node.optional(2), graph)


def _sized_pad(node: OnnxNode, data: Value, graph: GraphBuilder) -> Value:
    """Pads of which some are dynamic."""
    mode = node.choice("mode", "constant", _MODES)
    pads, axes = node.sizes(1, "the list of pads"), tuple(range(data.rank))
    if node.optional(3) is not None:
        listed = node.constant_integers(3, "the list of axes")
        axes = tuple(node.axis(axis, data.rank) for axis in listed)
    if len(pads) != 2 * len(axes):
        raise node.bad_shape(f"{len(pads)} pads do not fit {len(axes)} axes")
    fill = node.optional(2)
    content = graph.scalar(0, data.dtype) if fill is None else fill
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        if begin != 0 or end != 0:
            data = pad_axis(data, axis, (begin, end), mode, content, graph)
    return data


def _pad(
    node: OnnxNode, data: Value, pads: tuple[int, ...], fill: Value | None, graph: GraphBuilder
) -> Value:
    mode = node.choice("mode", "constant", _MODES)
    if len(pads) != 2 * data.rank:
        raise node.bad_shape(f"{len(pads)} pads do not fit {data.type}")
    if not any(pads):
        return data
    if not data.type.size and mode == "constant":
        ends = zip(data.shape, pads, pads[data.rank :], strict=False)
        shape = tuple(extent + begin + end for extent, begin, end in ends)
        value = graph.scalar(0, data.dtype) if fill is None else graph.reshape(fill, ())
        return graph.emit("expand", value, shape=shape)
    if mode in ("reflect", "wrap") and min(pads) < 0:
        data, pads = _cropped(node, data, pads, graph)
    if mode != "constant" or fill is None:
        return graph.emit("pad", data, pads=pads, mode=mode)
    if fill.type.size != 1:
        raise node.bad_shape(f"the value must be a scalar, not {fill.type}")
    if fill.array is not None:
        number = fill.array.reshape(-1)[0].item()
        if math.isfinite(number) and float(number) == number:
            return graph.emit("pad", data, pads=pads, mode=mode, value=float(number))
    return graph.emit("pad", data, graph.reshape(fill, ()), pads=pads, mode=mode)


def _cropped(
    node: OnnxNode, data: Value, pads: tuple[int, ...], graph: GraphBuilder
) -> tuple[Value, tuple[int, ...]]:
    """Negative pads applied first, so that only what is left is mirrored; the other pads."""
    cut = [max(-pad, 0) for pad in pads]
    begins, ends = cut[: data.rank], cut[data.rank :]
    shape = tuple(
        extent - begin - end for extent, begin, end in zip(data.shape, begins, ends, strict=True)
    )
    if any(extent < 1 for extent in shape):
        raise node.bad_shape(f"pads {list(pads)} leave nothing of {data.type}")
    cropped = graph.emit("slice", data, starts=tuple(begins), steps=(1,) * data.rank, shape=shape)
    return cropped, tuple(max(pad, 0) for pad in pads)
