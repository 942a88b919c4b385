"""The operators of strings: what shapes they give, and what they compute, as onnxruntime does.

Those that only move strings are here for what stands between those that compute: compiled code has
them as well, and moves numbers of words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.strings.expressions import (
    Expression,
    ExpressionError,
    Split,
    between,
    matches,
    runs_of_class,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.sizes import Dimension, product_of, quotient
from tunefarm.compiler.types.string_prefix import StringPort, StringPrefix, StringStep
from tunefarm.compiler.types.structure import strings_of

Array: TypeAlias = npt.NDArray[Any]
Attributes: TypeAlias = Mapping[str, Any]
Shape: TypeAlias = tuple[Dimension | None, ...]
"""None is a size that depends on the strings."""
Run: TypeAlias = Callable[..., tuple[Array, ...]]


class StringOperatorError(ValueError):
    """A node that contradicts its operator's definition, or a form of it that is not supported."""


@frozen
class StringOperator:
    """An operator; `infer` gives the types of its results, `prepare` what runs it.

    One that does not `compute` moves strings, or can be compiled. `takes` names the attributes
    that are the last inputs, and the first `strings` results are strings.
    """

    infer: Callable[[Attributes, Sequence[Shape]], tuple[tuple[DType, Shape], ...]]
    prepare: Callable[[Attributes], Run]
    computes: bool = True
    takes: tuple[str, ...] = ()
    strings: int = 1


def _strings(items: Iterable[object], shape: Sequence[int]) -> Array:
    """Strings as an array of objects."""
    listed = list(items)
    result = np.empty(len(listed), object)
    result[:] = listed
    return result.reshape(tuple(shape))


def _of_strings(*shape: Dimension | None) -> tuple[tuple[DType, Shape], ...]:
    return ((DType.STRING, shape),)


# --- StringNormalizer ---------------------------------------------------------------------------


def _infer_normalizer(attributes: Attributes, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    (shape,) = shapes
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != 1):
        raise StringOperatorError("its input must have the shape [C] or [1, C]")
    action = attributes.get("case_change_action", "NONE")
    if action not in ("LOWER", "UPPER", "NONE"):
        raise StringOperatorError(f"case_change_action={action!r} is not supported")
    language = str(attributes.get("locale", ""))[:2]
    if language in ("tr", "az", "lt"):
        raise StringOperatorError(f"the case of the language {language!r} is not supported")
    return _of_strings(*shape[:-1], None if attributes.get("stopwords") else shape[-1])


def _normalizer(attributes: Attributes) -> Run:
    """Strings in another case, without stopwords; one that is empty where none is left.

    Case changes by single characters, as in C: \u00df stays what it is in upper case.
    """
    action = attributes.get("case_change_action", "NONE")
    is_ascii = attributes.get("locale", "") in ("C", "POSIX")
    change = _CASES[action, is_ascii and action != "NONE"]
    compared = change if action != "NONE" else _CASES["LOWER", is_ascii]
    if attributes.get("is_case_sensitive", 0):
        compared = str
    stopwords = frozenset(map(compared, attributes.get("stopwords", ())))

    def run(array: Array) -> tuple[Array, ...]:
        if not array.size:
            raise InputError("StringNormalizer takes one string at least")
        kept = [change(item) for item in array.flat if compared(item) not in stopwords]
        return (_strings(kept or [""], (*array.shape[:-1], len(kept) or 1)),)

    return run


class _Mapping(dict[int, str]):
    """Characters, by number, with what they become; each is asked for once."""

    def __init__(self, change: Callable[[str], str]) -> None:
        super().__init__()
        self._change = change

    def __missing__(self, code: int) -> str:
        character = chr(code)
        found = self[code] = self._change(character)
        return found


def _lower(character: str) -> str:
    return character.lower()[0]  # the first of two: what the one of two that there is begins with


def _upper(character: str) -> str:
    for found in (character.upper(), character.title()):
        if len(found) == 1:
            return found
    return character


_LOWER, _UPPER = _Mapping(_lower), _Mapping(_upper)
_ASCII_LOWER, _ASCII_UPPER = (
    _Mapping(lambda c: c.lower() if c.isascii() else c),
    _Mapping(lambda c: c.upper() if c.isascii() else c),
)
_CASES: Final[Mapping[tuple[str, bool], Callable[[str], str]]] = {
    ("NONE", False): str,
    ("LOWER", False): lambda text: text.lower() if text.isascii() else text.translate(_LOWER),
    ("UPPER", False): lambda text: text.upper() if text.isascii() else text.translate(_UPPER),
    ("LOWER", True): lambda text: text.lower() if text.isascii() else text.translate(_ASCII_LOWER),
    ("UPPER", True): lambda text: text.upper() if text.isascii() else text.translate(_ASCII_UPPER),
}
"""What changes the case of a string, by action and whether letters of ASCII alone have one."""


# --- Tokenizer ----------------------------------------------------------------------------------

_BEGIN, _END = "\x02", "\x03"


def _infer_tokenizer(attributes: Attributes, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    (shape,) = shapes
    if len(shape) not in (1, 2):
        raise StringOperatorError("its input must have the shape [C] or [N, C]")
    for name in ("mark", "mincharnum", "pad_value"):
        if name not in attributes:
            raise StringOperatorError(f"the attribute {name} is missing")
    if attributes["mincharnum"] < 1:
        raise StringOperatorError("mincharnum must be 1 at least")
    _split(attributes)
    return _of_strings(*shape, None)


def _tokenizer(attributes: Attributes) -> Run:
    """Each string as a row of tokens; rows are filled up to the longest one."""
    split, padding = _split(attributes), attributes["pad_value"]
    first, last = ([_BEGIN], [_END]) if attributes["mark"] else ([], [])

    def run(array: Array) -> tuple[Array, ...]:
        rows = [split(item) for item in array.flat]
        most = max(map(len, rows), default=0)
        if not most:
            return (np.empty((*array.shape, 0), object),)
        items: list[str] = []
        for row in rows:
            items += first
            items += row
            items += last
            items += [padding] * (most - len(row))
        return (_strings(items, (*array.shape, most + len(first) + len(last))),)

    return run


def _split(attributes: Attributes) -> Split:
    least, separators = attributes["mincharnum"], attributes.get("separators")
    expression = attributes.get("tokenexp", "")
    if not separators and not expression:
        raise StringOperatorError("it needs separators or a tokenexp")
    if separators == ("",) or (not separators and expression == "."):
        if least > 1:
            raise StringOperatorError("mincharnum must be 1 where tokens are characters")
        return list
    try:
        if not separators:
            return runs_of_class(expression, least) or matches(Expression(expression), least)
        return between([Expression(each) for each in separators], least)
    except ExpressionError as error:
        shown = separators or expression
        raise StringOperatorError(f"the expression {shown!r} cannot be used: {error}") from error


# --- TfIdfVectorizer ----------------------------------------------------------------------------


_DENSE_ENTRIES = 1 << 20
"""Up to this size, 4 MiB, a table has all keys; beyond it those that exist are searched."""


class _Level:
    """What n-grams of one length begin with, or are.

    A beginning has the number of its place in `keys`, which are of its own beginning and its last
    item, `step` apart; what is none has the number behind these. `numbers` are those of n-grams, -1
    for what is only a beginning, or none.
    """

    def __init__(self, keys: Sequence[int], numbers: Sequence[int], step: int) -> None:
        self.numbers = np.array([*numbers, -1], np.int32)
        self._count, self._keys = len(keys), np.array(keys or [-1], np.int64)
        self._dense: npt.NDArray[np.int32] | None = None
        size = (keys[-1] // step + 2) * step if keys else step  # its last entries are of no key
        if size <= _DENSE_ENTRIES:
            self._dense = np.full(size, self._count, np.int32)
            self._dense[list(keys)] = range(self._count)

    def find(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The numbers of beginnings."""
        if self._dense is not None:
            return self._dense.take(keys, mode="clip")
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, at, self._count)


class Grams:
    """The n-grams of a TfIdfVectorizer: items, in a tuple, with their numbers; the longest that
    count, and the place of each in the result."""

    def __init__(
        self, numbers: Mapping[tuple[Any, ...], int], shortest: int, longest: int, places: Array
    ) -> None:
        self.shortest, self.longest, self.places = shortest, longest, places
        items = dict.fromkeys(item for gram in numbers for item in gram)
        self._items = {item: number for number, item in enumerate(items)}
        self._levels = list[_Level]()
        before: dict[tuple[Any, ...], int] = {(): 0}
        for length in range(1, longest + 1):
            begun = dict.fromkeys(gram[:length] for gram in numbers if len(gram) >= length)
            keyed = {self._key(before[g[:-1]], self._items[g[-1]]): g for g in begun}
            keys = sorted(keyed)
            before = {keyed[key]: number for number, key in enumerate(keys)}
            own = [numbers.get(keyed[key], -1) for key in keys]
            self._levels.append(_Level(keys, own, self._step))

    @property
    def width(self) -> int:
        """How many elements a row of the result has."""
        return int(self.places.max()) + 1

    @property
    def _step(self) -> int:
        """How far the keys of two beginnings lie apart; the last one between is of no item."""
        return len(self._items) + 1

    def _key(self, before: Any, item: Any) -> Any:
        return before * self._step + item

    def found(self, rows: Array, skips: int) -> tuple[Array, Array]:
        """The rows and numbers of those in rows of items, in the order in which onnxruntime meets
        them.

        Up to `skips` items are left out between two of one; one item alone is counted once.
        """
        known = map(self._items.get, rows.ravel().tolist(), repeat(len(self._items)))
        items = np.fromiter(known, np.int64, rows.size).reshape(rows.shape)
        width = rows.shape[1]
        table = np.full((len(rows), skips + 1, width, self.longest), -1, np.int32)
        for skip in range(skips + 1):
            before = np.zeros_like(items)
            for length, level in enumerate(self._levels, 1):
                item = items[:, (length - 1) * (skip + 1) :]
                before = level.find(self._key(before[:, : item.shape[1]].astype(np.int64), item))
                if length >= (self.shortest if skip == 0 else max(2, self.shortest)):
                    table[:, skip, : item.shape[1], length - 1] = level.numbers[before]
        flat = table.ravel()
        at = np.flatnonzero(flat >= 0)
        return at // max(1, flat.size // max(1, len(rows))), flat[at]


def _grams(attributes: Attributes) -> Grams:
    pool = attributes.get("pool_strings", ())
    starts, places = attributes.get("ngram_counts", ()), attributes.get("ngram_indexes", ())
    shortest, longest = (attributes.get(f"{end}_gram_length", 0) for end in ("min", "max"))
    if not pool or not places or min(places) < 0:
        raise StringOperatorError("it needs pool_strings, and ngram_indexes that are positions")
    if not 1 <= shortest <= longest <= len(starts):
        raise StringOperatorError(f"{len(starts)} ngram_counts for {shortest} to {longest} items")
    if attributes.get("max_skip_count", 0) < 0:
        raise StringOperatorError("max_skip_count is negative")
    numbers: dict[tuple[Any, ...], int] = {}
    count = 0
    for length, (start, stop) in enumerate(zip(starts, (*starts[1:], len(pool)), strict=True), 1):
        if not 0 <= start <= stop <= len(pool) or (stop - start) % length:
            raise StringOperatorError(f"items {start} to {stop} are no n-grams of {length}")
        for first in range(start, stop, length):
            if shortest <= length <= longest:
                if tuple(pool[first : first + length]) in numbers:
                    raise StringOperatorError(f"{pool[first : first + length]!r} is there twice")
                numbers[tuple(pool[first : first + length])] = count
            count += 1
    if count > len(places):
        raise StringOperatorError(f"{count} n-grams have {len(places)} ngram_indexes")
    return Grams(numbers, shortest, longest, np.array(places, np.int64))


def _infer_vectorizer(attributes: Attributes, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    (shape,) = shapes
    if len(shape) > 2:
        raise StringOperatorError("its input must be one row or several")
    if attributes.get("mode") not in ("TF", "IDF", "TFIDF"):
        raise StringOperatorError(f"mode={attributes.get('mode')!r} does not exist")
    grams, weights = _grams(attributes), attributes.get("weights", ())
    if weights and len(weights) != len(grams.places):
        raise StringOperatorError(f"{len(weights)} weights for {len(grams.places)} n-grams")
    width = grams.width
    return ((DType.F32, (shape[0], width) if len(shape) == 2 else (width,)),)


_SUMMED_AT_ONCE = 1 << 18
"""So many elements are summed at once, as doubles: 2 MiB."""


def _vectorizer(attributes: Attributes) -> Run:
    """How often n-grams of a pool occur in each row, or whether they do, by weights."""
    grams, mode = _grams(attributes), attributes["mode"]
    width, skips = grams.width, attributes.get("max_skip_count", 0)
    weights = np.ones(len(grams.places), np.float32)
    if attributes.get("weights") and mode != "TF":
        weights = np.array(attributes["weights"], np.float32)

    def run(array: Array) -> tuple[Array, ...]:
        rows = array if array.ndim == 2 else array.reshape(1, -1)
        row, found = grams.found(rows, skips)
        places, factors = row * width + grams.places[found], weights[found]
        result = np.zeros(len(rows) * width, np.float32)
        if mode == "IDF":
            result[places] = factors  # of several at a place the last one counts
        else:
            step = max(1, _SUMMED_AT_ONCE // width) * width
            for begin in range(0, len(result), step):
                low, high = np.searchsorted(row, (begin // width, (begin + step) // width))
                part = result[begin : begin + step]
                part[:] = np.bincount(places[low:high] - begin, factors[low:high], len(part))
        return (result.reshape(len(rows), width) if array.ndim == 2 else result,)

    return run


# --- what joins, splits and compares strings ----------------------------------------------------


def _infer_concat(attributes: Attributes, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    left, right = shapes
    rank = max(len(left), len(right))
    pairs = zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True)
    sizes = list[Dimension | None]()
    for one, other in pairs:
        if one != other and 1 not in (one, other):
            raise StringOperatorError(f"shapes {_text(left)} and {_text(right)} do not fit")
        sizes.append(other if one == 1 else one)
    return _of_strings(*sizes)


def _concat(attributes: Attributes) -> Run:
    """Strings of both inputs one behind the other."""
    return lambda left, right: (np.asarray(left + right, object),)


def _infer_split(attributes: Attributes, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    (shape,) = shapes
    return (DType.STRING, (*shape, None)), (DType.I64, shape)


def _splitter(attributes: Attributes) -> Run:
    """The pieces of strings, filled up with empty ones, and how many each has."""
    delimiter, most = attributes.get("delimiter", ""), attributes.get("maxsplit", -1)

    def pieces(text: str) -> list[str]:
        if delimiter:
            return text.split(delimiter, most) if text else []
        found = [piece for piece in text.split(" ") if piece]
        if most < 0 or len(found) <= most + 1:
            return found
        rest = text.strip(" ")
        for _ in range(most):
            rest = rest[rest.index(" ") :].lstrip(" ")
        return [*found[:most], rest]

    def run(array: Array) -> tuple[Array, ...]:
        rows = [pieces(item) for item in array.flat]
        longest = max(map(len, rows), default=0)
        items = [item for row in rows for item in (*row, *[""] * (longest - len(row)))]
        counts = np.array(list(map(len, rows)), np.int64).reshape(array.shape)
        return _strings(items, (*array.shape, longest)), counts

    return run


def _infer_match(attributes: Attributes, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    _pattern(attributes)
    return ((DType.BOOL, shapes[0]),)


def _pattern(attributes: Attributes) -> Expression:
    try:
        return Expression(attributes.get("pattern", ""))
    except ExpressionError as error:
        pattern = attributes.get("pattern", "")
        message = f"the expression {pattern!r} cannot be used: {error}"
        raise StringOperatorError(message) from error


def _matcher(attributes: Attributes) -> Run:
    """Whether strings as a whole match an expression."""
    expression = _pattern(attributes)

    def run(array: Array) -> tuple[Array]:
        found = {item: expression.matches(item) for item in dict.fromkeys(array.flat)}
        return (np.array([found[item] for item in array.flat], bool).reshape(array.shape),)

    return run


# --- what moves strings -------------------------------------------------------------------------


def _text(shape: Shape) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _product(shape: Shape) -> Dimension | None:
    sizes = [size for size in shape if size is not None]
    return product_of(sizes) if len(sizes) == len(shape) else None


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise StringOperatorError(f"axis {axis} is outside a tensor of rank {rank}")
    return axis % rank


def _infer_reshape(attributes: Attributes, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    (shape,), wanted = shapes, attributes["shape"]
    if attributes.get("allowzero", 0) and 0 in wanted:
        raise StringOperatorError("allowzero is not supported")
    if any(size == 0 and axis >= len(shape) for axis, size in enumerate(wanted)):
        raise StringOperatorError(f"the shape {list(wanted)} has a 0 that copies nothing")
    sizes = [shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    if -1 in wanted:
        at = wanted.index(-1)
        rest, whole = _product((*sizes[:at], *sizes[at + 1 :])), _product(shape)
        kept = [size for axis, size in enumerate(shape) if axis >= len(wanted) or wanted[axis]]
        if len(kept) == 1 and len(sizes) - wanted.count(0) == 1:
            sizes[at] = kept[0]
        elif rest is None or whole is None or rest == 0:
            sizes[at] = None
        else:
            sizes[at] = quotient(whole, rest)
    return _of_strings(*sizes)


def _reshape(attributes: Attributes) -> Run:
    def run(array: Array) -> tuple[Array, ...]:
        wanted = attributes["shape"]
        sizes = [array.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
        return (array.reshape(sizes),)

    return run


def _infer_flatten(attributes: Attributes, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    (shape,) = shapes
    axis = attributes.get("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise StringOperatorError(f"axis {axis} is outside a tensor of rank {len(shape)}")
    axis += len(shape) if axis < 0 else 0
    return _of_strings(_product(shape[:axis]), _product(shape[axis:]))


def _flatten(attributes: Attributes) -> Run:
    def run(array: Array) -> tuple[Array, ...]:
        axis = attributes.get("axis", 1)
        return (array.reshape(math.prod(array.shape[:axis]), math.prod(array.shape[axis:])),)

    return run


def _infer_squeeze(attributes: Attributes, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    (shape,) = shapes
    axes = {_axis(axis, len(shape)) for axis in attributes.get("axes", ())}
    if not axes or any(shape[axis] not in (1, None) for axis in axes):
        raise StringOperatorError(f"Squeeze needs axes of one element, of {_text(shape)}")
    return _of_strings(*(size for axis, size in enumerate(shape) if axis not in axes))


def _squeeze(attributes: Attributes) -> Run:
    return lambda array: (np.squeeze(array, attributes["axes"]),)


def _infer_unsqueeze(attributes: Attributes, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    (shape,), axes = shapes, attributes.get("axes", ())
    places = {_axis(axis, len(shape) + len(axes)) for axis in axes}
    sizes = iter(shape)
    return _of_strings(*(1 if i in places else next(sizes) for i in range(len(shape) + len(axes))))


def _unsqueeze(attributes: Attributes) -> Run:
    return lambda array: (np.expand_dims(array, attributes["axes"]),)


def _infer_join(attributes: Attributes, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    first = shapes[0]
    axis = _axis(attributes["axis"], len(first))
    sums: Dimension | None = 0
    for shape in shapes:
        own = shape[axis] if len(shape) == len(first) else None
        if len(shape) != len(first) or (*shape[:axis], *shape[axis + 1 :]) != (
            *first[:axis],
            *first[axis + 1 :],
        ):
            raise StringOperatorError(f"shapes {_text(first)} and {_text(shape)} do not fit")
        sums = None if sums is None or own is None else sums + own
    return _of_strings(*first[:axis], sums, *first[axis + 1 :])


def _join(attributes: Attributes) -> Run:
    return lambda *arrays: (np.concatenate(arrays, attributes["axis"]),)


def _infer_columns(attributes: Attributes, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    (shape,) = shapes
    sizes = shape if len(shape) > 1 else (1, *shape)
    return _of_strings(*sizes[:-1], len(attributes["columns"]))


def _columns(attributes: Attributes) -> Run:
    columns = np.array(attributes["columns"], np.int64)
    return lambda array: (np.atleast_2d(array)[..., columns],)


OPERATORS: Final[Mapping[tuple[str, str], StringOperator]] = {
    ("", "StringNormalizer"): StringOperator(_infer_normalizer, _normalizer),
    ("com.microsoft", "Tokenizer"): StringOperator(_infer_tokenizer, _tokenizer),
    ("", "StringConcat"): StringOperator(_infer_concat, _concat),
    ("", "StringSplit"): StringOperator(_infer_split, _splitter),
    ("", "RegexFullMatch"): StringOperator(_infer_match, _matcher, strings=0),
    ("", "TfIdfVectorizer"): StringOperator(_infer_vectorizer, _vectorizer, False, strings=0),
    ("", "Identity"): StringOperator(
        lambda _, s: _of_strings(*s[0]), lambda _: lambda x: (x,), False
    ),
    ("", "Reshape"): StringOperator(_infer_reshape, _reshape, False, ("shape",)),
    ("", "Flatten"): StringOperator(_infer_flatten, _flatten, False),
    ("", "Squeeze"): StringOperator(_infer_squeeze, _squeeze, False, ("axes",)),
    ("", "Unsqueeze"): StringOperator(_infer_unsqueeze, _unsqueeze, False, ("axes",)),
    ("", "Concat"): StringOperator(_infer_join, _join, False),
    ("ai.onnx.ml", "ArrayFeatureExtractor"): StringOperator(
        _infer_columns, _columns, False, ("columns",)
    ),
}
"""By domain and name."""

RUNS: Final[Mapping[str, Callable[[Attributes], Run]]] = {
    name: operator.prepare for (_, name), operator in OPERATORS.items()
} | {"Constant": lambda a: lambda: (_strings(a["value"], a["shape"]),)}
"""What prepares each step of a prefix."""

ONLY_FIRST = (
    "it computes with strings, which is done at the beginning of a graph only: what it reads must "
    "be an input, or made of inputs by operators of strings"
)
"""Why an operator elsewhere is refused."""


def computes_with_strings(domain: str, operator: str) -> bool:
    """Whether an operator is supported at the beginning of a graph alone."""
    known = OPERATORS.get((domain, operator))
    return known is not None and known.computes


# Runs the operators of a StringPrefix, before a model's entry.


class PrefixRun:
    """A prefix whose tables and expressions are made."""

    def __init__(self, prefix: StringPrefix) -> None:
        """Raises `ValueError` and `KeyError` for steps that the importer did not make."""
        self._prefix = prefix
        self._steps: list[tuple[StringStep, Run]] = [
            (step, RUNS[step.operator](dict(step.attributes))) for step in prefix.steps
        ]
        made = {name for step in prefix.steps for name in step.outputs}
        read = dict.fromkeys(name for step in prefix.steps for name in step.inputs)
        self._read = [name for name in read if name not in made]
        self._own = {port.name for port in prefix.ports}

    def __call__(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What was given with the tensors that the steps make of the strings.

        These may be given by their own names instead. Raises `InputError` for strings that are
        missing, no strings, or of another shape than the model declares.
        """
        tensors = dict(given)
        missing = [name for name in self._read if name not in tensors]
        if missing and set(self._prefix.results) <= tensors.keys():
            return tensors
        if missing:
            raise InputError(f"input {missing[0]!r} is missing")
        values: dict[str, Any] = {}
        for name in self._read:
            try:
                values[name] = strings_of(tensors[name])
            except (TypeError, UnicodeDecodeError) as error:
                raise InputError(f"input {name!r} cannot be read: {error}") from error
        for port in self._prefix.ports:
            _check_shape(port, values[port.name].shape)
        for step, run in self._steps:
            try:
                results = run(*(values[name] for name in step.inputs))
            except UnicodeError as error:
                raise InputError(f"{step.operator} cannot read strings: {error}") from error
            values.update(zip(step.outputs, results, strict=False))
        kept = {name: value for name, value in tensors.items() if name not in self._own}
        return {**kept, **{name: values[name] for name in self._prefix.results}}

    def explained(self, error: InputError) -> InputError:
        """An error about what the steps have made, with what they made it of."""
        names = ", ".join(map(repr, self._read))
        return InputError(
            f"{error.message} (of {', '.join(map(repr, self._prefix.results))}, which "
            f"{self._prefix.operators} make of {names})",
            hint=error.hint,
        )


def _check_shape(port: StringPort, shape: tuple[int, ...]) -> None:
    """Raise `InputError` for a shape that the model does not declare."""
    if port.shape is None:
        return
    fits = len(shape) == len(port.shape) and all(
        not isinstance(declared, int) or declared == size
        for declared, size in zip(port.shape, shape, strict=True)
    )
    if not fits:
        declared = ", ".join("?" if size is None else str(size) for size in port.shape)
        raise InputError(
            f"input {port.name!r} has the shape {list(shape)}, the model declares [{declared}]"
        )
