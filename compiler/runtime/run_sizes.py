"""Sizes of one call: symbols from its arguments, checked, and the shapes that follow from them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeAlias

import numpy as np

from compiler.errors import InputError
from compiler.runtime.buffers import address_of
from compiler.runtime.ports import AnyArray
from compiler.runtime.size_errors import (
    refuse_condition,
    refuse_equality,
    refuse_rank,
    refuse_shape,
    refuse_size,
    refuse_value,
)
from compiler.runtime.sized_ports import SizedArray, SizedPorts, Template
from compiler.types.signature import ResultSource

Shape: TypeAlias = tuple[int, ...]


class RunSizes:
    """The vectors of symbols and numbers of a frame, and what they say of its ports.

    `shapes` are the templates' shapes, `values` the numbers, `addresses` where both vectors are.
    What was computed for a call serves the next one if that has the same sizes.
    """

    __slots__ = (
        "_compute",
        "_found",
        "_numbers",
        "_places",
        "_ports",
        "_symbols",
        "addresses",
        "shapes",
        "values",
    )

    def __init__(self, ports: SizedPorts, compute: Callable[[int, int], object]) -> None:
        """`compute` is the function of the code that fills the numbers from the symbols."""
        self._ports = ports
        self._compute = compute
        lows = [source.symbol.low for source in ports.signature.sources]
        self._symbols = np.array(lows, np.int64)
        self._numbers = np.zeros(max(1, len(ports.table.dimensions)), np.int64)
        self._places = [place for place, *_ in (*ports.axes, *ports.values)]
        self.addresses = address_of(self._symbols), address_of(self._numbers)
        self._found: list[int] | None = None
        self.values: list[int] = []
        self.shapes: list[Shape] = []

    def read(self, arrays: Sequence[AnyArray]) -> bool:
        """Take the symbols from the arguments; whether they are others than before.

        Raises `InputError` for sizes that the model was not built for.
        """
        ports = self._ports
        try:
            found = [arrays[number].shape[axis] for _, number, axis in ports.axes]
        except IndexError:
            refuse_rank(ports, arrays)
        if ports.values:
            found += self._read_values(arrays)
        if found == self._found:
            return False
        if any(map(_has_other_rank, ports.inputs, arrays)):
            refuse_rank(ports, arrays)
        self._found = None  # nothing is known if this fails
        self._check_bounds(found)
        for place, size in zip(self._places, found, strict=True):
            self._symbols[place] = size
        self._compute(*self.addresses)
        self.refresh()
        self._check_equalities()
        self._found = found
        return True

    def refresh(self) -> None:
        """The shapes of all ports, for the numbers that there are."""
        values = self.values = self._numbers.tolist()
        self.shapes = [filled(template, values) for template in self._ports.templates]

    def refuse_shape(self, port: SizedArray, array: AnyArray) -> NoReturn:
        """Raise the `InputError` that says which shape the port must have for these sizes."""
        refuse_shape(self._ports, port, array, self.shapes[port.shape], self._named())

    def check_results(
        self, computed: Mapping[str, AnyArray], arguments: Mapping[str, AnyArray]
    ) -> None:
        """Raise `InputError` where a condition did not hold, or a computed size is out of bounds.

        `computed` are the graph's outputs that are no ports, `arguments` the inputs by name.
        """
        for check in self._ports.signature.checks:
            if computed[check.output].any():
                refuse_condition(check, arguments.get(check.operand))
        for source in self._ports.signature.sources:
            if not isinstance(source, ResultSource):
                continue
            size = computed[source.output].item(source.position)
            symbol = source.symbol
            if not symbol.low <= size <= symbol.high:
                raise InputError(
                    f"the model has computed the size {symbol.name} = {size}, and was built for "
                    f"{symbol.low} to {symbol.high}",
                    hint="build it with bounds that allow for it",
                )

    def _read_values(self, arrays: Sequence[AnyArray]) -> list[int]:
        found = []
        for _, number, position in self._ports.values:
            try:
                found.append(int(arrays[number].item(position)))
            except IndexError:
                refuse_value(self._ports, number, position, arrays[number])
        return found

    def _check_bounds(self, found: Sequence[int]) -> None:
        sources = self._ports.signature.sources
        for place, size in zip(self._places, found, strict=True):
            symbol = sources[place].symbol
            if not symbol.low <= size <= symbol.high:
                refuse_size(sources[place], size)

    def _check_equalities(self) -> None:
        for number, template in enumerate(self._ports.equalities):
            left, right = filled(template, self.values)
            if left != right:
                item = self._ports.signature.equalities[number]
                refuse_equality(item, left, right, self._named())

    def _named(self) -> dict[str, int]:
        names = (source.symbol.name for source in self._ports.signature.sources)
        return dict(zip(names, self._symbols.tolist(), strict=True))


def _has_other_rank(port: SizedArray, array: AnyArray) -> bool:
    return array.ndim != len(port.declared.shape)


def filled(template: Template, values: Sequence[int]) -> Shape:
    """The dimensions that a template stands for."""
    return tuple([d if d >= 0 else values[~d] for d in template])


SizesFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
"""The function of the code that `RunSizes` computes with."""
