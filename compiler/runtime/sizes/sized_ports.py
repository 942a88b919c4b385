"""What calls of a model with run-time sizes need to know of its ports: made once, when it loads.

A model has one program or several, each for other sizes. The ports are those of all together; what
differs is the room that each has: the place that a program pads the port's arrays to. What a call
is to know of its sizes, code writes into the frame's state, see `runtime.sizes.size_chain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tunefarm.compiler.runtime.entry.sized_entry import SizedTables
from tunefarm.compiler.runtime.sizes.size_state import SizeState
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.runtime.spec.joined_signature import joined_signature, ports_of_program
from tunefarm.compiler.runtime.spec.port_layout import layout_of
from tunefarm.compiler.runtime.spec.ports import Port, ports_of
from tunefarm.compiler.runtime.spec.size_table import copied_ports, is_late
from tunefarm.compiler.types.signature import SIZES, AxisSource, Signature, SizedPort, ValueSource
from tunefarm.compiler.types.sizes import Dimension
from tunefarm.compiler.types.tensor_type import TensorType


@dataclass(frozen=True, slots=True)
class Room:
    """What a port is in one program: `type` is what its arrays are padded to, of so many `bytes`.

    `strides` are those of the true part within its place, None where an axis has padding inside.
    `late` means that its shape is known after the run; `factors` are its extents as the place has
    them, with `factor_strides`. `grows` marks outputs that an input of other sizes has the same
    place as: what is returned may be an argument of the next call.
    """

    shape: tuple[Dimension, ...]
    type: TensorType
    bytes: int
    strides: tuple[int, ...] | None
    late: bool
    grows: bool
    factors: tuple[Dimension, ...]
    factor_strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SizedArray:
    """One input or output; `port` is as large as the largest of its `rooms`, one for each program.

    `name` to `unaligned` are those of the port, which every call looks at. Ports of one kind that
    are the same but for their names and places have the same number `alike`, those of outputs go on
    behind the inputs'. `number` counts ports of a kind, `dense` is the place of its dense array in
    the tables, -1 if its sizes are fixed.
    """

    number: int
    port: Port
    declared: SizedPort
    name: str
    dtype: np.dtype[Any]
    position: int
    unaligned: int
    alike: int
    dense: int
    rooms: tuple[Room, ...]

    @property
    def late(self) -> bool:
        """Whether a run may compute its shape."""
        return any(room.late for room in self.rooms)

    @property
    def grows(self) -> bool:
        """Whether a run may need more room than is known before it."""
        return any(room.grows for room in self.rooms)


@dataclass(frozen=True, slots=True)
class ProgramSizes:
    """A program as calls see it: which arguments it is for, and what it computes itself.

    `computed` are the outputs that are no ports, with their types.
    """

    guards: tuple[SizeGuard, ...]
    signature: Signature | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    computed: tuple[tuple[str, TensorType], ...]


@dataclass(frozen=True, slots=True)
class SizedPorts:
    """All ports of a model, and where its sizes are read.

    `axes` are (input, axis), `values` (input, position): what a call looks at to know its sizes.
    """

    signature: Signature
    programs: tuple[ProgramSizes, ...]
    inputs: tuple[SizedArray, ...]
    outputs: tuple[SizedArray, ...]
    axes: tuple[tuple[int, int], ...]
    values: tuple[tuple[int, int], ...]
    tables: _CallTables
    state: SizeState

    @property
    def computes(self) -> bool:
        """Whether a run computes sizes, or conditions on arguments."""
        return any(program.computed for program in self.programs)

    @staticmethod
    def of(specs: Sequence[ExecutableSpec]) -> SizedPorts:
        """The ports of a model that consists of these programs."""
        signature = joined_signature(specs)
        axes, values = _observed(specs, signature)
        tables = _CallTables.of(specs, signature)
        programs = tuple(_program_sizes(spec) for spec in specs)
        inputs = _arrays("input", signature.inputs, specs, tables, 0)
        outputs = _arrays("output", signature.outputs, specs, tables, len(distinct(inputs)))
        state = SizeState.of(
            [program.signature for program in programs],
            distinct((*inputs, *outputs)),
            len(axes) + len(values),
        )
        return SizedPorts(signature, programs, inputs, outputs, axes, values, tables, state)


def distinct(ports: Sequence[SizedArray]) -> list[SizedArray]:
    """The first of each that are alike, by that number."""
    firsts = {port.alike: port for port in reversed(ports)}
    return [firsts[number] for number in sorted(firsts)]


def _observed(
    specs: Sequence[ExecutableSpec], signature: Signature
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    numbers = {port.name: number for number, port in enumerate(signature.inputs)}
    axes: list[tuple[int, int]] = []
    values: list[tuple[int, int]] = []
    for spec in specs:
        axes += [(numbers[guard.input], guard.axis) for guard in spec.guards]
        for source in () if spec.signature is None else spec.signature.sources:
            if isinstance(source, AxisSource):
                axes.append((numbers[source.input], source.axis))
            elif isinstance(source, ValueSource):
                values.append((numbers[source.input], source.position))
    return tuple(dict.fromkeys(axes)), tuple(dict.fromkeys(values))


def _program_sizes(spec: ExecutableSpec) -> ProgramSizes:
    ports = {port.name for port in ports_of_program(spec)[1]}
    return ProgramSizes(
        spec.guards,
        spec.signature,
        tuple(name for name, _ in spec.inputs),
        tuple(name for name, _ in spec.outputs),
        tuple((name, type) for name, type in spec.outputs if name not in ports),
    )


def _arrays(
    kind: str,
    declared: Sequence[SizedPort],
    specs: Sequence[ExecutableSpec],
    tables: _CallTables,
    first: int,
) -> tuple[SizedArray, ...]:
    """The ports of one kind, as large as the largest of their rooms; `first` is the minimum number
    of those that are alike."""
    places = tables.inputs if kind == "input" else tables.outputs
    alike: dict[object, int] = {}
    made = []
    for number, port in enumerate(declared):
        rooms = tuple(_room(kind, number, spec) for spec in specs)
        largest = max((room.type for room in rooms), key=lambda type: type.bytes)
        (plain,) = ports_of(kind, [(port.name, largest)])
        plain = replace(plain, position=places.places[port.name])
        dense = places.dense.get(port.name, -1)
        group = alike.setdefault((rooms, dense < 0), first + len(alike))
        made.append(
            SizedArray(
                number,
                plain,
                port,
                port.name,
                plain.dtype,
                plain.position,
                plain.unaligned,
                group,
                dense,
                rooms,
            )
        )
    return tuple(made)


def _room(kind: str, number: int, spec: ExecutableSpec) -> Room:
    inputs, outputs = ports_of_program(spec)
    port = (inputs if kind == "input" else outputs)[number]
    factors = [factor for axis in port.padded for factor in axis]
    itemsize = port.dtype.numpy.itemsize
    whole = all(_one_stretch(axis) for axis in port.padded)
    return Room(
        port.shape,
        port.type,
        port.type.bytes,
        _strides(port.type.shape, itemsize) if whole else None,
        spec.signature is not None and is_late(spec.signature, port),
        kind == "output" and any(_feeds(port, input) for input in inputs),
        tuple(true for true, _ in factors),
        _strides([extent for _, extent in factors], itemsize),
    )


def _one_stretch(axis: Sequence[tuple[object, int]]) -> bool:
    """Whether an axis has its padding behind all of its elements."""
    return all(true == extent for true, extent in axis[1:])


def _feeds(output: SizedPort, input: SizedPort) -> bool:
    """Whether what is returned for the output may lie where the input is read from.

    They have one place and not one shape, as a cache before and after a step. What has the same
    shape as well is returned dense, as it is more often an image than a state.
    """
    alike = output.dtype == input.dtype and layout_of(output).levels and layout_of(input).levels
    return bool(alike) and output.type == input.type and output.shape != input.shape


def _strides(shape: Iterable[int], itemsize: int) -> tuple[int, ...]:
    """The strides of a dense array in bytes."""
    extents = list(shape)
    strides = [itemsize]
    for extent in reversed(extents[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))[: len(extents)]


_STATE = "%state"
"""What the state goes by in the table of inputs; it is no port."""


@dataclass(frozen=True, slots=True)
class _PortTable:
    """A table of `count` pointers: the place of each port, and dense arrays of some, by name."""

    places: dict[str, int]
    dense: dict[str, int]
    count: int


@dataclass(frozen=True, slots=True)
class _CallTables:
    """Both tables of pointers that a call fills; entries of `inputs` that hold vectors of the
    state: of symbols and numbers of the only program, or the state itself.

    One program reads its tables itself, so that they are those of `runtime.entry.sized_entry`. Of
    several each has its own, made from tables of all ports by `runtime.sizes.size_chain`: places of
    the ports, then dense arrays of those that some program pads, then the state or what is
    computed.
    """

    inputs: _PortTable
    outputs: _PortTable
    symbols: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    state: tuple[int, ...] = ()

    @staticmethod
    def of(programs: Sequence[ExecutableSpec], signature: Signature) -> _CallTables:
        """The tables of a model of these programs, whose signature together is this."""
        first = programs[0]
        if len(programs) == 1 and first.signature is not None:
            return _of_one(first, first.signature)
        inputs = _open_ports([ports_of_program(program)[0] for program in programs])
        outputs = _open_ports([ports_of_program(program)[1] for program in programs])
        read = _table([port.name for port in signature.inputs], inputs, [_STATE])
        ports = [port.name for port in signature.outputs]
        computed = dict.fromkeys(name for program in programs for name, _ in program.outputs)
        written = _table(ports, outputs, [name for name in computed if name not in ports])
        return _CallTables(read, written, state=(read.count - 1,))


def _of_one(program: ExecutableSpec, signature: Signature) -> _CallTables:
    inputs, outputs = ([name for name, _ in ports] for ports in (program.inputs, program.outputs))
    tables = SizedTables.of(signature, len(inputs), len(outputs))
    sizes = [inputs.index(SIZES)] if SIZES in inputs else []
    dense_in, dense_out = tables.dense_inputs, tables.dense_outputs
    return _CallTables(
        _PortTable(_numbered(inputs), dense_in, len(inputs) + 2 + len(dense_in)),
        _PortTable(_numbered(outputs), dense_out, len(outputs) + len(dense_out)),
        symbols=(tables.symbols,),
        numbers=(tables.numbers, *sizes),
    )


def _open_ports(programs: Sequence[Sequence[SizedPort]]) -> list[str]:
    """The names of ports that some program pads."""
    return list(dict.fromkeys(port.name for ports in programs for port in copied_ports(ports)))


def _table(ports: Sequence[str], dense: Sequence[str], further: Sequence[str]) -> _PortTable:
    count = len(ports) + len(dense)
    places = {**_numbered(ports), **{name: count + i for i, name in enumerate(further)}}
    beside = {name: len(ports) + i for i, name in enumerate(dense)}
    return _PortTable(places, beside, count + len(further))


def _numbered(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}
