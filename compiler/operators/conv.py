"""Convolution, direct form, on plain and blocked data.

Layouts of conv: "NCHW" (data, weight and result as in ONNX, 1 to 3 spatial axes); "NCHWc" (data and
result blocked, 2 spatial axes; the weight keeps its logical axes [OC, IC/groups, KH, KW] with
channels padded to whole blocks; the result lies in blocks of `block`, 0: as the data does);
"NCHW->NCHWc" (plain data, blocked result; `block` is needed).

Data and weights narrower than their sums (u8 and i8 in i32, bf16 in f32) come with the attribute
`accumulator`, the type of the bias and the result. `channels` are those of blocked data that do not
pad its last block; 0: all, as far as is known. Around the data lies `pad_value`: the zero point
of quantised data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from tunefarm.compiler.expr.nodes import Expr, add, binary, const, integer, mul, select
from tunefarm.compiler.kernels.kernel import KernelBuilder, Tensor
from tunefarm.compiler.operators.blocked import (
    BLOCKED,
    PLAIN_TO_BLOCKED,
    BlockedForm,
    BlockedLayout,
    BlockedRule,
    BlockedUse,
    Shape,
)
from tunefarm.compiler.operators.registry import Pattern, define
from tunefarm.compiler.operators.rules import check, check_dtype, product, sum_dtype
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.operators.windows import (
    Windows,
    fill_behind,
    match_channels,
    read_windows,
    require_whole_taps,
    slid_axis,
    spatial_names,
)
from tunefarm.compiler.types.dtypes import NUMBERS, DType
from tunefarm.compiler.types.padded_shape import whole
from tunefarm.compiler.types.tensor_type import TensorType

LAYOUTS = ("NCHW", BLOCKED, PLAIN_TO_BLOCKED)


def groups_of(attributes: Attributes) -> int:
    """The number of channel groups."""
    groups = attributes.integer("groups")
    check(groups >= 1, f"groups {groups} must be positive")
    return groups


def check_bias(types: Types, channels: int, dtype: DType, axis: int | None) -> None:
    """Raise `ShapeError` unless input 2 is absent or a bias of this type for each channel.

    `axis` of the weights has as many, None where none has.
    """
    bias = types.optional(2)
    if bias is None:
        return
    check(bias.dtype is dtype, f"the bias {bias} has not the type of the sums, {dtype}")
    wrong = f"the bias must have the shape [{channels}], not {bias}"
    check(len(bias.shape) == 1 and (axis is not None or bias.shape == (channels,)), wrong)
    if axis is not None:
        types.same((1, axis), (2, 0), otherwise=wrong)


def check_weight(attributes: Attributes, types: Types, blocked: bool) -> DType:
    """The type of the result.

    Raises `ShapeError` unless data and weight have the same number (1 to 3) of spatial axes, and
    types that fit.
    """
    data, weight = types.present(0), types.present(1)
    check_dtype(data, NUMBERS, "the data")
    dtype = sum_dtype(attributes, data, weight)
    rank = len(data.shape) - (3 if blocked else 2)
    check(1 <= rank <= 3, f"data of {data} does not have 1 to 3 spatial axes")
    check(
        len(weight.shape) == rank + 2,
        f"data of {rank} spatial axes needs a weight of rank {rank + 2}, not {weight}",
    )
    return dtype


# --- conv ---------------------------------------------------------------------------------------


def _infer_conv(attributes: Attributes, types: Types) -> TensorType:
    """Windows read zeros behind the true size, as they do outside of the data."""
    layout = attributes.choice("layout", LAYOUTS)
    dtype = check_weight(attributes, types, layout == BLOCKED)
    data, weight = types.present(0), types.present(1)
    windows, groups = read_windows(attributes, weight.shape[2:]), groups_of(attributes)
    channels, outputs = data.shape[1], weight.shape[0]
    if layout == "NCHW":
        match_channels(
            types, 1, groups, f"{channels} channels are not {groups} groups of {weight.shape[1]}"
        )
        check(
            outputs % groups == 0, f"{outputs} output channels do not divide into {groups} groups"
        )
    else:
        check(windows.rank == 2, f"blocked data has 2 spatial axes, not {windows.rank}")
        _check_blocked(attributes, groups, data, weight)
    check_bias(types, outputs, dtype, 0)
    _check_pad_value(attributes, data.dtype)
    require_whole_taps(types)
    for axis in range(windows.rank):
        if windows.reach(axis) > 1 or windows.begins[axis] or windows.ends[axis]:
            if attributes.integer("pad_value"):
                types.require_whole(0, 2 + axis, "an axis among other values than 0")
            fill_behind(types, windows, axis, "zero")
    spatial = [slid_axis(types, windows, axis) for axis in range(windows.rank)]
    if layout == "NCHW":
        return TensorType.of(dtype, (data.dims[0], weight.dims[0], *spatial))
    block = _block(attributes, data.shape)
    return TensorType.of(dtype, (data.dims[0], whole(outputs // block), *spatial, whole(block)))


def _check_pad_value(attributes: Attributes, dtype: DType) -> None:
    value = attributes.integer("pad_value")
    fits = value == 0 or (
        dtype.is_integer and np.iinfo(dtype.numpy).min <= value <= np.iinfo(dtype.numpy).max
    )
    check(fits, f"pad_value {value} is none of data of {dtype}")


def _block(attributes: Attributes, data_shape: Shape) -> int:
    """Channels per block of the result of a blocked convolution."""
    plain = attributes["layout"] == PLAIN_TO_BLOCKED
    return attributes.integer("block") if plain else attributes.integer("block") or data_shape[-1]


def _check_blocked(
    attributes: Attributes, groups: int, data: TensorType, weight: TensorType
) -> None:
    block, outputs, group_inputs = _block(attributes, data.shape), *weight.shape[:2]
    check(block >= 1, "layout NCHW->NCHWc needs the attribute block")
    check(outputs % block == 0, f"{outputs} output channels are no whole blocks of {block}")
    if attributes["layout"] == PLAIN_TO_BLOCKED:
        check(groups == 1, "layout NCHW->NCHWc takes no groups")
        check(
            data.shape[1] == group_inputs,
            f"the data has {data.shape[1]} channels, the weight {group_inputs}",
        )
        return
    reads = data.shape[-1]
    channels = data.shape[1] * reads
    if _is_depthwise(groups, weight.shape):
        check(reads == block, f"depthwise gives blocks of {reads} as it reads, not of {block}")
        check(
            outputs == channels and channels - block < groups <= channels,
            f"depthwise: {groups} groups, {channels} channels and {outputs} output "
            "channels (both padded to whole blocks) do not fit",
        )
        return
    if groups == 1:
        check(
            channels - reads < group_inputs <= channels,
            f"{data.shape[1]} blocks of {reads} do not hold {group_inputs} channels",
        )
        return
    check(
        group_inputs % reads == 0 and outputs // groups % block == 0,
        f"the channels of one of {groups} groups are no whole blocks of {reads} and {block}",
    )
    check(
        channels == group_inputs * groups and outputs % groups == 0,
        f"{channels} channels are not {groups} groups of {group_inputs}",
    )


def _is_depthwise(groups: int, weight_shape: Sequence[int]) -> bool:
    """Every group has one input channel, so that no channel is summed over."""
    return groups > 1 and weight_shape[1] == 1


def _conv(attributes: Attributes, use: Use) -> Tensor:
    data, weight, bias = use.input(0), use.input(1), use.optional(2)
    windows = read_windows(attributes, weight.shape[2:])
    layout, outputs = attributes["layout"], use.shape[2 : 2 + windows.rank]
    channel = "icb" if layout == BLOCKED else "ic"
    padding = const(attributes.integer("pad_value"), data.dtype)
    source = windows.padded(use.builder, data, channel, outputs, padding)
    if layout == "NCHW":
        result = _plain_conv(attributes, use, windows, source, weight)
    else:
        result = _blocked_conv(attributes, use, windows, source, weight)
    if bias is None:
        return result
    return add_bias(use.builder, result, bias, 0 if layout == "NCHW" else use.shape[-1])


def add_bias(builder: KernelBuilder, result: Tensor, bias: Tensor, block: int) -> Tensor:
    """Add the stage "bias"; `block` is 0 for plain data."""

    def body(*indices: Expr) -> Expr:
        channel = indices[1]
        if block:
            channel = add(mul(channel, integer(block)), indices[-1])
        return add(result[indices], bias[channel])

    axes = [(axis.name, axis.extent) for axis in builder.stages[-1].axes]
    return builder.stage("bias", axes, body)


def _plain_conv(
    attributes: Attributes, use: Use, windows: Windows, source: Tensor, weight: Tensor
) -> Tensor:
    groups = groups_of(attributes)
    rank, (outputs, group_inputs, *_) = windows.rank, weight.shape
    per_group = outputs // groups
    depthwise = _is_depthwise(groups, weight.shape)
    axes = list(zip(("n", "oc", *spatial_names(rank, "o")), use.shape, strict=True))

    def body(n: Expr, oc: Expr, *others: Expr) -> Expr:
        ic = integer(0) if depthwise else others[rank]
        tap = others[-rank:]
        channel = ic
        if groups > 1:
            group = binary("floordiv", oc, integer(per_group))
            channel = add(mul(group, integer(group_inputs)), ic)
        positions = windows.positions(others[:rank], tap)
        return product(attributes, source[(n, channel, *positions)], weight[(oc, ic, *tap)])

    channels = [] if depthwise else [("ic", group_inputs)]
    reduce = [*channels, *windows.taps()]
    return use.builder.stage("conv", axes, body, reduce=reduce, combiner="sum")


def _blocked_conv(
    attributes: Attributes, use: Use, windows: Windows, source: Tensor, weight: Tensor
) -> Tensor:
    groups, blocked_data = groups_of(attributes), attributes["layout"] == BLOCKED
    block, group_inputs = use.shape[-1], weight.shape[1]
    reads = use.input(0).shape[-1] if blocked_data else 1
    axes = list(zip(("n", "ocb", "oh", "ow", "oci"), use.shape, strict=True))
    input_blocks = -(-group_inputs // reads)
    output_blocks = use.shape[1] // groups  # of one group
    depthwise = _is_depthwise(groups, weight.shape)
    times = partial(product, attributes)

    def body(*indices: Expr) -> Expr:
        n, ocb, oh, ow, oci, *channel, kh, kw = indices
        oc = add(mul(ocb, integer(block)), oci)
        ih, iw = windows.positions((oh, ow), (kh, kw))
        if depthwise:
            return times(source[n, ocb, ih, iw, oci], weight[oc, integer(0), kh, kw])
        if not blocked_data:
            return times(source[n, channel[0], ih, iw], weight[oc, channel[0], kh, kw])
        icb, ici = channel
        position = icb
        if groups > 1:
            group = binary("floordiv", ocb, integer(output_blocks))
            position = add(mul(group, integer(input_blocks)), icb)
        ic = add(mul(icb, integer(reads)), ici)
        term = times(source[n, position, ih, iw, ici], weight[oc, ic, kh, kw])
        if input_blocks == 1 or group_inputs % reads == 0:
            return term
        exists = binary("lt", ic, integer(group_inputs))
        return select(exists, term, const(0, term.dtype))

    channels: list[tuple[str, int]] = []
    if not depthwise:
        within = [("icb", input_blocks), ("ici", min(reads, group_inputs))]
        channels = within if blocked_data else [("ic", group_inputs)]
    reduce = [*channels, *windows.taps()]
    return use.builder.stage("conv", axes, body, reduce=reduce, combiner="sum")


def work_by_weight(attributes: Attributes, types: Types, result: TensorType) -> int:
    """Multiplications: the weights of an output channel for each element of the result."""
    return result.size * math.prod(types.present(1).shape[1:])


# --- on blocked data ----------------------------------------------------------------------------


def may_be_winograd(attributes: Attributes, window: Sequence[int]) -> bool:
    """A window that Winograd's algorithm exists for, on blocked data."""
    ones = {*attributes.integers("strides"), *attributes.integers("dilations"), 1}
    return tuple(window) == (3, 3) and ones == {1} and groups_of(attributes) == 1


def _blocked_form(use: BlockedUse) -> BlockedForm | None:
    """Blocked unless groups share a block, channels would be mostly padding, or it is a matrix
    product in disguise.

    With fewer input channels than lanes it reads plain data if its data is plain.
    """
    data, weight = use.types.present(0), use.types.present(1)
    if not use.fills_lanes or len(data.shape) != 4 or use.attributes["layout"] != "NCHW":
        return None
    if not all(use.constants[1:]):
        return None
    outputs, group_inputs, *window = weight.shape
    channels, groups = data.shape[1], use.attributes.integer("groups")
    depthwise = group_inputs == 1 and groups == channels == outputs and outputs > 1
    if groups != 1 and not depthwise:
        whole = outputs // groups % use.block == 0 and group_inputs % use.block == 0
        return BlockedForm(BLOCKED, 0.0) if whole else None
    product = window == [1, 1] and data.shape[2:] == (1, 1)
    if 2 * outputs < use.block or product:
        return None
    few = channels <= 4 or channels < use.block
    if few and not depthwise and use.lanes[0] is None:
        return BlockedForm(PLAIN_TO_BLOCKED, 0.0)
    return BlockedForm(BLOCKED, 0.0)


def _padded_shapes(
    attributes: Attributes, shapes: Sequence[Shape], layout: BlockedLayout
) -> list[Shape]:
    """The weight with whole blocks of channels, the bias with as many."""
    (outputs, group_inputs, *kernel), *bias = shapes
    padded_outputs = -(-outputs // layout.gives) * layout.gives
    depthwise = outputs > 1 and _is_depthwise(attributes.integer("groups"), shapes[0])
    if layout.layout == BLOCKED and not depthwise:
        group_inputs = -(-group_inputs // layout.reads) * layout.reads
    return [(padded_outputs, group_inputs, *kernel), *((padded_outputs,) for _ in bias)]


define(
    "conv",
    Pattern.CONTRACTION,
    (2, 3),
    _infer_conv,
    _conv,
    {
        "strides": (),
        "pads": (),
        "dilations": (),
        "groups": 1,
        "layout": "NCHW",
        "block": 0,
        "accumulator": "",
        "pad_value": 0,
        "channels": 0,
    },
    work=work_by_weight,
    outside=lambda attributes, dtype: float(attributes.integer("pad_value")),
    blocked=BlockedRule(_blocked_form, starts=True, padded=_padded_shapes),
    dynamic=True,
)
