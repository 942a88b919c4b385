"""Sliding windows: padding, dilation and output extents of convolutions and pools."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.frontend.onnx_node import OnnxNode

_AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True, slots=True)
class Windows:
    """Per spatial axis: kernel, stride, dilation, padding before and after, number of windows."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def pads(self) -> tuple[int, ...]:
        """Begins, then ends, as ONNX and the graph's operators write it."""
        return self.begins + self.ends


@dataclass(frozen=True, slots=True)
class WindowAttributes:
    """The attributes that convolutions and pools share, as the node gives them."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str


def window_attributes(node: OnnxNode, kernel: tuple[int, ...]) -> WindowAttributes:
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
    return WindowAttributes(kernel, strides, dilations, pads, auto_pad)


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
        reach = (given.kernel[axis] - 1) * given.dilations[axis] + 1
        if given.auto_pad.startswith("SAME"):
            shape[axis] = -(-extent // stride)
            total = max((shape[axis] - 1) * stride + reach - extent, 0)
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
                f"a window of {reach} does not fit into the padded extent {room + reach}"
            )
    return Windows(
        given.kernel, given.strides, given.dilations, tuple(begins), tuple(ends), tuple(shape)
    )


def overhanging_ends(data: tuple[int, ...], found: Windows) -> tuple[int, ...]:
    """Padding after each axis with which windows that hang over the end fit exactly."""
    return tuple(
        max((count - 1) * stride + (kernel - 1) * dilation + 1 - extent - begin, 0)
        for count, stride, kernel, dilation, extent, begin in zip(
            found.shape, found.strides, found.kernel, found.dilations, data, found.begins,
            strict=True,
        )
    )  # fmt: skip
