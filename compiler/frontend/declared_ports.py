"""What a file declares of a model before anything is built, for sessions with dynamic shapes.

Imports no converters: a session looks here first, whether it has to build or not.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import onnx

from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.read_model import read_model
from tunefarm.compiler.frontend.symbol_names import computed_labels, expression_size, usual_bounds
from tunefarm.compiler.frontend.tensors import initializers
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.extents import (
    Bounds,
    Extent,
    Given,
    Label,
    Shapes,
    extent_of,
    label_of,
    named,
    shapes_of,
)
from tunefarm.compiler.types.metadata import Metadata

_FEW_DEFAULTS = 8


@dataclass(frozen=True, slots=True)
class DeclaredPort:
    """An input or output: None in a shape is a dimension without a name, no `shape` any rank.

    Of what is no tensor there is no `dtype`.
    """

    name: str
    dtype: DType | None
    shape: tuple[int | str | None, ...] | None

    @property
    def is_open(self) -> bool:
        """Whether a size is left to each run."""
        return self.shape is None or any(not isinstance(size, int) for size in self.shape)


@dataclass(frozen=True, slots=True)
class DeclaredModel:
    """A model as its file declares it.

    `inputs` are those that must be given, `defaults` those that may be.
    """

    name: str
    inputs: tuple[DeclaredPort, ...]
    outputs: tuple[DeclaredPort, ...]
    metadata: Metadata
    defaults: tuple[DeclaredPort, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether inputs, all of them tensors, leave sizes to each run."""
        return all(port.dtype for port in self.inputs) and any(port.is_open for port in self.inputs)

    def range_of(
        self,
        runs: Sequence[Mapping[Label, int]],
        goes_below: bool = True,
        apart: Collection[str] = (),
    ) -> tuple[Shapes, Bounds]:
        """Shapes of a build for sizes like those of `runs`, and what they bound.

        Names that are `apart` stand for another size in each place, as they do in `runs`.
        """
        shapes = {
            name: tuple(None if size in apart else size for size in shape)
            for name, shape in self._shapes.items()
        }
        return range_of(shapes, runs, goes_below, bool(apart))

    @property
    def symbols(self) -> set[str]:
        """The names of sizes that inputs leave open."""
        return {size for shape in self._shapes.values() for size in shape if isinstance(size, str)}

    @property
    def _shapes(self) -> dict[str, tuple[int | str | None, ...]]:
        """The shapes of the inputs whose ranks are known."""
        return {port.name: port.shape for port in self.inputs if port.shape is not None}

    def build_command(self, path: str) -> str:
        """What builds the model of that path ahead, for usual bounds of its sizes."""
        labels = (
            label_of(name, axis, size)
            for name, shape in self._shapes.items()
            for axis, size in enumerate(shape)
            if not isinstance(size, int)
        )
        usual = {label: _usual(label) for label in labels}
        command = ["tune", "build", "--model", path, "--untuned"]
        for name, shape in shapes_of(self._shapes, usual, computed_labels(usual)).items():
            command += ["--shape", f"{name}={','.join(map(str, shape))}"]
        return shlex.join([*command, "--output", "model.tuned"])


def declared_model(path: str) -> DeclaredModel:
    """The ports of a file. Raises `ImportModelError` for one that is no model."""
    model = read_model(Path(path), ResourceBudget())
    initialized = initializers(model.graph)
    inputs = (info for info in model.graph.input if info.name not in initialized)
    names = overridable(model)
    defaults = (info for info in model.graph.input if info.name in names)
    return DeclaredModel(
        model.graph.name or "model",
        tuple(map(declared_port, inputs)),
        tuple(map(declared_port, model.graph.output)),
        metadata_of(model),
        tuple(map(declared_port, defaults)),
    )


def overridable(model: onnx.ModelProto) -> set[str]:
    """The inputs that an initializer gives a default, which callers may override.

    Before IR version 4 all initializers are inputs, and tools go on to write them so: where many
    are listed, and none is not, they are constants.
    """
    inputs = {info.name for info in model.graph.input}
    initialized = initializers(model.graph)
    names = inputs & initialized.keys()
    some = len(names) < len(initialized) or len(names) <= _FEW_DEFAULTS
    return names if model.ir_version >= 4 and some else set()


def metadata_of(model: onnx.ModelProto) -> Metadata:
    """What the model says of itself."""
    return Metadata(
        model.producer_name,
        model.domain,
        model.doc_string,
        model.graph.doc_string,
        model.model_version,
        tuple((item.key, item.value) for item in model.metadata_props),
    )


def declared_port(info: onnx.ValueInfoProto) -> DeclaredPort:
    """What a file declares of an input or output."""
    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type":
        return DeclaredPort(info.name, None, None)
    dtype = dtype_of(tensor.elem_type, f"the type of {info.name!r}")
    if not tensor.HasField("shape"):
        return DeclaredPort(info.name, dtype, None)
    sizes = tuple(
        dimension.dim_value if dimension.dim_value > 0 else dimension.dim_param or None
        for dimension in tensor.shape.dim
    )
    return DeclaredPort(info.name, dtype, sizes)


def _usual(label: Label) -> str:
    low, high = usual_bounds(label if isinstance(label, str) else "") or (1, 64)
    return f"{low}..{high}"


def range_of(
    inputs: Mapping[str, Sequence[int | str | None]],
    runs: Sequence[Mapping[Label, int]],
    goes_below: bool = True,
    is_apart: bool = False,
) -> tuple[Shapes, Bounds]:
    """Shapes of a build for sizes like those of `runs`, in their order, and what they bound.

    It `goes_below` the sizes of the runs unless that is refused, as where a window has to fit.
    One dimension that is 1 in some runs has a program of its own for them. A dimension whose name
    is a sum of others, as `past + 1`, follows from them unless a run contradicts that. What varies
    alike is one, see `_alike`.
    """
    names = {label: label for label in runs[0] if isinstance(label, str)}
    apart = {
        label
        for run in runs
        for label, text in names.items()
        if expression_size(text, {name: run[name] for name in names}) not in (None, run[label])
    }
    computed = computed_labels(runs[0].keys()) - apart
    seen = {
        label: list(dict.fromkeys(run[label] for run in runs))
        for label in runs[0]
        if label not in computed
    }
    bounds = {label: _bounds_of(label, sizes, goes_below) for label, sizes in seen.items()}
    given: dict[Label, Given] = dict(bounds)
    single = [label for label, sizes in seen.items() if min(sizes) == 1 < len(sizes)]
    if single:  # of one dimension: each doubles the time of the build
        widest = max(single, key=lambda label: bounds[label][1])
        given[widest] = f"1|2..{bounds[widest][1]}"
    if is_apart:  # by names that are not those of the file
        for label, extent in given.items():
            if isinstance(label, tuple) and isinstance(extent_of(extent), Extent):
                given[label] = _called(extent, _text(label))
    for labels in [] if computed else _alike(inputs, runs):
        name = " and ".join(map(_text, labels))
        first = next((label for label in labels if isinstance(given[label], str)), labels[0])
        given.update(dict.fromkeys(labels, _called(given[first], name)))
    return shapes_of(inputs, given, computed), bounds


def _alike(
    inputs: Mapping[str, Sequence[int | str | None]], runs: Sequence[Mapping[Label, int]]
) -> list[list[Label]]:
    """Dimensions of different inputs whose sizes vary, and are equal in each of the runs.

    Exporters that name the dimensions of each input apart, as tf2onnx does, mean one batch.
    """
    places: dict[Label, set[str]] = {}
    for name, shape in inputs.items():
        for axis, size in enumerate(shape):
            if not isinstance(size, int):
                places.setdefault(label_of(name, axis, size), set()).add(name)
    groups: list[list[Label]] = []
    for label in runs[0]:
        sizes = [run[label] for run in runs]
        for group in groups:
            is_equal = sizes == [run[group[0]] for run in runs]
            if is_equal and all(places[label].isdisjoint(places[other]) for other in group):
                group.append(label)
                break
        else:
            if len(set(sizes)) > 1:
                groups.append([label])
    return [group for group in groups if len(group) > 1]


def _text(label: Label) -> str:
    return label if isinstance(label, str) else f"{label[0]}_{label[1]}"


def _called(given: Given, name: str) -> Given:
    extent = extent_of(given)
    assert isinstance(extent, Extent)
    return str(named(extent, name))


def _bounds_of(label: Label, seen: Sequence[int], goes_below: bool) -> tuple[int, int]:
    """Bounds for sizes like these: a single one stays as it is; those that count up will go on to
    what is usual for a dimension of the name."""
    if len(seen) == 1:
        return seen[0], seen[0]
    low, high = min(seen), max(seen)
    _, usual = usual_bounds(label if isinstance(label, str) else "") or (0, 0)
    counts_up = any(after == before + 1 for before, after in pairwise(seen))
    lowest = max(min(1, low), low // 2) if goes_below else low
    return lowest, max(2 * high, usual if counts_up else 0)
