"""Sliding windows: padding, dilation and output extents of convolutions and pools."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.frontend.onnx_node import OnnxNode

_AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True, slots=True)
class Windows:
    """Per spatial axis: kernel, stride, dilation; padding (begins, then ends); number of windows.

    As the node gives them, pads leave out what `auto_pad` asks for, and there is no `shape`.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str
    shape: tuple[int, ...] = ()

    @property
    def steps(self) -> dict[str, tuple[int, ...]]:
        """Strides and dilations, as attributes of the graph's operators."""
        return {"strides": self.strides, "dilations": self.dilations}

    def reach(self, axis: int, count: int = 1) -> int:
        """The extent that `count` windows cover along an axis."""
        return (count - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilations[axis] + 1


def window_attributes(node: OnnxNode, kernel: tuple[int, ...]) -> Windows:
    """Read and check the attributes for windows of extents `kernel`."""
    rank = len(kernel)
    strides = node.integers("strides", (1,) * rank)
    dilations = node.integers("dilations", (1,) * rank)
    pads = node.integers("pads", (0,) * (2 * rank))
    auto_pad = node.choice("auto_pad", "NOTSET", _AUTO_PADS)
    for name, values, wanted in (
        ("strides", strides, rank),
        ("dilations", dilations, rank),
        ("pads", pads, 2 * rank),
    ):
        if len(values) != wanted:
            raise node.bad_shape(f"{name} has {len(values)} entries instead of {wanted}")
    if any(value < 1 for value in kernel + strides + dilations) or any(pad < 0 for pad in pads):
        raise node.bad_shape("a kernel, stride or dilation is below 1, or a padding negative")
    if auto_pad != "NOTSET":
        pads = (0,) * (2 * rank)
    return Windows(kernel, strides, dilations, pads, auto_pad)


def pool_windows(node: OnnxNode, data: tuple[int, ...]) -> Windows:
    """The windows of a pool, of which the only one along an axis may hang over its end.

    With `ceil_mode` the last of several may, unless it would start in the padding.
    """
    kernel = node.integers("kernel_shape")
    if not kernel:
        raise node.bad_shape("kernel_shape is empty")
    return windows(node, data, kernel, ceil_mode=bool(node.integer("ceil_mode", 0)), cut=True)


def windows(
    node: OnnxNode,
    data: tuple[int, ...],
    kernel: tuple[int, ...],
    *,
    ceil_mode: bool = False,
    cut: bool = False,
) -> Windows:
    """The windows over spatial extents `data`.

    With `ceil_mode` a last window may hang over the end, unless it would start in the padding.
    With `cut` there is one where the padded extent is shorter than a window by less than a stride,
    as ONNX's formula has it in integers. Raises ShapeError when the ranks differ or no window fits.
    """
    given = window_attributes(node, kernel)
    rank = len(kernel)
    if len(data) != rank:
        raise node.bad_shape(f"the data has {len(data)} spatial axes, the kernel {rank}")
    begins, ends, shape = list(given.pads[:rank]), list(given.pads[rank:]), [0] * rank
    for axis, extent in enumerate(data):
        stride = given.strides[axis]
        reach = given.reach(axis)
        if given.auto_pad.startswith("SAME"):
            shape[axis] = -(-extent // stride)
            total = max(given.reach(axis, shape[axis]) - extent, 0)
            small, large = total // 2, total - total // 2
            upper = given.auto_pad == "SAME_UPPER"
            begins[axis], ends[axis] = (small, large) if upper else (large, small)
            continue
        room = extent + begins[axis] + ends[axis] - reach
        shape[axis] = room // stride + 1
        if ceil_mode or (cut and room < 0):
            shape[axis] = -(-room // stride) + 1
        if ceil_mode and (shape[axis] - 1) * stride >= extent + begins[axis]:
            shape[axis] -= 1
        if (room < 0 and not cut) or shape[axis] < 1:
            raise node.bad_shape(
                f"a window of {reach} does not fit into the padded size {room + reach}"
            )
    return replace(given, pads=(*begins, *ends), shape=tuple(shape))


def overhanging_ends(data: tuple[int, ...], found: Windows) -> tuple[int, ...]:
    """Padding after each axis with which windows that hang over the end fit exactly."""
    return tuple(
        max(found.reach(axis, count) - extent - begin, 0)
        for axis, (count, extent, begin) in enumerate(
            zip(found.shape, data, found.pads, strict=False)
        )
    )
