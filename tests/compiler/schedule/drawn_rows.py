"""Hypothesis strategies for long rows: reduced in several accumulators, and pieced together."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.compiler.schedule.drawn_graphs import SPECIAL, Case, Chain, epilogue, extents
from tunefarm.compiler.types.dtypes import DType

_ANY_AXES = [
    "softmax",
    "log_softmax",
    "arg_max",
    "arg_min",
    "rms_norm",
    "lp_norm",
    "mean_variance_norm",
    "reduce_sum",
    "reduce_max",
    "reduce_mean",
    "reduce_prod",
    "sum_of_differences",
]
_FLOATS = st.sampled_from([DType.F32] * 4 + [DType.F64])


@st.composite
def reduced_rows(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Rows of up to twenty vectors with any rest, reduced or normalised along one or two axes."""
    chain = Chain(special=draw(SPECIAL))
    dtype = draw(_FLOATS)
    plane = (draw(st.integers(1, 3)), draw(st.integers(1, 20 * lanes)))
    value = chain.input((1, draw(st.integers(1, 3)), *plane), dtype)
    if draw(st.booleans()):
        mask = chain.input((1, 1, *plane), DType.BOOL)
        value = chain.apply("where", mask, chain.input((), dtype, constant=True), value)
    if draw(st.booleans()):
        value = chain.apply("mul", value, chain.input(chain.shape(value), dtype))
    if draw(st.booleans()):
        value = chain.apply("concat", value, chain.input((1, 2, *plane), dtype), axis=1)
    kind = draw(st.sampled_from(["softmax", "log_softmax", "layer_norm", "mean", "sum", "max"]))
    axis = draw(st.sampled_from([3, 3, 2]))
    if kind in ("softmax", "log_softmax"):
        value = chain.apply(kind, value, axis=3)
    elif kind == "layer_norm":
        shape = chain.shape(value)[axis:]
        scale, bias = chain.input(shape, dtype, constant=True), chain.input(shape, dtype)
        value = chain.apply("layer_norm", value, scale, bias, axis=axis)
    else:
        axes, keep = tuple(range(axis, 4)), draw(st.booleans())
        value = chain.apply(f"reduce_{kind}", value, axes=axes, keepdims=keep)
    epilogue(draw, chain, value)
    return chain.cases()


@st.composite
def rows_of_any_axes(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Rows along any axes, adjacent or not: reduced, normalised, searched."""
    chain = Chain(special=draw(SPECIAL))
    dtype = draw(_FLOATS)
    shape = (
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 2, 7, 13, 40])),
        draw(extents(lanes)),
    )
    return _of_any_axes(draw, chain, chain.input(shape, dtype), draw(st.integers(0, 2)))


@st.composite
def short_rows(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Many rows that are shorter than vectors, and rows in few columns that lie side by side."""
    chain = Chain(special=draw(SPECIAL))
    dtype = draw(_FLOATS)
    many, few = draw(st.integers(1, 5 * lanes + 3)), draw(st.integers(1, 8))
    axis = draw(st.integers(1, 2))
    shape = (draw(st.integers(1, 3)), many, few if axis == 2 else min(few, 5))
    return _of_any_axes(draw, chain, chain.input(shape, dtype), axis)


def _of_any_axes(draw: st.DrawFn, chain: Chain, value: str, axis: int) -> list[Case]:
    shape, dtype, flag = chain.shape(value), chain.types[value].dtype, draw(st.booleans())
    axes = tuple(sorted({axis, *draw(st.sets(st.integers(0, 2), max_size=2))}))
    match draw(st.sampled_from(_ANY_AXES)):
        case "softmax" | "log_softmax" as kind:
            value = chain.apply(kind, value, axis=axis)
        case "arg_max" | "arg_min" as kind:
            last = draw(st.booleans())
            chain.apply(kind, value, axis=axis, keepdims=flag, select_last_index=last)
            return chain.cases()
        case "rms_norm":
            value = chain.apply("rms_norm", value, axis=axis)
        case "lp_norm":
            value = chain.apply("lp_norm", value, axis=axis, p=draw(st.sampled_from([1, 2])))
        case "mean_variance_norm":
            # Where a row has one value, its deviations are roundings over a tiny deviation.
            value = chain.apply("mean_variance_norm", value, axes=axes, epsilon=1e-2)
        case "sum_of_differences":
            row = tuple(1 if a in axes else extent for a, extent in enumerate(shape))
            value = chain.apply("sub", value, chain.input(row, dtype))
            value = chain.apply("reduce_sum", value, axes=axes, keepdims=flag)
        case kind:
            value = chain.apply(kind, value, axes=axes, keepdims=flag)
    epilogue(draw, chain, value)
    return chain.cases()


@st.composite
def running_rows(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Running sums and products along any axis, from either end, of floats and integers."""
    chain = Chain(special=draw(SPECIAL))
    dtype = draw(st.sampled_from([DType.F32] * 3 + [DType.F64, DType.I32, DType.I64, DType.I8]))
    long = draw(st.sampled_from([1, 2, 13, 5 * lanes + 3]))
    shape = tuple(draw(st.permutations([draw(st.integers(1, 3)), long, draw(extents(lanes))])))
    value = chain.input(shape, dtype, near_one=dtype.is_float)
    if dtype.is_float and draw(st.booleans()):
        value = chain.apply(draw(st.sampled_from(["relu", "sigmoid"])), value)
    value = chain.apply(
        draw(st.sampled_from(["cumsum", "cumsum", "cumprod"])),
        value,
        axis=draw(st.integers(0, 2)),
        exclusive=draw(st.booleans()),
        reverse=draw(st.booleans()),
    )
    if dtype.is_float:
        epilogue(draw, chain, value)
    return chain.cases()


@st.composite
def pieced_rows(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Concatenation and padding of any mode, along rows and across them."""
    chain = Chain(special=draw(SPECIAL))
    dtype = draw(st.sampled_from([DType.F32] * 3 + [DType.F64, DType.I32, DType.BOOL]))
    rows, columns = draw(st.integers(3, 12)), draw(st.integers(3, 6 * lanes))
    value = chain.input((draw(st.integers(1, 9)), rows, columns), dtype)
    if dtype.is_float and draw(st.booleans()):
        value = chain.apply("relu", value)
    for _ in range(draw(st.integers(1, 2))):
        shape = chain.shape(value)
        if draw(st.booleans()):
            axis = draw(st.integers(1, 2))
            parts = [value]
            for _ in range(draw(st.integers(1, 2))):
                extent = draw(st.integers(1, 3 * lanes if axis == 2 else 5))
                parts.append(chain.input((*shape[:axis], extent, *shape[axis + 1 :]), dtype))
            value = chain.apply("concat", *draw(st.permutations(parts)), axis=axis)
        else:
            pads = (0, *(draw(st.integers(0, 2)) for _ in range(2)))
            pads += (0, *(draw(st.integers(0, 2)) for _ in range(2)))
            mode = draw(st.sampled_from(["constant", "edge", "reflect"]))
            value = chain.apply("pad", value, pads=pads, mode=mode)
    if dtype.is_float:
        epilogue(draw, chain, value)
    return chain.cases()
