"""SizedFrame: the memory of one call in flight of a model with run-time sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compiler.runtime.buffers import allocate
from compiler.runtime.executable_spec import ExecutableSpec
from compiler.runtime.frame import Frame, Tables
from compiler.runtime.ports import AnyArray, Port, ports_of
from compiler.runtime.run_sizes import RunSizes
from compiler.runtime.sized_inputs import SizedInputs
from compiler.runtime.sized_outputs import SizedOutputs
from compiler.runtime.sized_ports import SizedPorts
from compiler.types.signature import SIZES
from compiler.types.tensor_type import Array


class SizedFrame(Frame):
    """A frame of a padded program: its entry copies rows in and out, see `sized_entry`."""

    __slots__ = ("_names", "_results", "_sized_inputs", "_sized_outputs", "_sizes")

    def __init__(
        self,
        spec: ExecutableSpec,
        ports: SizedPorts,
        compute: Callable[[int, int], object],
        arena: Array,
        constants: Tables,
        runtime: int,
    ) -> None:
        """`ports` are the signature's of `spec`, `compute` is its function of the sizes."""
        inputs, outputs = ports_of("input", spec.inputs), ports_of("output", spec.outputs)
        tables = ports.tables
        further = 2 + len(tables.dense_inputs), len(tables.dense_outputs)
        super().__init__(inputs, outputs, arena, constants, runtime, further)
        self._sizes = RunSizes(ports, compute)
        self._sized_inputs = SizedInputs(ports.inputs, self._sizes, self.inputs)
        self._sized_outputs = SizedOutputs(ports.outputs, self._sizes, self.outputs)
        self._names = {port.name: number for number, port in enumerate(ports.inputs)}
        self.inputs[tables.symbols], self.inputs[tables.numbers] = self._sizes.addresses
        for port in inputs:
            if port.name == SIZES:
                self.inputs[port.position] = self._sizes.addresses[1]
        self._results = self._places_of_results(outputs, ports)

    def bind_inputs(self, given: Mapping[str, object]) -> list[AnyArray]:
        """As `Frame.bind_inputs`: arguments are of any sizes within the bounds."""
        return self._sized_inputs.bind(given)

    def bind_outputs(
        self, given: Mapping[str, object] | None, inputs: Sequence[AnyArray]
    ) -> dict[str, AnyArray]:
        """As `Frame.bind_outputs`, for the sizes of the inputs that were bound."""
        return self._sized_outputs.bind(given, inputs)

    def reads(self, port: Port, array: AnyArray) -> bool:
        """Whether the code reads the memory of this input itself, now that it is bound."""
        return self._sized_inputs.reads(self._names[port.name], array)

    def collect(self, results: dict[str, AnyArray], arguments: Sequence[AnyArray]) -> None:
        """Add the outputs whose sizes the run has computed, of these sizes.

        Raises `InputError` where one is out of its bounds, or a condition did not hold.
        """
        if self._results:
            named = dict(zip(self._names, arguments, strict=True))
            self._sizes.check_results(self._results, named)
            self._sizes.refresh()
            self._sized_outputs.collect(results)

    def _places_of_results(self, outputs: Sequence[Port], ports: SizedPorts) -> dict[str, AnyArray]:
        """Memory for the outputs that are no ports: the code computes sizes into them."""
        known = {port.name for port in ports.outputs}
        places: dict[str, AnyArray] = {}
        for port in outputs:
            if port.name not in known:
                array, address = allocate(port.shape, port.dtype, port.bytes)
                places[port.name], self.outputs[port.position] = array, address
        return places
