"""One signature of several programs, each of which is for other sizes of the same model.

    batch=1     x: f32[1, 8]                 x: f32[batch:1|4, seq:1..64]
    batch=4     x: f32[4, seq:1..64]   ->

An extent that differs between programs is a symbol, with the sizes that any of them is for. Shapes
of outputs follow from it: the programs say what they are at their sizes, and an expression is
looked for that agrees with all of them. Of an output whose rank differs all shapes are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import gcd

from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.types.padded_shape import PaddedShape
from tunefarm.compiler.types.signature import (
    AxisSource,
    Equality,
    Signature,
    SizedPort,
    Source,
)
from tunefarm.compiler.types.sizes import (
    Dimension,
    Size,
    Symbol,
    bounds_of,
    divide,
    quotient,
    replaced,
    symbols_of,
)

Bounds = tuple[int, int]


def joined_signature(programs: Sequence[ExecutableSpec]) -> Signature:
    """The signature of the programs together; that of a single one is its own.

    Its ports are padded to the maximum sizes; it has no `sizes` and `checks`, which are each
    program's own.
    """
    return programs[0].signature if len(programs) == 1 else _Join(programs).signature()


def program_ranges(
    programs: Sequence[ExecutableSpec], signature: Signature
) -> list[dict[str, Bounds]]:
    """The sizes that each program is for, by the symbols of the signature that they have
    together."""
    join = _Join(programs)
    join.signature()
    known = {symbol.name for symbol in signature.symbols}
    return [
        {s.name: bounds_of(value[k]) for s, value in join.values.items() if s.name in known}
        for k in range(len(programs))
    ]


@dataclass
class _Join:
    """Joins dimensions; `values` says what a symbol is in each program."""

    programs: Sequence[ExecutableSpec]
    values: dict[Symbol, tuple[Dimension, ...]] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)

    def signature(self) -> Signature:
        narrowed = [_narrowed_symbols(program) for program in self.programs]
        self._value_sources(narrowed)
        ports = [(p.signature.inputs, p.signature.outputs) for p in self.programs]
        inputs = [self._port(0, n, ports, narrowed) for n in range(len(ports[0][0]))]
        outputs = [self._port(1, n, ports, narrowed) for n in range(len(ports[0][1]))]
        ranges = {s: _ranges(values) for s, values in self.values.items()}
        return Signature(
            tuple(inputs),
            tuple(outputs),
            tuple(self.sources),
            (),
            tuple(self._equalities(narrowed)),
            ranges=tuple((s.name, parts) for s, parts in ranges.items() if len(parts) > 1),
        )

    def _equalities(self, narrowed: Sequence[Mapping[Symbol, Dimension]]) -> Iterator[Equality]:
        """What must hold in all programs; each of them checks its own."""
        each = [
            {
                (replaced(item.left, own), replaced(item.right, own))
                for item in program.signature.equalities
            }
            for program, own in zip(self.programs, narrowed, strict=True)
        ]
        by_name = {symbol.name: _size(symbol) for symbol in self.values}
        for item in self.programs[0].signature.equalities:
            left, right = (_renamed(side, by_name) for side in (item.left, item.right))
            if not (symbols_of(left) | symbols_of(right)) <= self.values.keys():
                continue
            if all((self._at(left, k), self._at(right, k)) in own for k, own in enumerate(each)):
                yield replace(item, left=left, right=right)

    def _value_sources(self, narrowed: Sequence[Mapping[Symbol, Dimension]]) -> None:
        """Symbols that are no extents are as each program has them."""
        found: dict[str, list[Source]] = {}
        for program in self.programs:
            for source in program.signature.sources:
                if not isinstance(source, AxisSource):
                    found.setdefault(source.symbol.name, []).append(source)
        for name, sources in found.items():
            ends = [bounds_of(own.get(s.symbol, 0)) for s, own in _owned(sources, narrowed)]
            low, high = min(low for low, _ in ends), max(high for _, high in ends)
            symbol = Symbol(name, low, high)
            everywhere: Dimension = Symbol.of(name, low, high)
            values = [next((own[s] for s in own if s.name == name), everywhere) for own in narrowed]
            self.values[symbol] = tuple(values)
            self.sources.append(replace(sources[0], symbol=symbol))

    def _port(
        self,
        kind: int,
        number: int,
        ports: Sequence[tuple[tuple[SizedPort, ...], tuple[SizedPort, ...]]],
        narrowed: Sequence[Mapping[Symbol, Dimension]],
    ) -> SizedPort:
        each = [item[kind][number] for item in ports]
        name, dtype = each[0].name, each[0].dtype
        if len({len(port.shape) for port in each}) > 1:
            return _of_several_ranks(each, narrowed)
        shape = []
        for axis in range(len(each[0].shape)):
            dimensions = [
                replaced(port.shape[axis], own) for port, own in zip(each, narrowed, strict=True)
            ]
            wanted = [port.shape[axis] for port in each] if kind == 0 else []
            shape.append(self._dimension(name, axis, dimensions, wanted))
        return SizedPort(name, dtype, tuple(shape), _padded(shape))

    def _dimension(
        self, port: str, axis: int, each: Sequence[Dimension], wanted: Sequence[Dimension]
    ) -> Dimension:
        """What a dimension is that is `each` of these in the programs; of an input it may become a
        symbol, named as in one of those `wanted`."""
        if isinstance(each[0], int) and all(item == each[0] for item in each):
            return each[0]
        offsets: list[Dimension] = []
        for candidate in self._candidates(each):
            if not symbols_of(candidate) <= self.values.keys():
                continue
            rests = {item - self._at(candidate, k) for k, item in enumerate(each)}
            if rests == {0}:
                return candidate
            if len(rests) == 1 and isinstance(rest := rests.pop(), int):
                offsets.append(candidate + rest)
        if offsets:
            return offsets[0]
        ends = [bounds_of(item) for item in each]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        name = self._name(port, axis, wanted)
        made = Symbol.of(name, low, high)
        if isinstance(made, Size):
            symbol = Symbol(name, low, high)
            self.values[symbol] = tuple(each)
            if wanted:
                self.sources.append(AxisSource(symbol, port, axis))
        return made

    def _candidates(self, each: Sequence[Dimension]) -> Iterator[Dimension]:
        """Expressions that might be each of these, the simplest first."""
        known = {symbol: _size(symbol) for symbol in self.values}
        yield from known.values()
        by_name = {symbol.name: size for symbol, size in known.items()}
        for dimension in each:
            yield _renamed(dimension, by_name)
        for one, other in combinations(known.values(), 2):
            yield from (one + other, one * other)
        for symbol, size in known.items():
            values = self.values[symbol]
            for dimension, value in zip(each, values, strict=True):
                rest = quotient(dimension, value) if value != 0 else None
                if rest is not None:
                    yield size * _renamed(rest, by_name)
            yield from _lines(size, values, each)

    def _at(self, dimension: Dimension, program: int) -> Dimension:
        return replaced(dimension, {s: values[program] for s, values in self.values.items()})

    def _name(self, port: str, axis: int, wanted: Sequence[Dimension]) -> str:
        """That of the programs' own symbol, or of the size that they are told apart by."""
        taken = {symbol.name for symbol in self.values}
        names = [d.symbol.name for d in wanted if isinstance(d, Size) and d.symbol is not None]
        for program in self.programs if wanted else ():
            names += [g.symbol for g in program.guards if (g.input, g.axis) == (port, axis)]
        return next((name for name in names if name not in taken), f"{port}[{axis}]")


def _of_several_ranks(
    each: Sequence[SizedPort], narrowed: Sequence[Mapping[Symbol, Dimension]]
) -> SizedPort:
    """An output that has shapes of several ranks, the one with the most elements first."""
    shapes = {
        tuple(replaced(dimension, own) for dimension in port.shape): port.greatest.size
        for port, own in zip(each, narrowed, strict=True)
    }
    largest, *others = sorted(shapes, key=lambda shape: -shapes[shape])
    return SizedPort(each[0].name, each[0].dtype, largest, _padded(largest), tuple(others))


def _padded(shape: Sequence[Dimension]) -> PaddedShape:
    """A shape's extents, each padded to its maximum."""
    return tuple(((true, bounds_of(true)[1]),) for true in shape)


def _owned(
    sources: Sequence[Source], narrowed: Sequence[Mapping[Symbol, Dimension]]
) -> list[tuple[Source, Mapping[Symbol, Dimension]]]:
    """Each source with the symbols of the program that has it."""
    return [(s, own) for s in sources for own in narrowed if s.symbol in own]


def _narrowed_symbols(program: ExecutableSpec) -> dict[Symbol, Dimension]:
    """A program's symbols, with the bounds that its guards leave them."""
    found: dict[Symbol, Dimension] = {}
    for source in program.signature.sources:
        low, high = source.symbol.low, source.symbol.high
        for guard in program.guards if isinstance(source, AxisSource) else ():
            if isinstance(source, AxisSource) and (guard.input, guard.axis) == (
                source.input,
                source.axis,
            ):
                low, high = max(low, guard.low), min(high, guard.high)
        found[source.symbol] = Symbol.of(source.symbol.name, low, max(low, high))
    return found


def _size(symbol: Symbol) -> Dimension:
    return Symbol.of(symbol.name, symbol.low, symbol.high)


def _renamed(dimension: Dimension, by_name: Mapping[str, Dimension]) -> Dimension:
    """The dimension with the symbols of those names."""
    own = symbols_of(dimension)
    return replaced(dimension, {s: by_name[s.name] for s in own if s.name in by_name})


def _lines(
    size: Dimension, values: Sequence[Dimension], each: Sequence[Dimension]
) -> Iterator[Dimension]:
    """What grows evenly with the size, where all are numbers: size * 2 + 1, size // 32."""
    points = [(v, d) for v, d in zip(values, each, strict=True)]
    numbers = [(v, d) for v, d in points if isinstance(v, int) and isinstance(d, int)]
    if len(numbers) != len(points):
        return
    (least, start), (most, end) = min(numbers), max(numbers)
    if least < most:
        rise, run = end - start, most - least
        common = gcd(rise, run)
        yield divide((size - least) * (rise // common), run // common) + start


def _ranges(values: Sequence[Dimension]) -> tuple[Bounds, ...]:
    """The sizes of all programs, those that go on as one."""
    merged: list[Bounds] = []
    for low, high in sorted(map(bounds_of, values)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return tuple(merged)
