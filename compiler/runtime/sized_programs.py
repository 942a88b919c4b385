"""SizedPrograms: an executable of several programs, each for other sizes of the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import InputError
from compiler.runtime import artefact
from compiler.runtime.bound_run import BoundRun
from compiler.runtime.executable import Executable
from compiler.runtime.executable_spec import ExecutableSpec
from compiler.runtime.guards import Shape, admit, refusal, sizes_text
from compiler.runtime.ports import AnyArray

if TYPE_CHECKING:
    from compiler.runtime.profile import Profile


class SizedPrograms(Executable):
    """A model whose calls run the first of its programs that is for the arguments' sizes.

    Of itself it is the first one: its types and kernels, and what is run in a frame.
    """

    def __init__(self, specs: Sequence[ExecutableSpec], threads: int | None = None) -> None:
        """Load the code of all; they must be for this machine. Raises as `Executable` does."""
        super().__init__(specs[0], threads)
        self._rest = tuple(Executable(spec, threads) for spec in specs[1:])

    @property
    def programs(self) -> tuple[Executable, ...]:
        """All programs, in the order in which they are tried."""
        return (self, *self._rest)

    @property
    def sizes(self) -> tuple[str, ...]:
        """What sizes each program is for, as text."""
        return tuple(sizes_text(program.spec.guards) for program in self.programs)

    def program_for(self, inputs: Mapping[str, object]) -> Executable:
        """The program that runs these arguments. Raises `InputError` naming the sizes if none."""
        return self.program_for_shapes({name: _shape(value) for name, value in inputs.items()})

    def program_for_shapes(self, shapes: Mapping[str, Shape]) -> Executable:
        """The program for arguments of these shapes. Raises `InputError` if there is none."""
        for program in self.programs:
            if admit(program.spec.guards, shapes):
                return program
        guards = [program.spec.guards for program in self.programs]
        raise InputError(
            refusal(guards, shapes), hint="build the model with that size among its --shape values"
        )

    def run(
        self, inputs: Mapping[str, object], out: Mapping[str, object] | None = None
    ) -> dict[str, AnyArray]:
        program = self.program_for(inputs)
        return super().run(inputs, out) if program is self else program.run(inputs, out)

    def bind(
        self, inputs: Mapping[str, object], out: Mapping[str, object] | None = None
    ) -> BoundRun:
        program = self.program_for(inputs)
        return super().bind(inputs, out) if program is self else program.bind(inputs, out)

    def profile(self, inputs: Mapping[str, object], repeat: int = 20) -> Profile:
        program = self.program_for(inputs)
        return (
            super().profile(inputs, repeat) if program is self else program.profile(inputs, repeat)
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the programs that are loaded to `path`, see `compiler.runtime.artefact.save`."""
        artefact.save(self.spec, path, [program.spec for program in self._rest])


def _shape(value: Any) -> Shape:
    """An argument's shape; that of one which is no array is left to the program to refuse."""
    try:
        return np.shape(value)
    except ValueError:
        return ()
