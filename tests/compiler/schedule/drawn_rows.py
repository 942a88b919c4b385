"""Hypothesis strategies for long rows: reduced in several accumulators, and pieced together."""

from __future__ import annotations

from hypothesis import strategies as st

from compiler.types.dtypes import DType
from tests.compiler.schedule.drawn_graphs import SPECIAL, Case, Chain, epilogue

_FLOATS = st.sampled_from([DType.F32] * 4 + [DType.F64])


@st.composite
def reduced_rows(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Rows of up to twenty vectors with any rest, reduced or normalised along one or two axes."""
    chain = Chain(special=draw(SPECIAL))
    dtype = draw(_FLOATS)
    plane = (draw(st.integers(1, 3)), draw(st.integers(1, 20 * lanes)))
    value = chain.input((draw(st.integers(1, 3)), draw(st.integers(1, 3)), *plane), dtype)
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
