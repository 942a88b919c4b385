"""Sizes of one call: read from its arguments, checked by code, what follows from them, and what is
said of those that a model was not built for.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from struct import Struct
from typing import NoReturn, TypeAlias

import numpy as np

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.runtime.sizes.model_ports import ModelPort, ModelPorts, distinct
from tunefarm.compiler.runtime.sizes.size_state import FIRST_CHECK, WHOLE
from tunefarm.compiler.runtime.spec.buffers import address_of
from tunefarm.compiler.runtime.spec.guards import refusal
from tunefarm.compiler.runtime.spec.ports import AnyArray
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.signature import (
    AxisSource,
    Check,
    Equality,
    ResultSource,
    Source,
    ValueSource,
)
from tunefarm.compiler.types.sizes import symbols_in, symbols_of, value_of

Shape: TypeAlias = tuple[int, ...]

_NUMBER = Struct("=q")


@frozen
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
    What was found for a call serves the next one if that has the same sizes, and where no size is
    dynamic (`is_read` is false) it is known before the first.
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
        "is_read",
        "program",
        "shapes",
        "ways",
    )

    def __init__(self, ports: ModelPorts, code: SizeCode | None) -> None:
        """Without `code` all sizes are fixed."""
        self._ports = ports
        self._code = code
        self.is_read = code is not None
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
        rooms = [port.rooms[0] for port in distinct((*ports.inputs, *ports.outputs))]
        self.ways: Shape = (WHOLE,) * len(rooms)
        self.bytes: Shape = tuple(room.bytes for room in rooms)
        self.shapes: list[Shape] = [room.type.shape for room in rooms]
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
        if refused := self.choose(found):
            refuse_sizes(self._ports, refused, arrays, found)
        self._take()
        self._found = found

    def choose(self, found: Sequence[int]) -> int:
        """Find the `program` for what a call has found, the first whose guards admit it, or -1.

        0, or the reason to refuse the call, see `runtime.sizes.size_chain`.
        """
        self._found = None  # nothing is known if this fails
        if self._code is None:
            return 0
        self._pack(self._state, 0, *found)
        refused = self._code.choose(self.address)
        (self.program,) = _NUMBER.unpack_from(self._state, self._facts)
        return refused

    def return_to(self, program: int, shapes: list[Shape]) -> None:
        """Take back what the last `read` has found, and say again what was known before it."""
        self._found, self.program, self.shapes = None, program, shapes

    def update(self) -> None:
        """What is known now that the run has computed sizes."""
        assert self._code is not None  # else no run computes sizes
        self._code.update(self.address)
        self._take()

    def factors(self, port: ModelPort) -> Shape:
        """The extents of the factors of an output whose shape is known late."""
        place = self._ports.state.ports[port.alike].factors
        facts = self._unpack(self._state, self._facts)
        return facts[place][-len(port.rooms[self.program].factors) :]

    def refuse_shape(self, port: ModelPort, array: AnyArray) -> NoReturn:
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


_SHOWN = 16
"""The most elements of an argument that an error shows."""


def refuse_sizes(
    ports: ModelPorts, refused: int, arrays: Sequence[AnyArray], found: Sequence[int]
) -> NoReturn:
    """Raise the `InputError` of sizes that were refused; `found` is what was read."""
    for port, array in zip(ports.inputs, arrays, strict=True):
        if array.ndim != len(port.declared.shape):
            refuse_rank(ports, arrays)
    if refused < FIRST_CHECK:
        refuse_program(ports, {p.name: a.shape for p, a in zip(ports.inputs, arrays, strict=True)})
    program, item = ports.checks[refused - FIRST_CHECK]
    known = _known(ports, program, found)
    if isinstance(item, Equality):
        sizes = {source.symbol.name: size for source, size in known.items()}
        refuse_equality(item, value_of(item.left, sizes), value_of(item.right, sizes), sizes)
    refuse_size(item, known[item])


def refuse_program(ports: ModelPorts, shapes: Mapping[str, Shape]) -> NoReturn:
    """Raise the `InputError` of arguments of these shapes, which no guards admit."""
    every = [program.guards for program in ports.programs]
    raise InputError(
        refusal(every, shapes), hint="build the model with that size among its --shape values"
    )


def _known(ports: ModelPorts, program: int, found: Sequence[int]) -> dict[Source, int]:
    """The sizes that a call has found, by the sources of a program."""
    signature = ports.programs[program].signature
    numbers = {port.name: number for number, port in enumerate(ports.inputs)}
    known: dict[Source, int] = {}
    for source in signature.sources:
        if isinstance(source, AxisSource):
            known[source] = found[ports.axes.index((numbers[source.input], source.axis))]
        elif isinstance(source, ValueSource):
            place = ports.values.index((numbers[source.input], source.position))
            known[source] = found[len(ports.axes) + place]
    return known


def refuse_size(source: Source, size: int) -> NoReturn:
    """Raise the `InputError` of a symbol that is out of its bounds."""
    symbol = source.symbol
    if size < symbol.low:
        hint = f"build the model for less: {symbol.name}:{max(size, 0)}..{symbol.high} in --shape"
    else:
        hint = f"build the model for more: {symbol.name}:{symbol.low}..{size} in --shape"
    raise InputError(
        f"{symbol.name} is {size} in {source.place}, and the model was built for "
        f"{symbol.low} to {symbol.high}",
        hint=hint,
    )


def refuse_rank(ports: ModelPorts, arrays: Sequence[AnyArray]) -> NoReturn:
    """Raise the `InputError` of the first argument that has too few or too many axes."""
    for port, array in zip(ports.inputs, arrays, strict=True):
        if array.ndim != len(port.declared.shape):
            _refuse_axes(ports, port, array)
    raise AssertionError("an axis is missing, and no argument lacks one")


def refuse_value(ports: ModelPorts, number: int, position: int, array: AnyArray) -> NoReturn:
    """Raise the `InputError` of an argument that does not have the element with a size."""
    port = ports.inputs[number]
    raise InputError(
        f"input {port.name!r} of the shape {list(array.shape)} has no element {position}, which "
        f"is a size; the model was built for {_declared(ports, port)}"
    )


def refuse_shape(
    ports: ModelPorts,
    program: int,
    port: ModelPort,
    array: AnyArray,
    wanted: Sequence[int],
    found: Sequence[int],
) -> NoReturn:
    """Raise the `InputError` of a shape that does not fit the sizes of other arguments.

    `found` is what was read of them, and `program` the number of the one that is for it.
    """
    if array.ndim != len(wanted) and port.kind == "input":
        _refuse_axes(ports, port, array)
    if not port.declared.is_dynamic:
        _refuse_axes(ports, port, array)
    symbols = symbols_in(port.rooms[program].shape)
    known = [
        f"{source.symbol.name} is {size} in {source.place}"
        for source, size in _known(ports, program, found).items()
        if source.symbol in symbols
    ]
    reason = f" ({', '.join(known)})" if known else ""
    raise InputError(
        f"{port.kind} {port.name!r} has the shape {list(array.shape)} and must have "
        f"{list(wanted)}{reason}; the model was built for {_declared(ports, port)}"
    )


def _declared(ports: ModelPorts, port: ModelPort) -> str:
    declared = port.declared
    return ports.signature.port_text(declared) if declared.is_dynamic else str(list(port.shape))


def _refuse_axes(ports: ModelPorts, port: ModelPort, array: AnyArray) -> NoReturn:
    raise InputError(
        f"{port.kind} {port.name!r} has the shape {list(array.shape)}, "
        f"the model was built for {_declared(ports, port)}"
    )


def refuse_equality(item: Equality, left: int, right: int, sizes: Mapping[str, int]) -> NoReturn:
    """Raise the `InputError` of two sizes that must be equal and are not."""
    symbols = sorted(symbols_of(item.left) | symbols_of(item.right))
    known = ", ".join(f"{symbol.name} = {sizes[symbol.name]}" for symbol in symbols)
    raise InputError(
        f"sizes do not fit each other: {item.left} is {left} and {item.right} is {right}, and they "
        f"must be equal ({known}): {item.reason}",
        hint="change the shapes of the arguments, or the values that are sizes",
    )


def refuse_condition(
    ports: ModelPorts,
    program: int,
    check: Check,
    argument: AnyArray | None,
    found: Sequence[int],
) -> NoReturn:
    """Raise the `InputError` of a condition that the graph has found not to hold.

    `found` is what was read of the arguments: sizes that the reason names are said.
    """
    known = _known(ports, program, found).items()
    named = {source.symbol.name: size for source, size in known}
    words = set(re.findall(r"[^\s,()]+", check.reason))
    listed = ", ".join(f"{name} is {size}" for name, size in named.items() if name in words)
    sizes = f" ({listed})" if listed else ""
    if argument is None:
        raise InputError(f"{check.message}{sizes}")
    raise InputError(f"input {check.operand!r} is {_shown(argument)}: {check.reason}{sizes}")


def _shown(argument: AnyArray) -> str:
    """The elements of an argument, or how many of which numbers there are."""
    if argument.size <= _SHOWN:
        return str(argument.tolist())
    count = f"of {argument.size} elements"
    if argument.dtype.kind not in "iu":
        return count
    return f"{count}, {argument.min()} to {argument.max()}"
