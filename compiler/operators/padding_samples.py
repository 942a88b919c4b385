"""Padding rules of samples at computed places.

What is read at places in padding is padding; positions are clamped to the data.
"""

from __future__ import annotations

from tunefarm.compiler.operators.padding import PaddedUse, padding_rule
from tunefarm.compiler.operators.sample import TAPS
from tunefarm.compiler.types.dims import Axis, Dims, extent_of, whole


@padding_rule("sample_positions", "sample_weights")
def _tables(use: PaddedUse) -> Dims:
    places = use.operand(0)
    use.require_whole(0, 2, "the axis of coordinates")
    if 1 in use.present():
        use.same((0, 0), (1, 0))
    taps = TAPS[use.attributes.choice("mode", tuple(TAPS))] ** extent_of(places[2])
    return places[0], whole(taps), places[1]


def _table_axes(use: PaddedUse) -> tuple[Axis, Axis]:
    """The axes of batch and places that the tables of positions and weights share."""
    tables = [position for position in use.present() if position]
    for position in tables:
        use.require_whole(position, 1, "the axis of taps")
    batch, places = (use.same(*((table, axis) for table in tables)) for axis in (0, 2))
    return batch, places


@padding_rule("sample_rows")
def _rows(use: PaddedUse) -> Dims:
    batch, places = _table_axes(use)
    return batch, places, use.operand(0)[1]


@padding_rule("sample_planes")
def _planes(use: PaddedUse) -> Dims:
    batch, places = _table_axes(use)
    use.same((0, 0), (1, 0))
    return batch, use.operand(0)[1], places
