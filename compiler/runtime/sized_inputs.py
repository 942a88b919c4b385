"""Arguments of a model with run-time sizes, and where its code reads them.

The graph's values are as large as the bounds allow, and arguments are as large as they are. So one
has two addresses in the table, its own and that of its place, and the code copies its rows from the
first to the second unless they are the same, see `compiler.runtime.sized_entry`. They are where it

- has the greatest sizes, or
- lies in memory as its place does, and what it is a part of goes on for as long: the beginning of
  a larger buffer, or a cache that an earlier call has returned.

What lies behind it there may be anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.runtime.buffers import address_of, allocate
from compiler.runtime.frame import Tables
from compiler.runtime.padded_place import Places, begins, reaches
from compiler.runtime.ports import AnyArray, as_elements, check_mapping, refuse_names
from compiler.runtime.run_sizes import RunSizes
from compiler.runtime.sized_ports import SizedArray, distinct
from compiler.types.tensor_type import Array


class SizedInputs:
    """Fills the table of inputs for one call at a time."""

    __slots__ = ("_distinct", "_places", "_ports", "_seen", "_sizes", "_staging", "_table")

    def __init__(self, ports: Sequence[SizedArray], sizes: RunSizes, table: Tables) -> None:
        self._ports = ports
        self._sizes = sizes
        self._table = table
        self._places = Places(ports)
        self._staging: dict[str, Array] = {}  # of arguments that lie in no order that code knows
        self._distinct = distinct(ports)
        self._seen: list[tuple[bool, bool]] = []  # of ports that are alike: whole, begins its place

    def bind(self, given: Mapping[str, object]) -> list[AnyArray]:
        """Point the code to the arguments, which must be kept until it has run.

        Raises `InputError` for what does not fit.
        """
        arrays = self._arrays(given)
        sizes = self._sizes
        if sizes.read(arrays):
            self._resize()
        shapes, table = sizes.shapes, self._table
        for number, (port, array) in enumerate(zip(self._ports, arrays, strict=True)):
            if array.shape != shapes[port.shape]:
                sizes.refuse_shape(port, array)
            address = address_of(array)
            aligned = not address & port.unaligned
            if port.dense < 0:
                in_place = aligned and array.flags.c_contiguous
                table[port.position] = address if in_place else self._stage(port, array)
            elif aligned and self._lies_as_its_place(port, array, address):
                table[port.position] = table[port.dense] = address
            else:
                in_order = array.flags.c_contiguous
                table[port.dense] = address if in_order else self._stage(port, array)
                table[port.position] = self._places.address(number)
        return arrays

    def reads(self, number: int, array: AnyArray) -> bool:
        """Whether the code reads the memory of this argument itself, in place or by rows."""
        port = self._ports[number]
        return self._table[port.position if port.dense < 0 else port.dense] == address_of(array)

    def _arrays(self, given: Mapping[str, object]) -> list[AnyArray]:
        """The arguments in the model's order, with the elements of their types."""
        if type(given) is not dict:
            check_mapping("inputs", given)
        ports = self._ports
        if len(given) != len(ports):
            refuse_names([port.port for port in ports], given)
        arrays: list[AnyArray] = []
        for port in ports:
            value = given.get(port.name)
            if type(value) is np.ndarray and value.dtype == port.dtype:
                arrays.append(value)
            elif port.name in given:
                arrays.append(as_elements(port.port, value))
            else:
                refuse_names([port.port for port in ports], given)
        return arrays

    def _resize(self) -> None:
        """What is known of ports before their arrays, for the sizes that there are."""
        shapes = self._sizes.shapes
        self._seen = [
            (shapes[port.shape] == port.port.shape, begins(shapes[port.shape], port))
            for port in self._distinct
        ]

    def _lies_as_its_place(self, port: SizedArray, array: AnyArray, address: int) -> bool:
        whole, begins = self._seen[port.alike]
        in_order = array.flags.c_contiguous
        if whole and in_order:
            return True
        if array.base is None or not ((begins and in_order) or array.strides == port.strides):
            return False
        return reaches(array, address, port.port.bytes)

    def _stage(self, port: SizedArray, array: AnyArray) -> int:
        """Copy an argument into a dense array that is kept; the address of that."""
        if port.name not in self._staging:
            self._staging[port.name] = allocate(port.port.shape, port.dtype, port.port.bytes)[0]
        memory = self._staging[port.name]
        np.copyto(np.ndarray(array.shape, port.dtype, memory), array)
        return address_of(memory)
