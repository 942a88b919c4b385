"""The code of a model in memory: LoadedProgram, that of one program, and LoadedModel, of all."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, TypeAlias

from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.machine.control_groups import memory_bytes
from tunefarm.compiler.runtime.machine.check_target import check_target
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.machine.mapped_code import defines
from tunefarm.compiler.runtime.machine.thread_pool import SYMBOLS
from tunefarm.compiler.runtime.sizes.model_ports import ModelPorts
from tunefarm.compiler.runtime.sizes.run_sizes import ChooseFunction, SizeCode, UpdateFunction
from tunefarm.compiler.runtime.spec.buffers import address_of, pointer_table
from tunefarm.compiler.runtime.spec.executable_spec import (
    ALIGNMENT,
    ENTRY_SYMBOL,
    SIZED_ENTRY_SYMBOL,
    SIZES_SYMBOL,
    ExecutableSpec,
)
from tunefarm.compiler.types.frozen import frozen

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.execution.function_table import FunctionTable


@frozen
class SharedKernel:
    """Where a kernel's function is, and the code that it is in."""

    address: int
    code: LoadedCode


SharedKernels: TypeAlias = dict[str, SharedKernel]
"""The kernels that programs of a model have loaded, by the digest of their code."""


class LoadedProgram:
    """A program whose code is linked into this process; addresses are valid while this lives.

    `pool` is its code if that has the functions of the thread pool.
    """

    def __init__(self, spec: ExecutableSpec, shared: SharedKernels | None = None) -> None:
        """Load `spec`'s code, but for kernels that are `shared`, which get the others.

        Raises `ArtefactError` if this machine cannot run the code or has too little memory, or a
        function that it calls is missing.
        """
        check_target(spec.needed_target)
        _check_memory(spec)
        self.spec = spec
        shared = {} if shared is None else shared
        kernels = list(zip(spec.objects, spec.digests, strict=False))
        self._others = {part.symbol: shared[key] for part, key in kernels if key in shared}
        own = [(part, key) for part, key in kernels if key not in shared]
        sized = (SIZED_ENTRY_SYMBOL, SIZES_SYMBOL) if not spec.signature.is_fixed else ()
        pool = SYMBOLS if defines(spec.entry, SYMBOLS[0]) else ()
        self._code = LoadedCode(
            (spec.entry, *(part.code for part, _ in own)),
            (ENTRY_SYMBOL, *sized, *pool, *(part.symbol for part, _ in own)),
            imported={symbol: kernel.address for symbol, kernel in self._others.items()},
        )
        self.pool = self._code if pool else None
        self._entry_code = self._code
        for part, key in own:
            shared[key] = SharedKernel(self._code.address(part.symbol), self._code)
        self.entry = self._code.address(SIZED_ENTRY_SYMBOL if sized else ENTRY_SYMBOL)
        self.sizes = self._code.address(SIZES_SYMBOL) if sized else 0
        addresses = [address_of(constant) for constant in spec.constants]
        if any(address % ALIGNMENT for address in addresses):
            raise ArtefactError("a constant of the model is not aligned")
        self.functions: FunctionTable | None = None
        if spec.functions:
            from tunefarm.compiler.runtime.execution.function_table import (
                FunctionTable,  # few models call any
            )

            self.functions = FunctionTable(spec.name, spec.functions, spec.steps)
        pointers = () if self.functions is None else self.functions.pointers
        self.constants = pointer_table([*addresses, *pointers])

    def entered_by(self, code: LoadedCode, symbol: str) -> LoadedProgram:
        """The same program in memory, run by another entry function: a symbol of this code."""
        other = copy(self)
        other._entry_code, other.entry = code, code.address(symbol)
        return other

    def kernel_address(self, symbol: str) -> int:
        """Where a kernel's function is."""
        other = self._others.get(symbol)
        return self._code.address(symbol) if other is None else other.address


class LoadedModel:
    """The programs of a model, and what its calls use: the `entry` with its `constants`, and the
    `code` that finds out what follows from sizes.

    Of a model whose sizes are all fixed these are the program's own, and nothing is to be found
    out. Kernels that programs share are in memory once.
    """

    def __init__(self, programs: Sequence[LoadedProgram]) -> None:
        self.programs = tuple(programs)
        self.ports = ModelPorts.of([program.spec for program in programs])
        self.entry, self.constants = programs[0].entry, programs[0].constants
        self.code: SizeCode | None = None
        if not self.ports.is_fixed:
            self._link()

    def _link(self) -> None:
        """Make the code that chooses among the programs, and calls them."""
        from tunefarm.compiler.runtime.sizes.size_chain import (
            CHOOSE_SYMBOL,
            RUN_SYMBOL,
            UPDATE_SYMBOL,
            chain_ir,
            sizes_symbol,
        )  # static models go without what writes code

        symbols = (CHOOSE_SYMBOL, UPDATE_SYMBOL, RUN_SYMBOL)
        sizes = {sizes_symbol(n): p.sizes for n, p in enumerate(self.programs) if p.sizes}
        self._chain = LoadedCode((), symbols, chain_ir(self.ports), imported=sizes)
        choose, update, self.entry = map(self._chain.address, symbols)
        self.code = SizeCode(ChooseFunction(choose), UpdateFunction(update))
        pairs = ((p.entry, ctypes.addressof(p.constants)) for p in self.programs)
        self.constants = pointer_table([address for pair in pairs for address in pair])


def _check_memory(spec: ExecutableSpec) -> None:
    """Refuse a model of which this machine cannot hold one run."""
    ports = sum(type.bytes for _, type in (*spec.inputs, *spec.outputs))
    needed, there = spec.arena_bytes + ports, memory_bytes()
    if needed > there:
        raise ArtefactError(
            f"a run of {spec.name} needs {needed} bytes, and this machine has {there}",
            hint="it was built for a machine with more memory",
        )
