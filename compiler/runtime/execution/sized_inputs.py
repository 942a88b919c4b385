"""Arguments of a model with run-time sizes, and where its code reads them.

The graph's values are as large as the bounds allow, and arguments are as large as they are. So one
has two addresses in the table, its own and that of its place, and the code copies its rows from the
first to the second unless they are the same, see `runtime.entry.sized_entry`. They are where it

- has the maximum sizes, or
- lies in memory as its place does, and what it is a part of goes on for as long: the beginning of
  a larger buffer, or a cache that an earlier call has returned.

What lies behind it there may be anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tunefarm.compiler.runtime.execution.frame import Tables
from tunefarm.compiler.runtime.sizes.padded_place import Lent, Places, reaches
from tunefarm.compiler.runtime.sizes.run_sizes import RunSizes
from tunefarm.compiler.runtime.sizes.size_state import BEGINS, WHOLE
from tunefarm.compiler.runtime.sizes.sized_ports import SizedArray
from tunefarm.compiler.runtime.spec.buffers import address_of, allocate
from tunefarm.compiler.runtime.spec.ports import AnyArray, as_elements, check_mapping, refuse_names
from tunefarm.compiler.types.tensor_type import Array


class SizedInputs:
    """Fills the table of inputs for one call at a time."""

    __slots__ = ("_lent", "_places", "_ports", "_sizes", "_staging", "_table")

    def __init__(
        self, ports: Sequence[SizedArray], sizes: RunSizes, table: Tables, lent: Lent
    ) -> None:
        """`lent` are the results of earlier calls that lie in places."""
        self._ports = ports
        self._sizes = sizes
        self._table = table
        self._lent = lent
        self._places = Places(ports)
        self._staging: dict[str, Array] = {}  # of arguments that lie in no order that code knows

    def bind(self, given: Mapping[str, object]) -> list[AnyArray]:
        """Point the code to the arguments, which must be kept until it has run.

        Raises `InputError` for what does not fit.
        """
        arrays = self._arrays(given)
        sizes = self._sizes
        sizes.read(arrays)
        places = self._places.known
        shapes, table, program, lent = sizes.shapes, self._table, sizes.program, self._lent.get
        for port, array in zip(self._ports, arrays, strict=True):
            if array.shape != shapes[port.alike]:
                sizes.refuse_shape(port, array)
            is_part = array.base is not None and port.dense >= 0
            if is_part and (known := lent(id(array))) is not None:
                room = port.rooms[program]
                if array.strides == room.strides and known.bytes >= room.bytes:
                    table[port.position] = table[port.dense] = known.address
                    continue
            address = address_of(array)
            in_order = array.flags.c_contiguous
            aligned = not address & port.unaligned
            way = sizes.ways[port.alike]
            if way == WHOLE:
                if not (in_order and aligned):
                    address = self._stage(port, array)
                table[port.position] = address
                if port.dense >= 0:
                    table[port.dense] = address
            elif is_part and aligned and self._is_part(port, array, address, way):
                table[port.position] = table[port.dense] = address
            else:
                table[port.dense] = address if in_order else self._stage(port, array)
                table[port.position] = places[port.number] or self._places.address(port.number)
        return arrays

    def reads(self, number: int, array: AnyArray) -> bool:
        """Whether the code reads the memory of this argument itself, in place or by rows."""
        port = self._ports[number]
        return self._table[port.position if port.dense < 0 else port.dense] == address_of(array)

    def places(self) -> list[int | None]:
        """Where each argument is that lies as its place does; None for one that was copied."""
        table, staged = self._table, {address_of(array) for array in self._staging.values()}
        found = []
        for port in self._ports:
            address = table[port.position]
            is_read = (port.dense < 0 or table[port.dense] == address) and address not in staged
            found.append(address if is_read else None)
        return found

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

    def _is_part(self, port: SizedArray, array: AnyArray, address: int, way: int) -> bool:
        """Whether a part of an array lies as in the port's place, and the array goes on for it."""
        room = port.rooms[self._sizes.program]
        if not (way == BEGINS and array.flags.c_contiguous) and array.strides != room.strides:
            return False
        return reaches(array, address, room.bytes)

    def _stage(self, port: SizedArray, array: AnyArray) -> int:
        """Copy an argument into a dense array that is kept; the address of that."""
        if port.name not in self._staging:
            self._staging[port.name] = allocate(port.port.shape, port.dtype, port.port.bytes)[0]
        memory = self._staging[port.name]
        np.copyto(np.ndarray(array.shape, port.dtype, memory), array)
        return address_of(memory)
