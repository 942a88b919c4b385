"""Hypothesis strategies for rows that are moved: read at other positions than they are written."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.compiler.schedule.drawn_graphs import SPECIAL, Case, Chain, epilogue
from tunefarm.compiler.operators.shape import PAD_MODES
from tunefarm.compiler.types.dtypes import DType

_FEW = st.integers(1, 4)


@st.composite
def resampled_rows(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Rows read at divided, strided, mirrored and looked-up positions, along them and across."""
    chain = Chain(special=draw(SPECIAL))
    dtype = draw(st.sampled_from([DType.F32] * 4 + [DType.F64, DType.I8, DType.I32, DType.BOOL]))
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 4 * lanes))
    value = chain.input((draw(st.integers(1, 3)), rows, columns), dtype)
    if dtype.is_float and draw(st.booleans()):
        value = chain.apply("relu", value)
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["resample", "resample", "slice", "tile", "pad", "gather"]))
        value = _moved(draw, chain, value, kind, lanes)
    if dtype.is_float:
        epilogue(draw, chain, value)
    return chain.cases()


def _moved(draw: st.DrawFn, chain: Chain, value: str, kind: str, lanes: int) -> str:
    shape, dtype = chain.shape(value), chain.types[value].dtype
    axis = draw(st.sampled_from([1, 2, 2]))
    if kind == "tile":
        return chain.apply("tile", value, repeats=(1, draw(st.integers(1, 2)), draw(_FEW)))
    if kind == "pad":
        pads = tuple(draw(st.integers(0, lanes + 2 if i % 3 == 2 else 2)) for i in range(6))
        return chain.apply("pad", value, pads=pads, mode=draw(st.sampled_from(PAD_MODES)))
    if kind == "slice":
        steps = [1, *(draw(st.sampled_from([1, 1, 2, 3, 5, -1, -2])) for _ in range(2))]
        counts = [1 + (extent - 1) // abs(step) for extent, step in zip(shape, steps, strict=True)]
        starts = [0 if step > 0 else extent - 1 for extent, step in zip(shape, steps, strict=True)]
        window = {"starts": tuple(starts), "steps": tuple(steps), "shape": tuple(counts)}
        return chain.apply("slice", value, **window)
    if kind == "gather":
        picks = chain.input((draw(st.integers(1, 2 * lanes)),), DType.I32)
        return chain.apply("gather", value, picks, axis=axis)
    return _resampled(draw, chain, value, axis, draw(st.integers(1, 5 * lanes)), dtype)


def _resampled(
    draw: st.DrawFn, chain: Chain, value: str, axis: int, size: int, dtype: DType
) -> str:
    weighted, tabled = dtype.is_float and draw(st.booleans()), draw(st.integers(0, 3)) == 0
    taps = draw(st.integers(1, 4)) if weighted else 1
    tables = [chain.input((taps, size), DType.I32)] if tabled else []
    if weighted:
        tables.append(chain.input((taps, size), dtype))
    return chain.apply(
        "resample",
        value,
        *tables,
        axis=axis,
        size=size,
        step=draw(st.integers(1, 5)),
        divisor=draw(st.integers(1, 7)),
        offsets=tuple(draw(st.integers(-9, 9)) for _ in range(taps)),
        tabled=tabled,
        weighted=weighted,
    )
