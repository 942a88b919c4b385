"""What calls of a model with run-time sizes have: SizedFrame, the memory of one call in flight,
where its code reads arguments and writes results, and LoadedChain, the code that chooses among the
programs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.runtime.execution.frame import Frame, Tables, pointer_table
from tunefarm.compiler.runtime.execution.loaded_program import LoadedProgram
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.sizes.padded_place import Lent, LentPlaces, Places, reaches
from tunefarm.compiler.runtime.sizes.run_sizes import (
    ChooseFunction,
    RunSizes,
    SizeCode,
    UpdateFunction,
)
from tunefarm.compiler.runtime.sizes.size_chain import (
    CHOOSE_SYMBOL,
    RUN_SYMBOL,
    UPDATE_SYMBOL,
    chain_ir,
    sizes_symbol,
)
from tunefarm.compiler.runtime.sizes.size_state import BEGINS, COPIED, LENT, WHOLE
from tunefarm.compiler.runtime.sizes.sized_ports import SizedArray, SizedPorts
from tunefarm.compiler.runtime.spec.buffers import address_of, allocate, allocate_output
from tunefarm.compiler.runtime.spec.ports import (
    AnyArray,
    Port,
    as_elements,
    check_apart,
    check_in_place,
    check_mapping,
    checked_output,
    refuse_names,
    refuse_shared,
    refuse_unknown,
    span_of,
)
from tunefarm.compiler.types.tensor_type import Array

_POINTER = 8
_BYTES = np.dtype(np.uint8)


class SizedFrame(Frame):
    """A frame of padded programs: their entries copy rows in and out, see `sized_entry`."""

    __slots__ = ("_names", "_results", "_sized_inputs", "_sized_outputs", "_sizes")

    def __init__(
        self, ports: SizedPorts, code: SizeCode, arena: Array, constants: Tables, runtime: int
    ) -> None:
        """`constants` are what the entry takes for them."""
        tables, layout = ports.tables, ports.state
        super().__init__(
            (), (), arena, constants, runtime, (tables.inputs.count, tables.outputs.count)
        )
        self._sizes = RunSizes(ports, code)
        lent: Lent = {}
        self._sized_inputs = SizedInputs(ports.inputs, self._sizes, self.inputs, lent)
        self._sized_outputs = SizedOutputs(ports.outputs, self._sizes, self.outputs, lent)
        self._names = {port.name: number for number, port in enumerate(ports.inputs)}
        for slots, offset in (
            (tables.symbols, layout.symbols[0]),
            (tables.numbers, layout.numbers[0]),
            (tables.state, 0),
        ):
            for slot in slots:
                self.inputs[slot] = self._sizes.address + _POINTER * offset
        self._results = self._places_of_results(ports)

    @property
    def program(self) -> int:
        """The number of the program that what is bound runs."""
        return self._sizes.program

    def bind_inputs(self, given: Mapping[str, object]) -> list[AnyArray]:
        """As `Frame.bind_inputs`: arguments are of any sizes within the bounds."""
        return self._sized_inputs.bind(given)

    def bind_outputs(
        self,
        given: Mapping[str, object] | None,
        inputs: Sequence[AnyArray],
        over: Collection[str] = (),
    ) -> dict[str, AnyArray]:
        """As `Frame.bind_outputs`, for the sizes of the inputs that were bound."""
        return self._sized_outputs.bind(given, inputs, over)

    def bind_in_place(
        self, pairs: Mapping[str, str], inputs: Sequence[AnyArray]
    ) -> dict[str, AnyArray]:
        """As `Frame.bind_in_place`: the inputs lie in memory as large as their places."""
        sources = {output: self._names[input] for output, input in pairs.items()}
        read = self._sized_inputs.places()
        for output, number in sources.items():
            check_in_place(pairs[output], inputs[number], read[number] is not None)
        check_apart(pairs, [read[number] for number in sources.values()], read)
        return self._sized_outputs.bind_over(
            {output: (inputs[number], read[number] or 0) for output, number in sources.items()}
        )

    def reads(self, port: Port, array: AnyArray) -> bool:
        """Whether the code reads the memory of this input itself, now that it is bound."""
        return self._sized_inputs.reads(self._names[port.name], array)

    def collect(self, results: dict[str, AnyArray], arguments: Sequence[AnyArray]) -> None:
        """Add the outputs whose sizes the run has computed, of these sizes.

        Raises `InputError` where one is out of its bounds, or a condition did not hold.
        """
        computed = self._results[self._sizes.program]
        if computed and self._sizes.check_results(computed, self._names, arguments):
            self._sizes.update()
            self._sized_outputs.collect(results)

    def _places_of_results(self, ports: SizedPorts) -> list[dict[str, AnyArray]]:
        """Memory for the outputs that are no ports: the code computes sizes into them.

        It is that of the largest, which is another's beginning in each program.
        """
        largest: dict[str, Array] = {}
        places = ports.tables.outputs.places
        for name, type in sorted(
            (item for program in ports.programs for item in program.computed),
            key=lambda item: -item[1].bytes,
        ):
            if name not in largest:
                memory, address = allocate((type.bytes,), _BYTES, type.bytes)
                largest[name], self.outputs[places[name]] = memory, address
        return [
            {
                name: largest[name][: type.bytes].view(type.dtype.numpy).reshape(type.shape)
                for name, type in program.computed
            }
            for program in ports.programs
        ]


class SizedInputs:
    """Fills the table of inputs for one call at a time.

    The graph's values are as large as the bounds allow, and arguments are as large as they are. So
    one has two addresses in the table, its own and that of its place, and the code copies its rows
    from the first to the second unless they are the same, see `runtime.entry.sized_entry`. They are
    where it

    - has the maximum sizes, or
    - lies in memory as its place does, and what it is a part of goes on for as long: the beginning
      of a larger buffer, or a cache that an earlier call has returned.

    What lies behind it there may be anything.
    """

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


class SizedOutputs:
    """Fills the table of outputs for one call at a time.

    A result is a dense array of its true size. The code writes values as large as the bounds allow,
    so it writes them into places that are kept, and copies the rows out; but into the result itself
    where that has the maximum sizes, or where a memory as large as the place holds hardly more than
    the result, at its beginning. A result that grows from call to call, as a cache does, is a part
    of a place that is lent (`LentPlaces`), its rows as far apart as there: the next call reads it
    so.
    """

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


class LoadedChain:
    """What calls of a model with run-time sizes use: `code`, and the `entry` with its `constants`.

    Of one program these are its own.
    """

    def __init__(self, ports: SizedPorts, programs: Sequence[LoadedProgram]) -> None:
        several = len(programs) > 1
        self._code = LoadedCode(
            (),
            (CHOOSE_SYMBOL, UPDATE_SYMBOL, *([RUN_SYMBOL] if several else [])),
            chain_ir(ports),
            imported={sizes_symbol(n): p.sizes for n, p in enumerate(programs) if p.sizes},
        )
        choose, update = (self._code.address(symbol) for symbol in (CHOOSE_SYMBOL, UPDATE_SYMBOL))
        self.code = SizeCode(ChooseFunction(choose), UpdateFunction(update))
        self.entry, self.constants = programs[0].entry, programs[0].constants
        if several:
            self.entry = self._code.address(RUN_SYMBOL)
            pairs = ((p.entry, ctypes.addressof(p.constants)) for p in programs)
            self.constants = pointer_table([address for pair in pairs for address in pair])
