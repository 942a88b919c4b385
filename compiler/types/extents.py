"""Extents as users give them: a number, or a symbol with bounds or values."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import index
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, TypeAlias

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.types.frozen import frozen

if TYPE_CHECKING:
    import numpy.typing as npt

_MOST = 2**31 - 1
_NAME = r"[^\d\s,:|.=][^,:|=]*"
_FORM = re.compile(rf"(?:(?P<name>{_NAME}?)(?:[:=]|$))?(?P<sizes>[\d.|]*)")
_TOO_LONG = re.compile(r"\d{11}")  # more digits than _MOST has
HINT: Final = "give a number, a name with bounds (batch:1..8) or a name with values (batch:1|4|16)"


@frozen
class Extent:
    """A dynamic size: `name:low..high`, or `name:value|value|…`.

    Without a name it is that which the model declares, without bounds those that are usual for the
    name. With values `low` and `high` are the minimum and maximum. Values may be bounds too
    (`seq:1..64|65..512`): those are `buckets`, from the lowest on, and there are no `values` then.
    """

    name: str = ""
    low: int | None = None
    high: int | None = None
    values: tuple[int, ...] = ()
    buckets: tuple[tuple[int, int], ...] = ()

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Values and buckets as bounds; none where there is one pair of bounds alone."""
        return tuple((value, value) for value in self.values) or self.buckets

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return self.name
        parts = self.parts or ((self.low, self.high),)
        sizes = "|".join(str(low) if low == high else f"{low}..{high}" for low, high in parts)
        return f"{self.name}:{sizes}" if self.name else sizes


@dataclass(frozen=True, slots=True, eq=False)
class FixedInput:
    """What an input always holds: a build folds what follows from it.

    `array` is in any type that holds the numbers, `text` is how a user writes it.
    """

    array: npt.NDArray[Any]
    text: str

    @classmethod
    def of(cls, value: object) -> FixedInput:
        """A value as given in Python; raises `ShapeError` for what is no array of numbers."""
        import numpy as np

        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ShapeError(f"{value!r} is no value of an input: {error}") from error
        if array.dtype.kind == "V":  # floats of a few bits
            array = array.astype(np.float32)
        if array.dtype.kind not in "biufUS":
            raise ShapeError(f"{value!r} is no value of an input")
        return cls(array, str(array.tolist()))

    def to_json(self) -> dict[str, Any]:
        """The value as JSON has it."""
        data = base64.b64encode(self.array.tobytes()).decode()
        return {"type": self.array.dtype.str, "shape": list(self.array.shape), "data": data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FixedInput:
        """What `to_json` wrote."""
        import numpy as np

        array = np.frombuffer(base64.b64decode(data["data"]), data["type"])
        return cls.of(array.reshape(data["shape"]))

    def __str__(self) -> str:
        return self.text


Given: TypeAlias = int | str | tuple[int, int] | Extent
"""An extent in Python: what `Extent` prints, or (low, high)."""

Shapes: TypeAlias = Mapping[str, Sequence[Given] | FixedInput]
"""What is given of a build's inputs, by name: a shape, also as text (`1,3,h:64..256,w`), or the
value of an input that is fixed; or a single extent by the name of a symbol."""


LOGITS_TO_KEEP = "logits_to_keep"
"""What may be fixed of a model without such an input: see `compiler.frontend.last_logits`."""

Label: TypeAlias = str | tuple[str, int]
"""What tells a dynamic dimension from others: its name; without one the input and the axis."""

Bounds: TypeAlias = Mapping[Label, tuple[int, int]]
"""The minimum and the maximum of dynamic dimensions."""


def with_fixed(shapes: Shapes | None, inputs: Mapping[str, object] | None) -> Shapes:
    """The shapes, and the values of inputs that are fixed."""
    shapes = listed(shapes or {})
    fixed = {name: FixedInput.of(value) for name, value in (inputs or {}).items()}
    for name in fixed.keys() & shapes.keys():
        raise ShapeError(f"input {name!r} is given a value and a shape", hint="give one of them")
    return {**shapes, **fixed}


def fixed_inputs(shapes: Shapes) -> dict[str, FixedInput]:
    """The inputs whose value is fixed."""
    return {name: item for name, item in shapes.items() if isinstance(item, FixedInput)}


def open_shapes(shapes: Shapes) -> dict[str, Sequence[Given]]:
    """The shapes of the inputs whose value is not fixed, and the extents of symbols."""
    return {name: item for name, item in shapes.items() if not isinstance(item, FixedInput)}


def extent_of(given: Given) -> int | Extent:
    """An extent as given by a user; raises `ShapeError` for one that cannot be read.

    Numbers are as they are: which of them fit is said where a shape is needed.
    """
    if type(given) is int:  # nearly all: asking a protocol takes as long as all else here
        return given
    if isinstance(given, Extent):
        return _checked(given)
    if isinstance(given, SupportsIndex):  # NumPy's integers too
        return index(given)
    if isinstance(given, tuple):
        return _checked(_between(given))
    if not isinstance(given, str):
        raise ShapeError(f"{given!r} is not a dimension", hint=HINT)
    return _parsed(given.strip())


def is_name(text: str) -> bool:
    """Whether a symbol of that name can be given an extent by it."""
    return re.fullmatch(_NAME, text) is not None


def _between(given: tuple[int, int]) -> Extent:
    if len(given) != 2 or not all(isinstance(bound, SupportsIndex) for bound in given):
        raise ShapeError(
            f"{given!r} is not a dimension", hint="bounds are two numbers, as in (1, 8)"
        )
    low, high = map(index, given)
    return Extent("", low, high)


def listed(shapes: Shapes) -> Shapes:
    """The shapes with a list of extents each, where they were given as text or as one extent.

    None is that of an optional without content. Raises `ShapeError` for what is no dictionary.
    """
    if not isinstance(shapes, Mapping):
        raise ShapeError(
            f"the shapes are {shapes!r}, and must be a dictionary",
            hint="write {'input': [1, 3, 224, 224]}, or {'batch': '1..8'}",
        )
    return {name: _list_of(shape) for name, shape in shapes.items()}


def _list_of(shape: Any) -> Any:
    if isinstance(shape, str):
        return shape_of_text(shape)
    if isinstance(shape, tuple | list):
        return shape
    return (shape,) if isinstance(shape, SupportsIndex | Extent) else shape


def shape_of_text(text: str) -> tuple[int | str, ...]:
    """Extents that commas separate, as in `1,3,h:64..256,w`; raises `ShapeError`."""
    extents = map(extent_of, text.split(","))
    return tuple(extent if isinstance(extent, int) else str(extent) for extent in extents)


def named(extent: Extent, name: str) -> Extent:
    """The extent under a name, unless it has one."""
    return extent if extent.name else replace(extent, name=name)


def shapes_to_json(shapes: Shapes) -> dict[str, Any]:
    """What is given of a build's inputs, as JSON."""
    found: dict[str, Any] = {
        name: [item if isinstance(item, int) else str(item) for item in map(extent_of, shape)]
        for name, shape in open_shapes(shapes).items()
    }
    return found | {name: item.to_json() for name, item in fixed_inputs(shapes).items()}


def shapes_from_json(data: Mapping[str, Any]) -> Shapes:
    """What `shapes_to_json` wrote."""
    return {
        name: FixedInput.from_json(item) if isinstance(item, Mapping) else tuple(item)
        for name, item in data.items()
    }


def label_of(name: str, axis: int, declared: str | None) -> Label:
    """The label of a dynamic dimension of the input `name`; some tools call any of them "?"."""
    return (name, axis) if declared in (None, "?") else str(declared)


def shapes_of(
    inputs: Mapping[str, Sequence[int | str | None]],
    extents: Mapping[Label, Given],
    computed: Collection[Label] = (),
) -> dict[str, tuple[Given, ...]]:
    """The shapes of a build in which the dynamic dimensions of `inputs` have these extents.

    Each is given once, under its own name, so that inputs that share it agree; those without a
    name, and those that are called as an input is, in the shapes of inputs. `computed` ones follow.
    """
    found: dict[str, tuple[Given, ...]] = {}
    for name, shape in inputs.items():
        labels = [label_of(name, a, d) for a, d in enumerate(shape) if not isinstance(d, int)]
        if any(isinstance(label, tuple) or label in inputs for label in labels):
            waiting = iter(labels)
            found[name] = tuple(
                d if isinstance(d, int) else _extent(label := next(waiting), extents[label])
                for d in shape
            )
    for label, given in extents.items():
        if isinstance(label, str) and label not in inputs and label not in computed:
            found[label] = (given,)
    return found


def _extent(label: Label, given: Given) -> Given:
    """The extent in the shape of an input."""
    extent = extent_of(given)
    if isinstance(extent, Extent) and isinstance(label, str) and is_name(label):
        return str(named(extent, label))
    return given


def _parsed(text: str) -> int | Extent:
    if _TOO_LONG.search(text):
        raise ShapeError(f"'{text[:20]}…' is beyond any dimension", hint=HINT)
    if re.fullmatch(r"-?\d+", text):
        return extent_of(int(text))
    found = _FORM.fullmatch(text)
    name, sizes = (found["name"] or "", found["sizes"]) if found else ("", "")
    bounds = re.fullmatch(r"(\d+)\.\.(\d+)", sizes)
    if bounds:
        return _checked(Extent(name, int(bounds[1]), int(bounds[2])))
    if re.fullmatch(r"\d+(\|\d+)*", sizes):
        values = tuple(sorted({int(value) for value in sizes.split("|")}))
        if len(values) == 1:
            return extent_of(values[0])
        return _checked(Extent(name, values[0], values[-1], values))
    if re.fullmatch(r"\d+(\.\.\d+)?(\|\d+(\.\.\d+)?)+", sizes):
        return _checked(_with_buckets(name, sizes, text))
    if found is None or sizes or not name or text.endswith((":", "=")) or ".." in name:
        raise ShapeError(f"{text!r} is not a dimension", hint=HINT)
    return Extent(name)


def _with_buckets(name: str, sizes: str, text: str) -> Extent:
    """An extent of several bounds, which must not overlap."""
    ends = [tuple(map(int, part.split(".."))) for part in sizes.split("|")]
    buckets = tuple(sorted((end[0], end[-1]) for end in ends))
    backwards = any(low > high for low, high in buckets)
    if backwards or any(low <= before for (_, before), (low, _) in pairwise(buckets)):
        raise ShapeError(
            f"the bounds in {text!r} overlap or hold no size", hint="as in seq:1..64|65..512"
        )
    return Extent(name, buckets[0][0], buckets[-1][1], buckets=buckets)


def _checked(extent: Extent) -> int | Extent:
    low, high = extent.low, extent.high
    if low is None or high is None:
        if extent.name:
            return extent
        raise ShapeError("a dimension has neither a name nor bounds", hint=HINT)
    if not 0 <= low <= high <= _MOST or high == 0:
        raise ShapeError(
            f"the bounds {low}..{high} hold no size",
            hint="bounds are two numbers, the smaller one first, as in batch:1..8",
        )
    return low if low == high else extent
