"""RunTimeSizes: what an importer knows of the sizes that a model leaves open."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.types.padded_shape import (
    Axis,
    PaddedShape,
    is_unpadded,
    symbols_of_axes,
    true_shape,
)
from tunefarm.compiler.types.signature import (
    AxisSource,
    Check,
    Equality,
    ResultSource,
    Signature,
    SizedPort,
    Source,
)
from tunefarm.compiler.types.sizes import Dimension, Size, Symbol, symbols_of
from tunefarm.compiler.types.tensor_type import TensorType

MOST_SIZES = 2**16
"""Entries that the vector of sizes is given while the model is imported."""


class RunTimeSizes:
    """The symbols of a model with their sources, the sizes it asks for, and what must be equal."""

    def __init__(self) -> None:
        self.sizes: list[Dimension] = []
        self.sources: list[Source] = []
        self._numbers: dict[Dimension, int] = {}
        self._equalities: dict[tuple[Dimension, Dimension], Equality] = {}
        self._results: set[Symbol] = set()
        self._padded: dict[str, PaddedShape] = {}
        self._late: set[Size] = set()  # that the graph is going to compute

    def declare(self, source: Source) -> None:
        """Say where a symbol's value comes from; the first source that it gets is kept."""
        if any(known.symbol == source.symbol for known in self.sources):
            return
        self.sources.append(source)
        if isinstance(source, ResultSource):
            self._results.add(source.symbol)

    def forget(self, symbols: Iterable[Symbol]) -> None:
        """Take back that symbols are read after the run."""
        gone = frozenset(symbols)
        self.sources = [source for source in self.sources if source.symbol not in gone]

    def declare_axes(self, name: str, dims: PaddedShape) -> None:
        """Symbols that are the extents of an input's axes come from there."""
        for axis, size in enumerate(true_shape(dims)):
            symbol = size.symbol if isinstance(size, Size) else None
            if symbol is not None:
                self.declare(AxisSource(symbol, name, axis))

    def remember(self, name: str, dims: PaddedShape) -> None:
        """What is there of a value; an axis that is only looked at as whole stays padded."""
        before = self._padded.get(name, dims)
        self._padded[name] = tuple(
            old if is_unpadded(new) else new for old, new in zip(before, dims, strict=True)
        )

    def padded(self, signature: Signature) -> dict[str, PaddedShape]:
        """What is there of values, by name, where that follows from the signature's symbols."""
        symbols = set(signature.symbols)
        known = self._padded.items()
        return {name: dims for name, dims in known if symbols_of_axes(dims) <= symbols}

    def is_result(self, symbol: Symbol) -> bool:
        """Whether the graph computes the symbol, so that it is not known before the run."""
        return symbol in self._results

    def number(self, size: Dimension) -> int:
        """The place of a size in the vector of sizes."""
        if size not in self._numbers:
            self._numbers[size] = len(self.sizes)
            self.sizes.append(size)
        return self._numbers[size]

    def block(self, sizes: Sequence[Dimension]) -> int:
        """The first of places that hold these sizes one after the other."""
        if len(sizes) == 1:
            return self.number(sizes[0])
        first = len(self.sizes)
        for start in range(first - len(sizes) + 1):
            if self.sizes[start : start + len(sizes)] == list(sizes):
                return start
        for size in sizes:
            self._numbers.setdefault(size, len(self.sizes))
            self.sizes.append(size)
        return first

    def require_equal(self, left: Dimension, right: Dimension, reason: str) -> None:
        """Two sizes must be equal at run time; `reason` says who asks."""
        if left != right and (right, left) not in self._equalities:
            self._equalities.setdefault((left, right), Equality(left, right, reason))

    @property
    def equality_count(self) -> int:
        """How many pairs of sizes must be equal so far."""
        return len(self._equalities)

    def fixed_sizes(self) -> dict[str, int]:
        """The symbols that must be equal to numbers, by name."""
        found: dict[str, int] = {}
        for item in self._equalities.values():
            for size, number in ((item.left, item.right), (item.right, item.left)):
                symbol = size.symbol if isinstance(size, Size) else None
                if symbol is not None and isinstance(number, int):
                    found[symbol.name] = number
        return found

    def take_equalities(self, first: int) -> list[Equality]:
        """Those from number `first` on, which must be equal no more."""
        taken = list(self._equalities)[first:]
        return [self._equalities.pop(pair) for pair in taken]

    def take_equalities_of(self, symbols: Set[Symbol]) -> list[Equality]:
        """Those of sizes with one of these symbols, which must be equal no more."""
        named = {pair: symbols_of(pair[0]) | symbols_of(pair[1]) for pair in self._equalities}
        return [self._equalities.pop(pair) for pair, found in named.items() if symbols & found]

    def late_equalities(self) -> list[Equality]:
        """Those of sizes that the graph computes."""
        return [item for item in self._equalities.values() if self._is_late(item)]

    def _is_late(self, item: Equality) -> bool:
        return bool((symbols_of(item.left) | symbols_of(item.right)) & self._results)

    def signature(
        self,
        inputs: Sequence[tuple[str, TensorType, PaddedShape]],
        outputs: Sequence[tuple[str, TensorType, PaddedShape]],
        checks: tuple[Check, ...] = (),
    ) -> Signature:
        """How the graph is called."""
        for _, _, dims in outputs:
            for axis in dims:
                self.ask_for(axis)
        return Signature(
            tuple(_port(*port) for port in inputs),
            tuple(_port(*port) for port in outputs),
            tuple(self.sources),
            tuple(self.sizes),
            tuple(item for item in self._equalities.values() if not self._is_late(item)),
            checks,
        )

    def ask_for(self, axis: Axis) -> bool:
        """Ask for the true sizes of an axis, up to which kernels run; whether any is known then."""
        sizes = [size for size, _ in axis if isinstance(size, Size)]
        known = [size for size in sizes if self._settles(size)]
        for size in known:
            self.number(size)
        return bool(known) or not self._late.isdisjoint(sizes)

    def is_known(self, axis: Axis) -> bool:
        """Whether the true sizes of an axis are known before kernels read it."""
        sizes = (size for size, _ in axis if isinstance(size, Size))
        return all(size in self._late or self._settles(size) for size in sizes)

    def late_sizes(self, axes: Iterable[Axis]) -> list[Size]:
        """The sizes of axes that depend on what the graph computes, which it is to tell kernels."""
        declared = {source.symbol for source in self.sources}
        sizes = {size: None for axis in axes for size, _ in axis if isinstance(size, Size)}
        found = [s for s in sizes if s.symbols & self._results and s.symbols <= declared]
        self._late.update(found)
        return found

    def _settles(self, size: Size) -> bool:
        """Whether the arguments say what a size is."""
        declared = {source.symbol for source in self.sources}
        return size.symbols <= declared - self._results


def _port(name: str, type: TensorType, dims: PaddedShape) -> SizedPort:
    return SizedPort(name, type.dtype, true_shape(dims), dims)


def symbols_text(dims: Sequence[PaddedShape], reason: str) -> tuple[str, str]:
    """For errors the symbols that axes depend on, with their bounds, and how to fix them.

    Where the reason names some of them it is about these.
    """
    symbols = sorted({symbol for item in dims for symbol in symbols_of_axes(item)})
    words = set(re.findall(r"\w+", reason))
    text = [symbol for symbol in symbols if symbol.name in words] or symbols
    if not text:
        return "", "fix the sizes that it depends on with --shape"
    bounds = ", ".join(f"{symbol.name}:{symbol.low}..{symbol.high}" for symbol in text)
    names = ", ".join(symbol.name for symbol in text)
    fix = f"fix {names} with --shape, for example --shape {text[0].name}={text[0].high}"
    return f" (dynamic: {bounds})", fix


def sizes_text(sizes: npt.NDArray[np.object_]) -> str:
    """The symbols that integers depend on, for errors."""
    return _names(symbol for size in sizes.reshape(-1).tolist() for symbol in symbols_of(size))


def _names(symbols: Iterable[Symbol]) -> str:
    return ", ".join(sorted({symbol.name for symbol in symbols}))


def object_array(sizes: Sequence[Dimension]) -> npt.NDArray[np.object_]:
    """A vector of sizes."""
    result = np.empty(len(sizes), object)
    result[:] = list(sizes)
    return result
