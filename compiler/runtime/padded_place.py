"""Padded places: memory as large as the bounds of a port, and arrays that are parts of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from compiler.runtime.buffers import address_of, allocate
from compiler.runtime.executable_spec import ALIGNMENT
from compiler.runtime.ports import AnyArray
from compiler.runtime.sized_ports import SizedArray

_MOST_KEPT = 3
"""Memories that are kept for an output: one being read, one being written, one yet to be let go."""


def reaches(array: AnyArray, address: int, count: int) -> bool:
    """Whether the memory that an array is a part of has `count` bytes from its beginning on."""
    owner = array.base
    while type(owner) is np.ndarray and type(owner.base) is np.ndarray:
        owner = owner.base
    if type(owner) is not np.ndarray or not owner.flags.c_contiguous:
        return False
    start = address_of(owner)
    return start <= address and address + count <= start + owner.nbytes


def begins(shape: Sequence[int], port: SizedArray) -> bool:
    """Whether a dense array of this shape lies as at the beginning of the port's place."""
    if 0 in shape:
        return True
    outer = next((axis for axis, extent in enumerate(shape) if extent > 1), len(shape))
    inner = slice(outer + 1, None)
    return port.strides is not None and tuple(shape[inner]) == port.port.shape[inner]


class Places:
    """A place for each of some ports, made when it is first asked for."""

    __slots__ = ("_addresses", "_arrays", "_ports")

    def __init__(self, ports: Sequence[SizedArray]) -> None:
        self._ports = ports
        self._arrays: dict[int, AnyArray] = {}
        self._addresses = [0] * len(ports)

    def address(self, number: int) -> int:
        """Where the place of this port is."""
        return self._addresses[number] or self._made(number)

    def array(self, number: int) -> AnyArray:
        """The place itself, an array of the padded type."""
        self.address(number)
        return self._arrays[number]

    def _made(self, number: int) -> int:
        port = self._ports[number].port
        array, address = allocate(port.shape, port.dtype, port.bytes)
        self._arrays[number], self._addresses[number] = array, address
        return address


class LentPlaces:
    """Places of one output that are returned as arrays, and used again once nobody has them.

    What an array lies in is its `base`, and that of every part of it: where nothing refers to the
    memory any more, no array is left that could see it change.
    """

    __slots__ = ("_bytes", "_kept", "_skips")

    def __init__(self, count: int) -> None:
        """Each has `count` bytes."""
        self._bytes = count
        self._kept: list[AnyArray] = []
        self._skips: list[int] = []

    def lend(
        self, shape: Sequence[int], dtype: np.dtype[np.generic], strides: Sequence[int]
    ) -> AnyArray:
        """An array of this shape at the beginning of a place that nobody has."""
        kept = self._kept
        for number in range(len(kept)):
            if sys.getrefcount(kept[number]) == _UNUSED:
                break
        else:
            number = self._keep()
        return np.ndarray(shape, dtype, kept[number], self._skips[number], strides)

    def _keep(self) -> int:
        """The number of a new memory."""
        if len(self._kept) == _MOST_KEPT:
            del self._kept[0], self._skips[0]  # whoever has it keeps it alive
        memory = np.empty(self._bytes + ALIGNMENT, np.uint8)
        self._kept.append(memory)
        self._skips.append(-address_of(memory) % ALIGNMENT)
        return len(self._kept) - 1


_alone = [object()]
_UNUSED = sys.getrefcount(_alone[0])
"""The references to what is in a list and nowhere else, counted as `lend` counts them."""
