"""RunTimeSizes: what an importer knows of the sizes that a model leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from compiler.types.dims import Dims, symbols_of_dims, true_shape
from compiler.types.signature import (
    AxisSource,
    Check,
    Equality,
    ResultSource,
    Signature,
    SizedPort,
    Source,
)
from compiler.types.sizes import Dimension, Size, Symbol, symbols_of
from compiler.types.tensor_type import TensorType

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

    def declare(self, source: Source) -> None:
        """Say where a symbol's value comes from; the first source that it gets is kept."""
        if any(known.symbol == source.symbol for known in self.sources):
            return
        self.sources.append(source)
        if isinstance(source, ResultSource):
            self._results.add(source.symbol)

    def declare_axes(self, name: str, dims: Dims) -> None:
        """Symbols that are the extents of an input's axes come from there."""
        for axis, size in enumerate(true_shape(dims)):
            symbol = size.symbol if isinstance(size, Size) else None
            if symbol is not None:
                self.declare(AxisSource(symbol, name, axis))

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

    def late_equalities(self) -> list[Equality]:
        """Those of sizes that the graph computes."""
        return [item for item in self._equalities.values() if self._is_late(item)]

    def _is_late(self, item: Equality) -> bool:
        return bool((symbols_of(item.left) | symbols_of(item.right)) & self._results)

    def signature(
        self,
        inputs: Sequence[tuple[str, TensorType, Dims]],
        outputs: Sequence[tuple[str, TensorType, Dims]],
        checks: tuple[Check, ...] = (),
    ) -> Signature | None:
        """How the graph is called; None where nothing depends on a symbol or is to be checked."""
        if not self.sources and not checks:
            return None
        for _, _, dims in outputs:
            self._number_true_sizes(dims)
        return Signature(
            tuple(_port(*port) for port in inputs),
            tuple(_port(*port) for port in outputs),
            tuple(self.sources),
            tuple(self.sizes),
            tuple(item for item in self._equalities.values() if not self._is_late(item)),
            checks,
        )

    def _number_true_sizes(self, dims: Dims) -> None:
        """Ask for the true sizes of an output, up to which kernels run, if they are known then."""
        for factors in dims:
            for size, _ in factors:
                if isinstance(size, Size) and not any(map(self.is_result, size.symbols)):
                    self.number(size)


def _port(name: str, type: TensorType, dims: Dims) -> SizedPort:
    return SizedPort(name, type.dtype, true_shape(dims), dims)


def symbols_text(dims: Sequence[Dims]) -> str:
    """The symbols that axes depend on, for errors."""
    return _names(symbol for item in dims for symbol in symbols_of_dims(item))


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
