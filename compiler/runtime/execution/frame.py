"""Frame: the memory of one call in flight, and the tables of pointers that the entry reads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from tunefarm.compiler.runtime.spec.buffers import address_of, allocate, allocate_output
from tunefarm.compiler.runtime.spec.executable_spec import Location, Place
from tunefarm.compiler.runtime.spec.ports import (
    AnyArray,
    Port,
    check_apart,
    check_in_place,
    check_mapping,
    checked,
    checked_output,
    fits,
    refuse_names,
    refuse_shared,
    refuse_unknown,
    span_of,
)
from tunefarm.compiler.types.tensor_type import Array

Tables = ctypes.Array[ctypes.c_void_p]


def pointer_table(addresses: Sequence[int]) -> Tables:
    """Pointers one after the other; room for one at least."""
    return (ctypes.c_void_p * max(1, len(addresses)))(*addresses)


class Frame:
    """An arena, pointer tables, and copies of inputs that cannot be read in place.

    Serves one call at a time: `bind_inputs`, `bind_outputs`, then the entry with `arguments`.
    """

    __slots__ = (
        "_input_ports",
        "_output_ports",
        "_staging",
        "arena",
        "arguments",
        "constants",
        "inputs",
        "outputs",
    )

    def __init__(
        self,
        inputs: tuple[Port, ...],
        outputs: tuple[Port, ...],
        arena: Array,
        constants: Tables,
        runtime: int,
        further: tuple[int, int] = (0, 0),
    ) -> None:
        """`constants` are the addresses of the constants, `runtime` that of the threads.

        `further` pointers stand in the tables behind those of the inputs and of the outputs.
        """
        self._input_ports, self._output_ports = inputs, outputs
        self.arena = arena
        self.inputs = pointer_table([0] * (len(inputs) + further[0]))
        self.outputs = pointer_table([0] * (len(outputs) + further[1]))
        self.constants = constants
        self._staging: dict[str, tuple[Array, int]] = {}
        self.arguments = (
            ctypes.addressof(self.inputs),
            ctypes.addressof(self.outputs),
            ctypes.addressof(constants),
            address_of(arena),
            runtime,
        )

    @property
    def program(self) -> int:
        """The number of the program that runs, of those that a model has."""
        return 0

    def bind_inputs(self, given: Mapping[str, object]) -> list[AnyArray]:
        """Point the kernels to the inputs; the arrays must be kept until they have run.

        What is contiguous is read in place, the rest is copied. Raises `InputError`.
        """
        if type(given) is not dict:
            check_mapping("inputs", given)
        if len(given) != len(self._input_ports):
            refuse_names(self._input_ports, given)
        arrays: list[AnyArray] = []
        table = self.inputs
        for port in self._input_ports:
            value = given.get(port.name)
            if fits(value, port):
                array = value
            elif port.name in given:
                array = checked(port, value)
            else:
                refuse_names(self._input_ports, given)
            arrays.append(array)
            address = address_of(array)
            if address & port.unaligned or not array.flags.c_contiguous:
                address = self._stage(port, array)
            table[port.position] = address
        return arrays

    def bind_outputs(
        self,
        given: Mapping[str, object] | None,
        inputs: Sequence[AnyArray],
        over: Collection[str] = (),
    ) -> dict[str, AnyArray]:
        """Point the kernels to the arrays given, and to new ones for the other outputs.

        Returns all by name but for those that are written `over` inputs, see `bind_in_place`.
        Raises `InputError` for one that cannot be written in place.
        """
        if given is not None:
            return self._bind_given(given, inputs, over)
        results: dict[str, AnyArray] = {}
        table = self.outputs
        for port in self._output_ports:
            if port.name in over:
                continue
            results[port.name], table[port.position] = allocate_output(
                port.shape, port.dtype, port.bytes
            )
        return results

    def _bind_given(
        self, given: Mapping[str, object], inputs: Sequence[AnyArray], over: Collection[str]
    ) -> dict[str, AnyArray]:
        """`bind_outputs` where the caller gave some of the arrays."""
        check_mapping("outputs", given)
        refuse_unknown("output", [port.name for port in self._output_ports], given)
        taken = [span_of(array, address_of(array)) for array in inputs]
        results: dict[str, AnyArray] = {}
        for port in self._output_ports:
            if port.name in given:
                array = checked_output(port, given[port.name])
                address = address_of(array)
                span = span_of(array, address)
                refuse_shared(port, span, taken)
                taken.append(span)
            elif port.name in over:
                continue
            else:
                array, address = allocate_output(port.shape, port.dtype, port.bytes)
            results[port.name], self.outputs[port.position] = array, address
        return results

    def bind_in_place(
        self, pairs: Mapping[str, str], inputs: Sequence[AnyArray]
    ) -> dict[str, AnyArray]:
        """Point the kernels to the memory of inputs for outputs, `pairs` of output and input.

        Returns these outputs by name. Raises `InputError` for an input that cannot be written.
        """
        ports = {port.name: port for port in self._input_ports}
        results: dict[str, AnyArray] = {}
        for port in self._output_ports:
            if port.name in pairs:
                source = ports[pairs[port.name]]
                array = inputs[source.position]
                check_in_place(source.name, array, self.reads(source, array))
                self.outputs[port.position] = self.inputs[source.position]
                results[port.name] = array
        written = [self.inputs[ports[name].position] for name in pairs.values()]
        check_apart(pairs, written, [self.inputs[port.position] for port in self._input_ports])
        return results

    def reads(self, port: Port, array: AnyArray) -> bool:
        """Whether the kernels read the memory of this input itself, now that it is bound."""
        return self.inputs[port.position] == address_of(array)

    def collect(self, results: dict[str, AnyArray], arguments: Sequence[AnyArray]) -> None:
        """Add what is known of the outputs after the run only: nothing."""

    def address(self, location: Location) -> int:
        """Where a buffer is, once inputs and outputs are bound."""
        match location.place:
            case Place.INPUT:
                return (self.inputs[location.number] or 0) + location.offset
            case Place.OUTPUT:
                return (self.outputs[location.number] or 0) + location.offset
            case Place.CONSTANT:
                return (self.constants[location.number] or 0) + location.offset
            case Place.ARENA:
                return self.arena_address(location.number)

    def arena_address(self, offset: int) -> int:
        """Where a byte of the arena is."""
        return self.arguments[3] + offset

    def _stage(self, port: Port, array: AnyArray) -> int:
        """Copy an input that the kernels cannot read in place; the address of the copy."""
        if port.name not in self._staging:
            self._staging[port.name] = allocate(port.shape, port.dtype, port.bytes)
        copy, address = self._staging[port.name]
        np.copyto(copy, array)
        return address


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
