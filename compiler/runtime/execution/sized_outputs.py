"""Results of a model with run-time sizes, and where its code writes them.

A result is a dense array of its true size. The code writes values as large as the bounds allow, so
it writes them into places that are kept, and copies the rows out; but into the result itself where
that has the maximum sizes, or where a memory as large as the place holds hardly more than the
result, at its beginning. A result that grows from call to call, as a cache does, is a part of a
place that is lent (`LentPlaces`), its rows as far apart as there: the next call reads it so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.runtime.execution.frame import Tables
from tunefarm.compiler.runtime.sizes.padded_place import Lent, LentPlaces, Places
from tunefarm.compiler.runtime.sizes.run_sizes import RunSizes
from tunefarm.compiler.runtime.sizes.size_state import BEGINS, COPIED, LENT, WHOLE
from tunefarm.compiler.runtime.sizes.sized_ports import SizedArray
from tunefarm.compiler.runtime.spec.buffers import address_of, allocate, allocate_output
from tunefarm.compiler.runtime.spec.ports import (
    AnyArray,
    as_elements,
    check_mapping,
    checked_output,
    refuse_shared,
    refuse_unknown,
    span_of,
)
from tunefarm.compiler.types.tensor_type import Array


class SizedOutputs:
    """Fills the table of outputs for one call at a time."""

    __slots__ = ("_lent", "_places", "_ports", "_sizes", "_table")

    def __init__(
        self, ports: Sequence[SizedArray], sizes: RunSizes, table: Tables, lent: Lent
    ) -> None:
        """`lent` will have the results that lie in places."""
        self._ports = ports
        self._sizes = sizes
        self._table = table
        self._places = Places(ports)
        self._lent = {i: LentPlaces(p.port.bytes, lent) for i, p in enumerate(ports) if p.grows}

    def bind(
        self,
        given: Mapping[str, object] | None,
        inputs: Sequence[AnyArray],
        over: Collection[str] = (),
    ) -> dict[str, AnyArray]:
        """Point the code to the arrays given, and to new ones for the other outputs.

        Returns all by name but for those that are written `over` inputs, see `bind_over`; those
        whose shape is not known yet come with `collect`. Raises `InputError` for one that cannot be
        written.
        """
        if given is not None:
            return self._bind_given(given, inputs, over)
        return {
            port.name: self._make(number, port)
            for number, port in enumerate(self._ports)
            if port.name not in over
        }

    def bind_over(self, inputs: Mapping[str, tuple[AnyArray, int]]) -> dict[str, AnyArray]:
        """Point the code to the places of these inputs, by the outputs' names, with the addresses.

        Returns the outputs.
        """
        sizes = self._sizes
        results: dict[str, AnyArray] = {}
        for port in self._ports:
            if port.name in inputs:
                array, address = inputs[port.name]
                memory = array if array.base is None else array.base
                assert isinstance(memory, np.ndarray)
                skip, shape = address - address_of(memory), sizes.shapes[port.alike]
                strides = port.rooms[sizes.program].strides
                results[port.name] = np.ndarray(shape, port.dtype, memory, skip, strides)
                self._table[port.position] = address
                if port.dense >= 0:
                    self._table[port.dense] = address
        return results

    def collect(self, results: dict[str, AnyArray]) -> None:
        """The results whose shapes are known after the run, by name."""
        sizes = self._sizes
        for number, port in enumerate(self._ports):
            if port.rooms[sizes.program].late:
                room, place = port.rooms[sizes.program], self._places.array(number)
                part: AnyArray = np.ndarray(
                    sizes.factors(port), port.dtype, place, 0, room.factor_strides
                )
                results[port.name] = part.copy().reshape(sizes.shapes[port.alike])

    def _make(self, number: int, port: SizedArray) -> AnyArray:
        """A new array for the result, which the table points to."""
        sizes, alike = self._sizes, port.alike
        way, shape = sizes.ways[alike], sizes.shapes[alike]
        array: Array
        if way == WHOLE:
            array, place = allocate_output(shape, port.dtype, sizes.bytes[alike])
        elif way == LENT:
            strides = port.rooms[sizes.program].strides
            assert strides is not None
            lent = self._lent[number].lend(shape, port.dtype, strides)
            array, place = lent.array, lent.address
        elif way == COPIED:
            array, address = allocate_output(shape, port.dtype, sizes.bytes[alike])
            self._table[port.dense] = address
            self._table[port.position] = self._places.address(number)
            return array
        elif way == BEGINS:
            array, place = allocate(shape, port.dtype, port.rooms[sizes.program].bytes)
        else:
            array = self._places.array(number)
            place = self._places.address(number)
        self._table[port.position] = place
        if port.dense >= 0:
            self._table[port.dense] = place
        return array

    def _bind_given(
        self, given: Mapping[str, object], inputs: Sequence[AnyArray], over: Collection[str]
    ) -> dict[str, AnyArray]:
        """`bind` where the caller gave some of the arrays."""
        check_mapping("outputs", given)
        refuse_unknown("output", [port.name for port in self._ports], given)
        taken = [span_of(array, address_of(array)) for array in inputs]
        results: dict[str, AnyArray] = {}
        for number, port in enumerate(self._ports):
            if port.name in over:
                continue
            if port.name not in given:
                results[port.name] = self._make(number, port)
                continue
            way = self._sizes.ways[port.alike]
            array = self._checked(port, self._sizes.shapes[port.alike], given[port.name])
            address = address_of(array)
            span = span_of(array, address)
            refuse_shared(port.port, span, taken)
            taken.append(span)
            results[port.name] = array
            place = address if way == WHOLE else self._places.address(number)
            self._table[port.position] = place
            if port.dense >= 0:
                self._table[port.dense] = address
        return results

    def _checked(self, port: SizedArray, shape: tuple[int, ...], given: object) -> AnyArray:
        if port.rooms[self._sizes.program].late:
            raise InputError(
                f"output {port.name!r} cannot be given: its shape, {port.declared}, is known after "
                "the run only",
                hint="take it from what the run returns",
            )
        array = as_elements(port.port, given)
        if array.shape != shape:
            self._sizes.refuse_shape(port, array)
        return checked_output(replace(port.port, shape=shape), given)
