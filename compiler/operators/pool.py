"""Pooling over sliding windows, on plain (NCHW) and blocked (NCHWc) data of any spatial rank."""

from __future__ import annotations

import math
from dataclasses import replace

from tunefarm.compiler.expr.combiners import neutral_element
from tunefarm.compiler.expr.nodes import (
    Expr,
    add,
    all_of,
    binary,
    cast,
    const,
    integer,
    mul,
    select,
    sub,
)
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.blocked import BLOCKED, BlockedForm, BlockedRule, BlockedUse
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    OperatorDefinition,
    Pattern,
    Required,
    TypeRule,
    register,
)
from tunefarm.compiler.operators.rules import check, check_dtype, divide_by_count
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.operators.windows import (
    Windows,
    fill_behind,
    read_windows,
    slid_axis,
    spatial_names,
)
from tunefarm.compiler.types.dtypes import FLOATS, NUMBERS, DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

LAYOUTS = ("NCHW", BLOCKED)


def _infer_pool(allowed: frozenset[DType], fill: str) -> TypeRule:
    """Padding that holds `fill` changes nothing; without one axes are whole, as those of averages
    are (the importer has another form for others)."""

    def infer(attributes: Attributes, types: Types) -> TensorType:
        type, kernel = types.present(0), attributes.integers("kernel")
        windows, outputs = read_windows(attributes, kernel), attributes.integers("shape")
        blocked = attributes.choice("layout", LAYOUTS) == BLOCKED
        if "count_include_pad" in attributes:
            attributes.flag("count_include_pad")
        check_dtype(type, allowed)
        check(len(kernel) >= 1, "the kernel has no axis")
        check(min(kernel) >= 1, f"kernel {list(kernel)} must be positive")
        check(len(outputs) == len(kernel), f"shape {list(outputs)} needs {len(kernel)} entries")
        pads = windows.begins + windows.ends
        check(min(pads) >= 0, f"pads {list(pads)} must not be negative")
        rank = len(type.shape) - (3 if blocked else 2)
        check(
            rank == windows.rank,
            f"a kernel {list(kernel)} does not fit data of {rank} spatial axes",
        )
        check(not blocked or rank == 2, f"blocked data has 2 spatial axes, not {rank}")
        for axis in range(rank):
            last = (outputs[axis] - 1) * windows.strides[axis] - windows.begins[axis]
            check(
                last < type.shape[2 + axis] + windows.ends[axis],
                f"the last window of spatial axis {axis} starts at {last}, outside of the padded "
                "data",
            )
            if fill:
                fill_behind(types, windows, axis, fill)
            else:
                types.require_whole(0, 2 + axis, "the axis of averages")
        # As many windows as fit: an importer that wants one more fills what it reads, and says so.
        # The only one may be cut.
        slid = (
            slid_axis(types, windows, axis, count, cut=True) for axis, count in enumerate(outputs)
        )
        return TensorType.of(type.dtype, (*type.dims[:2], *slid, *type.dims[2 + rank :]))

    return infer


def _infer_sum_pool(attributes: Attributes, types: Types) -> TensorType:
    """As the data, or bytes in an accumulator of i32."""
    accumulator = attributes.choice("accumulator", ("", DType.I32.value))
    allowed = frozenset((DType.U8, DType.I8)) if accumulator else FLOATS
    type = _infer_pool(allowed, "zero")(attributes, types)
    return replace(type, dtype=DType.I32) if accumulator else type


def _pool_stage(use: Use, windows: Windows, combiner: str) -> Tensor:
    rank, shape = windows.rank, use.shape
    data = use.input(0)
    padding = neutral_element(combiner, data.dtype)
    padded = windows.padded(use.builder, data, "c", shape[2 : 2 + rank], padding)
    names = ["n", "c", *spatial_names(rank, "o"), "ci"][: len(shape)]

    def body(*indices: Expr) -> Expr:
        outputs, taps = indices[2 : 2 + rank], indices[len(shape) :]
        behind = indices[2 + rank : len(shape)]
        element = padded[(*indices[:2], *windows.positions(outputs, taps), *behind)]
        return cast(use.dtype, element)

    axes = list(zip(names, shape, strict=True))
    return use.builder.stage("pool", axes, body, reduce=windows.taps(), combiner=combiner)


def _max_pool(attributes: Attributes, use: Use) -> Tensor:
    return _pool_stage(use, read_windows(attributes, attributes.integers("kernel")), "max")


def _infer_max_places(attributes: Attributes, types: Types) -> TensorType:
    data, largest = types.present(0), types.present(1)
    attributes.flag("columns_first")
    found = _infer_pool(NUMBERS, "lowest")(attributes, types)
    check(found == largest, f"{largest} is not what the pool of {data} makes, {found}")
    check(data.size < 2**31, "places are beyond 31 bits")
    return TensorType(DType.I64, found.shape)


def _max_places(attributes: Attributes, use: Use) -> Tensor:
    """The number of the element that is the largest of each window, the first one of several."""
    data, largest = use.input(0), use.input(1)
    windows = read_windows(attributes, attributes.integers("kernel"))
    rank, extents = windows.rank, data.shape[2:]
    order = range(rank) if not attributes.flag("columns_first") else range(rank - 1, -1, -1)
    names = ["n", "c", *spatial_names(rank, "o")]
    none = const(2**31 - 1, DType.I32)

    def body(*indices: Expr) -> Expr:
        outputs, taps = indices[2 : 2 + rank], indices[2 + rank :]
        inside: list[Expr] = []
        places: list[Expr] = []
        for axis, extent in enumerate(extents):
            step = mul(outputs[axis], integer(windows.strides[axis]))
            place = add(step, mul(taps[axis], integer(windows.dilations[axis])))
            place = sub(place, integer(windows.begins[axis]))
            last = windows.reach(axis, use.shape[2 + axis]) - windows.begins[axis]
            if windows.begins[axis] or last > extent:
                inside.append(binary("ge", place, integer(0)))
                inside.append(binary("lt", place, integer(extent)))
                place = binary("max", binary("min", place, integer(extent - 1)), integer(0))
            places.append(place)
        number = add(mul(indices[0], integer(data.shape[1])), indices[1])
        for axis in order:
            number = add(mul(number, integer(extents[axis])), places[axis])
        smaller = binary("lt", data[(*indices[:2], *places)], largest[indices[: 2 + rank]])
        found = select(smaller, none, cast(DType.I32, number))
        return select(all_of(*inside), found, none) if inside else found

    axes = list(zip(names, use.shape, strict=True))
    first = use.builder.stage("first", axes, body, reduce=windows.taps(), combiner="min")
    return use.pointwise("max_places", lambda indices: cast(DType.I64, first[indices]))


def _sum_pool(attributes: Attributes, use: Use) -> Tensor:
    return _pool_stage(use, read_windows(attributes, attributes.integers("kernel")), "sum")


def _average_pool(attributes: Attributes, use: Use) -> Tensor:
    windows = read_windows(attributes, attributes.integers("kernel"))
    total = _pool_stage(use, windows, "sum")
    include_pad = attributes.flag("count_include_pad")
    divisors = [_divisor(windows, axis, use, include_pad) for axis in range(windows.rank)]
    counts = [axis.same_for_all() for axis in divisors]
    fixed = math.prod(count for count in counts if count is not None)

    def body(*indices: Expr) -> Expr:
        value = total[indices]
        if None not in counts:
            return divide_by_count(value, fixed)
        count: Expr = integer(fixed)
        for known, axis, output in zip(counts, divisors, indices[2:], strict=False):
            if known is None:
                count = mul(count, axis.taps(output))
        return binary("div", value, cast(use.dtype, count))

    if counts == [1] * windows.rank:
        return total
    axes = [(axis.name, axis.extent) for axis in use.builder.stages[-1].axes]
    return use.builder.stage("average_pool", axes, body)


@frozen
class _Divisor:
    """Along one axis: windows, and the positions low <= position < high that count in an average,
    relative to the data."""

    outputs: int
    kernel: int
    stride: int
    begin: int
    dilation: int
    low: int
    high: int

    def same_for_all(self) -> int | None:
        """How many taps count if that is the same for all windows, else None."""
        last = (self.outputs - 1) * self.stride + (self.kernel - 1) * self.dilation - self.begin
        return self.kernel if self.low <= -self.begin and last < self.high else None

    def taps(self, output: Expr) -> Expr:
        """How many taps of window `output` count; 1 where none does, of a sum of 0."""
        start = sub(mul(output, integer(self.stride)), integer(self.begin))

        def first_tap_at(bound: int) -> Expr:
            # the smallest tap with start + tap * dilation >= bound
            distance = add(sub(integer(bound), start), integer(self.dilation - 1))
            return binary("floordiv", distance, integer(self.dilation))

        end = binary("min", first_tap_at(self.high), integer(self.kernel))
        count = sub(end, binary("max", first_tap_at(self.low), integer(0)))
        every = range(self.outputs)
        if self.high - self.low >= self.dilation:  # no window steps over what counts: the ends tell
            every = range(0, every.stop, max(every.stop - 1, 1))
        return count if all(map(self._counts, every)) else binary("max", count, integer(1))

    def _counts(self, window: int) -> bool:
        """Some tap of the window counts."""
        start = window * self.stride - self.begin
        taps = range(self.kernel)
        return any(self.low <= start + tap * self.dilation < self.high for tap in taps)


def _divisor(windows: Windows, axis: int, use: Use, include_pad: bool) -> _Divisor:
    begin, extent = windows.begins[axis], use.input(0).shape[2 + axis]
    return _Divisor(
        outputs=use.shape[2 + axis],
        kernel=windows.kernel[axis],
        stride=windows.strides[axis],
        begin=begin,
        dilation=windows.dilations[axis],
        low=-begin if include_pad else 0,
        high=extent + windows.ends[axis] if include_pad else extent,
    )


def _passes(attributes: Attributes) -> int | None:
    """Windows that do not overlap read each element once."""
    windows = read_windows(attributes, attributes.integers("kernel"))
    apart = all(map(int.__ge__, windows.strides, windows.kernel))
    return 1 if apart else None


def _blocked_form(keeps_lane: bool) -> BlockedRule:
    """Averages that reach into the padding differ from place to place unless the lane is 0."""

    def form(use: BlockedUse) -> BlockedForm | None:
        lane = use.lanes[0]
        if lane is None or use.attributes["layout"] != "NCHW" or len(use.result.shape) != 4:
            return None
        exact = keeps_lane or lane == 0 or use.is_whole(use.result)
        return BlockedForm(BLOCKED, lane) if exact else None

    return BlockedRule(form)


_ATTRIBUTES: dict[str, Attribute | Required] = {
    "kernel": REQUIRED,
    "shape": REQUIRED,
    "strides": (),
    "pads": (),
    "dilations": (),
}


register(
    OperatorDefinition(
        "max_pool",
        Pattern.REDUCTION,
        1,
        _infer_pool(NUMBERS, "lowest"),
        _max_pool,
        {**_ATTRIBUTES, "layout": "NCHW"},
        passes=_passes,
        moves=True,
        outside=lambda attributes, dtype: float(neutral_element("max", dtype).value),
        blocked=_blocked_form(keeps_lane=True),
        dynamic=True,
    ),
    OperatorDefinition(
        "max_places",
        Pattern.OPAQUE,
        2,
        _infer_max_places,
        _max_places,
        {**_ATTRIBUTES, "layout": "NCHW", "columns_first": False},
    ),
    OperatorDefinition(
        "sum_pool",
        Pattern.REDUCTION,
        1,
        _infer_sum_pool,
        _sum_pool,
        {**_ATTRIBUTES, "layout": "NCHW", "accumulator": ""},
        passes=_passes,
        outside=lambda attributes, dtype: 0.0,
        blocked=_blocked_form(keeps_lane=False),
        dynamic=True,
    ),
    OperatorDefinition(
        "average_pool",
        Pattern.REDUCTION,
        1,
        _infer_pool(FLOATS, ""),
        _average_pool,
        {**_ATTRIBUTES, "count_include_pad": False, "layout": "NCHW"},
        passes=_passes,
        outside=lambda attributes, dtype: 0.0,
        blocked=_blocked_form(keeps_lane=False),
        dynamic=True,
    ),
)
