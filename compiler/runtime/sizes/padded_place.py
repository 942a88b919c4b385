"""Padded places: memory as large as the bounds of a port, and arrays that are parts of it."""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.runtime.sizes.model_ports import ModelPort
from tunefarm.compiler.runtime.spec.buffers import address_of, allocate
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT
from tunefarm.compiler.runtime.spec.ports import AnyArray

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


class Places:
    """A place for each of some ports, made when it is first asked for."""

    __slots__ = ("_arrays", "_ports", "known")

    def __init__(self, ports: Sequence[ModelPort]) -> None:
        self._ports = ports
        self._arrays: dict[int, AnyArray] = {}
        self.known = [0] * len(ports)
        """The addresses of those that have been made, 0 for the others: what every call asks."""

    def address(self, number: int) -> int:
        """Where the place of this port is."""
        return self.known[number] or self._made(number)

    def array(self, number: int) -> AnyArray:
        """The place itself, an array of the padded type."""
        self.address(number)
        return self._arrays[number]

    def _made(self, number: int) -> int:
        port = self._ports[number]
        array, address = allocate(port.shape, port.dtype, port.bytes)
        self._arrays[number], self.known[number] = array, address
        return address


class LentArray:
    """An array that is lent: where it is, and how many bytes there are."""

    __slots__ = ("address", "array", "bytes")

    def __init__(self, array: AnyArray, address: int, count: int) -> None:
        self.array, self.address, self.bytes = array, address, count


Lent: TypeAlias = dict[int, LentArray]
"""The arrays that a frame has lent, by their `id`: calls that get one know where it is."""


class LentPlaces:
    """Places of one output that are returned as arrays, and used again once nobody has them.

    What an array lies in is its `base`, and that of every part of it: where nothing else refers to
    the memory any more, nor to the array, no array is left that could see it change.
    """

    __slots__ = ("_bytes", "_kept", "_lent", "_memories", "_skips")

    def __init__(self, count: int, lent: Lent) -> None:
        """Each has `count` bytes."""
        self._bytes = count
        self._lent = lent
        self._memories: list[AnyArray] = []
        self._skips: list[int] = []
        self._kept: list[LentArray] = []

    def lend(
        self, shape: Sequence[int], dtype: np.dtype[np.generic], strides: Sequence[int]
    ) -> LentArray:
        """An array of this shape at the beginning of a place that nobody has."""
        memories, kept = self._memories, self._kept
        for number, item in enumerate(kept):
            if (
                getrefcount(item.array) == _UNUSED
                and getrefcount(memories[number]) == _UNUSED_BUT_BY_ARRAY
            ):
                break
        else:
            number = self._keep()
            item = kept[number]
        del self._lent[id(item.array)]
        array = item.array = np.ndarray(
            shape, dtype, memories[number], self._skips[number], strides
        )
        self._lent[id(array)] = item
        return item

    def _keep(self) -> int:
        """The number of a new memory."""
        if len(self._kept) == _MOST_KEPT:
            item = self._kept.pop(0)
            del self._memories[0], self._skips[0]  # whoever has it keeps it alive
            del self._lent[id(item.array)]
        memory = np.empty(self._bytes + ALIGNMENT, np.uint8)
        start = address_of(memory)
        skip = -start % ALIGNMENT
        item = LentArray(memory[skip:skip], start + skip, self._bytes)
        self._memories.append(memory)
        self._skips.append(skip)
        self._kept.append(item)
        self._lent[id(item.array)] = item
        return len(self._kept) - 1


_alone = LentArray(np.empty(0), 0, 0)
_UNUSED = getrefcount(_alone.array)
_alone_in_list = [np.empty(0)]
_UNUSED_BUT_BY_ARRAY = getrefcount(_alone_in_list[0]) + 1
"""The references to what only its keeper has, counted as `lend` counts them."""
