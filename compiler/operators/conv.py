"""Convolution, direct form, on plain and blocked data.

Layouts of conv: "NCHW" (data, weight and result as in ONNX, 1 to 3 spatial axes); "NCHWc" (data and
result blocked, 2 spatial axes; the weight keeps its logical axes [OC, IC/groups, KH, KW] with
channels padded to whole blocks); "NCHW->NCHWc" (plain data, blocked result; `block` is needed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.expr.nodes import Expr, add, binary, const, integer, mul
from compiler.kernels.kernel import KernelBuilder, Tensor
from compiler.kernels.stage import Axis
from compiler.operators.registry import (
    Attributes,
    Pattern,
    Tensors,
    Types,
    register,
)
from compiler.operators.rules import (
    check,
    check_dtype,
    check_same_dtype,
    choice_attribute,
    given,
    int_attribute,
    ints_attribute,
    optional,
    pad_stage,
    present,
    spatial_names,
    window_index,
    window_reach,
)
from compiler.types.dtypes import NUMBERS
from compiler.types.tensor_type import TensorType

LAYOUTS = ("NCHW", "NCHWc", "NCHW->NCHWc")


@dataclass(frozen=True, slots=True)
class Geometry:
    """Strides, pads and dilations, one entry per spatial axis, and the channel groups."""

    strides: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.strides)


def geometry_of(attributes: Attributes, rank: int) -> Geometry:
    """The geometry that the attributes describe; an empty tuple stands for ones, or no padding.

    Raises `ShapeError` for a wrong number of entries or values that are not positive.
    """
    ones, zeros = (1,) * rank, (0,) * rank
    strides = ints_attribute(attributes, "strides") or ones
    dilations = ints_attribute(attributes, "dilations") or ones
    pads = ints_attribute(attributes, "pads") or zeros + zeros
    groups = int_attribute(attributes, "groups")
    for name, values in (("strides", strides), ("dilations", dilations)):
        check(
            len(values) == rank and min(values) >= 1,
            f"{name} {list(values)} needs {rank} positive entries",
        )
    check(len(pads) == 2 * rank, f"pads {list(pads)} needs {2 * rank} entries")
    check(groups >= 1, f"groups {groups} must be positive")
    return Geometry(strides, pads[:rank], pads[rank:], dilations, groups)


def check_bias(types: Types, channels: int) -> None:
    """Raise `ShapeError` unless input 2 is absent or a bias for `channels` channels."""
    bias = types[2] if len(types) > 2 else None
    if bias is None:
        return
    check_same_dtype(present(types, 0), bias)
    check(bias.shape == (channels,), f"the bias must have the shape [{channels}], not {bias}")


def spatial_rank(types: Types, blocked: bool) -> int:
    """The number of spatial axes (1 to 3) of data and weight; `ShapeError` where they differ."""
    data, weight = present(types, 0), present(types, 1)
    check_dtype(data, NUMBERS, "the data")
    check_same_dtype(data, weight)
    rank = len(data.shape) - (3 if blocked else 2)
    check(1 <= rank <= 3, f"data of {data} does not have 1 to 3 spatial axes")
    check(
        len(weight.shape) == rank + 2,
        f"data of {rank} spatial axes needs a weight of rank {rank + 2}, not {weight}",
    )
    return rank


# --- conv ---------------------------------------------------------------------------------------


def _infer_conv(attributes: Attributes, types: Types) -> TensorType:
    layout = choice_attribute(attributes, "layout", LAYOUTS)
    rank = spatial_rank(types, layout == "NCHWc")
    data, weight = present(types, 0), present(types, 1)
    geometry = geometry_of(attributes, rank)
    channels, outputs = data.shape[1], weight.shape[0]
    if layout == "NCHW":
        check(
            channels == weight.shape[1] * geometry.groups,
            f"{channels} channels are not {geometry.groups} groups of {weight.shape[1]}",
        )
        check(
            outputs % geometry.groups == 0,
            f"{outputs} output channels do not divide into {geometry.groups} groups",
        )
    else:
        _check_blocked(attributes, geometry, data, weight)
    check_bias(types, outputs)
    spatial = []
    for axis in range(rank):
        extent = data.shape[2 + axis] + geometry.begins[axis] + geometry.ends[axis]
        reach = window_reach(1, weight.shape[2 + axis], 1, geometry.dilations[axis])
        check(
            reach <= extent,
            f"a kernel that reaches over {reach} does not fit spatial axis {axis} "
            f"of {extent} with padding",
        )
        spatial.append((extent - reach) // geometry.strides[axis] + 1)
    if layout == "NCHW":
        return TensorType(data.dtype, (data.shape[0], outputs, *spatial))
    block = _block(attributes, data.shape)
    return TensorType(data.dtype, (data.shape[0], outputs // block, *spatial, block))


def _block(attributes: Attributes, data_shape: tuple[int, ...]) -> int:
    """Channels per block of the result of a blocked convolution."""
    plain = attributes["layout"] == "NCHW->NCHWc"
    return int_attribute(attributes, "block") if plain else data_shape[-1]


def _check_blocked(
    attributes: Attributes, geometry: Geometry, data: TensorType, weight: TensorType
) -> None:
    block, outputs, group_inputs = _block(attributes, data.shape), *weight.shape[:2]
    check(geometry.rank == 2, f"blocked data has 2 spatial axes, not {geometry.rank}")
    check(block >= 1, "layout NCHW->NCHWc needs the attribute block")
    check(outputs % block == 0, f"{outputs} output channels are no whole blocks of {block}")
    if attributes["layout"] == "NCHW->NCHWc":
        check(geometry.groups == 1, "layout NCHW->NCHWc takes no groups")
        check(
            data.shape[1] == group_inputs,
            f"the data has {data.shape[1]} channels, the weight {group_inputs}",
        )
        return
    channels = data.shape[1] * block
    if _is_depthwise(geometry, weight.shape):
        check(
            outputs == channels and channels - block < geometry.groups <= channels,
            f"depthwise: {geometry.groups} groups, {channels} channels and {outputs} output "
            "channels (both padded to whole blocks) do not fit",
        )
        return
    check(
        group_inputs % block == 0 and outputs // geometry.groups % block == 0,
        f"the channels of one of {geometry.groups} groups are no whole blocks of {block}",
    )
    check(
        channels == group_inputs * geometry.groups and outputs % geometry.groups == 0,
        f"{channels} channels are not {geometry.groups} groups of {group_inputs}",
    )


def _is_depthwise(geometry: Geometry, weight_shape: tuple[int, ...]) -> bool:
    """Every group has one input channel, so that no channel is summed over."""
    return geometry.groups > 1 and weight_shape[1] == 1


def _padded(
    builder: KernelBuilder,
    geometry: Geometry,
    data: Tensor,
    kernel: Sequence[int],
    outputs: Sequence[int],
) -> Tensor:
    """The data with as much padding as the windows read."""
    rank = geometry.rank
    reaches = map(window_reach, outputs, kernel, geometry.strides, geometry.dilations)
    trail = list(data.shape[2 + rank :])
    names = ["n", "icb" if trail else "ic", *spatial_names(rank, "i"), *("ici" for _ in trail)]
    return pad_stage(
        builder,
        data,
        names,
        [0, 0, *geometry.begins, *(0 for _ in trail)],
        [*data.shape[:2], *reaches, *trail],
        const(0, data.dtype),
    )


def _conv(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    data, weight, bias = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
    geometry = geometry_of(attributes, len(weight.shape) - 2)
    layout = attributes["layout"]
    outputs = type.shape[2 : 2 + geometry.rank]
    source = _padded(builder, geometry, data, weight.shape[2:], outputs)
    if layout == "NCHW":
        result = _plain_conv(builder, geometry, source, weight, type)
    else:
        result = _blocked_conv(builder, geometry, source, weight, type, layout == "NCHWc")
    if bias is None:
        return result
    block = 0 if layout == "NCHW" else type.shape[-1]
    return add_bias(builder, result, bias, block)


def add_bias(builder: KernelBuilder, result: Tensor, bias: Tensor, block: int) -> Tensor:
    """Add the stage "bias"; `block` is 0 for plain data."""

    def body(*indices: Expr) -> Expr:
        channel = indices[1]
        if block:
            channel = add(mul(channel, integer(block)), indices[-1])
        return add(result[indices], bias[channel])

    return builder.stage("bias", _pairs(builder.stages[-1].axes), body)


def _pairs(axes: Sequence[Axis]) -> list[tuple[str, int]]:
    return [(axis.name, axis.extent) for axis in axes]


def _plain_conv(
    builder: KernelBuilder, geometry: Geometry, source: Tensor, weight: Tensor, type: TensorType
) -> Tensor:
    rank, (outputs, group_inputs, *kernel) = geometry.rank, weight.shape
    per_group = outputs // geometry.groups
    depthwise = _is_depthwise(geometry, weight.shape)
    axes = [
        ("n", type.shape[0]),
        ("oc", outputs),
        *zip(spatial_names(rank, "o"), type.shape[2:], strict=True),
    ]
    taps = list(zip(spatial_names(rank, "k"), kernel, strict=True))

    def body(n: Expr, oc: Expr, *others: Expr) -> Expr:
        ic = integer(0) if depthwise else others[rank]
        tap = others[-rank:]
        channel = ic
        if geometry.groups > 1:
            group = binary("floordiv", oc, integer(per_group))
            channel = add(mul(group, integer(group_inputs)), ic)
        positions = map(window_index, others[:rank], tap, geometry.strides, geometry.dilations)
        return mul(source[(n, channel, *positions)], weight[(oc, ic, *tap)])

    channels = [] if depthwise else [("ic", group_inputs)]
    return builder.stage("conv", axes, body, reduce=[*channels, *taps], combiner="sum")


def _blocked_conv(
    builder: KernelBuilder,
    geometry: Geometry,
    source: Tensor,
    weight: Tensor,
    type: TensorType,
    blocked_data: bool,
) -> Tensor:
    block = type.shape[-1]
    group_inputs, kernel_height, kernel_width = weight.shape[1:]
    axes = list(zip(("n", "ocb", "oh", "ow", "oci"), type.shape, strict=True))
    taps = [("kh", kernel_height), ("kw", kernel_width)]
    input_blocks = group_inputs // block
    output_blocks = type.shape[1] // geometry.groups  # of one group
    depthwise = _is_depthwise(geometry, weight.shape)

    def body(*indices: Expr) -> Expr:
        n, ocb, oh, ow, oci, *channel, kh, kw = indices
        oc = add(mul(ocb, integer(block)), oci)
        ih, iw = map(window_index, (oh, ow), (kh, kw), geometry.strides, geometry.dilations)
        if depthwise:
            return mul(source[n, ocb, ih, iw, oci], weight[oc, integer(0), kh, kw])
        if not blocked_data:
            return mul(source[n, channel[0], ih, iw], weight[oc, channel[0], kh, kw])
        icb, ici = channel
        position = icb
        if geometry.groups > 1:
            group = binary("floordiv", ocb, integer(output_blocks))
            position = add(mul(group, integer(input_blocks)), icb)
        ic = add(mul(icb, integer(block)), ici)
        return mul(source[n, position, ih, iw, ici], weight[oc, ic, kh, kw])

    if depthwise:
        channels = []
    else:
        channels = (
            [("icb", input_blocks), ("ici", block)] if blocked_data else [("ic", group_inputs)]
        )
    return builder.stage("conv", axes, body, reduce=[*channels, *taps], combiner="sum")


register(
    "conv",
    Pattern.CONTRACTION,
    (2, 3),
    _infer_conv,
    _conv,
    strides=(),
    pads=(),
    dilations=(),
    groups=1,
    layout="NCHW",
    block=0,
)
