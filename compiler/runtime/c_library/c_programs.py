"""Which program of a C library runs: C code that asks the CPU once and takes the first that fits.

The programs of a library are one model for several CPUs of one family, the best first; each has an
entry function of its own, and what their constants have in common is there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ExportError
from tunefarm.compiler.machine.amx_state import TILE_FEATURES
from tunefarm.compiler.runtime.c_library.c_functions import function_rows
from tunefarm.compiler.runtime.machine.check_target import platform_of
from tunefarm.compiler.runtime.machine.cpu_features import (
    checked_features,
    cpu_check_code,
    cpu_choice_code,
)
from tunefarm.compiler.runtime.spec.executable_spec import ENTRY_SYMBOL, ExecutableSpec, aligned
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.tensor_type import Array

CONSTANTS_SYMBOL = "tunefarm_constants"


def check_targets(targets: Iterable[Target]) -> None:
    """Raise `ExportError` for targets that no C library can be for together."""
    platforms = list(dict.fromkeys(platform_of(target) for target in targets))
    if len(platforms) > 1:
        raise ExportError(
            f"a C library is for one kind of machine, not for {' and '.join(platforms)}",
            hint="build one for each",
        )


def check_programs(programs: Sequence[ExecutableSpec]) -> None:
    """Raise `ExportError` for programs that no C library can hold together."""
    check_targets(program.target for program in programs)
    if len({program.functions for program in programs}) > 1:
        raise ExportError("the programs of a C library call the same functions")
    if len({program.threads for program in programs}) > 1:
        raise ExportError("the programs of a C library have one number of threads")


def entry_symbol(programs: Sequence[ExecutableSpec], number: int) -> str:
    """The symbol of a program's entry function within the library."""
    return ENTRY_SYMBOL if len(programs) == 1 else f"{ENTRY_SYMBOL}_{number}"


@dataclass(frozen=True, slots=True)
class ConstantLayout:
    """The constants of all programs, each once: arrays, where they start, and the bytes of all.

    `offsets` are those of each program's constants, in its order.
    """

    arrays: tuple[Array, ...]
    starts: tuple[int, ...]
    bytes: int
    offsets: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(programs: Sequence[ExecutableSpec]) -> ConstantLayout:
        """The layout of several programs' constants, equal ones once."""
        arrays: list[Array] = []
        starts: list[int] = []
        known: dict[str, int] = {}
        end, offsets = 0, []
        for program in programs:
            places = []
            digests = program.digests[len(program.objects) :]
            for array, digest in zip(program.constants, digests, strict=True):
                if digest not in known:
                    known[digest] = end
                    arrays.append(array)
                    starts.append(end)
                    end += aligned(array.nbytes)
                places.append(known[digest])
            offsets.append(tuple(places))
        return ConstantLayout(tuple(arrays), tuple(starts), end, tuple(offsets))

    def of_program(self, number: int) -> ConstantLayout:
        """The same for one of the programs."""
        return replace(self, offsets=(self.offsets[number],))


@dataclass(frozen=True, slots=True)
class ProgramCode:
    """Pieces of C: what stands before the functions, what `run` does where the CPU can run no
    program (a condition), and the call of the entry function. `lacking` is the error's text."""

    declarations: str
    cpu_check: str
    is_unable: str
    call: str
    lacking: str


def program_code(
    programs: Sequence[ExecutableSpec], layout: ConstantLayout | None = None
) -> ProgramCode:
    """The C code that chooses among programs, or checks the CPU for the only one.

    With a `layout`, that of its constants among others', the only one is a part of a library, which
    has checked the CPU.
    """
    is_part = layout is not None
    layout = layout or ConstantLayout.of(programs)
    features = [checked_features(program.target) for program in programs]
    prototypes = "\n".join(_prototype(entry_symbol(programs, n)) for n in range(len(programs)))
    symbol = f"extern const unsigned char {CONSTANTS_SYMBOL}[];"
    arguments, called = "workspace, &runtime", function_rows(programs[0].functions)
    if len(programs) == 1:
        return ProgramCode(
            f"{prototypes}\n{symbol}\n\n{_table('constants', layout.offsets[0], called)}",
            "" if is_part else cpu_check_code(features[0]),
            "0" if is_part else "!cpu_is_able()",
            f"{ENTRY_SYMBOL}(inputs, results, constants, {arguments});",
            f"{lacking_text(features)}: {' '.join(features[0])}",
        )
    tables = "\n".join(
        _table(f"constants_{n}", item, called) for n, item in enumerate(layout.offsets)
    )
    rows = "\n".join(
        f"    {{{entry_symbol(programs, n)}, constants_{n}}}, /* {program.target.cpu} */"
        for n, program in enumerate(programs)
    )
    chosen = f"""\
static const struct {{
    void (*run)(const void *const *, void *const *, const void *const *, void *,
                const struct runtime *);
    const void *const *constants;
}} programs[] = {{
{rows}
}};"""
    needs = "; ".join(
        f"{program.target.cpu}: {' '.join(needed)}"
        for program, needed in zip(programs, features, strict=True)
    )
    call = "programs[program_number()]"
    return ProgramCode(
        f"{prototypes}\n{symbol}\n\n{tables}\n{chosen}",
        cpu_choice_code(features),
        "program_number() < 0",
        f"{call}.run(inputs, results, {call}.constants, {arguments});",
        f"{lacking_text(features)}: {needs}",
    )


def _prototype(symbol: str) -> str:
    indent = " " * len(f"extern void {symbol}(")
    return (
        f"extern void {symbol}(const void *const *inputs, void *const *outputs,\n"
        f"{indent}const void *const *constants, void *arena,\n"
        f"{indent}const struct runtime *runtime);"
    )


def _table(name: str, offsets: Sequence[int], called: Sequence[str]) -> str:
    """Pointers to constants, then to the functions that are called and their contexts."""
    rows = [f"    {CONSTANTS_SYMBOL} + {offset}," for offset in offsets]
    rows = [*rows, *called] or ["    NULL"]
    return f"static const void *const {name}[] = {{\n" + "\n".join(rows) + "\n};"


def lacking_text(features: Sequence[Sequence[str]]) -> str:
    """What an error says of a CPU that has not the features of any program."""
    text = "this CPU lacks instructions that the code needs"
    if any(name.startswith(TILE_FEATURES) for needed in features for name in needed):
        text += ", or its kernel does not permit matrix tiles"
    return text
