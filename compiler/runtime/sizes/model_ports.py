"""What calls of a model need to know of its ports: made once, when it loads.

A model has one program or several, each for other sizes. The ports are those of all together; what
differs is the room that each has: the place that a program pads the port's arrays to. What a call
is to know of its sizes, code writes into the frame's state, see `runtime.sizes.size_chain`; of a
model whose sizes are all fixed it is known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tunefarm.compiler.runtime.sizes.size_state import SizeState
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec, made_for
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.runtime.spec.joined_signature import joined_signature
from tunefarm.compiler.runtime.spec.ports import Port
from tunefarm.compiler.runtime.spec.size_table import copied_ports, is_late, layout_of
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.signature import (
    AxisSource,
    Equality,
    ResultSource,
    Signature,
    SizedPort,
    ValueSource,
)
from tunefarm.compiler.types.sizes import Dimension
from tunefarm.compiler.types.tensor_type import TensorType


@frozen
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
    read_dense: bool


@frozen
class ModelPort(Port):
    """One input or output of a model, as large as the largest of its `rooms`, one for each program.

    Ports of one kind that are the same but for their names and places have the same number `alike`,
    those of outputs go on behind the inputs'. `dense` is the place of its dense array in the
    tables, -1 if no program pads it. `is_fixed` marks those of one shape.
    """

    declared: SizedPort
    is_fixed: bool
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


@frozen
class ProgramSizes:
    """A program as calls see it: which arguments it is for, and what it computes itself.

    `computed` are the outputs that are no ports, with their types. `machine` is the number of the
    CPU that it is made for, of those that the model is built for.
    """

    guards: tuple[SizeGuard, ...]
    signature: Signature
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    computed: tuple[tuple[str, TensorType], ...]
    machine: int


@frozen
class ModelPorts:
    """All ports of a model, and where its sizes are read.

    `axes` are (input, axis), `values` (input, position): what a call looks at to know its sizes.
    """

    signature: Signature
    programs: tuple[ProgramSizes, ...]
    inputs: tuple[ModelPort, ...]
    outputs: tuple[ModelPort, ...]
    axes: tuple[tuple[int, int], ...]
    values: tuple[tuple[int, int], ...]
    tables: _CallTables
    state: SizeState

    @property
    def is_fixed(self) -> bool:
        """Whether no size is dynamic: there is one program, and nothing to find out in a call."""
        return len(self.programs) == 1 and self.signature.is_fixed

    @property
    def machines(self) -> int:
        """The number of CPUs that there are programs for: of several, who calls says which it has,
        behind what it reads."""
        return 1 + max(program.machine for program in self.programs)

    @property
    def checks(self) -> tuple[tuple[int, AxisSource | ValueSource | Equality], ...]:
        """What must hold of sizes before a run, each with the number of the program that asks."""
        return tuple(
            (number, item)
            for number, program in enumerate(self.programs)
            for item in (*program.signature.sources, *program.signature.equalities)
            if not isinstance(item, ResultSource)
        )

    @property
    def computes(self) -> bool:
        """Whether a run computes sizes, or conditions on arguments."""
        return any(program.computed for program in self.programs)

    def found_at(
        self, shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]
    ) -> list[int]:
        """What a call with arguments of these shapes reads; `sizes` are those of symbols that
        elements of arguments say."""
        values = {
            (source.input, source.position): sizes.get(source.symbol.name, source.symbol.low)
            for source in self.signature.sources
            if isinstance(source, ValueSource)
        }
        found = [shapes[self.inputs[number].name][axis] for number, axis in self.axes]
        return found + [values.get((self.inputs[n].name, place), 0) for n, place in self.values]

    @staticmethod
    def of(specs: Sequence[ExecutableSpec]) -> ModelPorts:
        """The ports of a model that consists of these programs."""
        signature = joined_signature(specs)
        axes, values = _observed(specs, signature)
        tables = _CallTables.of(specs, signature)
        machines = list(dict.fromkeys(map(made_for, specs)))
        programs = tuple(_program_sizes(spec, machines.index(made_for(spec))) for spec in specs)
        inputs = _arrays("input", signature.inputs, specs, tables, 0)
        outputs = _arrays("output", signature.outputs, specs, tables, len(distinct(inputs)))
        state = SizeState.of(
            [program.signature for program in programs],
            distinct((*inputs, *outputs)),
            len(axes) + len(values) + (len(machines) > 1),
        )
        return ModelPorts(signature, programs, inputs, outputs, axes, values, tables, state)


def distinct(ports: Sequence[ModelPort]) -> list[ModelPort]:
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
        for source in spec.signature.sources:
            if isinstance(source, AxisSource):
                axes.append((numbers[source.input], source.axis))
            elif isinstance(source, ValueSource):
                values.append((numbers[source.input], source.position))
    return tuple(dict.fromkeys(axes)), tuple(dict.fromkeys(values))


def _program_sizes(spec: ExecutableSpec, machine: int) -> ProgramSizes:
    ports = {port.name for port in spec.signature.outputs}
    return ProgramSizes(
        spec.guards,
        spec.signature,
        tuple(name for name, _ in spec.inputs),
        tuple(name for name, _ in spec.outputs),
        tuple((name, type) for name, type in spec.outputs if name not in ports),
        machine,
    )


def _arrays(
    kind: str,
    declared: Sequence[SizedPort],
    specs: Sequence[ExecutableSpec],
    tables: _CallTables,
    first: int,
) -> tuple[ModelPort, ...]:
    """The ports of one kind, as large as the largest of their rooms; `first` is the minimum number
    of those that are alike."""
    places = tables.inputs if kind == "input" else tables.outputs
    alike: dict[object, int] = {}
    made = []
    for number, port in enumerate(declared):
        rooms = tuple(_room(kind, number, spec) for spec in specs)
        largest = max((room.type for room in rooms), key=lambda type: type.bytes)
        dense = places.dense.get(port.name, -1)
        group = alike.setdefault((rooms, dense < 0), first + len(alike))
        made.append(
            ModelPort(
                kind=kind,
                position=number,
                name=port.name,
                type=largest,
                dtype=largest.dtype.numpy,
                shape=largest.shape,
                bytes=largest.bytes,
                unaligned=largest.dtype.bytes - 1,
                declared=port,
                is_fixed=not port.is_dynamic,
                alike=group,
                dense=dense,
                rooms=rooms,
            )
        )
    return tuple(made)


def _room(kind: str, number: int, spec: ExecutableSpec) -> Room:
    inputs, outputs = spec.signature.inputs, spec.signature.outputs
    port = (inputs if kind == "input" else outputs)[number]
    factors = [factor for axis in port.padded for factor in axis]
    itemsize, type = port.dtype.numpy.itemsize, port.type
    whole = all(_one_stretch(axis) for axis in port.padded)
    return Room(
        port.shape,
        type,
        type.bytes,
        _strides(type.shape, itemsize) if whole else None,
        is_late(spec.signature, port),
        kind == "output" and bool(port.symbols) and any(_feeds(port, input) for input in inputs),
        tuple(true for true, _ in factors),
        _strides([extent for _, extent in factors], itemsize),
        port.read_dense,
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


@frozen
class _PortTable:
    """A table of `count` pointers: the place of each port, and dense arrays of some, by name."""

    places: dict[str, int]
    dense: dict[str, int]
    count: int


@frozen
class _CallTables:
    """Both tables of pointers that a call fills, which has the state at `state` of the first.

    They hold places of the ports, then dense arrays of those that some program pads, then the state
    or what is computed. A fixed program reads its own tables at their beginnings, those of others
    are made of them by `runtime.sizes.size_chain`.
    """

    inputs: _PortTable
    outputs: _PortTable
    state: int

    @staticmethod
    def of(programs: Sequence[ExecutableSpec], signature: Signature) -> _CallTables:
        """The tables of a model of these programs, whose signature together is this."""
        read = _table(signature.inputs, [p.signature.inputs for p in programs], [_STATE])
        names = {port.name for port in signature.outputs}
        written = dict.fromkeys(name for program in programs for name, _ in program.outputs)
        computed = [name for name in written if name not in names]
        outputs = _table(signature.outputs, [p.signature.outputs for p in programs], computed)
        return _CallTables(read, outputs, read.count - 1)


def _table(
    ports: Sequence[SizedPort], programs: Sequence[Sequence[SizedPort]], further: Sequence[str]
) -> _PortTable:
    """The places of ports and `further` ones, with dense arrays of ports that a program pads."""
    padded = dict.fromkeys(port.name for own in programs for port in copied_ports(own))
    dense = {name: len(ports) + i for i, name in enumerate(padded)}
    count = len(ports) + len(dense)
    places = {port.name: number for number, port in enumerate(ports)}
    places |= {name: count + i for i, name in enumerate(further)}
    return _PortTable(places, dense, count + len(further))
