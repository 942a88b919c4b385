"""Transposed convolution, as one convolution for each phase of the stride.

Along an axis the result at o sums data[i] * weight[k] over i * stride + k * dilation = o + begin.
The remainder of o + begin by the stride, the phase, says which taps k take part; they are a fixed
period apart, and so are their i: an ordinary convolution of the data with these taps.

Layouts: "NCHW" (1 to 3 spatial axes), "NCHWc" (data and result blocked, 2 spatial axes; the weight
keeps its logical axes [IC, OC/groups, KH, KW] with channels padded to whole blocks).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunefarm.compiler.expr.nodes import Expr, add, all_of, binary, const, integer, mul, select, sub
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.blocked import (
    BLOCKED,
    BlockedForm,
    BlockedLayout,
    BlockedRule,
    BlockedUse,
    Shape,
)
from tunefarm.compiler.operators.conv import add_bias, check_bias, check_weight, groups_of
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Pattern,
    define,
)
from tunefarm.compiler.operators.rules import check, pad_stage, product
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.operators.windows import (
    Windows,
    match_channels,
    read_windows,
    require_whole_taps,
    spatial_names,
)
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import Axis, extent_of, is_unpadded, whole
from tunefarm.compiler.types.tensor_type import TensorType

LAYOUTS = ("NCHW", BLOCKED)


def _spread(types: Types, windows: Windows, number: int, extent: int) -> Axis:
    """An axis of the result, of this extent, over which windows of a spatial axis are spread."""
    axis = types.axis(0, 2 + number)
    if is_unpadded(axis):
        return whole(extent)
    types.require_in_one_piece(0, 2 + number, "windows over an axis")
    types.fill(0, 2 + number, "zero")
    stride = windows.strides[number]
    return ((axis[0][0] * stride + (extent - stride * extent_of(axis)), extent),)


def _infer_conv_transpose(attributes: Attributes, types: Types) -> TensorType:
    """The result is as much longer than a multiple of the data as it is at the bounds."""
    blocked = attributes.choice("layout", LAYOUTS) == BLOCKED
    dtype = check_weight(attributes, types, blocked)
    data, weight = types.present(0), types.present(1)
    windows, groups = read_windows(attributes, weight.shape[2:]), groups_of(attributes)
    shape, (inputs, group_outputs, *_) = attributes.integers("shape"), weight.shape
    block, rank = data.shape[-1] if blocked else 1, windows.rank
    channels, outputs = data.shape[1] * block, group_outputs * groups
    check(len(shape) == rank, f"shape {list(shape)} needs {rank} entries")
    for axis, extent in enumerate(shape):
        reach = windows.reach(axis, data.shape[2 + axis])
        smallest = reach - windows.begins[axis] - windows.ends[axis]
        check(
            extent >= smallest,
            f"spatial axis {axis} of the result needs a size of {smallest} or more, not {extent}",
        )
    mismatch = f"the data has {channels} channels, the weight {inputs}"
    if not blocked:
        check(channels % groups == 0, f"{channels} channels do not divide into {groups} groups")
        match_channels(types, 0, groups, mismatch)
        check_bias(types, outputs, dtype, 1 if groups == 1 else None)
        require_whole_taps(types)
        spatial = (_spread(types, windows, axis, extent) for axis, extent in enumerate(shape))
        made = weight.dims[1] if groups == 1 else whole(outputs)
        return TensorType.of(dtype, (data.dims[0], made, *spatial))
    check(inputs == channels, mismatch)
    check(rank == 2, f"blocked data has 2 spatial axes, not {rank}")
    if _is_depthwise(groups, weight.shape, block):
        outputs = channels
    else:
        fits = group_outputs % block == 0 and inputs % (groups * block) == 0
        check(fits, f"the channels of one of {groups} groups are no whole blocks of {block}")
    check_bias(types, outputs, dtype, None)
    return TensorType(dtype, (data.shape[0], outputs // block, *shape, block))


def _is_depthwise(groups: int, weight_shape: Sequence[int], block: int = 1) -> bool:
    """Every group has one channel, in and out; their number is padded to whole blocks."""
    return groups > 1 and weight_shape[1] == 1 and groups <= weight_shape[0] < groups + block


@frozen
class _Axis:
    """Along one axis: the taps that reach a position of the result, and the data they multiply."""

    taps: int
    stride: int
    dilation: int
    begin: int
    inputs: int
    outputs: int

    @staticmethod
    def of(windows: Windows, axis: int, inputs: int, outputs: int) -> _Axis:
        return _Axis(
            windows.kernel[axis],
            windows.strides[axis],
            windows.dilations[axis],
            windows.begins[axis],
            inputs,
            outputs,
        )

    @property
    def common(self) -> int:
        """Phases that are no multiple of it have no taps."""
        return math.gcd(self.stride, self.dilation)

    @property
    def period(self) -> int:
        """How far the taps of a phase are apart."""
        return self.stride // self.common

    @property
    def steps(self) -> int:
        """The taps of the phase that has most of them."""
        return -(-self.taps // self.period)

    def tap(self, output: Expr, step: Expr) -> Expr:
        """The tap of this step of the sum."""
        return add(self._first_tap(self._phase(output)), mul(step, integer(self.period)))

    def source(self, output: Expr, step: Expr) -> Expr:
        """The position in the data that the tap multiplies, which may lie outside."""
        base = binary("floordiv", add(output, integer(self.begin)), integer(self.stride))
        if self.dilation > 1:
            phase = self._phase(output)
            ahead = sub(phase, mul(self._first_tap(phase), integer(self.dilation)))
            base = add(base, binary("floordiv", ahead, integer(self.stride)))
        return sub(base, mul(step, integer(self.dilation // self.common)))

    def guards(self, output: Expr, step: Expr) -> list[Expr]:
        """What holds where there is such a tap."""
        guards = []
        if self.common > 1:
            rest = binary("mod", self._phase(output), integer(self.common))
            guards.append(binary("eq", rest, integer(0)))
        if self.taps % self.period:
            guards.append(binary("lt", self.tap(output, step), integer(self.taps)))
        return guards

    def padding(self) -> tuple[int, int]:
        """Zeros before the data, and its extent with those on both sides.

        As far as the ranges of the parts of `source` reach, each by itself: so they are verified.
        """
        first, last = self.begin // self.stride, (self.begin + self.outputs - 1) // self.stride
        back = (self.steps - 1) * (self.dilation // self.common)
        if self.dilation > 1:
            back += -(-(self.period - 1) * self.dilation // self.stride)
        lowest, highest = min(0, first - back), max(self.inputs - 1, last)
        return -lowest, highest - lowest + 1

    def products(self) -> int:
        """How many pairs of an input and a tap reach the result."""
        pairs = 0
        for tap in range(self.taps):
            origin = self.begin - tap * self.dilation
            first, last = -(-origin // self.stride), (origin + self.outputs - 1) // self.stride
            pairs += max(0, min(last, self.inputs - 1) - max(first, 0) + 1)
        return pairs

    def _phase(self, output: Expr) -> Expr:
        return binary("mod", add(output, integer(self.begin)), integer(self.stride))

    def _first_tap(self, phase: Expr) -> Expr:
        """The smallest tap k with k * dilation = phase, modulo the stride."""
        if self.period == 1:
            return integer(0)
        inverse = pow(self.dilation // self.common, -1, self.period)
        turn = binary("floordiv", phase, integer(self.common))
        if inverse == 1:
            return turn
        return binary("mod", mul(turn, integer(inverse)), integer(self.period))


def _axes(windows: Windows, data_shape: Shape, shape: Shape) -> list[_Axis]:
    return [
        _Axis.of(windows, axis, data_shape[2 + axis], shape[2 + axis])
        for axis in range(windows.rank)
    ]


def _padded(use: Use, data: Tensor, axes: Sequence[_Axis]) -> tuple[Tensor, list[int]]:
    """The data with zeros as far as taps reach, and how many lie before it."""
    begins, extents = map(list, zip(*(axis.padding() for axis in axes), strict=True))
    names = ["n", "icb" if len(data.shape) > 2 + len(axes) else "ic"]
    names += [*spatial_names(len(axes), "i"), "ici"]
    behind = data.shape[2 + len(axes) :]
    source = pad_stage(
        use.builder,
        data,
        names[: len(data.shape)],
        [0, 0, *begins, *(0 for _ in behind)],
        [*data.shape[:2], *extents, *behind],
        const(0, data.dtype),
    )
    return source, begins


def _conv_transpose(attributes: Attributes, use: Use) -> Tensor:
    data, weight, bias = use.input(0), use.input(1), use.optional(2)
    windows, groups = read_windows(attributes, weight.shape[2:]), groups_of(attributes)
    rank, axes = windows.rank, _axes(windows, data.shape, use.shape)
    source, begins = _padded(use, data, axes)
    block = data.shape[-1] if attributes["layout"] == BLOCKED else 0
    depthwise = block > 0 and _is_depthwise(groups, weight.shape, block)
    group_inputs, group_outputs = weight.shape[0] // groups, weight.shape[1]

    def body(n: Expr, channel: Expr, *others: Expr) -> Expr:
        outputs, steps = others[:rank], others[-rank:]
        lane, inputs = others[rank : rank + bool(block)], others[rank + bool(block) : -rank]
        taps = [axis.tap(o, step) for axis, o, step in zip(axes, outputs, steps, strict=True)]
        guards: list[Expr] = []
        positions: list[Expr] = []
        for axis, o, step, begin in zip(axes, outputs, steps, begins, strict=True):
            guards += axis.guards(o, step)
            positions.append(add(axis.source(o, step), integer(begin)))
        oc = add(mul(channel, integer(block)), *lane) if block else channel
        if depthwise:
            element = source[(n, channel, *positions, *lane)]
            factor = weight[(oc, integer(0), *taps)]
        else:
            position, inner = inputs[0], inputs[1:]
            if groups > 1:
                of_group = group_outputs // block if block else group_outputs
                group = binary("floordiv", channel, integer(of_group))
                blocks = group_inputs // block if block else group_inputs
                position = add(mul(group, integer(blocks)), position)
                inside = binary("mod", channel, integer(of_group))
                oc = add(mul(inside, integer(block)), *lane) if block else inside
            ic = add(mul(position, integer(block)), *inner) if block else position
            element = source[(n, position, *positions, *inner)]
            factor = weight[(ic, oc, *taps)]
        if guards:
            factor = select(all_of(*guards), factor, const(0, factor.dtype))
        return product(attributes, element, factor)

    names = ["n", "ocb" if block else "oc", *spatial_names(rank, "o"), "oci"]
    channels = [("icb", group_inputs // block), ("ici", block)] if block else [("ic", group_inputs)]
    steps = list(zip(spatial_names(rank, "k"), (axis.steps for axis in axes), strict=True))
    result = use.builder.stage(
        "conv_transpose",
        list(zip(names[: len(use.shape)], use.shape, strict=True)),
        body,
        reduce=steps if depthwise else [*channels, *steps],
        combiner="sum",
    )
    return result if bias is None else add_bias(use.builder, result, bias, block)


def _work(attributes: Attributes, types: Types, result: TensorType) -> int:
    """Multiplications: pairs of an input and a tap that reach the result, channel by channel."""
    data, weight = types.present(0), types.present(1)
    windows = read_windows(attributes, weight.shape[2:])
    pairs = math.prod(axis.products() for axis in _axes(windows, data.shape, result.shape))
    return data.shape[0] * math.prod(weight.shape[:2]) * pairs


# --- on blocked data ----------------------------------------------------------------------------


def _blocked_form(use: BlockedUse) -> BlockedForm | None:
    """Blocked unless channels would be mostly padding."""
    data, weight = use.types.present(0), use.types.present(1)
    if not use.fills_lanes or len(data.shape) != 4 or use.attributes["layout"] != "NCHW":
        return None
    if not all(use.constants[1:]):
        return None
    groups = use.attributes.integer("groups")
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    whole = inputs % use.block == 0 and outputs % use.block == 0
    if groups > 1 and not whole and not _is_depthwise(groups, weight.shape):
        return None
    if 2 * outputs * groups < use.block:
        return None
    return BlockedForm(BLOCKED, 0.0)


def _padded_shapes(
    attributes: Attributes, shapes: Sequence[Shape], layout: BlockedLayout
) -> list[Shape]:
    """The weight with whole blocks of channels, the bias with as many."""
    (inputs, group_outputs, *kernel), *bias = shapes
    groups, block = attributes.integer("groups"), layout.gives
    inputs = -(-inputs // block) * block
    if _is_depthwise(groups, shapes[0]):
        return [(inputs, 1, *kernel), *((inputs,) for _ in bias)]
    outputs = -(-group_outputs // block) * block
    return [(inputs, outputs, *kernel), *((outputs * groups,) for _ in bias)]


define(
    "conv_transpose",
    Pattern.CONTRACTION,
    (2, 3),
    _infer_conv_transpose,
    _conv_transpose,
    {
        "shape": REQUIRED,
        "strides": (),
        "pads": (),
        "dilations": (),
        "groups": 1,
        "layout": "NCHW",
        "accumulator": "",
    },
    work=_work,
    blocked=BlockedRule(_blocked_form, starts=True, padded=_padded_shapes),
    dynamic=True,
)
