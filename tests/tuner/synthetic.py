"""A made-up tuning task: a space of tile sizes and a smooth latency, with failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tests.compiler.kernels.matmul import matmul_kernel as matmul_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.space import Candidate, Choice, ChoiceValue, ScheduleSpace, Sketch
from tunefarm.compiler.schedule.steps.inline import Inline
from tunefarm.compiler.target import Target
from tunefarm.tuner.model.features import FeatureExtractor, FeatureLayout, FeatureMatrix
from tunefarm.tuner.model.packed_space import PackedSpace

TARGET = Target("x86_64-unknown-linux-gnu", "made-up", (), 64, 32, 32768, 1048576, 33554432, 2)


def _steps(choices: Mapping[str, ChoiceValue]) -> Schedule:
    """No schedule of a kernel, but another one for every candidate."""
    return Schedule(tuple(Inline(f"{name}={value}") for name, value in choices.items()))


def tile_space() -> ScheduleSpace:
    """Two sketches; 23,520 candidates."""
    tiles = Choice("tile", tuple((i, j) for i in (1, 2, 3, 4, 6, 8, 14) for j in (1, 2, 3, 4, 6)))
    chunk = Choice("chunk", (8, 16, 32, 64, 128, 256, 512))
    unroll = Choice("unroll", (1, 2, 4, 8))
    order = Choice("order", ("mnk", "nmk", "kmn", "knm"))
    grain = Choice("grain", (1, 2, 4, 8, 16))
    direct = Sketch(
        "direct",
        (tiles, chunk, unroll, order, grain),
        _steps,
        ((4, 2), 64, 2, "nmk", 4),
    )
    packed = Sketch("packed", (tiles, chunk, unroll), _steps, ((6, 2), 64, 2))
    return ScheduleSpace([direct, packed])


def small_space(size: int = 1) -> ScheduleSpace:
    """One sketch with one choice of `size` values."""
    sketch = Sketch("only", (Choice("tile", tuple(range(1, size + 1))),), _steps, (1,))
    return ScheduleSpace([sketch])


def latency(space: ScheduleSpace, candidate: Candidate, scale: float = 1e-3) -> float:
    """Seconds of a candidate of `tile_space`; infinity where it fails."""
    choices = space.choices(candidate)
    tile, chunk, unroll = choices["tile"], choices["chunk"], choices["unroll"]
    assert isinstance(tile, tuple) and isinstance(chunk, int) and isinstance(unroll, int)
    rows, columns = int(tile[0]), int(tile[1])
    if rows * columns > 48:
        return math.inf
    spilled = max(0, rows * columns + columns + 1 - 28)
    cost = 1.0 + 3.0 / (rows * columns) + 0.1 * spilled
    cost *= 1.0 + 0.08 * abs(math.log2(chunk / 128)) + 0.05 * abs(math.log2(unroll / 4))
    if candidate.sketch == "packed":
        return scale * 0.9 * cost
    cost *= {"mnk": 1.3, "nmk": 1.0, "kmn": 2.5, "knm": 1.8}[str(choices["order"])]
    grain = choices["grain"]
    assert isinstance(grain, int)
    return scale * cost * (1.0 + 0.06 * abs(math.log2(grain / 4)))


def neighbours(space: ScheduleSpace, candidate: Candidate) -> list[Candidate]:
    """The candidates with exactly one choice at another value."""
    packed = PackedSpace(space)
    return [packed.unpack(row) for row in packed.neighbours(packed.pack([candidate])[0])]


def features(
    space: ScheduleSpace, kernel: FusedKernel, target: Target, candidates: Sequence[Candidate]
) -> FeatureMatrix:
    """Features of candidates in the layout of their own space alone."""
    return FeatureExtractor(space, kernel, target, FeatureLayout.of([space]))(candidates)
