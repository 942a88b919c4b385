"""Sizes for those who have no arguments to take them from: of inputs that are drawn, of reports."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, product
from typing import TypeAlias

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.types.signature import (
    AxisSource,
    Equality,
    Ranges,
    ResultSource,
    Signature,
    SizedPort,
    ValueSource,
    ranges_text,
)
from tunefarm.compiler.types.sizes import Dimension, Size, Symbol, symbols_of, value_of
from tunefarm.compiler.types.tensor_type import Array, TensorType

Sizes: TypeAlias = dict[str, int]

_NEAR, _TRIED = 64, 4096
"""Sizes of a symbol, and combinations of them, that are looked at for one that fits."""


def choose_sizes(signature: Signature, given: Mapping[str, int]) -> Sizes:
    """A size for every symbol that arguments have: the given ones, else close to the middle.

    What must equal a size that is settled follows from it. Raises `InputError` for symbols that
    there are not, sizes out of bounds, and sizes that cannot be together.
    """
    symbols = {
        source.symbol.name: source.symbol
        for source in signature.sources
        if not isinstance(source, ResultSource)
    }
    for name in given:
        _check_known(name, symbols)
    return _chosen(signature, symbols, given)


def _chosen(signature: Signature, symbols: Mapping[str, Symbol], given: Mapping[str, int]) -> Sizes:
    settled = dict(given)
    _follow(signature.equalities, settled)
    free = [symbol for name, symbol in symbols.items() if name not in settled]
    refused: InputError | None = None
    ranges = dict(signature.ranges)
    near = [islice(_from_the_middle(symbol, ranges), _NEAR) for symbol in free]
    for values in islice(product(*near), _TRIED):
        sizes = dict(settled)
        for symbol, value in zip(free, values, strict=True):
            if symbol.name not in sizes:  # it may have followed from those before
                sizes[symbol.name] = value
                _follow(signature.equalities, sizes)
        problem = _problem(signature, symbols, sizes, given)
        if problem is None:
            return sizes
        refused = refused or problem
    assert refused is not None
    raise refused


def _problem(
    signature: Signature,
    symbols: Mapping[str, Symbol],
    sizes: Mapping[str, int],
    given: Mapping[str, int],
) -> InputError | None:
    """Why these sizes, of which some are given, cannot be, if they cannot."""
    for name, symbol in symbols.items():
        if not symbol.low <= sizes[name] <= symbol.high:
            places = [s.place for s in signature.sources if s.symbol.name == name]
            follows = "" if name in given else _why(name, signature.equalities)
            return InputError(
                f"{name} = {sizes[name]} is out of its bounds, {symbol.low} to {symbol.high}"
                f"{follows} ({', '.join(places)})"
            )
    for name, parts in signature.ranges:
        if name in sizes and not any(low <= sizes[name] <= high for low, high in parts):
            return InputError(
                f"{name} = {sizes[name]} is none of the sizes that the model was built for: "
                f"{ranges_text(parts)}"
            )
    for item in signature.equalities:
        if value_of(item.left, sizes) != value_of(item.right, sizes):
            chosen = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            return InputError(
                f"{item.left} and {item.right} must be equal, and are not where {chosen}: "
                f"{item.reason}",
                hint=_example(signature, symbols, given),
            )
    return None


def _why(name: str, equalities: Iterable[Equality]) -> str:
    """Which equality it is that settles a size."""
    for item in equalities:
        if name in {symbol.name for side in (item.left, item.right) for symbol in symbols_of(side)}:
            return f", as {item.left} and {item.right} must be equal: {item.reason}"
    return ""


def _example(signature: Signature, symbols: Mapping[str, Symbol], given: Mapping[str, int]) -> str:
    """Sizes that fit, where some of the given ones do not; "" if none are found."""
    try:
        sizes = _chosen(signature, symbols, {}) if given else {}
    except InputError:
        return ""
    fit = " ".join(f"--shape {name}={sizes[name]}" for name in given if name in sizes)
    return f"give sizes that fit, for example {fit}" if fit else ""


def _from_the_middle(symbol: Symbol, ranges: Ranges) -> Iterator[int]:
    """The sizes of a symbol, those in the middle of its bounds first."""
    middle = (symbol.low + symbol.high + 1) // 2
    parts = ranges.get(symbol.name, ((symbol.low, symbol.high),))
    if any(low <= middle <= high for low, high in parts):
        yield middle
    for distance in range(1, symbol.high - symbol.low + 1):
        for size in (middle + distance, middle - distance):
            if any(low <= size <= high for low, high in parts):
                yield size


def sizes_of_shapes(signature: Signature, shapes: Mapping[str, tuple[int, ...]]) -> Sizes:
    """The sizes that inputs of these shapes settle; what does not fit them a run will refuse."""
    sizes: Sizes = {}
    for source in signature.sources:
        if isinstance(source, AxisSource):
            shape = shapes.get(source.input, ())
            if source.axis < len(shape):
                sizes[source.symbol.name] = shape[source.axis]
    return sizes


def types_at(ports: Iterable[SizedPort], sizes: Mapping[str, int]) -> dict[str, TensorType]:
    """The types of ports where symbols have these sizes."""
    return {
        port.name: TensorType(port.dtype, tuple(value_of(d, sizes) for d in port.shape))
        for port in ports
    }


def put_sizes(signature: Signature, sizes: Mapping[str, int], arrays: Mapping[str, Array]) -> None:
    """Write the sizes into those arguments whose elements say them."""
    for source in signature.sources:
        if isinstance(source, ValueSource) and source.input in arrays:
            arrays[source.input].reshape(-1)[source.position] = sizes[source.symbol.name]


def _check_known(name: str, symbols: Mapping[str, Symbol]) -> None:
    if name in symbols:
        return
    nearest = difflib.get_close_matches(name, symbols, n=1)
    known = ", ".join(f"{s.name}:{s.low}..{s.high}" for s in symbols.values())
    raise InputError(
        f"the model has no size {name!r}; "
        + (f"its sizes are {known}" if known else "none of its inputs has an open one"),
        hint=f"did you mean {nearest[0]!r}?" if nearest else "",
    )


def _follow(equalities: Iterable[Equality], sizes: Sizes) -> None:
    """Settle symbols that must equal what is settled, as long as there are any."""
    pairs = [pair for e in equalities for pair in ((e.left, e.right), (e.right, e.left))]
    settled = True
    while settled:
        settled = False
        for left, right in pairs:
            symbol = left.symbol if isinstance(left, Size) else None
            if symbol is None or symbol.name in sizes or not _is_settled(right, sizes):
                continue
            sizes[symbol.name] = value_of(right, sizes)
            settled = True


def _is_settled(dimension: Dimension, sizes: Sizes) -> bool:
    return all(symbol.name in sizes for symbol in symbols_of(dimension))
