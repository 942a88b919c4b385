"""How a dense array lies in the padded place of its port: as rows of equal bytes.

    f32[batch:1..4, 8, past:0..512, 64]    rows of past*256 bytes, batch*8 of them:
    dense     past*256 bytes apart
    padded    512*256 bytes apart

What is outside of the outermost size that is open adds no row: such an array lies at the beginning.
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.types.dims import Dims
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.signature import SizedPort
from tunefarm.compiler.types.sizes import Dimension


@frozen
class RowLevel:
    """`count` rows, or groups of rows, so many bytes apart in the dense and the padded array."""

    count: Dimension
    dense: Dimension
    padded: int


@frozen
class PortLayout:
    """Rows of `row` bytes within `levels`, the outermost first."""

    levels: tuple[RowLevel, ...]
    row: Dimension


def layout_of(port: SizedPort) -> PortLayout:
    """How a port's array lies, see `layout_of_axes`."""
    return layout_of_axes(port.dtype.bytes, port.padded)


def layout_of_axes(bytes: int, axes: Dims) -> PortLayout:
    """The fewest levels that say where elements of so many bytes are.

    What is within a factor and fills its extents is one stretch in both arrays, so the two are one.
    """
    groups = [_Group(1, 1, bytes, bytes)]
    for true, extent in reversed([factor for axis in axes for factor in axis]):
        inner = groups[-1]
        if inner.count == inner.extent:
            groups[-1] = replace(inner, count=inner.count * true, extent=inner.extent * extent)
        else:
            dense, padded = inner.dense * inner.count, inner.padded * inner.extent
            groups.append(_Group(true, extent, dense, padded))
    row, *outer = groups
    levels = (RowLevel(group.count, group.dense, group.padded) for group in reversed(outer))
    return PortLayout(tuple(level for level in levels if level.count != 1), row.count * row.padded)


@frozen
class _Group:
    """Factors as one: `count` of `extent` are there, so many bytes apart in both arrays."""

    count: Dimension
    extent: int
    dense: Dimension
    padded: int
