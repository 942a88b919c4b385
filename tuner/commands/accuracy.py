"""How far the outputs of a run are from those of a reference, over a few drawn inputs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.commands.engines import Inputs, Run

MOST_INPUTS = 50
MOST_SECONDS = 3.0

Outputs = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """`error` is the largest error over the largest element, of the worst output: of others than
    floats the share that differs. `top1` is the share of inputs that are classified alike; None
    where no output is one of classes."""

    error: float
    top1: float | None = None

    @property
    def is_finite(self) -> bool:
        """Whether all is finite that is finite in the reference."""
        return math.isfinite(self.error)


@dataclass(frozen=True, slots=True)
class References:
    """Drawn inputs, and a reference's outputs for them."""

    cases: tuple[tuple[Inputs, Outputs], ...]

    @staticmethod
    def of(run: Run, draw: Callable[[int], Inputs]) -> References:
        """What `run` gives for a few inputs, drawn by number, as many as there is time for."""
        end, cases = time.monotonic() + MOST_SECONDS, []
        for seed in range(MOST_INPUTS):
            inputs = draw(seed)
            cases.append((inputs, _copied(run(inputs))))
            if time.monotonic() > end:
                break
        return References(tuple(cases))

    def compare(self, run: Run) -> Accuracy:
        """How far a run's outputs are from these, over as many inputs as there is time for."""
        end = time.monotonic() + MOST_SECONDS
        errors: list[float] = []
        alike: list[bool] = []
        for inputs, expected in self.cases:
            found = run(inputs)
            errors += [error_of(found[name], array) for name, array in expected.items()]
            for name, array in expected.items():
                alike += _classified_alike(found[name], array)
            if time.monotonic() > end:
                break
        return Accuracy(max(errors, default=0.0), sum(alike) / len(alike) if alike else None)


def error_of(found: Array, expected: Array) -> float:
    """The largest error over the largest element of what is finite; infinity where only the
    reference is finite; of others than floats the share that differs."""
    dtype = DType.from_numpy(expected.dtype)
    if found.shape != expected.shape:
        return math.inf
    if not dtype.is_float:
        return float(np.mean(found != expected)) if expected.size else 0.0
    wide = expected.astype(np.float64)
    got, finite = found.astype(np.float64), np.isfinite(wide)
    if not finite.any():
        return 0.0
    largest, error = np.max(np.abs(wide[finite])), np.max(np.abs(got[finite] - wide[finite]))
    if not np.isfinite(error):
        return math.inf
    return float(error / largest) if largest else float(error > 0) and math.inf


def _classified_alike(found: Array, expected: Array) -> Iterator[bool]:
    """For each row of scores whether the same class has the highest one."""
    is_scores = DType.from_numpy(expected.dtype).is_float and _is_of_classes(expected.shape)
    if is_scores and found.shape == expected.shape:
        rows = expected.shape[0]
        best = [np.argmax(array.reshape(rows, -1), axis=1) for array in (found, expected)]
        yield from (bool(equal) for equal in best[0] == best[1])


def _is_of_classes(shape: Sequence[int]) -> bool:
    """A batch of scores, [N, classes] with no axes behind that have more than one element."""
    return len(shape) >= 2 and shape[1] > 1 and all(extent == 1 for extent in shape[2:])


def _copied(outputs: Outputs) -> dict[str, Array]:
    return {name: array.copy() for name, array in outputs.items()}
