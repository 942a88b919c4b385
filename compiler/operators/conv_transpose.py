"""Transposed convolution, as a convolution of the spread data."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.expr.nodes import Expr, add, all_of, binary, const, integer, mul, select, sub
from compiler.kernels.kernel import KernelBuilder, Tensor
from compiler.operators.conv import Geometry, add_bias, check_bias, geometry_of, spatial_rank
from compiler.operators.registry import REQUIRED, Attributes, Pattern, Tensors, Types, register
from compiler.operators.rules import (
    check,
    given,
    ints_attribute,
    optional,
    pad_stage,
    present,
    spatial_names,
    window_index,
    window_reach,
)
from compiler.types.tensor_type import TensorType


def _infer_conv_transpose(attributes: Attributes, types: Types) -> TensorType:
    rank = spatial_rank(types, blocked=False)
    data, weight = present(types, 0), present(types, 1)
    geometry, shape = geometry_of(attributes, rank), ints_attribute(attributes, "shape")
    channels, (inputs, group_outputs, *kernel) = data.shape[1], weight.shape
    check(inputs == channels, f"the data has {channels} channels, the weight {inputs}")
    check(
        channels % geometry.groups == 0,
        f"{channels} channels do not divide into {geometry.groups} groups",
    )
    check(len(shape) == rank, f"shape {list(shape)} needs {rank} entries")
    for axis, extent in enumerate(shape):
        reach = window_reach(
            data.shape[2 + axis], kernel[axis], geometry.strides[axis], geometry.dilations[axis]
        )
        smallest = reach - geometry.begins[axis] - geometry.ends[axis]
        check(
            extent >= smallest,
            f"spatial axis {axis} of the result has at least the extent {smallest}, not {extent}",
        )
    outputs = group_outputs * geometry.groups
    check_bias(types, outputs)
    return TensorType(data.dtype, (data.shape[0], outputs, *shape))


def _spread(
    builder: KernelBuilder,
    geometry: Geometry,
    data: Tensor,
    begins: Sequence[int],
    extents: Sequence[int],
) -> Tensor:
    """Add the stage "pad": zeros between (stride - 1 of them) and around the data's elements."""

    def body(n: Expr, ic: Expr, *positions: Expr) -> Expr:
        guards: list[Expr] = []
        sources: list[Expr] = []
        for axis, position in enumerate(positions):
            stride, old = geometry.strides[axis], data.shape[2 + axis]
            moved = sub(position, integer(begins[axis]))
            if begins[axis] > 0:
                guards.append(binary("ge", moved, integer(0)))
            if extents[axis] - begins[axis] > (old - 1) * stride + 1:
                guards.append(binary("lt", moved, integer((old - 1) * stride + 1)))
            if stride > 1:
                guards.append(binary("eq", binary("mod", moved, integer(stride)), integer(0)))
            sources.append(binary("floordiv", moved, integer(stride)))
        return select(all_of(*guards), data[(n, ic, *sources)], const(0, data.dtype))

    names = ["n", "ic", *spatial_names(geometry.rank, "i")]
    return builder.stage("pad", list(zip(names, (*data.shape[:2], *extents), strict=True)), body)


def _conv_transpose(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    """A convolution of the spread data with the kernel turned round (Dumoulin and Visin, 4.3)."""
    data, weight, bias = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
    rank, (_, group_outputs, *kernel) = len(weight.shape) - 2, weight.shape
    geometry = geometry_of(attributes, rank)
    shape, dilations = type.shape[2:], geometry.dilations
    tails = [(taps - 1) * step for taps, step in zip(kernel, dilations, strict=True)]
    begins = [tail - begin for tail, begin in zip(tails, geometry.begins, strict=True)]
    extents = [extent + tail for extent, tail in zip(shape, tails, strict=True)]
    if geometry.strides == (1,) * rank:
        names = ["n", "ic", *spatial_names(rank, "i")]
        whole = [*data.shape[:2], *extents]
        source = pad_stage(builder, data, names, [0, 0, *begins], whole, const(0, data.dtype))
    else:
        source = _spread(builder, geometry, data, begins, extents)
    group_inputs = data.shape[1] // geometry.groups

    def body(n: Expr, oc: Expr, *others: Expr) -> Expr:
        ic, tap = others[rank], others[-rank:]
        channel, filter_channel = ic, oc
        if geometry.groups > 1:
            group = binary("floordiv", oc, integer(group_outputs))
            channel = add(mul(group, integer(group_inputs)), ic)
            filter_channel = binary("mod", oc, integer(group_outputs))
        positions = map(window_index, others[:rank], tap, (1,) * rank, dilations)
        turned = [sub(integer(taps - 1), k) for taps, k in zip(kernel, tap, strict=True)]
        return mul(source[(n, channel, *positions)], weight[(channel, filter_channel, *turned)])

    result = builder.stage(
        "conv_transpose",
        [
            ("n", type.shape[0]),
            ("oc", type.shape[1]),
            *zip(spatial_names(rank, "o"), shape, strict=True),
        ],
        body,
        reduce=[("ic", group_inputs), *zip(spatial_names(rank, "k"), kernel, strict=True)],
        combiner="sum",
    )
    return result if bias is None else add_bias(builder, result, bias, 0)


register(
    "conv_transpose",
    Pattern.CONTRACTION,
    (2, 3),
    _infer_conv_transpose,
    _conv_transpose,
    shape=REQUIRED,
    strides=(),
    pads=(),
    dilations=(),
    groups=1,
)
