"""SizedPrograms: an executable of several programs, each for other sizes of the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.runtime.artefact import artefact
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.execution.loaded_program import LoadedProgram, SharedKernels
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.guards import Shape, admit, refusal, sizes_text
from tunefarm.compiler.runtime.spec.joined_signature import ports_of_program, program_ranges
from tunefarm.compiler.runtime.spec.kernel_report import KernelReport
from tunefarm.compiler.types.chosen_sizes import Sizes, choose_sizes, types_at
from tunefarm.compiler.types.signature import AxisSource, Signature
from tunefarm.compiler.types.structure import StringTable
from tunefarm.compiler.types.tensor_type import TensorType

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.execution.profile import Profile


class SizedPrograms(Executable):
    """A model whose entry runs the first of its programs that is for the arguments' sizes.

    Its signature, inputs and outputs are those of all programs together, its `spec` is that of the
    first one. Kernels that programs share are in memory once, as are constants of an artifact.
    """

    def __init__(self, specs: Sequence[ExecutableSpec], threads: int | None = None) -> None:
        """Load the code of all; they must be for this machine. Raises as `Executable` does."""
        shared: SharedKernels = {}
        super().__init__(specs[0], threads, [LoadedProgram(spec, shared) for spec in specs])
        self._ranges = program_ranges(specs, self._joined)

    @property
    def _joined(self) -> Signature:
        assert self.signature is not None  # several programs have one together
        return self.signature

    @cached_property
    def programs(self) -> tuple[Executable, ...]:
        """All programs by themselves, in the order in which they are tried."""
        self.check_constants()
        return tuple(Executable(p.spec, self.threads, [p]) for p in self._programs)

    @property
    def sizes(self) -> tuple[str, ...]:
        """What sizes each program is for, as text."""
        return tuple(sizes_text(program.spec.guards) for program in self._programs)

    @property
    def kernels(self) -> tuple[KernelReport, ...]:
        """Of each distinct kernel of any program."""
        reports = [report for program in self._programs for report in program.spec.kernels]
        return tuple(dict.fromkeys(reports))

    def program_for_shapes(self, shapes: Mapping[str, Shape]) -> Executable:
        """The program for arguments of these shapes. Raises `InputError` if there is none."""
        for number, program in enumerate(self._programs):
            if admit(program.spec.guards, shapes):
                return self.programs[number]
        guards = [program.spec.guards for program in self._programs]
        raise InputError(
            refusal(guards, shapes), hint="build the model with that size among its --shape values"
        )

    def chosen_sizes(self, sizes: Mapping[str, int]) -> Sizes:
        """As of any executable: sizes that one of the programs is for."""
        refused: InputError | None = None
        for number in (None, *range(len(self._programs))):
            try:
                chosen = choose_sizes(self._signature_of(number), sizes)
            except InputError as error:
                refused = refused or error
                continue
            if self._number_at(chosen) is not None:
                return chosen
        assert refused is not None
        raise refused

    def outputs_at(self, sizes: Mapping[str, int] | None = None) -> dict[str, TensorType]:
        """As of any executable: what the program for these sizes gives."""
        chosen = self.chosen_sizes(sizes or {})
        number = self._number_at(chosen)
        assert number is not None  # these are sizes of one
        spec = self._programs[number].spec
        inputs = types_at(self._joined.inputs, chosen)
        own = dict(chosen)
        if spec.signature is not None:
            for source in spec.signature.sources:
                if isinstance(source, AxisSource):
                    own[source.symbol.name] = inputs[source.input].shape[source.axis]
        assert self._sized is not None
        late = {port.name for port in self._sized.outputs if port.late}
        ports = [port for port in ports_of_program(spec)[1] if port.name not in late]
        return types_at(ports, own)

    def profile(self, inputs: Mapping[str, object], repeat: int = 20) -> Profile:
        """Of the program that runs these arguments."""
        frame = self.new_frame()
        frame.bind_inputs(self._tensors(inputs, StringTable(self._words)))
        return self.programs[frame.program].profile(inputs, repeat)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the programs that are loaded to `path`, see `runtime.artefact.artefact.save`."""
        self.check_constants()
        first, *rest = (program.spec for program in self._programs)
        artefact.save(first, path, rest)

    def _signature_of(self, number: int | None) -> Signature:
        """The signature with the sizes of one program only; of all with None."""
        if number is None:
            return self._joined
        ranges = tuple((name, (ends,)) for name, ends in self._ranges[number].items())
        return replace(self._joined, ranges=ranges)

    def _number_at(self, sizes: Sizes) -> int | None:
        """The first program for these sizes."""
        for number, ranges in enumerate(self._ranges):
            if all(ranges[name][0] <= size <= ranges[name][1] for name, size in sizes.items()):
                return number
        return None
