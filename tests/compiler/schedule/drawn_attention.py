"""A Hypothesis strategy that draws attention: stacks, masks, caps, sinks, orders, epilogues."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.compiler.schedule.drawn_graphs import SPECIAL, Case, Chain, Shape, epilogue, extents
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute

_KEYS = (1, 7, 49, 77, 97, 128, 197, 256, 300)


@st.composite
def attentions(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Queries and keys of odd numbers, features that are no whole vectors, shared keys."""
    batch = draw(st.sampled_from([(), (3,), (1, 2), (2, 2)]))
    queries, keys = draw(extents(lanes, 49)), draw(st.sampled_from(_KEYS))
    features, columns = (draw(st.sampled_from([5, 8, 24, 32, 40, 64])) for _ in range(2))
    shared = batch if draw(st.booleans()) else (*batch[:-1], *(1 for _ in batch[-1:]))
    chain = Chain(special=draw(SPECIAL))
    operands: list[str] = []
    attributes: dict[str, Attribute] = {}
    for name, shape in (
        ("query", (*batch, queries, features)),
        ("key", (*shared, keys, features)),
        ("value", (*shared, keys, columns)),
    ):
        perm = draw(_orders(len(shape), name == "key"))
        operands.append(chain.input(tuple(shape[perm.index(axis)] for axis in range(len(shape)))))
        attributes[f"{name}_perm"] = perm
    for _ in range(draw(st.integers(0, 2))):
        scores = (*batch, queries, keys)
        shape = tuple(extent if draw(st.booleans()) else 1 for extent in scores)
        dtype = draw(st.sampled_from([DType.F32, DType.BOOL]))
        operands.append(chain.input(shape[draw(st.integers(0, len(batch))) :], dtype))
    attributes["perm"] = draw(_orders(len(batch) + 2, False))
    scale = draw(st.sampled_from([1.0, 0.2]))
    masked = draw(st.sampled_from([float("-inf"), -1e9]))
    if draw(st.booleans()):
        attributes["zeroed"] = True
    if draw(st.booleans()):
        attributes["softcap"] = 1.5
    if draw(st.booleans()):
        attributes["sink"] = True
        shape = (*(extent if draw(st.booleans()) else 1 for extent in (*batch, queries)), 1)
        operands.append(chain.input(shape))
    value = chain.apply("attention", *operands, **attributes, scale=scale, masked=masked)
    epilogue(draw, chain, value)
    return chain.cases()


def _orders(rank: int, turns: bool) -> st.SearchStrategy[Shape]:
    """Orders of the axes in which features stay last, or positions do."""
    plain = st.permutations(range(rank - 1)).map(lambda outer: (*outer, rank - 1))
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    return st.one_of(plain, st.just(swapped)) if turns else plain
