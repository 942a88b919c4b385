"""The programs of a C library: one model for several CPUs of one family, the best first, and for
several sizes.

Each has an entry function of its own; what their kernels and constants have in common is there
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tunefarm.compiler.errors import ExportError
from tunefarm.compiler.runtime.c_library.c_functions import function_rows
from tunefarm.compiler.runtime.machine.check_target import platform_of
from tunefarm.compiler.runtime.spec.executable_spec import (
    ENTRY_SYMBOL,
    SIZED_ENTRY_SYMBOL,
    SIZES_SYMBOL,
    ExecutableSpec,
    aligned,
)
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.frozen import frozen
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


@frozen
class LinkedProgram:
    """A program as it is in a library: `symbols` are what its kernels and its entry functions are
    called there, by their own names."""

    spec: ExecutableSpec
    symbols: dict[str, str]

    @property
    def entry(self) -> str:
        """What its entry is called."""
        return self.symbols[ENTRY_SYMBOL if self.spec.signature.is_fixed else SIZED_ENTRY_SYMBOL]

    @property
    def entry_functions(self) -> list[str]:
        """What others may call of its entry."""
        return [self.symbols[symbol] for symbol in _ENTRIES]


_ENTRIES = (ENTRY_SYMBOL, SIZED_ENTRY_SYMBOL, SIZES_SYMBOL)


def linked_programs(programs: Sequence[ExecutableSpec]) -> list[LinkedProgram]:
    """The programs of a library: of several, kernels that are the same are there once, each by a
    name that is made of its code."""
    if len(programs) == 1:
        kernels = [part.symbol for part in programs[0].objects]
        return [LinkedProgram(programs[0], {name: name for name in (*_ENTRIES, *kernels)})]
    linked = []
    for number, spec in enumerate(programs):
        symbols = {symbol: f"{symbol}_{number}" for symbol in _ENTRIES}
        for part, digest in zip(spec.objects, spec.digests, strict=False):
            symbols[part.symbol] = f"kernel_{digest[:32]}"
        linked.append(LinkedProgram(spec, symbols))
    return linked


@frozen
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


def programs_text(programs: Sequence[LinkedProgram]) -> str:
    """C code of `programs`, a table of the entry and the constants of each."""
    layout = ConstantLayout.of([program.spec for program in programs])
    called = function_rows(programs[0].spec.functions)
    prototypes = "".join(map(_prototype, (program.entry for program in programs)))
    tables = "".join(
        _table(f"constants_{n}", item, called) for n, item in enumerate(layout.offsets)
    )
    rows = "\n".join(
        f"    {{{program.entry}, constants_{n}}}, /* {program.spec.target.cpu} */"
        for n, program in enumerate(programs)
    )
    return f"""\
{prototypes}extern const unsigned char {CONSTANTS_SYMBOL}[];

{tables}static const struct {{
    void (*run)(const void *const *, void *const *, const void *const *, void *,
                const struct runtime *);
    const void *const *constants;
}} programs[] = {{
{rows}
}};
"""


def _prototype(symbol: str) -> str:
    indent = " " * len(f"extern void {symbol}(")
    return (
        f"extern void {symbol}(const void *const *inputs, void *const *outputs,\n"
        f"{indent}const void *const *constants, void *arena,\n"
        f"{indent}const struct runtime *runtime);\n"
    )


def _table(name: str, offsets: Sequence[int], called: Sequence[str]) -> str:
    """Pointers to constants, then to the functions that are called and their contexts."""
    rows = [f"    {CONSTANTS_SYMBOL} + {offset}," for offset in offsets]
    rows = [*rows, *called] or ["    NULL"]
    return f"static const void *const {name}[] = {{\n" + "\n".join(rows) + "\n};\n\n"
