"""Sizes of one call: read from its arguments, checked by code, and what follows from them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from struct import Struct
from typing import NoReturn, TypeAlias

import numpy as np

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.runtime.sizes.size_errors import (
    refuse_condition,
    refuse_rank,
    refuse_shape,
    refuse_sizes,
    refuse_value,
)
from tunefarm.compiler.runtime.sizes.sized_ports import SizedArray, SizedPorts, distinct
from tunefarm.compiler.runtime.spec.buffers import address_of
from tunefarm.compiler.runtime.spec.ports import AnyArray
from tunefarm.compiler.types.signature import ResultSource

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SizeCode:
    """The functions of `runtime.sizes.size_chain` that take a state: `choose` and `tell`."""

    choose: Callable[[int], int]
    update: Callable[[int], object]


ChooseFunction = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
UpdateFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class RunSizes:
    """The state of a frame, and what it says of the ports.

    `program` is the number of the one that runs; `ways`, `bytes` and `shapes` are what is said of
    ports that are alike, by that number.
    What was found for a call serves the next one if that has the same sizes.
    """

    __slots__ = (
        "_axes",
        "_code",
        "_facts",
        "_found",
        "_get",
        "_pack",
        "_ports",
        "_ranks",
        "_state",
        "_unpack",
        "address",
        "bytes",
        "program",
        "shapes",
        "ways",
    )

    def __init__(self, ports: SizedPorts, code: SizeCode) -> None:
        self._ports = ports
        self._code = code
        layout = ports.state
        state = np.zeros(layout.length, np.int64)
        self._state = state.data
        self.address = address_of(state)
        self._axes = ports.axes
        self._pack = Struct(f"={len(ports.axes) + len(ports.values)}q").pack_into
        self._unpack = Struct(f"={layout.fact_count}q").unpack_from
        self._facts = 8 * layout.facts
        count = len(layout.ports)
        lists = slice(1, 1 + count), slice(1 + count, 1 + 2 * count)
        self._get = itemgetter(0, *lists, *(place.shape for place in layout.ports))
        self._found: list[int] | None = None
        self.program = 0
        self.ways: Shape = ()
        self.bytes: Shape = ()
        self.shapes: list[Shape] = []
        self._ranks = [
            (port.alike, [len(room.shape) for room in port.rooms])
            for port in distinct(ports.outputs)
            if port.declared.others
        ]

    def read(self, arrays: Sequence[AnyArray]) -> None:
        """Find the program for the arguments, and what it says of their sizes.

        Raises `InputError` for sizes that the model was not built for.
        """
        try:
            found = [arrays[number].shape[axis] for number, axis in self._axes]
        except IndexError:
            refuse_rank(self._ports, arrays)
        if self._ports.values:
            found += self._read_values(arrays)
        if found == self._found:
            return
        self._found = None  # nothing is known if this fails
        self._pack(self._state, 0, *found)
        if self._code.choose(self.address):
            refuse_sizes(self._ports, arrays, found)
        self._take()
        self._found = found

    def update(self) -> None:
        """What is known now that the run has computed sizes."""
        self._code.update(self.address)
        self._take()

    def factors(self, port: SizedArray) -> Shape:
        """The extents of the factors of an output whose shape is known late."""
        place = self._ports.state.ports[port.alike].factors
        facts = self._unpack(self._state, self._facts)
        return facts[place][-len(port.rooms[self.program].factors) :]

    def refuse_shape(self, port: SizedArray, array: AnyArray) -> NoReturn:
        """Raise the `InputError` that says which shape the port must have for these sizes."""
        found = self._found or []
        refuse_shape(self._ports, self.program, port, array, self.shapes[port.alike], found)

    def check_results(
        self,
        computed: Mapping[str, AnyArray],
        names: Mapping[str, int],
        arguments: Sequence[AnyArray],
    ) -> bool:
        """Whether the run has computed sizes, which are within their bounds.

        `computed` are the program's outputs that are no ports, `arguments` the inputs, `names` by
        name their numbers. Raises `InputError` where a condition did not hold, or a computed size
        is out of its bounds.
        """
        signature = self._ports.programs[self.program].signature
        assert signature is not None  # else nothing is computed
        for check in signature.checks:
            flags = computed[check.output]
            if flags.item() if flags.size == 1 else flags.any():
                number = names.get(check.operand)
                argument = None if number is None else arguments[number]
                refuse_condition(self._ports, self.program, check, argument, self._found or [])
        has_sizes = False
        for source in signature.sources:
            if not isinstance(source, ResultSource):
                continue
            has_sizes = True
            size = computed[source.output].item(source.position)
            symbol = source.symbol
            if not symbol.low <= size <= symbol.high:
                raise InputError(
                    f"the model has computed the size {symbol.name} = {size}, and was built for "
                    f"{symbol.low} to {symbol.high}",
                    hint="build it with bounds that allow for it",
                )
        return has_sizes

    def _take(self) -> None:
        facts = self._unpack(self._state, self._facts)
        self.program, self.ways, self.bytes, *self.shapes = self._get(facts)
        for alike, ranks in self._ranks:
            self.shapes[alike] = self.shapes[alike][: ranks[self.program]]

    def _read_values(self, arrays: Sequence[AnyArray]) -> list[int]:
        found = []
        for number, position in self._ports.values:
            try:
                found.append(int(arrays[number].item(position)))
            except IndexError:
                refuse_value(self._ports, number, position, arrays[number])
        return found
