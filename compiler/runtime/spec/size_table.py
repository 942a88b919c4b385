"""The numbers of a run with run-time sizes: one vector that code, frames and the C library share.

It begins with the sizes that the graph reads, and goes on with what ports need: extents, how far
apart their rows lie, how many there are. Symbols make a vector as well, in their sources' order.
"""

from __future__ import annotations

from collections.abc import Iterable

from tunefarm.compiler.runtime.spec.port_layout import PortLayout, layout_of
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.signature import ResultSource, Signature, SizedPort
from tunefarm.compiler.types.sizes import Dimension, Size, product_of


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
