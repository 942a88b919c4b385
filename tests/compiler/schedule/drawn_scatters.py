"""Hypothesis strategies for updates at positions that are read, some twice, some outside."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.compiler.schedule.drawn_graphs import Case, Chain, extents
from tunefarm.compiler.operators.gather import REDUCTIONS
from tunefarm.compiler.types.dtypes import DType

_TYPES = [DType.F32] * 3 + [DType.F64, DType.I8, DType.U8, DType.I32, DType.I64, DType.BOOL]


@st.composite
def scatters(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Elements along an axis, and rows of one or several axes."""
    chain = Chain()
    dtype = draw(st.sampled_from(_TYPES))
    reduction = draw(st.sampled_from(sorted(REDUCTIONS))) if dtype is not DType.BOOL else "none"
    table = draw(st.sampled_from([DType.I32, DType.I64]))
    count = draw(st.integers(1, 12))
    if draw(st.booleans()):
        before, axis, behind = draw(st.integers(1, 3)), draw(extents(lanes)), draw(extents(lanes))
        data = chain.input((before, axis, behind), dtype)
        indices = chain.input((before, count, behind), table)
        updates = chain.input((before, count, behind), dtype)
        chain.apply("scatter_elements", data, indices, updates, reduction=reduction)
        return chain.cases()
    named = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    rows, width = 1, draw(extents(lanes))
    for extent in named:
        rows *= extent
    data = chain.input((rows, width), dtype)
    indices = chain.input((count, len(named)), table)
    updates = chain.input((count, width), dtype)
    chain.apply("scatter_rows", data, indices, updates, reduction=reduction, named=named)
    return chain.cases()
