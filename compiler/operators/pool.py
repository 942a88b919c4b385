"""Pooling over sliding windows, on plain (NCHW) and blocked (NCHWc) data of any spatial rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from compiler.expr.nodes import Const, Expr, add, binary, cast, const, integer, mul, sub
from compiler.kernels.kernel import KernelBuilder, Tensor
from compiler.operators.registry import (
    REQUIRED,
    Attributes,
    Pattern,
    Tensors,
    Types,
    register,
)
from compiler.operators.rules import (
    bool_attribute,
    check,
    check_dtype,
    choice_attribute,
    divide_by_count,
    given,
    ints_attribute,
    lowest,
    pad_stage,
    present,
    spatial_names,
    window_index,
    window_reach,
)
from compiler.types.dtypes import FLOATS, NUMBERS, DType
from compiler.types.tensor_type import TensorType

LAYOUTS = ("NCHW", "NCHWc")


@dataclass(frozen=True, slots=True)
class _Windows:
    """The attributes of a pool, one entry per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    dilations: tuple[int, ...]
    outputs: tuple[int, ...]
    blocked: bool

    @property
    def rank(self) -> int:
        return len(self.kernel)

    def split(self, items: Sequence[Expr]) -> tuple[list[Expr], list[Expr], list[Expr]]:
        """Indices of the result as those before, of and after the spatial axes."""
        return list(items[:2]), list(items[2 : 2 + self.rank]), list(items[2 + self.rank :])


def _windows(attributes: Attributes) -> _Windows:
    kernel = ints_attribute(attributes, "kernel")
    rank = len(kernel)
    ones, zeros = (1,) * rank, (0,) * rank
    pads = ints_attribute(attributes, "pads") or zeros + zeros
    check(len(pads) == 2 * rank, f"pads {list(pads)} needs {2 * rank} entries")
    windows = _Windows(
        kernel,
        ints_attribute(attributes, "strides") or ones,
        pads[:rank],
        pads[rank:],
        ints_attribute(attributes, "dilations") or ones,
        ints_attribute(attributes, "shape"),
        choice_attribute(attributes, "layout", LAYOUTS) == "NCHWc",
    )
    for name in ("strides", "dilations", "outputs"):
        values = getattr(windows, name)
        check(len(values) == rank, f"{name} {list(values)} needs {rank} entries")
    check(rank >= 1, "the kernel has no axis")
    for name in ("kernel", "strides", "dilations"):
        values = getattr(windows, name)
        check(min(values) >= 1, f"{name} {list(values)} must be positive")
    check(min(pads) >= 0, f"pads {list(pads)} must not be negative")
    return windows


def _infer_pool(allowed: frozenset[DType], attributes: Attributes, types: Types) -> TensorType:
    type, windows = present(types, 0), _windows(attributes)
    check_dtype(type, allowed)
    rank = len(type.shape) - (3 if windows.blocked else 2)
    check(
        rank == windows.rank,
        f"a kernel {list(windows.kernel)} does not fit data of {rank} spatial axes",
    )
    check(not windows.blocked or rank == 2, f"blocked data has 2 spatial axes, not {rank}")
    for axis in range(rank):
        extent, begin = type.shape[2 + axis], windows.begins[axis]
        last = (windows.outputs[axis] - 1) * windows.strides[axis] - begin
        check(
            last < extent + windows.ends[axis],
            f"the last window of spatial axis {axis} starts at {last}, outside of the padded data",
        )
    trail = type.shape[-1:] if windows.blocked else ()
    return TensorType(type.dtype, (*type.shape[:2], *windows.outputs, *trail))


def _pool_stage(
    builder: KernelBuilder, windows: _Windows, data: Tensor, combiner: str, padding: Const
) -> Tensor:
    trail = [("ci", data.shape[-1])] if windows.blocked else []
    reaches = [
        window_reach(*of_axis)
        for of_axis in zip(
            windows.outputs, windows.kernel, windows.strides, windows.dilations, strict=True
        )
    ]
    padded = pad_stage(
        builder,
        data,
        ["n", "c", *spatial_names(windows.rank, "i"), *(name for name, _ in trail)],
        [0, 0, *windows.begins, *(0 for _ in trail)],
        [*data.shape[:2], *reaches, *(extent for _, extent in trail)],
        padding,
    )
    names = spatial_names(windows.rank, "o")
    axes = [
        ("n", data.shape[0]),
        ("c", data.shape[1]),
        *zip(names, windows.outputs, strict=True),
        *trail,
    ]

    def body(*indices: Expr) -> Expr:
        before, outputs, after = windows.split(indices[: len(axes)])
        positions = map(
            window_index, outputs, indices[len(axes) :], windows.strides, windows.dilations
        )
        return padded[(*before, *positions, *after)]

    taps = list(zip(spatial_names(windows.rank, "k"), windows.kernel, strict=True))
    return builder.stage("pool", axes, body, reduce=taps, combiner=combiner)


def _infer_max_pool(attributes: Attributes, types: Types) -> TensorType:
    return _infer_pool(NUMBERS, attributes, types)


def _max_pool(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    return _pool_stage(builder, _windows(attributes), given(inputs, 0), "max", lowest(type.dtype))


def _infer_average_pool(attributes: Attributes, types: Types) -> TensorType:
    bool_attribute(attributes, "count_include_pad")
    return _infer_pool(FLOATS, attributes, types)


def _average_pool(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    windows, data = _windows(attributes), given(inputs, 0)
    include_pad = bool_attribute(attributes, "count_include_pad")
    total = _pool_stage(builder, windows, data, "sum", const(0, type.dtype))
    counts = [
        _tap_count(windows, axis, data.shape[2 + axis], include_pad) for axis in range(windows.rank)
    ]
    fixed = math.prod(count for count in counts if count is not None)

    def body(*indices: Expr) -> Expr:
        value = total[indices]
        if None not in counts:
            return divide_by_count(value, fixed)
        _, outputs, _ = windows.split(indices)
        count: Expr = integer(fixed)
        for axis, known in enumerate(counts):
            if known is None:
                extent = data.shape[2 + axis]
                count = mul(count, _taps(windows, axis, outputs[axis], extent, include_pad))
        return binary("div", value, cast(type.dtype, count))

    if counts == [1] * windows.rank:
        return total
    axes = [(axis.name, axis.extent) for axis in builder.stages[-1].axes]
    return builder.stage("average_pool", axes, body)


def _counted_range(windows: _Windows, axis: int, extent: int, include_pad: bool) -> tuple[int, int]:
    """The positions low <= position < high, relative to the data, that count in an average."""
    if include_pad:
        return -windows.begins[axis], extent + windows.ends[axis]
    return 0, extent


def _tap_count(windows: _Windows, axis: int, extent: int, include_pad: bool) -> int | None:
    """How many taps count along one axis if that is the same for all windows, else None."""
    low, high = _counted_range(windows, axis, extent, include_pad)
    first = -windows.begins[axis]
    reach = window_reach(
        windows.outputs[axis], windows.kernel[axis], windows.strides[axis], windows.dilations[axis]
    )
    return windows.kernel[axis] if low <= first and first + reach <= high else None


def _taps(windows: _Windows, axis: int, output: Expr, extent: int, include_pad: bool) -> Expr:
    """How many taps of window `output` count along one axis; 1 where none does, of a sum of 0."""
    low, high = _counted_range(windows, axis, extent, include_pad)
    dilation = windows.dilations[axis]
    start = sub(mul(output, integer(windows.strides[axis])), integer(windows.begins[axis]))

    def first_tap_at(bound: int) -> Expr:
        # the smallest tap with start + tap * dilation >= bound
        distance = add(sub(integer(bound), start), integer(dilation - 1))
        return binary("floordiv", distance, integer(dilation))

    end = binary("min", first_tap_at(high), integer(windows.kernel[axis]))
    count = sub(end, binary("max", first_tap_at(low), integer(0)))
    every = range(windows.outputs[axis])
    if high - low >= dilation:  # no window steps over what counts: the ends tell of all of them
        every = range(0, every.stop, max(every.stop - 1, 1))
    if all(_counts(windows, axis, window, low, high) for window in every):
        return count
    return binary("max", count, integer(1))


def _counts(windows: _Windows, axis: int, window: int, low: int, high: int) -> bool:
    """Some tap of the window lies at low <= position < high."""
    start = window * windows.strides[axis] - windows.begins[axis]
    taps = range(windows.kernel[axis])
    return any(low <= start + tap * windows.dilations[axis] < high for tap in taps)


register(
    "max_pool",
    Pattern.REDUCTION,
    1,
    _infer_max_pool,
    _max_pool,
    kernel=REQUIRED,
    shape=REQUIRED,
    strides=(),
    pads=(),
    dilations=(),
    layout="NCHW",
)
register(
    "average_pool",
    Pattern.REDUCTION,
    1,
    _infer_average_pool,
    _average_pool,
    kernel=REQUIRED,
    shape=REQUIRED,
    strides=(),
    pads=(),
    dilations=(),
    count_include_pad=False,
    layout="NCHW",
)
