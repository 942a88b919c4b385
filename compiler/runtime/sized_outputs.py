"""Results of a model with run-time sizes, and where its code writes them.

A result is a dense array of its true size. The code writes values as large as the bounds allow, so
it writes them into places that are kept, and copies the rows out; but into the result itself where
that has the greatest sizes, or where a memory as large as the place holds hardly more than the
result, at its beginning. A result that grows from call to call, as a cache does, is a part of a
place that is lent (`LentPlaces`), its rows as far apart as there: the next call reads it so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import TypeAlias

import numpy as np

from compiler.errors import InputError
from compiler.runtime.buffers import address_of, allocate, allocate_output
from compiler.runtime.frame import Tables
from compiler.runtime.padded_place import LentPlaces, Places, begins
from compiler.runtime.ports import (
    AnyArray,
    as_elements,
    check_mapping,
    checked_output,
    refuse_shared,
    refuse_unknown,
    span_of,
)
from compiler.runtime.run_sizes import RunSizes, filled
from compiler.runtime.sized_ports import SizedArray, distinct
from compiler.types.tensor_type import Array

_WORTH_SHARING = 2
"""A result may begin a memory that is so many times as large, and none that is larger."""


class _Way(IntEnum):
    """How a result comes to its caller."""

    WHOLE = 0  # it is its own place
    BEGINS = 1  # it begins an own place
    COPIED = 2  # rows are copied out of a place
    LENT = 3  # it is a part of a place
    LATE = 4  # rows are copied when its shape is known


_Result: TypeAlias = tuple[_Way, tuple[int, ...], int]
"""Outputs that are alike, at the sizes that there are: how they come, their shape and bytes."""


class SizedOutputs:
    """Fills the table of outputs for one call at a time."""

    __slots__ = (
        "_distinct",
        "_known",
        "_lent",
        "_places",
        "_ports",
        "_results",
        "_sizes",
        "_table",
    )

    def __init__(self, ports: Sequence[SizedArray], sizes: RunSizes, table: Tables) -> None:
        self._ports = ports
        self._sizes = sizes
        self._table = table
        self._places = Places(ports)
        self._lent = {i: LentPlaces(p.port.bytes) for i, p in enumerate(ports) if p.grows}
        self._distinct = distinct(ports)
        self._known: object = None
        self._results: list[_Result] = []

    def bind(
        self, given: Mapping[str, object] | None, inputs: Sequence[AnyArray]
    ) -> dict[str, AnyArray]:
        """Point the code to the arrays given, and to new ones for the other outputs.

        Returns all by name; those whose shape is not known yet come with `collect`. Raises
        `InputError` for one that cannot be written.
        """
        if self._sizes.shapes is not self._known:
            self._resize()
        if given is not None:
            return self._bind_given(given, inputs)
        results = self._results
        return {
            port.name: self._make(number, port, results[port.alike])
            for number, port in enumerate(self._ports)
        }

    def collect(self, results: dict[str, AnyArray]) -> None:
        """The results whose shapes are known after the run, by name."""
        values = self._sizes.values
        for number, port in enumerate(self._ports):
            if port.late:
                place = self._places.array(number)
                shape = filled(port.factors, values)
                part: AnyArray = np.ndarray(shape, port.dtype, place, 0, port.factor_strides)
                results[port.name] = part.copy().reshape(self._sizes.shapes[port.shape])

    def _resize(self) -> None:
        shapes = self._known = self._sizes.shapes
        self._results = [self._result(port, shapes[port.shape]) for port in self._distinct]

    def _result(self, port: SizedArray, shape: tuple[int, ...]) -> _Result:
        place = port.port.bytes
        count = port.bytes if port.bytes >= 0 else self._sizes.values[~port.bytes]
        if port.late:
            way = _Way.LATE
        elif shape == port.port.shape:
            way = _Way.WHOLE
        elif port.grows and port.strides is not None:
            way = _Way.LENT
        elif begins(shape, port) and count * _WORTH_SHARING >= place:
            way = _Way.BEGINS
        else:
            way = _Way.COPIED
        return way, shape, count

    def _make(self, number: int, port: SizedArray, result: _Result) -> AnyArray:
        """A new array for the result, which the table points to."""
        way, shape, count = result
        array: Array
        if way is _Way.WHOLE:
            array, place = allocate_output(shape, port.dtype, count)
        elif way is _Way.COPIED:
            array, address = allocate_output(shape, port.dtype, count)
            self._table[port.dense] = address
            self._table[port.position] = self._places.address(number)
            return array
        elif way is _Way.LENT:
            assert port.strides is not None
            array = self._lent[number].lend(shape, port.dtype, port.strides)
            place = address_of(array)
        elif way is _Way.BEGINS:
            array, place = allocate(shape, port.dtype, port.port.bytes)
        else:
            array = self._places.array(number)
            place = self._places.address(number)
        self._table[port.position] = place
        if port.dense >= 0:
            self._table[port.dense] = place
        return array

    def _bind_given(
        self, given: Mapping[str, object], inputs: Sequence[AnyArray]
    ) -> dict[str, AnyArray]:
        """`bind` where the caller gave some of the arrays."""
        check_mapping("outputs", given)
        refuse_unknown("output", [port.name for port in self._ports], given)
        taken = [span_of(array, address_of(array)) for array in inputs]
        results: dict[str, AnyArray] = {}
        for number, port in enumerate(self._ports):
            way, shape, _ = result = self._results[port.alike]
            if port.name not in given:
                results[port.name] = self._make(number, port, result)
                continue
            array = self._checked(port, shape, given[port.name])
            address = address_of(array)
            span = span_of(array, address)
            refuse_shared(port.port, span, taken)
            taken.append(span)
            results[port.name] = array
            place = address if way is _Way.WHOLE else self._places.address(number)
            self._table[port.position] = place
            if port.dense >= 0:
                self._table[port.dense] = address
        return results

    def _checked(self, port: SizedArray, shape: tuple[int, ...], given: object) -> AnyArray:
        if port.late:
            raise InputError(
                f"output {port.name!r} cannot be given: its shape, {port.declared}, is known after "
                "the run only",
                hint="take it from what the run returns",
            )
        array = as_elements(port.port, given)
        if array.shape != shape:
            self._sizes.refuse_shape(port, array)
        return checked_output(replace(port.port, shape=shape), given)
