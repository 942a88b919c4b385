"""The numbers of a run with run-time sizes: one vector that code, frames and the C library share.

It begins with the sizes that the graph reads, and goes on with what ports need: extents, how far
apart their rows lie, how many there are. Symbols make a vector as well, in their sources' order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import PaddedShape
from tunefarm.compiler.types.signature import ResultSource, Signature, SizedPort
from tunefarm.compiler.types.sizes import Dimension, Size, product_of

# How a dense array lies in the padded place of its port: as rows of equal bytes.


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


def layout_of_axes(bytes: int, axes: PaddedShape) -> PortLayout:
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


@frozen
class SizeTable:
    """`dimensions` is what the vector holds: the signature's sizes, then each other Size once."""

    dimensions: tuple[Dimension, ...]
    numbers: dict[Size, int]

    @staticmethod
    def of(signature: Signature) -> SizeTable:
        """The table of a signature: the same for code and for whoever calls it."""
        dimensions = list(signature.sizes)
        numbers = {size: i for i, size in enumerate(dimensions) if isinstance(size, Size)}
        for dimension in _needed(signature):
            if isinstance(dimension, Size) and dimension not in numbers:
                numbers[dimension] = len(dimensions)
                dimensions.append(dimension)
        return SizeTable(tuple(dimensions), numbers)

    def template(self, dimensions: Iterable[Dimension]) -> tuple[int, ...]:
        """The dimensions, those that are no numbers as `~place` in the vector."""
        return tuple(d if isinstance(d, int) else ~self.numbers[d] for d in dimensions)


def bytes_of_port(port: SizedPort) -> Dimension:
    """The bytes of a dense array of the port's true shape."""
    return bytes_of_dense(port.dtype, port.shape)


def bytes_of_dense(dtype: DType, shape: Iterable[Dimension]) -> Dimension:
    """The bytes of a dense array."""
    return product_of((*shape, dtype.bytes))


def copied_ports(ports: Iterable[SizedPort]) -> tuple[SizedPort, ...]:
    """Those whose arrays are smaller than the graph's values may be."""
    return tuple(port for port in ports if port.symbols)


def is_late(signature: Signature, port: SizedPort) -> bool:
    """Whether the port's shape is known only after the run."""
    late = {source.symbol for source in signature.sources if isinstance(source, ResultSource)}
    return not late.isdisjoint(port.symbols)


def port_layouts(ports: Iterable[SizedPort]) -> tuple[PortLayout, ...]:
    """How rows are copied between dense arrays and the padded places of `copied_ports`."""
    return tuple(layout_of(port) for port in copied_ports(ports))


def _needed(signature: Signature) -> Iterable[Dimension]:
    for port in (*signature.inputs, *signature.outputs):
        yield from port.shape
        yield from (true for axis in port.padded for true, _ in axis)
        yield bytes_of_port(port)
    for layout in port_layouts((*signature.inputs, *signature.outputs)):
        yield layout.row
        for level in layout.levels:
            yield from (level.count, level.dense)
    for equality in signature.equalities:
        yield from (equality.left, equality.right)
