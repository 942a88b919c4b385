"""What is said of sizes that a model was not built for: input, axis, symbol, bounds, what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.runtime.sizes.sized_ports import SizedArray, SizedPorts
from tunefarm.compiler.runtime.spec.guards import admit, refusal
from tunefarm.compiler.runtime.spec.ports import AnyArray
from tunefarm.compiler.types.signature import AxisSource, Check, Equality, Source, ValueSource
from tunefarm.compiler.types.sizes import symbols_in, symbols_of, value_of

_SHOWN = 16
"""The most elements of an argument that an error shows."""


def refuse_sizes(ports: SizedPorts, arrays: Sequence[AnyArray], found: Sequence[int]) -> NoReturn:
    """Raise the `InputError` of sizes that no program is for; `found` is what was read."""
    for port, array in zip(ports.inputs, arrays, strict=True):
        if array.ndim != len(port.declared.shape):
            refuse_rank(ports, arrays)
    shapes = {port.name: array.shape for port, array in zip(ports.inputs, arrays, strict=True)}
    number = next(
        (n for n, program in enumerate(ports.programs) if admit(program.guards, shapes)), None
    )
    if number is None:
        every = [program.guards for program in ports.programs]
        raise InputError(
            refusal(every, shapes), hint="build the model with that size among its --shape values"
        )
    signature = ports.programs[number].signature
    assert signature is not None  # without one nothing else is asked
    known = _known(ports, number, found)
    for source in signature.sources:
        size = known.get(source, source.symbol.low)
        if not source.symbol.low <= size <= source.symbol.high:
            refuse_size(source, size)
    sizes = {source.symbol.name: size for source, size in known.items()}
    for item in signature.equalities:
        left, right = value_of(item.left, sizes), value_of(item.right, sizes)
        if left != right:
            refuse_equality(item, left, right, sizes)
    raise AssertionError("sizes are refused, and nothing is wrong with them")


def _known(ports: SizedPorts, program: int, found: Sequence[int]) -> dict[Source, int]:
    """The sizes that a call has found, by the sources of a program."""
    signature = ports.programs[program].signature
    numbers = {port.name: number for number, port in enumerate(ports.inputs)}
    known: dict[Source, int] = {}
    for source in () if signature is None else signature.sources:
        if isinstance(source, AxisSource):
            known[source] = found[ports.axes.index((numbers[source.input], source.axis))]
        elif isinstance(source, ValueSource):
            place = ports.values.index((numbers[source.input], source.position))
            known[source] = found[len(ports.axes) + place]
    return known


def refuse_size(source: Source, size: int) -> NoReturn:
    """Raise the `InputError` of a symbol that is out of its bounds."""
    symbol = source.symbol
    if size < symbol.low:
        hint = f"build the model for less: {symbol.name}:{max(size, 0)}..{symbol.high} in --shape"
    else:
        hint = f"build the model for more: {symbol.name}:{symbol.low}..{size} in --shape"
    raise InputError(
        f"{symbol.name} is {size} in {source.place}, and the model was built for "
        f"{symbol.low} to {symbol.high}",
        hint=hint,
    )


def refuse_rank(ports: SizedPorts, arrays: Sequence[AnyArray]) -> NoReturn:
    """Raise the `InputError` of the first argument that has too few or too many axes."""
    for port, array in zip(ports.inputs, arrays, strict=True):
        if array.ndim != len(port.declared.shape):
            _refuse_axes(ports, port, array)
    raise AssertionError("an axis is missing, and no argument lacks one")


def refuse_value(ports: SizedPorts, number: int, position: int, array: AnyArray) -> NoReturn:
    """Raise the `InputError` of an argument that does not have the element with a size."""
    port = ports.inputs[number]
    raise InputError(
        f"input {port.name!r} of the shape {list(array.shape)} has no element {position}, which "
        f"is a size; the model was built for {_declared(ports, port)}"
    )


def refuse_shape(
    ports: SizedPorts,
    program: int,
    port: SizedArray,
    array: AnyArray,
    wanted: Sequence[int],
    found: Sequence[int],
) -> NoReturn:
    """Raise the `InputError` of a shape that does not fit the sizes of other arguments.

    `found` is what was read of them, and `program` the number of the one that is for it.
    """
    if array.ndim != len(wanted) and port.port.kind == "input":
        _refuse_axes(ports, port, array)
    symbols = symbols_in(port.rooms[program].shape)
    known = [
        f"{source.symbol.name} is {size} in {source.place}"
        for source, size in _known(ports, program, found).items()
        if source.symbol in symbols
    ]
    reason = f" ({', '.join(known)})" if known else ""
    raise InputError(
        f"{port.port.kind} {port.name!r} has the shape {list(array.shape)} and must have "
        f"{list(wanted)}{reason}; the model was built for {_declared(ports, port)}"
    )


def _declared(ports: SizedPorts, port: SizedArray) -> str:
    return ports.signature.port_text(port.declared)


def _refuse_axes(ports: SizedPorts, port: SizedArray, array: AnyArray) -> NoReturn:
    raise InputError(
        f"input {port.name!r} has the shape {list(array.shape)}, "
        f"the model was built for {_declared(ports, port)}"
    )


def refuse_equality(item: Equality, left: int, right: int, sizes: Mapping[str, int]) -> NoReturn:
    """Raise the `InputError` of two sizes that must be equal and are not."""
    symbols = sorted(symbols_of(item.left) | symbols_of(item.right))
    known = ", ".join(f"{symbol.name} = {sizes[symbol.name]}" for symbol in symbols)
    raise InputError(
        f"sizes do not fit each other: {item.left} is {left} and {item.right} is {right}, and they "
        f"must be equal ({known}): {item.reason}",
        hint="change the shapes of the arguments, or the values that are sizes",
    )


def refuse_condition(
    ports: SizedPorts,
    program: int,
    check: Check,
    argument: AnyArray | None,
    found: Sequence[int],
) -> NoReturn:
    """Raise the `InputError` of a condition that the graph has found not to hold.

    `found` is what was read of the arguments: sizes that the reason names are said.
    """
    known = _known(ports, program, found).items()
    named = {source.symbol.name: size for source, size in known}
    words = set(re.findall(r"[^\s,()]+", check.reason))
    listed = ", ".join(f"{name} is {size}" for name, size in named.items() if name in words)
    sizes = f" ({listed})" if listed else ""
    if argument is None:
        raise InputError(f"{check.message}{sizes}")
    raise InputError(f"input {check.operand!r} is {_shown(argument)}: {check.reason}{sizes}")


def _shown(argument: AnyArray) -> str:
    """The elements of an argument, or how many of which numbers there are."""
    if argument.size <= _SHOWN:
        return str(argument.tolist())
    count = f"of {argument.size} elements"
    if argument.dtype.kind not in "iu":
        return count
    return f"{count}, {argument.min()} to {argument.max()}"
