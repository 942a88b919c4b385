"""SizedFrame: the memory of one call in flight of a model with run-time sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tunefarm.compiler.runtime.execution.frame import Frame, Tables
from tunefarm.compiler.runtime.execution.sized_inputs import SizedInputs
from tunefarm.compiler.runtime.execution.sized_outputs import SizedOutputs
from tunefarm.compiler.runtime.sizes.padded_place import Lent
from tunefarm.compiler.runtime.sizes.run_sizes import RunSizes, SizeCode
from tunefarm.compiler.runtime.sizes.sized_ports import SizedPorts
from tunefarm.compiler.runtime.spec.buffers import allocate
from tunefarm.compiler.runtime.spec.ports import (
    AnyArray,
    Port,
    check_apart,
    check_in_place,
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
