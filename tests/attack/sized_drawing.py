"""A drawn ONNX model some sizes of whose inputs are symbols: each node is run at several sizes.

As in `drawn_model`, but every value is an array per sample of the sizes. A node is kept if
onnxruntime runs it at all of them, so that whatever is drawn has a meaning at each.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.attack.drawn_model import (
    EXTENTS,
    Array,
    Drawing,
    Drawn,
    is_exact,
    is_sensible,
    model_proto,
    run_session,
)

OPSET = 23
OPEN = (6, 9, 10, 12, 14, 15, 18, 19, 21, 22, 33, 37, 65)
"""Greatest sizes of symbols: no fixed axis of an input is drawn so long."""
MOST_OF_ALL = 1200  # product of the greatest sizes
SAMPLES = 5
_OPEN_SHARE = 0.45
_FIRST_OPEN_SHARE = 0.75
_CRASHES = frozenset(("Einsum", "LSTM", "GRU", "RNN"))
"""What onnxruntime does with these operators where an operand has no elements."""
_WINDOWS = frozenset("AveragePool Conv ConvInteger LpPool MaxPool QLinearConv".split())
"""Operators that are refused where a window may be longer than what it goes over."""

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Bounds:
    """A symbol's name and its least and greatest size."""

    name: str
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


@dataclass(frozen=True, slots=True)
class SizedDrawn(Drawn):
    """A model with symbols, and onnxruntime's value of each of its names at each of the sizes.

    `values` are those at the greatest sizes, which are the first sample.
    """

    symbols: tuple[Bounds, ...] = ()
    sizes: tuple[Sizes, ...] = ()
    samples: tuple[Mapping[str, Array], ...] = ()

    def axes(self, name: str) -> tuple[int | str, ...]:
        """The extents of a value: numbers, names of symbols, or a name of its own."""
        arrays = [sample[name] for sample in self.samples]
        return tuple(self._axis(name, axis, arrays) for axis in range(arrays[0].ndim))

    def _axis(self, name: str, axis: int, arrays: Sequence[Array]) -> int | str:
        found: list[int] = [array.shape[axis] for array in arrays]
        if len(set(found)) == 1:
            return found[0]
        for symbol in self.symbols:
            if found == [sizes[symbol.name] for sizes in self.sizes]:
                return symbol.name
        return f"{name}_{axis}"

    def shapes(self) -> dict[str, tuple[str]]:
        """Bounds of all symbols that inputs have, as a build takes them.

        Where the model was cut a value between two nodes has become an input, whose sizes may be
        no symbol: its bounds are the sizes that there are.
        """
        known = {symbol.name: str(symbol) for symbol in self.symbols}
        result: dict[str, tuple[str]] = {}
        for name in self.inputs:
            for axis, size in enumerate(self.axes(name)):
                if isinstance(size, str):
                    found = [sample[name].shape[axis] for sample in self.samples]
                    result[size] = (known.get(size, f"{min(found)}..{max(found)}"),)
        return result

    def calls(self) -> list[dict[str, Array]]:
        """The arguments of each sample."""
        return [{name: sample[name] for name in self.inputs} for sample in self.samples]

    def proto(self) -> onnx.ModelProto:
        return model_proto(
            self.nodes,
            {name: self.values[name] for name in self.inputs},
            dict.fromkeys(self.outputs),
            {name: self.values[name] for name in self.constants},
            {name: self.axes(name) for name in self.inputs},
            OPSET,
        )


def draw_bounds(rng: random.Random) -> tuple[Bounds, ...]:
    """One to three symbols; few may be 0."""
    names = rng.sample(("batch", "seq", "n", "height", "time"), rng.choice((1, 2, 2, 2, 3)))
    while True:
        highs = rng.sample(OPEN, len(names))
        product = 1
        for high in highs:
            product *= high
        if product <= MOST_OF_ALL:
            break
    lows = [rng.choice((0, 1, 1, 1, 1, 1, 2, 3, high - 1)) for high in highs]
    return tuple(Bounds(*symbol) for symbol in zip(names, lows, highs, strict=True))


def draw_sizes(rng: random.Random, symbols: Sequence[Bounds]) -> tuple[dict[str, int], ...]:
    """The greatest sizes, the least, and some between."""
    between = [
        {symbol.name: rng.randint(symbol.low, symbol.high) for symbol in symbols}
        for _ in range(SAMPLES - 2)
    ]
    ends = [{s.name: s.high for s in symbols}, {s.name: s.low for s in symbols}]
    return (*ends, *between)


@dataclass(slots=True)
class SizedDrawing(Drawing):
    """The model so far; `samples` are its values at `sizes`, of which the first are greatest."""

    symbols: tuple[Bounds, ...] = ()
    sizes: tuple[Sizes, ...] = ()
    samples: list[dict[str, Array]] = field(default_factory=list)

    @staticmethod
    def of(rng: random.Random) -> SizedDrawing:
        """An empty drawing with symbols and sizes."""
        symbols = draw_bounds(rng)
        sizes = draw_sizes(rng, symbols)
        return SizedDrawing(rng, symbols=symbols, sizes=sizes, samples=[{} for _ in sizes])

    def extent(self, among: Sequence[int] = EXTENTS) -> int:
        if self.rng.random() < (_OPEN_SHARE if self.inputs else _FIRST_OPEN_SHARE):
            return self.rng.choice(self.symbols).high
        return self.rng.choice(among)

    def least(self, name: str, axis: int) -> int:
        """The smallest size of an axis in any sample."""
        return min(int(sample[name].shape[axis]) for sample in self.samples)

    def varies(self, name: str) -> list[int]:
        """The axes whose sizes are not the same in all samples."""
        shapes = [sample[name].shape for sample in self.samples]
        return [axis for axis in range(len(shapes[0])) if len({s[axis] for s in shapes}) > 1]

    def is_open(self, array: Array) -> bool:
        """Whether an axis is as long as a symbol is at most."""
        return any(symbol.high in array.shape for symbol in self.symbols)

    def constant(self, array: Array, *, exact: bool = False) -> str:
        """A new initializer; an input where the array has the extent of a symbol."""
        if self.is_open(array):
            return self.input(array, exact=exact)
        return super(SizedDrawing, self).constant(array, exact=exact)

    def input_of(self, arrays: Sequence[Array], *, exact: bool = False) -> str:
        """A new input with these contents, one per sample."""
        name = f"x{len(self.inputs)}"
        for sample, array in zip(self.samples, arrays, strict=True):
            sample[name] = array
        return self.input(arrays[0], exact=exact)

    def _keep(self, name: str, array: Array, exact: bool) -> str:
        first, *others = self.samples
        first[name] = array
        for sample, sizes in zip(others, self.sizes[1:], strict=True):
            if name not in sample:  # an input or a constant: results are there already
                sample[name] = self._part(array, sizes)
        exact = exact and all(is_exact(sample[name]) for sample in self.samples)
        return super(SizedDrawing, self)._keep(name, array, exact)

    def _part(self, array: Array, sizes: Sizes) -> Array:
        """As much of the array as there is at these sizes, from anywhere in it."""
        highs = {symbol.high: symbol.name for symbol in self.symbols}
        cut: list[slice] = []
        for extent in array.shape:
            size = sizes[highs[extent]] if extent in highs else extent
            start = self.rng.randint(0, extent - size)
            cut.append(slice(start, start + size))
        return array[tuple(cut)].copy()

    def _results(self, made: onnx.NodeProto, read: set[str]) -> list[Array] | None:
        fixed = {name: self.values[name] for name in read if name in self.constants}
        used = [
            {name: sample[name] for name in sorted(read) if name not in fixed}
            for sample in self.samples
        ]
        if made.op_type in _CRASHES and not all(a.size for call in used for a in call.values()):
            return None
        axes = {name: self._declared(name) for name in used[0]}
        model = model_proto([made], used[0], dict.fromkeys(made.output), fixed, axes, OPSET)
        try:
            found = run_session(model, used, optimised=False)
        except Exception:  # noqa: BLE001  # onnxruntime's errors have no common base
            return None
        first, *others = found
        if not all(map(is_sensible, first)) or not all(
            is_sensible(value, empty=True) for values in others for value in values
        ):
            return None
        if made.op_type in _WINDOWS and not all(v.size for values in others for v in values):
            return None
        if not all(map(self._is_trusted, [model] * len(used), used, found)):
            return None
        for sample, values in zip(self.samples, found, strict=True):
            sample.update(zip(made.output, values, strict=True))
        return first

    @staticmethod
    def _is_trusted(
        model: onnx.ModelProto, call: Mapping[str, Array], found: Sequence[Array]
    ) -> bool:
        """Of tensors without elements onnxruntime makes anything: onnx's evaluator must agree."""
        if all(array.size for array in call.values()):
            return True
        try:
            with warnings.catch_warnings(action="ignore"):  # of means of nothing
                wanted = ReferenceEvaluator(model).run(None, dict(call))
        except Exception:  # noqa: BLE001  # it has no common base of errors either
            return False
        return all(
            value.shape == np.shape(want) and np.allclose(value, want, atol=1e-3, equal_nan=True)
            for value, want in zip(found, wanted, strict=True)
        )

    def _declared(self, name: str) -> list[int | str]:
        varies = self.varies(name)
        return [
            f"{name}_{axis}" if axis in varies else extent
            for axis, extent in enumerate(self.shape(name))
        ]

    def finished(self) -> SizedDrawn:
        drawn = super(SizedDrawing, self).finished()
        return SizedDrawn(
            drawn.nodes,
            drawn.inputs,
            drawn.outputs,
            drawn.constants,
            drawn.values,
            drawn.exact,
            self.symbols,
            self.sizes,
            tuple(self.samples),
        )
