"""Where a program has the sizes of its values: in its input `SIZES`, or in what it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from tunefarm.compiler.kernels.kernel import KernelProgram, written_by
from tunefarm.compiler.types.signature import SIZES, ResultSource, Signature
from tunefarm.compiler.types.sizes import Dimension, Size, Symbol

SizeName: TypeAlias = tuple[str, int]
"""The value that holds sizes, and the number of one of them."""

NONE_COMPUTED: Final[Mapping[str, Dimension]] = MappingProxyType({})


def size_names(
    program: KernelProgram,
    outputs: Sequence[str],
    signature: Signature,
    computed: Mapping[str, Dimension] = NONE_COMPUTED,
) -> dict[SizeName, Dimension]:
    """The sizes that vectors of the program hold, by the vector and the place in it.

    `outputs` are the names of the program's outputs in the graph, `computed` those that hold one
    size each, besides the ones that the signature names.
    """
    found: dict[SizeName, Dimension] = {
        (SIZES, number): size for number, size in enumerate(signature.sizes)
    }
    values = dict(zip(outputs, program.outputs, strict=True))
    for source in signature.sources:
        if isinstance(source, ResultSource) and source.output in values:
            symbol = source.symbol
            size = Symbol.of(symbol.name, symbol.low, symbol.high)
            found[values[source.output], source.position] = size
    found |= {(values[output], 0): size for output, size in computed.items() if output in values}
    return {
        name: size
        for name, size in found.items()
        if name[0] in program.types and len(program.types[name[0]].shape) == 1
    }


def names_by_size(sizes: Mapping[SizeName, Dimension]) -> dict[Size, SizeName]:
    """The first name of each size."""
    found: dict[Size, SizeName] = {}
    for name, size in sizes.items():
        if isinstance(size, Size):
            found.setdefault(size, name)
    return found


def first_known(program: KernelProgram) -> dict[str, int]:
    """By value the number of the call that makes it; -1 for what is there before the first one."""
    made = dict.fromkeys((*program.inputs, *program.constants), -1)
    for number, call in enumerate(program.calls):
        for name in written_by(call):
            made.setdefault(name, number)
    return made
