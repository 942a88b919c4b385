"""Calibration data of a model whose sizes are open: each run may have sizes of its own.

The arrays of a file are one run where their shapes fit; with one more axis in front of all of them
they are several. Where the first axes are one symbol, and longer than it may be, they are cut into
runs of at most the most that it may be.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.types.chosen_sizes import choose_sizes, sizes_of_shapes
from tunefarm.compiler.types.signature import Signature, SizedPort, ValueSource
from tunefarm.compiler.types.sizes import Size, Symbol, value_of
from tunefarm.compiler.types.tensor_type import Array

Run = dict[str, Array]


def open_runs(path: str, arrays: Mapping[str, Array], signature: Signature) -> list[Run]:
    """The arrays of a file cut into runs of the model.

    Raises InputError, a readable line, for shapes that are none of the model's.
    """
    ports = {port.name: port for port in signature.inputs}
    given = {name: arrays[name] for name in ports}
    more = {name: given[name].ndim - len(port.shape) for name, port in ports.items()}
    if set(more.values()) == {1}:
        counts = {name: len(array) for name, array in given.items()}
        if len(set(counts.values())) != 1:
            text = ", ".join(f"{count} of {name}" for name, count in counts.items())
            raise InputError(f"{path}: the inputs have different numbers of samples: {text}")
        runs = [
            {name: array[n] for name, array in given.items()} for n in range(max(counts.values()))
        ]
    else:
        runs = _cut(given, ports)
    for run in runs:
        _check(path, run, signature)
    return runs


def _cut(arrays: Run, ports: Mapping[str, SizedPort]) -> list[Run]:
    """The arrays, or parts of them where their common first axis is too long for its symbol."""
    for symbol in filter(None, map(_first, ports.values())):
        own = [name for name, port in ports.items() if _first(port) == symbol]
        lengths = {len(arrays[name]) for name in own if arrays[name].ndim}
        if len(lengths) != 1 or (length := lengths.pop()) <= symbol.high:
            continue
        begins = range(0, length, symbol.high)
        return [
            {
                name: array[begin : begin + symbol.high] if name in own else array
                for name, array in arrays.items()
            }
            for begin in begins
        ]
    return [arrays]


def _first(port: SizedPort) -> Symbol | None:
    """The symbol that an input's first axis is, if it is one."""
    first = port.shape[0] if port.shape else 0
    return first.symbol if isinstance(first, Size) else None


def _check(path: str, run: Run, signature: Signature) -> None:
    """Raise `InputError` unless a run's shapes are those of the inputs, within all bounds."""
    for port in signature.inputs:
        array = run[port.name]
        if array.ndim != len(port.shape):
            raise _misfit(path, port, array)
    sizes = sizes_of_shapes(signature, {name: array.shape for name, array in run.items()})
    for source in signature.sources:
        if isinstance(source, ValueSource):
            sizes[source.symbol.name] = int(run[source.input].reshape(-1)[source.position])
    try:
        sizes = choose_sizes(signature, sizes)
    except InputError as error:
        raise InputError(f"{path}: {error.message}", hint=error.hint) from None
    for port in signature.inputs:
        shape = tuple(value_of(size, sizes) for size in port.shape)
        if run[port.name].shape != shape:
            raise _misfit(path, port, run[port.name])


def _misfit(path: str, port: SizedPort, array: Array) -> InputError:
    return InputError(
        f"{path}: {port.name} has the shape {list(array.shape)}, the model's input is {port}"
    )
