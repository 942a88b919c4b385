"""The tables of pointers that a call of a model with run-time sizes fills, and what stands where.

One program reads its tables itself, so that they are those of `runtime.entry.sized_entry`. Of
several each has its own, made from tables of all ports by `runtime.sizes.size_chain`: places of
the ports, then dense arrays of those that some program pads, then the state or what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunefarm.compiler.runtime.entry.sized_entry import SizedTables
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.joined_signature import ports_of_program
from tunefarm.compiler.runtime.spec.size_table import copied_ports
from tunefarm.compiler.types.signature import SIZES, Signature, SizedPort

_STATE = "%state"
"""What the state goes by in the table of inputs; it is no port."""


@dataclass(frozen=True, slots=True)
class PortTable:
    """A table of `count` pointers: the place of each port, and dense arrays of some, by name."""

    places: dict[str, int]
    dense: dict[str, int]
    count: int


@dataclass(frozen=True, slots=True)
class CallTables:
    """Both tables; entries of `inputs` that hold vectors of the state: of symbols and numbers of
    the only program, or the state itself."""

    inputs: PortTable
    outputs: PortTable
    symbols: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    state: tuple[int, ...] = ()

    @staticmethod
    def of(programs: Sequence[ExecutableSpec], signature: Signature) -> CallTables:
        """The tables of a model of these programs, whose signature together is this."""
        first = programs[0]
        if len(programs) == 1 and first.signature is not None:
            return _of_one(first, first.signature)
        inputs = _open_ports([ports_of_program(program)[0] for program in programs])
        outputs = _open_ports([ports_of_program(program)[1] for program in programs])
        read = _table([port.name for port in signature.inputs], inputs, [_STATE])
        ports = [port.name for port in signature.outputs]
        computed = dict.fromkeys(name for program in programs for name, _ in program.outputs)
        written = _table(ports, outputs, [name for name in computed if name not in ports])
        return CallTables(read, written, state=(read.count - 1,))


def _of_one(program: ExecutableSpec, signature: Signature) -> CallTables:
    inputs, outputs = ([name for name, _ in ports] for ports in (program.inputs, program.outputs))
    tables = SizedTables.of(signature, len(inputs), len(outputs))
    sizes = [inputs.index(SIZES)] if SIZES in inputs else []
    dense_in, dense_out = tables.dense_inputs, tables.dense_outputs
    return CallTables(
        PortTable(_numbered(inputs), dense_in, len(inputs) + 2 + len(dense_in)),
        PortTable(_numbered(outputs), dense_out, len(outputs) + len(dense_out)),
        symbols=(tables.symbols,),
        numbers=(tables.numbers, *sizes),
    )


def _open_ports(programs: Sequence[Sequence[SizedPort]]) -> list[str]:
    """The names of ports that some program pads."""
    return list(dict.fromkeys(port.name for ports in programs for port in copied_ports(ports)))


def _table(ports: Sequence[str], dense: Sequence[str], further: Sequence[str]) -> PortTable:
    count = len(ports) + len(dense)
    places = {**_numbered(ports), **{name: count + i for i, name in enumerate(further)}}
    beside = {name: len(ports) + i for i, name in enumerate(dense)}
    return PortTable(places, beside, count + len(further))


def _numbered(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}
