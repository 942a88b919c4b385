"""Transposed convolution, as a convolution of the spread data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.expr.nodes import Expr, add, all_of, binary, const, integer, mul, select, sub
from compiler.kernels.kernel import Tensor
from compiler.operators.conv import add_bias, check_bias, check_weight, groups_of, work_by_weight
from compiler.operators.registry import REQUIRED, OperatorDefinition, Pattern, register
from compiler.operators.rules import check, pad_stage
from compiler.operators.use import Attributes, Types, Use
from compiler.operators.windows import read_windows, spatial_names
from compiler.types.tensor_type import TensorType


def _infer_conv_transpose(attributes: Attributes, types: Types) -> TensorType:
    check_weight(types, blocked=False)
    data, weight = types.present(0), types.present(1)
    windows, groups = read_windows(attributes, weight.shape[2:]), groups_of(attributes)
    shape, (inputs, group_outputs, *_) = attributes.integers("shape"), weight.shape
    channels, rank = data.shape[1], windows.rank
    check(inputs == channels, f"the data has {channels} channels, the weight {inputs}")
    check(channels % groups == 0, f"{channels} channels do not divide into {groups} groups")
    check(len(shape) == rank, f"shape {list(shape)} needs {rank} entries")
    for axis, extent in enumerate(shape):
        reach = windows.reach(axis, data.shape[2 + axis])
        smallest = reach - windows.begins[axis] - windows.ends[axis]
        check(
            extent >= smallest,
            f"spatial axis {axis} of the result has at least the extent {smallest}, not {extent}",
        )
    outputs = group_outputs * groups
    check_bias(types, outputs)
    return TensorType(data.dtype, (data.shape[0], outputs, *shape))


def _spread(
    use: Use, data: Tensor, strides: Sequence[int], begins: Sequence[int], extents: Sequence[int]
) -> Tensor:
    """Add the stage "pad": zeros between (stride - 1 of them) and around the data's elements."""
    names = ["n", "ic", *spatial_names(len(strides), "i")]
    whole = [*data.shape[:2], *extents]
    zero = const(0, data.dtype)
    if all(stride == 1 for stride in strides):
        return pad_stage(use.builder, data, names, [0, 0, *begins], whole, zero)

    def body(n: Expr, ic: Expr, *positions: Expr) -> Expr:
        guards: list[Expr] = []
        sources: list[Expr] = []
        for axis, position in enumerate(positions):
            stride, old = strides[axis], data.shape[2 + axis]
            moved = sub(position, integer(begins[axis]))
            if begins[axis] > 0:
                guards.append(binary("ge", moved, integer(0)))
            if extents[axis] - begins[axis] > (old - 1) * stride + 1:
                guards.append(binary("lt", moved, integer((old - 1) * stride + 1)))
            if stride > 1:
                guards.append(binary("eq", binary("mod", moved, integer(stride)), integer(0)))
            sources.append(binary("floordiv", moved, integer(stride)))
        return select(all_of(*guards), data[(n, ic, *sources)], zero)

    return use.builder.stage("pad", list(zip(names, whole, strict=True)), body)


def _conv_transpose(attributes: Attributes, use: Use) -> Tensor:
    """A convolution of the spread data with the kernel turned round (Dumoulin and Visin, 4.3)."""
    data, weight, bias = use.input(0), use.input(1), use.optional(2)
    windows, groups = read_windows(attributes, weight.shape[2:]), groups_of(attributes)
    rank, group_outputs = windows.rank, weight.shape[1]
    tails = [windows.reach(axis) - 1 for axis in range(rank)]
    begins = [tail - begin for tail, begin in zip(tails, windows.begins, strict=True)]
    extents = [extent + tail for extent, tail in zip(use.shape[2:], tails, strict=True)]
    source = _spread(use, data, windows.strides, begins, extents)
    group_inputs = data.shape[1] // groups
    taken = replace(windows, strides=(1,) * rank)

    def body(n: Expr, oc: Expr, *others: Expr) -> Expr:
        ic, tap = others[rank], others[-rank:]
        channel, filter_channel = ic, oc
        if groups > 1:
            group = binary("floordiv", oc, integer(group_outputs))
            channel = add(mul(group, integer(group_inputs)), ic)
            filter_channel = binary("mod", oc, integer(group_outputs))
        positions = taken.positions(others[:rank], tap)
        turned = [sub(integer(taps - 1), k) for taps, k in zip(windows.kernel, tap, strict=True)]
        return mul(source[(n, channel, *positions)], weight[(channel, filter_channel, *turned)])

    axes = list(zip(("n", "oc", *spatial_names(rank, "o")), use.shape, strict=True))
    reduce = [("ic", group_inputs), *windows.taps()]
    result = use.builder.stage("conv_transpose", axes, body, reduce=reduce, combiner="sum")
    return result if bias is None else add_bias(use.builder, result, bias, 0)


register(
    OperatorDefinition(
        "conv_transpose",
        Pattern.CONTRACTION,
        (2, 3),
        _infer_conv_transpose,
        _conv_transpose,
        {"shape": REQUIRED, "strides": (), "pads": (), "dilations": (), "groups": 1},
        work=work_by_weight,
    )
)
