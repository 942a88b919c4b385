"""LoadedChain: the code that chooses among a model's programs, linked to theirs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tunefarm.compiler.runtime.execution.frame import pointer_table
from tunefarm.compiler.runtime.execution.loaded_program import LoadedProgram
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.sizes.run_sizes import ChooseFunction, SizeCode, UpdateFunction
from tunefarm.compiler.runtime.sizes.size_chain import (
    CHOOSE_SYMBOL,
    RUN_SYMBOL,
    UPDATE_SYMBOL,
    chain_ir,
    sizes_symbol,
)
from tunefarm.compiler.runtime.sizes.sized_ports import SizedPorts


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
