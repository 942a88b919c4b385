"""JSON round trip of signatures: what an artifact and a stored graph say of run-time sizes.

A dimension is a number, or a sum as a list of [factor, atom, ...]; an atom is the name of a symbol,
or [function, left, right] of two dimensions. The symbols with their bounds stand once, in front.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import PaddedShape
from tunefarm.compiler.types.signature import (
    AxisSource,
    Check,
    Equality,
    ResultSource,
    Signature,
    SizedPort,
    Source,
    ValueSource,
)
from tunefarm.compiler.types.sizes import (
    Atom,
    Dimension,
    Symbol,
    divide,
    greater,
    product_of,
    remainder,
    smaller,
)

_FUNCTIONS: Final[Mapping[str, Callable[[Dimension, Dimension], Dimension]]] = {
    "//": divide,
    "%": remainder,
    "min": smaller,
    "max": greater,
}
_SOURCES: Final[Mapping[str, type[Source]]] = {
    "axis": AxisSource,
    "value": ValueSource,
    "result": ResultSource,
}


def signature_to_json(signature: Signature) -> dict[str, Any]:
    """The signature as JSON values."""
    symbols = {symbol.name: [symbol.low, symbol.high] for symbol in signature.symbols}
    return {
        "symbols": symbols,
        "inputs": [_port_to_json(port) for port in signature.inputs],
        "outputs": [_port_to_json(port) for port in signature.outputs],
        "sources": [_source_to_json(source) for source in signature.sources],
        "sizes": [_to_json(size) for size in signature.sizes],
        "equalities": [
            [_to_json(item.left), _to_json(item.right), item.reason]
            for item in signature.equalities
        ],
        "checks": [[item.output, item.operand, item.reason] for item in signature.checks],
    }


def signature_from_json(data: Any) -> Signature:
    """The inverse of `signature_to_json`.

    Raises `KeyError`, `TypeError`, `ValueError` or `ShapeError` for JSON that is none of its.
    """
    reader = _Reader(_symbols_from_json(data))
    return Signature(
        inputs=tuple(map(reader.port, data["inputs"])),
        outputs=tuple(map(reader.port, data["outputs"])),
        sources=tuple(map(reader.source, data["sources"])),
        sizes=reader.dimensions(data["sizes"]),
        equalities=tuple(
            Equality(reader.dimension(left), reader.dimension(right), str(reason))
            for left, right, reason in data["equalities"]
        ),
        checks=tuple(
            Check(str(output), str(operand), str(reason))
            for output, operand, reason in data["checks"]
        ),
    )


def padded_to_json(padded: Mapping[str, PaddedShape]) -> dict[str, Any]:
    """The axes of values by name as JSON values; symbols are those of a signature next to it."""
    return {name: _dims_to_json(dims) for name, dims in padded.items()}


def padded_from_json(data: Any, signature: Any) -> dict[str, PaddedShape]:
    """The inverse of `padded_to_json`, with the JSON of the signature. Raises as that's reader."""
    reader = _Reader(_symbols_from_json(signature))
    return {str(name): reader.dims(dims) for name, dims in data.items()}


def _symbols_from_json(data: Any) -> dict[str, Symbol]:
    return {
        str(name): Symbol(str(name), _integer(low), _integer(high))
        for name, (low, high) in data["symbols"].items()
    }


def _dims_to_json(dims: PaddedShape) -> list[Any]:
    return [[[_to_json(true), extent] for true, extent in axis] for axis in dims]


def _port_to_json(port: SizedPort) -> list[Any]:
    shape = [_to_json(axis) for axis in port.shape]
    dense = [True] if port.read_dense else []
    return [port.name, str(port.dtype), shape, _dims_to_json(port.padded), *dense]


def _source_to_json(source: Source) -> list[Any]:
    match source:
        case AxisSource(symbol, port, place):
            kind = "axis"
        case ValueSource(symbol, port, place):
            kind = "value"
        case ResultSource(symbol, port, place):
            kind = "result"
    return [kind, symbol.name, port, place]


def _to_json(dimension: Dimension) -> Any:
    if isinstance(dimension, int):
        return dimension
    return [[factor, *map(_atom_to_json, atoms)] for atoms, factor in dimension.terms]


def _atom_to_json(atom: Atom) -> Any:
    if isinstance(atom, Symbol):
        return atom.name
    return [atom.name, *map(_to_json, atom.operands)]


class _Reader:
    """Builds what names symbols; dimensions are made anew, so that they are canonical."""

    def __init__(self, symbols: Mapping[str, Symbol]) -> None:
        self._symbols = symbols

    def port(self, data: Sequence[Any]) -> SizedPort:
        name, dtype, shape, padded, *dense = data
        sizes, dims = self.dimensions(shape), self.dims(padded)
        return SizedPort(str(name), DType(dtype), sizes, dims, read_dense=bool(dense))

    def dims(self, data: Sequence[Any]) -> PaddedShape:
        return tuple(
            tuple((self.dimension(true), _integer(extent)) for true, extent in axis)
            for axis in data
        )

    def source(self, data: Sequence[Any]) -> Source:
        kind, symbol, port, place = data
        return _SOURCES[kind](self._symbols[symbol], str(port), _integer(place))

    def dimensions(self, data: Sequence[Any]) -> tuple[Dimension, ...]:
        return tuple(map(self.dimension, data))

    def dimension(self, data: Any) -> Dimension:
        if not isinstance(data, list):
            return _integer(data)
        total: Dimension = 0
        for factor, *atoms in data:
            total = total + product_of((_integer(factor), *map(self._atom, atoms)))
        return total

    def _atom(self, data: Any) -> Dimension:
        if isinstance(data, str):
            symbol = self._symbols[data]
            return Symbol.of(symbol.name, symbol.low, symbol.high)
        name, left, right = data
        return _FUNCTIONS[name](self.dimension(left), self.dimension(right))


def _integer(data: Any) -> int:
    if type(data) is not int:
        raise TypeError(f"a number of a signature is an integer, not {data!r}")
    return data
