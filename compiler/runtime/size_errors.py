"""What is said of sizes that a model was not built for: input, axis, symbol, bounds, what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from compiler.errors import InputError
from compiler.runtime.ports import AnyArray
from compiler.runtime.sized_ports import SizedArray, SizedPorts
from compiler.types.signature import AxisSource, Check, Equality, ResultSource, Source, ValueSource
from compiler.types.sizes import symbols_of

_SHOWN = 16
"""The most elements of an argument that an error shows."""


def refuse_size(source: Source, size: int) -> NoReturn:
    """Raise the `InputError` of a symbol that is out of its bounds."""
    symbol = source.symbol
    if size < symbol.low:
        hint = f"build the model for less: {symbol.name}:{max(size, 0)}..{symbol.high} in --shape"
    else:
        hint = f"build the model for more: {symbol.name}:{symbol.low}..{size} in --shape"
    raise InputError(
        f"{symbol.name} is {size} in {place_of(source)}, and the model was built for "
        f"{symbol.low} to {symbol.high}",
        hint=hint,
    )


def refuse_rank(ports: SizedPorts, arrays: Sequence[AnyArray]) -> NoReturn:
    """Raise the `InputError` of the first argument that has too few or too many axes."""
    for port, array in zip(ports.inputs, arrays, strict=True):
        declared = port.declared
        if array.ndim != len(declared.shape):
            raise InputError(
                f"input {port.name!r} has the shape {list(array.shape)}, "
                f"the model was built for {declared}"
            )
    raise AssertionError("an axis is missing, and no argument lacks one")


def refuse_value(ports: SizedPorts, number: int, position: int, array: AnyArray) -> NoReturn:
    """Raise the `InputError` of an argument that does not have the element with a size."""
    port = ports.inputs[number]
    raise InputError(
        f"input {port.name!r} of the shape {list(array.shape)} has no element {position}, which "
        f"says a size; the model was built for {port.declared}"
    )


def refuse_shape(
    ports: SizedPorts,
    port: SizedArray,
    array: AnyArray,
    wanted: Sequence[int],
    sizes: Mapping[str, int],
) -> NoReturn:
    """Raise the `InputError` of a shape that does not fit the sizes of other arguments."""
    known = []
    for source in ports.signature.sources:
        if source.symbol in port.declared.symbols and not isinstance(source, ResultSource):
            size = sizes[source.symbol.name]
            known.append(f"{source.symbol.name} is {size} in {place_of(source)}")
    reason = f" ({', '.join(known)})" if known else ""
    raise InputError(
        f"{port.port.kind} {port.name!r} has the shape {list(array.shape)} and must have "
        f"{list(wanted)}{reason}; the model was built for {port.declared}"
    )


def refuse_equality(item: Equality, left: int, right: int, sizes: Mapping[str, int]) -> NoReturn:
    """Raise the `InputError` of two sizes that must be equal and are not."""
    symbols = sorted(symbols_of(item.left) | symbols_of(item.right))
    known = ", ".join(f"{symbol.name} = {sizes[symbol.name]}" for symbol in symbols)
    raise InputError(
        f"sizes do not fit each other: {item.left} is {left} and {item.right} is {right}, and they "
        f"must be equal ({known}): {item.reason}",
        hint="change the shapes of the arguments, or the values that say sizes",
    )


def refuse_condition(check: Check, argument: AnyArray | None) -> NoReturn:
    """Raise the `InputError` of a condition that the graph has found not to hold."""
    if argument is None:
        raise InputError(f"the value {check.operand!r} does not fit: {check.reason}")
    shown = argument.tolist() if argument.size <= _SHOWN else f"of {argument.size} elements"
    raise InputError(f"input {check.operand!r} is {shown}: {check.reason}")


def place_of(source: Source) -> str:
    """Where a symbol is read."""
    match source:
        case AxisSource(_, name, axis):
            return f"axis {axis} of input {name!r}"
        case ValueSource(_, name, position):
            return f"element {position} of input {name!r}"
        case ResultSource(_, name, position):
            return f"element {position} of output {name!r}"
