"""Frame: the memory of one call in flight, and the tables of pointers that the entry reads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from sys import getrefcount
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.errors import ComputedOutputError, InputError
from tunefarm.compiler.runtime.execution.loaded_program import LoadedModel
from tunefarm.compiler.runtime.sizes.model_ports import ModelPort, ModelPorts
from tunefarm.compiler.runtime.sizes.run_sizes import RunSizes
from tunefarm.compiler.runtime.sizes.size_state import BEGINS, COPIED, LENT, WHOLE
from tunefarm.compiler.runtime.spec.buffers import (
    address_of,
    allocate,
    allocate_output,
    pointer_table,
)
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT
from tunefarm.compiler.runtime.spec.ports import (
    AnyArray,
    as_elements,
    check_apart,
    check_in_place,
    check_mapping,
    check_writable,
    refuse_names,
    refuse_shared,
    refuse_unknown,
    span_of,
)
from tunefarm.compiler.types.tensor_type import Array

# --- Padded places: memory as large as the bounds of a port, and arrays that are parts of it -----


_MOST_KEPT = 3
"""Memories that are kept for an output: one being read, one being written, one yet to be let go."""


def reaches(array: AnyArray, address: int, count: int) -> bool:
    """Whether the memory that an array is a part of has `count` bytes from its beginning on."""
    owner = array.base
    while type(owner) is np.ndarray and type(owner.base) is np.ndarray:
        owner = owner.base
    if type(owner) is not np.ndarray or not owner.flags.c_contiguous:
        return False
    start = address_of(owner)
    return start <= address and address + count <= start + owner.nbytes


class Places:
    """A place for each of some ports, made when it is first asked for."""

    __slots__ = ("_arrays", "_ports", "known")

    def __init__(self, ports: Sequence[ModelPort]) -> None:
        self._ports = ports
        self._arrays: dict[int, AnyArray] = {}
        self.known = [0] * len(ports)
        """The addresses of those that have been made, 0 for the others: what every call asks."""

    def address(self, number: int) -> int:
        """Where the place of this port is."""
        return self.known[number] or self._made(number)

    def array(self, number: int) -> AnyArray:
        """The place itself, an array of the padded type."""
        self.address(number)
        return self._arrays[number]

    def _made(self, number: int) -> int:
        port = self._ports[number]
        array, address = allocate(port.shape, port.dtype, port.bytes)
        self._arrays[number], self.known[number] = array, address
        return address


class LentArray:
    """An array that a frame has returned: where it is, how many bytes there are from there on, and
    the memory that it is a part of, `skip` bytes behind whose beginning."""

    __slots__ = ("address", "array", "bytes", "memory", "skip")

    def __init__(
        self, array: AnyArray, address: int, count: int, memory: AnyArray, skip: int
    ) -> None:
        self.array, self.address, self.bytes = array, address, count
        self.memory, self.skip = memory, skip


Lent: TypeAlias = dict[int, LentArray]
"""The arrays that a frame has returned, by their `id`: calls that get one know where it is."""


class LentPlaces:
    """Places of one output that are returned as arrays, and used again once nobody has them.

    What an array lies in is its `base`, and that of every part of it: where nothing else refers to
    the memory any more, nor to the array, no array is left that could see it change.
    """

    __slots__ = ("_bytes", "_kept", "_lent")

    def __init__(self, count: int, lent: Lent) -> None:
        """Each has `count` bytes."""
        self._bytes = count
        self._lent = lent
        self._kept: list[LentArray] = []

    def lend(
        self, shape: Sequence[int], dtype: np.dtype[np.generic], strides: Sequence[int]
    ) -> LentArray:
        """An array of this shape at the beginning of a place that nobody has."""
        for item in self._kept:
            if (
                getrefcount(item.array) == _UNUSED
                and getrefcount(item.memory) == _UNUSED_BUT_BY_ARRAY
            ):
                break
        else:
            item = self._keep()
        del self._lent[id(item.array)]
        array = item.array = np.ndarray(shape, dtype, item.memory, item.skip, strides)
        self._lent[id(array)] = item
        return item

    def _keep(self) -> LentArray:
        """A new memory, and an array of no elements in it."""
        if len(self._kept) == _MOST_KEPT:
            del self._lent[id(self._kept.pop(0).array)]  # whoever has it keeps it alive
        memory = np.empty(self._bytes + ALIGNMENT, np.uint8)
        start = address_of(memory)
        skip = -start % ALIGNMENT
        item = LentArray(memory[skip:skip], start + skip, self._bytes, memory, skip)
        self._kept.append(item)
        self._lent[id(item.array)] = item
        return item


_alone = LentArray(np.empty(0), 0, 0, np.empty(0), 0)
_UNUSED = getrefcount(_alone.array)
_UNUSED_BUT_BY_ARRAY = _UNUSED + 1
"""The references to what only its keeper has, counted as `lend` counts them."""


_BYTES = np.dtype(np.uint8)


class CachePorts:
    """The outputs that runs write over inputs, by `pairs` of names.

    `written` has each with its input, `kinds` those of them that say the sizes of all; `others` and
    `made` are the remaining inputs and outputs.
    """

    __slots__ = ("kinds", "made", "others", "pairs", "written")

    def __init__(self, pairs: Mapping[str, str], ports: ModelPorts) -> None:
        inputs, over = {port.name: port for port in ports.inputs}, {*pairs.values()}
        self.pairs = pairs
        self.written = [(o, inputs[pairs[o.name]]) for o in ports.outputs if o.name in pairs]
        self.others = [port for port in ports.inputs if port.name not in over]
        self.made = [port for port in ports.outputs if port.name not in pairs]
        read = {number for number, _ in (*ports.axes, *ports.values)}
        kinds = {
            (output.alike, port.alike, port.position * (port.position in read)): (output, port)
            for output, port in self.written
        }
        self.kinds = [*kinds.values()]


class Frame:
    """An arena, pointer tables, and copies of inputs that cannot be read in place.

    Serves one call at a time: `bind_inputs`, `bind_outputs`, then the entry with `arguments`.

    The graph's values are as large as the bounds allow, and arrays are as large as they are. So a
    port of dynamic shape has two addresses in its table, that of its array and that of its place,
    and the entry copies rows from one to the other unless they are the same, see
    `runtime.entry.sized_entry`. An argument is its own place where it

    - has the maximum sizes, or is read dense, whatever its sizes are, or
    - lies in memory as its place does, and what it is a part of goes on for as long: the beginning
      of a larger buffer, or a cache that an earlier call has returned; what lies behind it there
      may be anything.

    A result is a dense array of its true size. It is its own place where it has the maximum sizes,
    or where a memory as large as the place holds hardly more than the result, at its beginning. One
    that grows from call to call, as a cache does, is a part of a place that is lent (`LentPlaces`),
    its rows as far apart as there: the next call reads it so.
    """

    __slots__ = (
        "_caches",
        "_input_places",
        "_input_ports",
        "_lent",
        "_lent_places",
        "_model",
        "_numbers",
        "_output_places",
        "_output_ports",
        "_results",
        "_sizes",
        "_staging",
        "_written_over",
        "arena",
        "arguments",
        "inputs",
        "outputs",
    )

    def __init__(self, model: LoadedModel, arena: Array, runtime: int) -> None:
        """`runtime` is the address of the threads."""
        ports = model.ports
        self._model = model
        self._input_ports, self._output_ports = ports.inputs, ports.outputs
        self._numbers = {port.name: number for number, port in enumerate(ports.inputs)}
        self._sizes = RunSizes(ports, model.code)
        self.arena = arena
        self.inputs = pointer_table([0] * ports.tables.inputs.count)
        self.outputs = pointer_table([0] * ports.tables.outputs.count)
        self.inputs[ports.tables.state] = self._sizes.address
        self._lent: Lent = {}  # results of earlier calls in places and in the memory of arguments
        self._written_over: dict[int, LentArray] = {}  # the latter, of the last call, by output
        self._caches = CachePorts({}, ports)
        self._input_places, self._output_places = Places(ports.inputs), Places(ports.outputs)
        self._lent_places = {
            port.position: LentPlaces(port.bytes, self._lent)
            for port in ports.outputs
            if port.grows
        }
        self._staging: dict[str, Array] = {}  # of arguments that lie in no order that code knows
        self._results = self._places_of_results()
        self.arguments = (
            ctypes.addressof(self.inputs),
            ctypes.addressof(self.outputs),
            ctypes.addressof(model.constants),
            address_of(arena),
            runtime,
        )

    @property
    def program(self) -> int:
        """The number of the program that what is bound runs, of those that a model has."""
        return self._sizes.program

    def bind_inputs(self, given: Mapping[str, object]) -> list[AnyArray]:
        """Point the code to the inputs; the arrays must be kept until it has run.

        They are of any sizes within the bounds. What is contiguous is read in place, the rest is
        copied. Raises `InputError` for what does not fit.
        """
        if type(given) is not dict:
            check_mapping("inputs", given)
        if len(given) != len(self._input_ports):
            refuse_names(self._input_ports, given)
        arrays: list[AnyArray] = []
        for port in self._input_ports:
            value = given.get(port.name)
            if type(value) is np.ndarray and value.dtype == port.dtype:
                array = value
            elif port.name in given:
                array = as_elements(port, value)
            else:
                refuse_names(self._input_ports, given)
            arrays.append(array)
            if port.is_fixed:
                self._bind_whole(port, array, port.shape)
        if self._sizes.is_read:
            self._sizes.read(arrays)
            self._bind_dynamic(self._input_ports, arrays)
        return arrays

    def _bind_dynamic(self, ports: Iterable[ModelPort], arrays: Sequence[AnyArray]) -> None:
        """Point the code to the arguments of these ports that have dynamic sizes."""
        sizes = self._sizes
        shapes, ways = sizes.shapes, sizes.ways
        for port in ports:
            array = arrays[port.position]
            if port.dense >= 0:
                if array.shape != shapes[port.alike]:
                    sizes.refuse_shape(port, array)
                self._bind_padded(port, array, ways[port.alike])
            elif not port.is_fixed:
                self._bind_whole(port, array, shapes[port.alike])

    def _bind_whole(self, port: ModelPort, array: AnyArray, shape: tuple[int, ...]) -> None:
        """Point the code to an argument that is its own place where it lies as it should."""
        if array.shape != shape:
            self._sizes.refuse_shape(port, array)
        address = address_of(array)
        if address & port.unaligned or not array.flags.c_contiguous:
            address = self._stage(port, array)
        self.inputs[port.position] = address

    def _bind_padded(self, port: ModelPort, array: AnyArray, way: int) -> None:
        """Point the code to an argument that may be smaller than its place."""
        table, is_part = self.inputs, array.base is not None
        if is_part and way != WHOLE and (known := self._lent.get(id(array))) is not None:
            room = port.rooms[self._sizes.program]
            if array.strides == room.strides and known.bytes >= room.bytes:
                table[port.position] = table[port.dense] = known.address
                return
        address = address_of(array)
        in_order = array.flags.c_contiguous
        aligned = not address & port.unaligned
        if way == WHOLE:
            if not (in_order and aligned):
                address = self._stage(port, array)
            table[port.position] = table[port.dense] = address
        elif is_part and aligned and self._is_part(port, array, address, way):
            table[port.position] = table[port.dense] = address
        else:
            table[port.dense] = address if in_order else self._stage(port, array)
            table[port.position] = self._input_places.address(port.position)

    def _is_part(self, port: ModelPort, array: AnyArray, address: int, way: int) -> bool:
        """Whether a part of an array lies as in the port's place, and the array goes on for it."""
        room = port.rooms[self._sizes.program]
        if not (way == BEGINS and array.flags.c_contiguous) and array.strides != room.strides:
            return False
        return reaches(array, address, room.bytes)

    def _stage(self, port: ModelPort, array: AnyArray) -> int:
        """Copy an argument into a dense array that is kept; the address of that."""
        if port.name not in self._staging:
            self._staging[port.name] = allocate(port.shape, port.dtype, port.bytes)[0]
        memory = self._staging[port.name]
        np.copyto(np.ndarray(array.shape, port.dtype, memory), array)
        return address_of(memory)

    def reads(self, port: ModelPort, array: AnyArray) -> bool:
        """Whether the code reads the memory of this input itself, in place or by rows, now that it
        is bound."""
        place = port.position if port.dense < 0 else port.dense
        return self.inputs[place] == address_of(array)

    def bind_outputs(
        self,
        given: Mapping[str, object] | None,
        inputs: Sequence[AnyArray],
        over: Collection[str] = (),
    ) -> dict[str, AnyArray]:
        """Point the code to the arrays given, and to new ones for the other outputs, of the shapes
        that follow from the inputs that were bound.

        Returns all by name but for those that are written `over` inputs, see `bind_in_place`; those
        whose shape is not known yet come with `collect`. Raises `InputError` for one that cannot be
        written.
        """
        if given is not None:
            return self._bind_given(given, inputs, over)
        results: dict[str, AnyArray] = {}
        table = self.outputs
        for port in self._output_ports:
            if port.name in over:
                continue
            if port.is_fixed:
                results[port.name], table[port.position] = allocate_output(
                    port.shape, port.dtype, port.bytes
                )
            else:
                results[port.name] = self._make(port)
        return results

    def _make(self, port: ModelPort) -> AnyArray:
        """A new array for a result, which the table points to."""
        sizes, alike, table = self._sizes, port.alike, self.outputs
        way, shape = sizes.ways[alike], sizes.shapes[alike]
        array: Array
        if way == WHOLE:
            array, place = allocate_output(shape, port.dtype, sizes.bytes[alike])
        elif way == LENT:
            strides = port.rooms[sizes.program].strides
            assert strides is not None
            lent = self._lent_places[port.position].lend(shape, port.dtype, strides)
            array, place = lent.array, lent.address
        elif way == COPIED:
            array, table[port.dense] = allocate_output(shape, port.dtype, sizes.bytes[alike])
            table[port.position] = self._output_places.address(port.position)
            return array
        elif way == BEGINS:
            array, place = allocate(shape, port.dtype, port.rooms[sizes.program].bytes)
        else:
            array = self._output_places.array(port.position)
            place = self._output_places.address(port.position)
        self._put(port, place, place)
        return array

    def _put(self, port: ModelPort, place: int, dense: int) -> None:
        """Point the code to an output's place, and to the array that it is copied to."""
        self.outputs[port.position] = place
        if port.dense >= 0:
            self.outputs[port.dense] = dense

    def _bind_given(
        self, given: Mapping[str, object], inputs: Sequence[AnyArray], over: Collection[str]
    ) -> dict[str, AnyArray]:
        """`bind_outputs` where the caller gave some of the arrays."""
        check_mapping("outputs", given)
        refuse_unknown("output", [port.name for port in self._output_ports], given)
        taken = [span_of(array, address_of(array)) for array in inputs]
        results: dict[str, AnyArray] = {}
        for port in self._output_ports:
            if port.name in over:
                continue
            if port.name not in given:
                results[port.name] = self._make(port)
                continue
            array = self._checked_output(port, given[port.name])
            address = address_of(array)
            span = span_of(array, address)
            refuse_shared(port, span, taken)
            taken.append(span)
            results[port.name] = array
            if port.is_fixed:
                self.outputs[port.position] = address
                continue
            is_whole = self._sizes.ways[port.alike] == WHOLE
            place = address if is_whole else self._output_places.address(port.position)
            self._put(port, place, address)
        return results

    def _checked_output(self, port: ModelPort, given: object) -> AnyArray:
        """What was given for an output, of the shape that it has at the sizes of the inputs."""
        shape = port.shape if port.is_fixed else self._sizes.shapes[port.alike]
        if not port.is_fixed and port.rooms[self._sizes.program].late:
            raise ComputedOutputError(
                f"output {port.name!r} cannot be given: its shape, {port.declared}, is known after "
                "the run only",
                hint="take it from what the run returns",
            )
        array = as_elements(port, given)
        if array.shape != shape:
            self._sizes.refuse_shape(port, array)
        check_writable(port, array, given)
        return array

    def bind_in_place(
        self, pairs: Mapping[str, str], inputs: Sequence[AnyArray]
    ) -> dict[str, AnyArray]:
        """Point the code to the memory of inputs for outputs, `pairs` of output and input; the
        inputs lie in memory as large as their places.

        Returns these outputs by name. Raises `InputError` for an input that cannot be written.
        """
        if pairs is not self._caches.pairs:
            self._caches = CachePorts(pairs, self._model.ports)
        caches, read = self._caches.written, self._read_in_place()
        for _, port in caches:
            number = port.position
            check_in_place(port.name, inputs[number], read[number] is not None)
        check_apart(pairs, [read[port.position] for _, port in caches], read)
        for output, port in caches:
            address = self.inputs[port.position] or 0
            self._put(output, address, address)
        return self.results_in_place(inputs)

    def results_in_place(self, inputs: Sequence[AnyArray]) -> dict[str, AnyArray]:
        """The outputs that lie in the memory of inputs, which are bound, or were when the runs
        began of which the last one is bound (`bind_next`)."""
        before, self._written_over = self._written_over, {}
        results = {
            output.name: self._over(output, port, inputs[port.position])
            for output, port in self._caches.written
        }
        for item in before.values():
            self._lent.pop(id(item.array), None)
        for item in self._written_over.values():
            self._lent[id(item.array)] = item
        return results

    def bind_next(
        self, given: Mapping[str, object], arrays: list[AnyArray]
    ) -> dict[str, AnyArray] | None:
        """Bind a run that reads and writes over what the one before has written in place.

        `given` are the other inputs; they get into `arrays`, all inputs of the run before.

        Returns the other outputs, None where the sizes are for another program. Then, and where
        `InputError` is raised as by `bind_inputs`, the run before is still the last one.
        """
        caches, sizes = self._caches, self._sizes
        program, shapes = sizes.program, sizes.shapes
        if len(given) != len(caches.others) or any(p.name not in given for p in caches.others):
            refuse_names(caches.others, given)
        for port in caches.others:
            arrays[port.position] = as_elements(port, given[port.name])
        for output, port in caches.kinds:
            item = self._written_over.get(output.position)
            if item is not None:
                place, strides = (item.memory, item.skip), output.rooms[program].strides
                grown = np.ndarray(shapes[output.alike], output.dtype, *place, strides)
                arrays[port.position] = grown
        try:
            sizes.read(arrays)
            if sizes.program == program:
                self._bind_others(arrays)
                return {port.name: self._make(port) for port in caches.made}
        except InputError:
            sizes.return_to(program, shapes)
            raise
        sizes.return_to(program, shapes)
        return None

    def _bind_others(self, arrays: Sequence[AnyArray]) -> None:
        """Point the code to the arguments that are not written over, and check what these are."""
        sizes, caches = self._sizes, self._caches
        for port in caches.others:
            if port.is_fixed:
                self._bind_whole(port, arrays[port.position], port.shape)
        self._bind_dynamic(caches.others, arrays)
        for _, port in caches.kinds:
            if arrays[port.position].shape != sizes.shapes[port.alike]:
                sizes.refuse_shape(port, arrays[port.position])

    def _over(self, output: ModelPort, port: ModelPort, array: AnyArray) -> AnyArray:
        """The result that lies in the memory of the argument of a port."""
        shape, program = self._sizes.shapes[output.alike], self._sizes.program
        address = self.inputs[port.position] or 0
        if shape == array.shape:
            return array
        known = self._lent.get(id(array))
        if known is None:
            memory = array if array.base is None else array.base
            assert isinstance(memory, np.ndarray)
            skip = address - address_of(memory)
        else:
            memory, skip = known.memory, known.skip
        strides = output.rooms[program].strides
        result: AnyArray = np.ndarray(shape, output.dtype, memory, skip, strides)
        count = port.rooms[program].bytes
        self._written_over[output.position] = LentArray(result, address, count, memory, skip)
        return result

    def _read_in_place(self) -> list[int | None]:
        """Where each argument is that lies as its place does; None for one that was copied."""
        table, staged = self.inputs, {address_of(array) for array in self._staging.values()}
        found = []
        for port in self._input_ports:
            address = table[port.position]
            is_read = (port.dense < 0 or table[port.dense] == address) and address not in staged
            found.append(address if is_read else None)
        return found

    def collect(self, results: dict[str, AnyArray], arguments: Sequence[AnyArray]) -> None:
        """Add the outputs whose sizes the run has computed, of these sizes.

        Raises `InputError` where one is out of its bounds, or a condition did not hold.
        """
        sizes = self._sizes
        computed = self._results[sizes.program]
        if not computed or not sizes.check_results(computed, self._numbers, arguments):
            return
        sizes.update()
        for port in self._output_ports:
            room = port.rooms[sizes.program]
            if room.late:
                place = self._output_places.array(port.position)
                part: AnyArray = np.ndarray(
                    sizes.factors(port), port.dtype, place, 0, room.factor_strides
                )
                results[port.name] = part.copy().reshape(sizes.shapes[port.alike])

    def _places_of_results(self) -> list[dict[str, AnyArray]]:
        """Memory for the outputs that are no ports: the code computes sizes into them.

        It is that of the largest, which is another's beginning in each program.
        """
        ports = self._model.ports
        programs, places = ports.programs, ports.tables.outputs.places
        largest: dict[str, Array] = {}
        for name, type in sorted(
            (item for program in programs for item in program.computed),
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
            for program in programs
        ]

    def arena_address(self, offset: int) -> int:
        """Where a byte of the arena is."""
        return self.arguments[3] + offset


class BoundRun:
    """Runs a model from and to the same arrays; what is in the inputs may change between runs.

    `outputs` are the arrays that it writes, by name. One call at a time.
    """

    __slots__ = ("_alive", "_call", "outputs")

    def __init__(
        self, call: Callable[[], None], outputs: dict[str, AnyArray], alive: object
    ) -> None:
        """`alive` is what `call` reads, writes and consists of."""
        self._call = call
        self.outputs = outputs
        self._alive = alive

    def run(self) -> None:
        """Run the model. Releases the interpreter lock while the kernels run."""
        self._call()
