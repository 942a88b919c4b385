"""Types of the model's inputs: declared shapes, completed by the extents that the user gives."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from onnx import ValueInfoProto

from tunefarm.compiler.errors import (
    ImportModelError,
    ShapeError,
    UnsupportedOperatorError,
    warn_of_declared,
)
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.symbol_names import expression_names, expression_size, usual_bounds
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.types import extents
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.extents import Extent, FixedInput, Given
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import PaddedShape, true_shape
from tunefarm.compiler.types.sizes import Dimension, Symbol, bounds_of, static_shape
from tunefarm.compiler.types.tensor_type import Array, TensorType

Declared: TypeAlias = tuple[int | str, ...] | None
"""A shape with a symbol or "?" where the extent is not known; None where there is no shape."""
GivenShape: TypeAlias = tuple[int | Extent, ...]


@frozen
class InputType:
    """An input's type at the bounds of its symbols, and its axes if it has any."""

    type: TensorType
    dims: PaddedShape | None = None

    @property
    def sizes(self) -> tuple[Dimension, ...]:
        """Its shape, of which symbols may be a part."""
        return self.type.shape if self.dims is None else true_shape(self.dims)


def input_types(
    inputs: Sequence[ValueInfoProto],
    shapes: Mapping[str, Sequence[Given]],
    allowance: ResourceBudget,
) -> dict[str, InputType]:
    """The type of every input; `shapes` has extents by input, or a single one by symbol.

    A symbol that is fixed or bounded once is so for all inputs. Raises ImportModelError for a name
    in `shapes` that neither an input nor a symbol has and for a shape that contradicts the declared
    one, ShapeError for dimensions that stay unknown.
    """
    declared, symbols = _symbols_of(inputs, shapes)
    sizes = symbols.sizes()
    types: dict[str, InputType] = {}
    unresolved: list[str] = []
    for name, (number, _) in declared.items():
        dtype = dtype_of(number, f"input {name!r}")
        known = symbols.known_dimensions(name, sizes)
        if known is None:
            unresolved.append(name)
        else:
            types[name] = input_type(name, dtype, known, allowance)
    if unresolved:
        raise _open_error(unresolved, symbols, sizes)
    return types


def _symbols_of(
    inputs: Sequence[ValueInfoProto], shapes: Mapping[str, Sequence[Given]]
) -> tuple[dict[str, tuple[int, Declared]], _Symbols]:
    """What the inputs declare, and what the user says of it."""
    declared = {info.name: _declared(info) for info in inputs}
    missing = [name for name, shape in shapes.items() if shape is None]
    if missing:
        raise ShapeError(f"{missing[0]!r} is no optional, and has a shape")
    given = {name: tuple(map(extents.extent_of, shape)) for name, shape in shapes.items()}
    symbols = _Symbols({name: shape for name, (_, shape) in declared.items()})
    for name, shape in sorted(given.items(), key=lambda item: item[0] not in declared):
        symbols.give(name, shape)
    return declared, symbols


def fixed_array(info: ValueInfoProto, given: FixedInput) -> Array:
    """The contents of an input that is fixed, in the type and shape that the model declares.

    Raises ImportModelError for a value that is no value of that type, and for one of another shape.
    """
    name, array = info.name, given.array
    number, declared = _declared(info)
    dtype = dtype_of(number, f"input {name!r}")
    is_text = array.dtype.kind in "US"
    fits = is_text == (dtype is DType.STRING)
    if fits:
        with np.errstate(all="ignore"):
            found = array.astype(object if is_text else dtype.numpy)
        fits = is_text or not dtype.is_integer or np.array_equal(found, array)
    if not fits:
        raise ImportModelError(f"input {name!r} is of {dtype}, and {given} is no value of it")
    if declared is None:
        return found
    if found.size == 1 and len(declared) != found.ndim:
        found = found.reshape((1,) * len(declared))
    pairs = zip(found.shape, declared, strict=False)
    if len(declared) != found.ndim or any(isinstance(b, int) and a != b for a, b in pairs):
        raise ShapeError(
            f"input {name!r} has the shape {_text(declared)}, and the value given has "
            f"{_text(found.shape)}"
        )
    return found


def named_dimensions(
    inputs: Sequence[ValueInfoProto], types: Mapping[str, InputType]
) -> dict[str, Dimension]:
    """The sizes that inputs give to dimensions with names; none where they give several."""
    found: dict[str, list[Dimension]] = {}
    for info in inputs:
        item, dimensions = types[info.name], _declared(info)[1] or ()
        shape = item.type.shape if item.dims is None else true_shape(item.dims)
        for dimension, size in zip(dimensions, shape, strict=False):
            if isinstance(dimension, str) and dimension != "?":
                found.setdefault(dimension, []).append(size)
    return {name: sizes[0] for name, sizes in found.items() if sizes.count(sizes[0]) == len(sizes)}


def result_dimensions(
    infos: Iterable[ValueInfoProto],
    inputs: Iterable[ValueInfoProto],
    shapes: Mapping[str, Sequence[Given]],
) -> dict[str, Dimension]:
    """What `shapes` says of dimensions that results (`infos`) name, and no input does."""
    named = names_of_results(infos, inputs)
    found: dict[str, Dimension] = {}
    for name, shape in shapes.items():
        if name in named and len(shape) == 1:
            extent = extents.extent_of(shape[0])
            found[name] = extent if isinstance(extent, int) else _size(extents.named(extent, name))
    return found


def names_of_results(
    infos: Iterable[ValueInfoProto], inputs: Iterable[ValueInfoProto]
) -> dict[str, None]:
    """The names and the dimensions of results that no input has, in their order."""
    of_inputs = {dimension for info in inputs for dimension in _names(info)}
    return {d: None for info in infos for d in _names(info) if d not in of_inputs}


def _names(info: ValueInfoProto) -> list[str]:
    """The input and its named dimensions."""
    if info.type.WhichOneof("value") != "tensor_type":
        return [info.name]
    return [info.name, *(item.dim_param for item in info.type.tensor_type.shape.dim)]


class _Symbols:
    """The symbols of a model's inputs, and what the user says of them."""

    def __init__(self, declared: Mapping[str, Declared]) -> None:
        self.declared = dict(declared)
        self._extents: dict[str, int | Extent] = {}
        self._users: dict[str, str] = {}  # the user's names of symbols
        dimensions = [d for shape in declared.values() for d in shape or ()]
        self.names = list(dict.fromkeys(d for d in dimensions if isinstance(d, str) and d != "?"))

    def give(self, name: str, shape: GivenShape) -> None:
        """Take what the user says of an input, or of a symbol."""
        called = [symbol for symbol, user in self._users.items() if user == name]
        if name in self.declared:
            self._give_shape(name, shape)
        elif called and len(shape) == 1:
            for symbol in called:
                self._give_symbol(symbol, shape[0])
        elif name in self.names and len(shape) == 1:
            self._give_symbol(name, shape[0])
        else:
            raise self._unknown(name, shape)

    def _give_shape(self, name: str, shape: GivenShape) -> None:
        dimensions = self.declared[name] or ("?",) * len(shape)
        if len(dimensions) != len(shape):
            raise ImportModelError(
                f"input {name!r} has {len(dimensions)} dimensions {_text(dimensions)}, "
                f"and the shape given has {len(shape)}: {_text(shape)}",
                hint=self._also_symbol(name),
            )
        known: list[int | str] = []
        for axis, (dimension, extent) in enumerate(zip(dimensions, shape, strict=True)):
            if dimension == 0 and extent != 0:  # what some exporters write for any size
                known.append(self._named(f"{name}_{axis}", extent))
            elif isinstance(dimension, int):
                if dimension != extent:
                    raise ImportModelError(
                        f"input {name!r} has the shape {_text(dimensions)}, "
                        f"which {_text(shape)} contradicts"
                    )
                known.append(dimension)
            elif dimension == "?":
                known.append(self._named(f"{name}_{axis}", extent))
            elif self._is_apart(dimension, extent):
                warn_of_declared(
                    f"axis {axis} of input {name!r} is called {dimension!r}, as that of another "
                    f"input is, and the shapes given say that they differ"
                )
                known.append(self._named(f"{name}_{axis}", extent))
            else:
                self._give_symbol(dimension, extent)
                known.append(dimension)
        self.declared[name] = tuple(known)

    def _is_apart(self, symbol: str, extent: int | Extent) -> bool:
        """Whether an input's size cannot be the one that the symbol has in another input: files
        have one name for any width. Two numbers say so, and two names."""
        before, called = self._extents.get(symbol), self._users.get(symbol)
        if isinstance(extent, int):
            return before != extent if isinstance(before, int) else called is not None
        if isinstance(before, int):
            return extent.name not in ("", symbol)
        return None not in (before, called) and extent.name not in ("", called)

    def _named(self, name: str, extent: int | Extent) -> int | str:
        """What stands for a dimension without a name of its own."""
        if isinstance(extent, int):
            return extent
        extent = extents.named(extent, name)
        self._settle(extent.name, extent)
        return extent.name

    def _give_symbol(self, symbol: str, extent: int | Extent) -> None:
        """Take what the user says of a symbol of the model, and what it is called."""
        if isinstance(extent, Extent) and extent.name:
            self._call(symbol, extent.name)
        called = self._users.get(symbol, symbol)
        self._settle(symbol, extent if isinstance(extent, int) else replace(extent, name=called))

    def _call(self, symbol: str, name: str) -> None:
        """A symbol of the model has another name from now on; equal names are one size."""
        before = self._users.get(symbol, name)
        if before != name:
            raise ImportModelError(f"the symbol {symbol!r} is named {before!r} and {name!r}")
        if name == symbol:
            return
        if name in self.names:
            raise ImportModelError(
                f"the symbol {symbol!r} cannot be named {name!r}: the model has another one of "
                "that name",
                hint=f"did you mean {symbol!r}? The model's symbols: {', '.join(self.names)}",
            )
        self._users[symbol] = name
        known = self._extents.get(symbol)
        if isinstance(known, Extent):
            self._extents[symbol] = replace(known, name=name)
        for other, user in self._users.items():
            if user == name and other in self._extents:
                self._settle(symbol, self._extents[other])

    def _settle(self, symbol: str, extent: int | Extent) -> None:
        before = self._extents.get(symbol)
        for other, user in self._users.items():  # those that the user calls the same
            if before is None and other != symbol and user == self._users.get(symbol):
                before = self._extents.get(other)
        if isinstance(extent, Extent) and extent.low is None:
            self._extents.setdefault(symbol, extent)
            return
        if isinstance(before, Extent) and before.low is None:
            before = None
        if before is not None and before != extent:
            raise ImportModelError(
                f"the shapes given fix the dimension {symbol!r} to {_extent_text(before)} "
                f"and to {_extent_text(extent)}",
                hint=f"give it once, by its name: --shape {shlex.quote(f'{symbol}={extent}')}",
            )
        self._extents[symbol] = extent

    def _also_symbol(self, name: str) -> str:
        """How to give bounds to a symbol that has the name of an input."""
        for other, dimensions in self.declared.items():
            if dimensions is not None and name in dimensions:
                shape = ",".join(f"{d}:1..8" if d == name else str(d) for d in dimensions)
                return (
                    f"for the symbol {name!r} give the shape of an input: --shape {other}={shape}"
                )
        return ""

    def _unknown(self, name: str, shape: GivenShape) -> ImportModelError:
        if name in self.names:
            return ImportModelError(
                f"{name!r} is a symbol and takes one size, not {_text(shape)}",
                hint=f"for example --shape {name}=1..8",
            )
        inputs = list(self.declared)
        able = [*inputs, *self.names]
        nearest = difflib.get_close_matches(name, able, n=1) or [
            other for other in able if other.startswith(name) or name.startswith(other)
        ]
        known_names = ", ".join(map(repr, inputs)) or "none"
        symbols = f"; its symbols: {', '.join(map(repr, self.names))}" if self.names else ""
        return ImportModelError(
            f"the model has no input {name!r} to give a shape to "
            f"(its inputs: {known_names}{symbols})",
            hint=f"did you mean {nearest[0]!r}?" if nearest else "",
        )

    def said(self, dimension: int | str) -> int | str | Extent:
        """What the user says of a declared dimension; itself where nothing is said."""
        return self._extents.get(dimension, dimension) if isinstance(dimension, str) else dimension

    def sizes(self) -> dict[str, Dimension]:
        """The symbols whose bounds are known, and what is computed of them."""
        plain = {symbol: _size(extent) for symbol, extent in self._extents.items()}
        for text in self.names:
            names = expression_names(text)
            if text in plain or not names or not names <= plain.keys():
                continue
            size = expression_size(text, plain)
            if size is not None:
                plain[text] = size
        return plain

    def known_dimensions(
        self, name: str, sizes: Mapping[str, Dimension]
    ) -> tuple[Dimension, ...] | None:
        """An input's dimensions, None where one of them is not known."""
        dimensions = self.declared[name]
        if dimensions is None:
            return None
        found = [sizes.get(d) if isinstance(d, str) else d for d in dimensions]
        known = tuple(dimension for dimension in found if dimension is not None)
        return known if len(known) == len(dimensions) else None


def _size(extent: int | Extent) -> Dimension:
    if isinstance(extent, int):
        return extent
    low, high = extent.low, extent.high
    if low is None or high is None:
        usual = usual_bounds(extent.name)
        if usual is None:
            raise ImportModelError(
                f"the symbol {extent.name!r} has no bounds, and no usual ones",
                hint=f"give it some: {extent.name}:1..8",
            )
        low, high = usual
    return Symbol.of(extent.name, low, high)


def _greatest(shape: Iterable[Dimension]) -> tuple[int, ...]:
    return tuple(bounds_of(dimension)[1] for dimension in shape)


def _declared(info: ValueInfoProto) -> tuple[int, Declared]:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        name = (kind or "no").removesuffix("_type")
        raise UnsupportedOperatorError(
            f"input {info.name!r} has {name} type, and only tensors are supported"
        )
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    dimensions: list[int | str] = []
    for dimension in tensor.shape.dim:
        if dimension.WhichOneof("value") == "dim_value" and dimension.dim_value != -1:
            dimensions.append(int(dimension.dim_value))
        else:
            dimensions.append(dimension.dim_param or "?")
    return tensor.elem_type, tuple(dimensions)


def input_type(
    name: str, dtype: DType, shape: tuple[Dimension, ...], allowance: ResourceBudget
) -> InputType:
    """The type of an input of this shape. Raises ImportModelError for one that cannot be."""
    type = TensorType(dtype, _greatest(shape))
    allowance.check_array(f"input {name!r}", type.shape, type.dtype.bytes)
    if any(extent < 0 for extent in type.shape):
        raise ShapeError(f"input {name!r} has a negative dimension: {_text(type.shape)}")
    if static_shape(shape) is not None:
        return InputType(type)
    return InputType(
        type, tuple(((true, extent),) for true, extent in zip(shape, type.shape, strict=True))
    )


def _open_error(
    names: Sequence[str], symbols: _Symbols, sizes: Mapping[str, Dimension]
) -> ShapeError:
    """The dimensions of these inputs that nobody has given a size, each once, and what to type."""
    texts: list[str] = []
    whole: dict[str, Declared] = {}  # inputs whose shape says it best
    named = _open_symbols(names, symbols, sizes)
    for name in names:
        declared = symbols.declared[name]
        if declared is None:
            texts.append(f"{name!r} has no shape at all")
            whole[name] = None
            continue
        axes = [str(axis) for axis, dimension in enumerate(declared) if dimension == "?"]
        if axes:
            texts.append(f"{'axis' if len(axes) == 1 else 'axes'} {', '.join(axes)} of {name!r}")
            whole[name] = declared
    for symbol, inputs in named.items():
        more = f" and {len(inputs) - 2} more" if len(inputs) > 2 else ""
        texts.append(f"{symbol!r} of {', '.join(map(repr, inputs[:2]))}{more}")
        if symbol in symbols.declared or not extents.is_name(symbol):
            whole[inputs[0]] = symbols.declared[inputs[0]]
    fixed, bounded = [], []
    for name, declared in whole.items():
        known = [symbols.said(dimension) for dimension in declared or ()]
        some = ",".join(str(_one(dimension)) for dimension in known) or "D0,D1,..."
        fixed.append(f"{name}={some}")
        bounded.append(f"{name}={','.join(map(_bounded, known)) or some}")
    there = {dimension for declared in whole.values() for dimension in declared or ()}
    for symbol in named:
        if symbol not in there:
            fixed.append(f"{symbol}=1")
            bounded.append(f"{symbol}={_bounded(symbol)}")
    first, second = (
        " ".join(shlex.join(["--shape", text]) for text in texts) for texts in (fixed, bounded)
    )
    return ShapeError(
        f"the sizes of these dimensions must be known: {'; '.join(texts)}",
        hint=f"fix them, as in {first}; or give bounds, as in {second}",
    )


def _open_symbols(
    names: Iterable[str], symbols: _Symbols, sizes: Mapping[str, Dimension]
) -> dict[str, list[str]]:
    """The symbols of inputs that have no size, with these inputs; what is computed of them not."""
    found: dict[str, list[str]] = {}
    for name in names:
        for dimension in dict.fromkeys(symbols.declared[name] or ()):
            if isinstance(dimension, str) and dimension != "?" and dimension not in sizes:
                found.setdefault(dimension, []).append(name)
    return {s: inputs for s, inputs in found.items() if not expression_names(s) & found.keys()}


def open_symbols(
    inputs: Sequence[ValueInfoProto], shapes: Mapping[str, Sequence[Given]]
) -> tuple[str, ...]:
    """The symbols of inputs that nobody has given a size. Raises as `input_types` does."""
    declared, symbols = _symbols_of(inputs, shapes)
    return tuple(_open_symbols(declared, symbols, symbols.sizes()))


def most_open_axes(inputs: Iterable[ValueInfoProto], symbols: Collection[str]) -> int:
    """The most axes of one input that have these symbols."""
    return max(sum(d in symbols for d in _declared(info)[1] or ()) for info in inputs)


def shapes_for(
    symbols: Mapping[str, int | Extent],
    inputs: Sequence[ValueInfoProto],
    shapes: Mapping[str, Sequence[Given]],
) -> dict[str, Sequence[Given]]:
    """What gives symbols extents: each by its name, or in the shape of an input that has it where
    an input has the name; nothing for one of which the user gives all such shapes."""
    declared = {info.name: _declared(info)[1] or () for info in inputs}
    found: dict[str, Sequence[Given]] = {}
    for symbol, extent in symbols.items():
        if symbol not in declared:
            found[symbol] = (extent,)
            continue
        for name, dimensions in declared.items():
            if symbol in dimensions and name not in shapes and "?" not in dimensions:
                others = (Extent(d) if isinstance(d, str) else d for d in dimensions)
                before = found.get(name, tuple(others))
                pairs = zip(dimensions, before, strict=True)
                found[name] = tuple(extent if d == symbol else old for d, old in pairs)
                break
    return found


def _one(dimension: int | str | Extent) -> int | Extent:
    return 1 if isinstance(dimension, str) else dimension


def _bounded(dimension: int | str | Extent) -> str:
    """An extent for a dimension, as an example."""
    if not isinstance(dimension, str):
        return str(dimension)
    low, high = usual_bounds(dimension) or (1, 8)
    return f"{low}..{high}"


def _extent_text(extent: int | Extent) -> str:
    return str(extent) if isinstance(extent, int) else f"{extent.low}..{extent.high}"


def _text(dimensions: Iterable[object]) -> str:
    return f"[{', '.join(map(str, dimensions))}]"
