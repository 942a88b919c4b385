"""Signature: what a model with run-time sizes takes and gives, seen from outside.

A graph is static: every value has the shape that the bounds of the symbols allow at most. Where
less is true at run time, elements behind the true size are padding, of any content, and the graph
itself sees to it that none of them changes a result: operators that would read padding read
`fill`ed values (`tunefarm.compiler.operators.fill`). The signature says how such a graph is called:

1. `sources` give the symbols from the shapes of the arguments; bounds and equalities are checked.
2. `sizes` are computed of them and passed as the graph's input `SIZES`, an i64 vector.
3. Each argument, dense at its true shape, goes to its place in the padded input, and of each
   padded output the true part comes back, dense, unless one of the `checks` has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import PaddedShape, unpadded_shape
from tunefarm.compiler.types.sizes import Dimension, Size, Symbol, bounds_of, symbols_in
from tunefarm.compiler.types.tensor_type import TensorType

Ranges: TypeAlias = Mapping[str, Sequence[tuple[int, int]]]
"""The sizes of symbols by name: each is within one of the bounds."""

SIZES: Final = "%sizes"
"""The graph's input that holds `Signature.sizes`; it is no port."""


@frozen
class SizedPort:
    """An input or output as the caller sees it.

    `shape` is the true one, of numbers and sizes. The graph's value of that name is padded: for
    each axis `padded` has its factors, from the outermost to the innermost, each a true size and
    the extent that it is padded to; an axis of one factor that is a number is as it is. An axis of
    several factors, such as rows of a batch of sentences, has padding inside. Of an input that is
    `read_dense` kernels read the caller's array as it lies, whose rows are copied nowhere.

    `others` are shapes of other ranks that an output has at other sizes. A graph's port has none:
    they are those of several programs together, of which `shape` is the largest.
    """

    name: str
    dtype: DType
    shape: tuple[Dimension, ...]
    padded: PaddedShape
    others: tuple[tuple[Dimension, ...], ...] = ()
    read_dense: bool = False

    @property
    def type(self) -> TensorType:
        """The type of the graph's value, padding included."""
        return TensorType.of(self.dtype, self.padded)

    @property
    def greatest(self) -> TensorType:
        """The true type at the maximum sizes."""
        return TensorType(self.dtype, tuple(bounds_of(size)[1] for size in self.shape))

    @property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols that its shape depends on."""
        return symbols_in(self.shape)

    @property
    def rank(self) -> int:
        """The most axes that it has."""
        return max(map(len, (self.shape, *self.others)))

    @property
    def is_dynamic(self) -> bool:
        """Whether sizes decide its shape."""
        return bool(self.symbols or self.others)

    def text(self, ranges: Ranges) -> str:
        """The port where symbols have these ranges of sizes, by name."""
        texts = (
            f"{self.dtype}[{', '.join(dimension_text(d, ranges) for d in shape)}]"
            for shape in (self.shape, *self.others)
        )
        return " or ".join(dict.fromkeys(texts))

    def __str__(self) -> str:
        return self.text({})


@frozen
class AxisSource:
    """A symbol that is the extent of an input's axis."""

    symbol: Symbol
    input: str
    axis: int

    @property
    def place(self) -> str:
        """Where the symbol is read."""
        return f"axis {self.axis} of input {self.input!r}"


@frozen
class ValueSource:
    """A symbol that an integer argument holds: its element `position`, in row-major order."""

    symbol: Symbol
    input: str
    position: int

    @property
    def place(self) -> str:
        """Where the symbol is read."""
        return f"element {self.position} of input {self.input!r}"


@frozen
class ResultSource:
    """A symbol that the graph computes: element `position` of its i64 output `output`, no port.

    It is known after the run, and may stand in the shapes of outputs only.
    """

    symbol: Symbol
    output: str
    position: int

    @property
    def place(self) -> str:
        """Where the symbol is read."""
        return f"element {self.position} of output {self.output!r}"


Source: TypeAlias = AxisSource | ValueSource | ResultSource


@frozen
class Equality:
    """Two dimensions that must be equal at run time; `reason` says who asks for it."""

    left: Dimension
    right: Dimension
    reason: str


@frozen
class Check:
    """A condition that the graph computes: every element of its i64 output `output`, no port, is 0.

    `operand` is the model's name of what the condition is about: an input, or a value that the
    graph computes. `reason` goes on where "input 'axes' is [2]" ends: what the build was made for,
    and which node asks for it. It is known after the run, whose results are not to be used where
    it does not hold; the graph reads and writes no memory but its own then, either.
    """

    output: str
    operand: str
    reason: str

    @property
    def message(self) -> str:
        """What is wrong where it does not hold, and of which value, if the model has a name for it:
        those of values that the importer has made begin with %."""
        is_named = not self.operand.startswith("%")
        return f"{self.reason} ({self.operand!r} says so)" if is_named else self.reason


@frozen
class Signature:
    """Ports in the model's order, the symbols' sources, and what must hold of them.

    Without `sizes` the graph has no input `SIZES`: all shapes are known, and there are checks.
    `ranges` are the sizes of symbols that must be within one of several: (minimum, maximum) each,
    by the symbol's name, in order. A graph has none: they are those of several programs together.
    """

    inputs: tuple[SizedPort, ...]
    outputs: tuple[SizedPort, ...]
    sources: tuple[Source, ...]
    sizes: tuple[Dimension, ...]
    equalities: tuple[Equality, ...] = ()
    checks: tuple[Check, ...] = ()
    ranges: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether the model is static: no size is read, nothing is known only in a run."""
        return not (self.sources or self.sizes or self.equalities or self.checks)

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """All symbols, in the order of their sources."""
        return tuple(dict.fromkeys(source.symbol for source in self.sources))

    def __repr__(self) -> str:
        return f"<Signature {'; '.join(str(self).splitlines())}>"

    def __str__(self) -> str:
        """Inputs, outputs and what must hold, a line each: `input ids: i64[batch:1..4, 8]`."""
        lines = [f"input {port.name}: {self.port_text(port)}" for port in self.inputs]
        lines += [f"output {port.name}: {self.port_text(port)}" for port in self.outputs]
        lines += [f"where {item.left} = {item.right}" for item in self.equalities]
        return "\n".join(lines)

    def port_text(self, port: SizedPort) -> str:
        """A port with the sizes that it may have: `f32[batch:1|4..8, 3]`."""
        return port.text(dict(self.ranges))


def fixed_signature(
    inputs: Iterable[tuple[str, TensorType]], outputs: Iterable[tuple[str, TensorType]]
) -> Signature:
    """The signature of a static model: no symbols, and arrays that are their own places."""

    def ports(types: Iterable[tuple[str, TensorType]]) -> tuple[SizedPort, ...]:
        return tuple(
            SizedPort(name, type.dtype, type.shape, unpadded_shape(type.shape))
            for name, type in types
        )

    return Signature(ports(inputs), ports(outputs), (), ())


def dimension_text(dimension: Dimension, ranges: Ranges | None = None) -> str:
    """A dimension as signatures print it, a symbol with its bounds: `batch:1..4`."""
    symbol = dimension.symbol if isinstance(dimension, Size) else None
    if symbol is None:
        return str(dimension)
    parts = (ranges or {}).get(symbol.name, ((symbol.low, symbol.high),))
    return f"{symbol.name}:{ranges_text(parts)}"


def ranges_text(ranges: Sequence[tuple[int, int]]) -> str:
    """Sizes as they are given to a build: `1|4..8`."""
    return "|".join(str(low) if low == high else f"{low}..{high}" for low, high in ranges)
