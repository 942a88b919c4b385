"""The state of a frame: a vector of 64-bit integers that code and calls share.

    found      what a call has read: extents of arguments, and elements of them
    facts      what follows: the program, how each kind of port comes to its caller, bytes, shapes
    programs   for each its symbols, then its numbers (`tunefarm.compiler.runtime.spec.size_table`)

A call writes `found`, code the rest (`runtime.sizes.size_chain`), and the call reads the facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from tunefarm.compiler.runtime.spec.size_table import SizeTable
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.signature import Signature

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.sizes.model_ports import ModelPort


class Way(IntEnum):
    """How an argument goes to code, or a result comes to its caller."""

    WHOLE = 0  # it is its own place
    BEGINS = 1  # it lies as at the beginning of a place: a result then has a place of its own
    COPIED = 2  # rows are copied
    LENT = 3  # a result that is a part of a place
    LATE = 4  # rows are copied when its shape is known


WHOLE, BEGINS, COPIED, LENT, LATE = map(int, Way)
"""The same as plain numbers, which calls compare in a fraction of the time."""


NO_PROGRAM, FIRST_CHECK = 1, 2
"""What refusals say: that no program is for the sizes, and from which on which check failed."""


@frozen
class PortFacts:
    """Where the facts of ports that are alike stand: their way, the bytes of dense arrays, their
    shape, and if that is known late only the extents of the place's factors."""

    way: int
    bytes: int
    shape: slice
    factors: slice


@frozen
class SizeState:
    """Where everything stands: `facts` is where the facts begin, whose first is the program.

    `symbols` and `numbers` are those of the programs; `tables` say what the numbers are.
    """

    facts: int
    fact_count: int
    ports: tuple[PortFacts, ...]
    symbols: tuple[int, ...]
    numbers: tuple[int, ...]
    tables: tuple[SizeTable, ...]
    length: int

    @staticmethod
    def of(
        signatures: Sequence[Signature],
        ports: Sequence[ModelPort],
        found: int,
    ) -> SizeState:
        """The state of programs with these signatures; `ports` are those that differ, by their
        number `alike`, and `found` is how much a call reads."""
        end = 1 + 2 * len(ports)
        placed = []
        for number, port in enumerate(ports):
            factors = max(len(room.factors) for room in port.rooms) if port.late else 0
            shape = slice(end, end + port.declared.rank)
            end = shape.stop + factors
            bytes = 1 + len(ports) + number
            placed.append(PortFacts(1 + number, bytes, shape, slice(shape.stop, end)))
        tables = tuple(map(SizeTable.of, signatures))
        offset, symbols, numbers = found + end, [], []
        for signature, table in zip(signatures, tables, strict=True):
            symbols.append(offset)
            offset += len(signature.sources)
            numbers.append(offset)
            offset += len(table.dimensions)
        return SizeState(
            found,
            end,
            tuple(placed),
            tuple(symbols),
            tuple(numbers),
            tables,
            offset + 1,
        )
