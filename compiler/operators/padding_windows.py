"""Padding rules of what runs along axes: convolutions, pools, resampling, recurrent layers."""

from __future__ import annotations

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.operators.padding import PaddedUse, PaddingRule, padding_rule
from tunefarm.compiler.operators.recurrence import FIRST, HIDDEN, LAST
from tunefarm.compiler.operators.windows import Windows, read_windows
from tunefarm.compiler.types.dims import ONE, Axis, Dims, extent_of, is_unpadded, whole
from tunefarm.compiler.types.sizes import Dimension, bounds_of, divide, greater


def window_count(
    size: Dimension, reach: int, stride: int, more: int, *, cut: bool = False
) -> Dimension:
    """Windows of `reach` elements, `stride` apart, over `more` elements than there are.

    With `cut` there is one where less than a stride is missing, as ONNX's formula has it.
    """
    count = divide(size + (more - reach), stride) + 1
    low, _ = bounds_of(count)
    if cut and low < 1 and bounds_of(size)[0] + more - reach > -stride:
        return greater(count, 1)
    if low < 1:
        raise ShapeError(
            f"a window of {reach} may not fit into the size {size} with a padding of {more}",
            hint="raise the lower bound of its symbols",
        )
    return count


def _slid(
    use: PaddedUse, windows: Windows, number: int, count: int | None = None, *, cut: bool = False
) -> Axis:
    """The axis of windows over an axis, of which there are `count` over the padded one."""
    axis = use.operand(0)[2 + number]
    if is_unpadded(axis) and count is not None:
        return whole(count)
    reach, stride = windows.reach(number), windows.strides[number]
    more = windows.begins[number] + windows.ends[number]
    if reach == stride == 1 and not more:
        return axis
    use.require_in_one_piece(0, 2 + number, "windows over an axis")
    if count is None:
        count = (extent_of(axis) + more - reach) // stride + 1
    if is_unpadded(axis):
        return whole(count)
    return ((window_count(axis[0][0], reach, stride, more, cut=cut), count),)


def _taps(use: PaddedUse) -> None:
    for axis in range(2, len(use.operand(1))):
        use.require_whole(1, axis, "an axis of the weights")


def _channels(use: PaddedUse, axis: int) -> None:
    """Channels that need not all be there are 0 in the data and in this axis of the weights."""
    if use.attributes.integer("groups") == 1:
        use.same((0, 1), (1, axis))
        for place in ((0, 1), (1, axis)):
            use.fill(*place, "zero")
        return
    use.require_whole(0, 1, "the axis of channels in groups")
    for position in use.present()[1:]:
        for number in range(2):
            if number < len(use.operand(position)):
                use.require_whole(position, number, "an axis of the weights")


@padding_rule("conv")
def _conv(use: PaddedUse) -> Dims:
    """Windows read zeros behind the true size, as they do outside of the data."""
    data, weight = use.operand(0), use.operand(1)
    if use.attributes.integer("pad_value"):
        raise ShapeError("a padding of other values than 0")
    _taps(use)
    _channels(use, 1)
    for position in use.present()[2:]:
        use.same((1, 0), (position, 0))
    windows = read_windows(use.attributes, tuple(map(extent_of, weight[2:])))
    for number in range(len(data) - 2):
        if windows.reach(number) > 1 or windows.begins[number] or windows.ends[number]:
            use.fill(0, 2 + number, "zero")
    slid = (_slid(use, windows, number) for number in range(len(data) - 2))
    return data[0], weight[0], *slid


@padding_rule("conv_transpose")
def _conv_transpose(use: PaddedUse) -> Dims:
    """The result is as much longer than a multiple of the data as it is at the bounds."""
    data, weight = use.operand(0), use.operand(1)
    _taps(use)
    _channels(use, 0)
    windows = read_windows(use.attributes, tuple(map(extent_of, weight[2:])))
    result: list[Axis] = []
    for number, extent in enumerate(use.attributes.integers("shape")):
        axis = data[2 + number]
        if is_unpadded(axis):
            result.append(whole(extent))
            continue
        use.require_in_one_piece(0, 2 + number, "windows over an axis")
        use.fill(0, 2 + number, "zero")
        stride = windows.strides[number]
        result.append(((axis[0][0] * stride + (extent - stride * extent_of(axis)), extent),))
    groups = use.attributes.integer("groups")
    channels = weight[1] if groups == 1 else whole(extent_of(weight[1]) * groups)
    for position in use.present()[2:]:
        use.same((1, 1), (position, 0))
    return data[0], channels, *result


def _pool(fill: str) -> PaddingRule:
    def rule(use: PaddedUse) -> Dims:
        """As many windows as fit: an importer that wants one more says so. The only may be cut."""
        data, windows = (
            use.operand(0),
            read_windows(use.attributes, use.attributes.integers("kernel")),
        )
        shape = use.attributes.integers("shape")
        for axis in range(2, len(data)):
            use.fill(0, axis, fill)
        slid = (_slid(use, windows, n, shape[n], cut=True) for n in range(len(data) - 2))
        return *data[:2], *slid

    return rule


padding_rule("max_pool")(_pool("lowest"))
padding_rule("sum_pool")(_pool("zero"))


@padding_rule("average_pool")
def _average_pool(use: PaddedUse) -> Dims:
    """Over whole axes only: see the importer's form for others."""
    for axis in range(2, len(use.operand(0))):
        use.require_whole(0, axis, "the axis of averages")
    return *use.operand(0)[:2], *map(whole, use.attributes.integers("shape"))


@padding_rule("resample")
def _resample(use: PaddedUse) -> Dims:
    axis, data = use.attributes.integer("axis"), use.operand(0)
    use.require_whole(0, axis, "the axis that is resized")
    return *data[:axis], whole(use.attributes.integer("size")), *data[axis + 1 :]


@padding_rule("frames")
def _frames(use: PaddedUse) -> Dims:
    """As many frames as the elements that are there have room for."""
    data, axis = use.operand(0), use.attributes.integer("axis")
    count, length, step = (use.attributes.integer(name) for name in ("count", "length", "step"))
    frames = whole(count)
    if not is_unpadded(data[axis]):
        use.require_in_one_piece(0, axis, "frames of an axis")
        frames = ((window_count(data[axis][0][0], length, step, 0), count),)
    return *data[:axis], frames, whole(length), *data[axis + 1 :]


@padding_rule("recurrence")
def _recurrence(use: PaddedUse) -> Dims:
    """Steps may be padded at their end where each has its first and last one as operands."""
    data, is_lstm = use.operand(0), use.attributes["kind"] == "LSTM"
    use.require_whole(0, 1, "the axis of steps")
    for axis in range(3, len(data)):
        use.require_whole(0, axis, "an axis of gates or hidden units")
    for position in use.present()[1:]:
        for axis in range(len(use.operand(position))):
            if position < HIDDEN or position > LAST:
                use.require_whole(position, axis, "an axis of the weights")
        if HIDDEN <= position <= LAST:
            use.same((0, 2), (position, 1))
    bounded = any(position in use.present() for position in (FIRST, LAST))
    rows = 1 + bounded + is_lstm
    return ONE if rows == 1 else whole(rows), data[0], data[1], data[2], data[4]
