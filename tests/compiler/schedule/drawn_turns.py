"""Hypothesis strategies for kernels that turn blocks in registers, and for rows of windows.

Extents hold one to three vectors with a rest, or few elements, so that the sketches apply.
"""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from tests.compiler.schedule.drawn_graphs import SPECIAL, Case, Chain, epilogue
from tunefarm.compiler.types.dtypes import DType

_DTYPES = st.sampled_from([DType.F32] * 4 + [DType.F64, DType.I64, DType.I32, DType.U8])


@st.composite
def turns(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Transposes and changes of layout, between pointwise operators."""
    dtype = draw(_DTYPES)
    chain = Chain(special=draw(SPECIAL))
    long = st.integers(lanes, 3 * lanes + 3)
    form = draw(st.sampled_from(["transpose", "transpose", "to_blocked", "from_blocked"]))
    plane = (draw(st.integers(1, 5)), draw(long))
    batch, blocks = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    channels = (blocks - 1) * lanes + draw(st.integers(1, lanes))
    if form == "from_blocked":
        value = chain.input((batch, blocks, *plane, lanes), dtype)
    elif form == "to_blocked":
        value = chain.input((batch, channels, *plane), dtype)
    else:
        other = draw(st.one_of(long, st.integers(2, lanes)))
        extents = [draw(long), other, *draw(st.lists(st.integers(1, 4), max_size=2))]
        value = chain.input(draw(st.permutations(extents)), dtype)
    if dtype.is_float and draw(st.booleans()):
        value = chain.apply("relu", value)
    if dtype.is_float and draw(st.booleans()):  # both factors are turned, or one of them is short
        kept = draw(st.integers(0, len(chain.shape(value))))
        factor = (1,) * kept + chain.shape(value)[kept:]
        value = chain.apply("mul", value, chain.input(factor, dtype))
    if form == "from_blocked":
        value = chain.apply("from_blocked", value, channels=channels)
    elif form == "to_blocked":
        value = chain.apply("to_blocked", value, block=lanes)
    else:
        order = draw(st.permutations(range(len(chain.shape(value)))))
        value = chain.apply("transpose", value, perm=tuple(order))
    if dtype.is_float and draw(st.booleans()):
        value = chain.apply("add", value, chain.input(chain.shape(value), dtype))
    return chain.cases()


@st.composite
def rows_of_windows(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Pooling of plain data whose rows hold at least a vector of windows."""
    chain = Chain(special=draw(SPECIAL))
    dtype = draw(st.sampled_from([DType.F32] * 4 + [DType.F64, DType.U8]))
    kernel = (draw(st.integers(1, 5)), draw(st.integers(1, 7)))
    strides = (draw(st.integers(1, 5)), draw(st.integers(1, 8)))
    dilations = (1, draw(st.sampled_from([1, 1, 2])))
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True))
    shape = (draw(st.integers(1, 4)), draw(st.integers(lanes, 2 * lanes + 3)))
    pads = tuple(draw(st.integers(0, kernel[i % 2] - 1)) for i in range(4))
    plane = tuple(strides[i] * (shape[i] - 1) + reach[i] - pads[i] - pads[i + 2] for i in range(2))
    assume(min(plane) >= 1)
    data = chain.input((draw(st.integers(1, 2)), draw(st.integers(1, 3)), *plane), dtype)
    window = {
        "kernel": kernel,
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "shape": shape,
    }
    if draw(st.booleans()) or not dtype.is_float:
        value = chain.apply("max_pool", data, **window)
    else:
        include = draw(st.booleans())
        value = chain.apply("average_pool", data, count_include_pad=include, **window)
    if dtype.is_float:
        epilogue(draw, chain, value)
    return chain.cases()
