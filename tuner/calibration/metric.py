"""How far a lowered model's outputs are from those of the f32 model: the budget's measure.

Either the relative error, max|y - f32| / max|f32| of the worst output of the worst run, or what a
user's own metric(outputs, labels) lost. The latter is Python that the user gave: it runs in this
process, and what it raises becomes one line.
"""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.sizes import symbols_of
from tunefarm.compiler.types.tensor_type import Array

Outputs: TypeAlias = Mapping[str, Array]
UserFunction: TypeAlias = Callable[[dict[str, Array], Array | None], Any]


@dataclass(frozen=True, slots=True)
class Joints:
    """Where concatenations join the outputs that they write: axis and beginnings, by name.

    Detectors give boxes in pixels and scores up to 1 in one array: next to the former, an error of
    the latter would be none. Each part counts like an output of its own.
    """

    places: Mapping[str, tuple[int, tuple[int, ...]]]

    @staticmethod
    def of(graph: Graph) -> Joints:
        """Those of a graph's outputs, along axes whose size is the same in each run."""
        written = {node.output: node for node in graph.nodes}
        ports = {port.name: port for port in graph.signature.outputs}
        places = {}
        for name in graph.outputs:
            node = written.get(name)
            if node is None or node.operator != "concat":
                continue
            axis = complete_attributes(node).integer("axis")
            if name in ports and symbols_of(ports[name].shape[axis]):
                continue
            sizes = [graph.types[part].shape[axis] for part in node.inputs]
            places[name] = axis, tuple(accumulate(sizes[:-1]))
        return Joints(places)

    def apart(self, outputs: Outputs) -> dict[str, Array]:
        """The outputs with views of the parts instead of what is joined."""
        found: dict[str, Array] = {}
        for name, array in outputs.items():
            if name not in self.places:
                found[name] = array
                continue
            axis, begins = self.places[name]
            parts = np.split(array, begins, axis)
            found.update((f"{name}/{number}", part) for number, part in enumerate(parts))
        return found


def relative_error(actual: Outputs, expected: Outputs) -> float:
    """max|actual - expected| / max|expected| of the worst output; infinite where one is not finite
    and the other is. Integer outputs that differ count by their share."""
    return max(
        (_error(actual[name], array) for name, array in expected.items()),
        default=0.0,
    )


RARE = 0.01
"""Share of the inputs that nobody has seen which may have a larger error than is allowed."""


def unseen_error(errors: Sequence[float], samples: int) -> float:
    """What all but `RARE` unseen inputs stay within, from the errors of a plan in some of so many
    samples that it is judged by.

    An input exceeds the largest of n by a chance of 1 / (n + 1), and an error x times as large is
    taken to be x^2 times as rare: a Pareto tail of index 2. On four trained networks in int8 (48
    inputs each, errors of 6 that calibrated and 3 others), the largest of 12 further inputs was
    beyond that of the samples in 42 to 78 % of draws, beyond this in 0 to 65 %, with softmax over
    file types as the worst.
    """
    return max(errors) * max(1.0, math.sqrt(1.0 / (RARE * (samples + 1))))


def _error(actual: Array, expected: Array) -> float:
    if expected.dtype.kind not in "fV":
        return float(np.mean(actual != expected))
    found, wanted = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(found)):
        return math.inf
    if not finite.any():
        return 0.0
    difference = float(np.abs(found[finite] - wanted[finite]).max())
    scale = float(np.abs(wanted[finite]).max())
    if scale == 0.0:
        return 0.0 if difference == 0.0 else math.inf
    return difference / scale


@dataclass(frozen=True, slots=True)
class Metric:
    """A user's metric(outputs, labels): larger is better. `name` is the option that named it."""

    name: str
    function: UserFunction
    labels: Array | None

    @staticmethod
    def load(text: str, labels: str | None) -> Metric:
        """That of `FILE.py:FUNCTION`, with the labels of an .npy or .npz file.

        Raises SettingsError for what is not there, or raises when it is read.
        """
        path, colon, name = text.rpartition(":")
        if not colon or not path or not name:
            raise SettingsError(f"--metric {text}: give it as FILE.py:FUNCTION")
        try:
            module = runpy.run_path(path)
        except (Exception, SystemExit) as error:
            raise SettingsError(f"--metric {text}: {_text(error)}") from error
        function = module.get(name)
        if not callable(function):
            raise SettingsError(f"--metric {text}: {path} has no function {name!r}")
        return Metric(text, function, None if labels is None else read_labels(labels))

    def check(self, samples: int) -> None:
        """Raise SettingsError unless the labels can be cut into so many samples."""
        if self.labels is not None and (not len(self.labels) or len(self.labels) % samples):
            raise SettingsError(f"{len(self.labels)} labels do not fit {samples} samples")

    def part(self, numbers: Sequence[int], samples: int) -> Metric:
        """The metric with the labels of some of so many samples."""
        if self.labels is None:
            return self
        rows = len(self.labels) // samples
        picked = [self.labels[n * rows : (n + 1) * rows] for n in sorted(numbers)]
        return Metric(self.name, self.function, np.concatenate(picked))

    def of(self, runs: Sequence[Outputs]) -> float:
        """Its value for the outputs of several runs, joined along their first axis.

        Raises SettingsError where it raises, or returns what is no finite number.
        """
        outputs = {name: _joined([run[name] for run in runs]) for name in runs[0]}
        try:
            value = float(self.function(outputs, self.labels))
        except (Exception, SystemExit) as error:
            raise SettingsError(f"the metric {self.name} failed: {_text(error)}") from error
        if not math.isfinite(value):
            raise SettingsError(f"the metric {self.name} returned {value}, which is no number")
        return value


def read_labels(path: str) -> Array:
    """The array of an .npy file, or the only one of an .npz file. Raises SettingsError."""
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SettingsError(f"--labels {path}: {error}") from error
    if isinstance(loaded, np.ndarray):
        labels = loaded
    else:
        with loaded:
            if len(loaded.files) != 1:
                raise SettingsError(f"--labels {path}: it has {len(loaded.files)} arrays, not one")
            labels = loaded[loaded.files[0]]
    if labels.ndim == 0:
        raise SettingsError(f"--labels {path}: there is one number, and no axis of samples")
    return labels


def _joined(arrays: Sequence[Array]) -> Array:
    return np.stack(arrays) if arrays[0].ndim == 0 else np.concatenate(arrays)


def _text(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
