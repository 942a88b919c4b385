"""A made-up tuning task: a space of tile sizes and a smooth latency, with failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from tests.compiler.kernels.matmul import matmul_kernel as matmul_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.nest_shape import Loop, Nest, NestShape, Operand, Positions
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.space import (
    Candidate,
    Choice,
    ChoiceValue,
    ScheduleSpace,
    Sketch,
    Values,
)
from tunefarm.compiler.schedule.steps.placement import Inline
from tunefarm.compiler.target import Target
from tunefarm.tuner.model.features import FeatureExtractor, FeatureMatrix
from tunefarm.tuner.model.packed_space import PackedSpace

TARGET = Target("x86_64-unknown-linux-gnu", "made-up", (), 64, 32, 32768, 1048576, 33554432, 2)

PEAK_CYCLES = 2.0 * 32 * 48 * 64 / (4 * 16)  # of `matmul_kernel()`: the estimate says nothing then


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
    in_place, copied = (tiles, chunk, unroll, order, grain), (tiles, chunk, unroll)
    default = (4, 2), 64, 2, "nmk", 4
    direct = Sketch("direct", in_place, _steps, default, partial(_shape, in_place))
    packed = Sketch("packed", copied, _steps, ((6, 2), 64, 2), partial(_shape, copied))
    return ScheduleSpace([direct, packed])


def _shape(choices: tuple[Choice, ...], positions: Positions) -> NestShape:
    """Loops over chunks of 512 x 512 x 512 in tiles of vectors of 16, in the order chosen.

    All estimates are equal, and operands of one element each are always in the cache.
    """
    values = Values.of(choices, positions)
    count, orders = values.count, values.domains.get("order", ("nmk",))
    (rows, columns), unroll = values.pairs("tile"), values.integers("unroll")
    body = {"m": rows, "n": 16 * columns, "k": unroll}
    chunk = np.maximum(values.integers("chunk"), unroll)
    nest = Nest(list(body), count)
    for axis, extent in body.items():
        nest.inside[nest.numbers[axis]] = extent
    nest.loop(Loop("k.i", "k", chunk, unroll))
    tiles = {"m": Loop("m", "m", 512, rows), "n": Loop("n", "n", 512, 16 * columns)}
    tiles["k"] = Loop("k", "k", 512, chunk)
    which = positions.get("order", np.zeros(count, np.int64))
    for place in (2, 1, 0):
        nest.loop(*(tiles[str(name)[place]] for name in orders), which=which)
    ones, tile = np.ones(count), (rows * columns).astype(np.float64)
    sides = (((0, 1),), ((2, 1),)), (((2, 1),), ((1, 1),)), (((0, 1),), ((1, 1),))
    return NestShape(
        operands=tuple(
            Operand(name, 4, side, (1, 1)) for name, side in zip("abc", sides, strict=True)
        ),
        nest=nest,
        operations=ones,
        body=tile * unroll,
        accumulators=tile,
        registers=tile + columns + 1,
        loads=(rows + columns).astype(np.float64),
        step=tile,
        cycles=PEAK_CYCLES * ones,
        flops=2.0 * 512**3 * ones,
        full=ones,
        lanes=ones,
        aliased=ones,
        temporary=ones * ("order" not in values.domains),
        pieces=512.0 * ones,
        grains=values.integers("grain", 1).astype(np.float64),
    )


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
    """Features of candidates."""
    return FeatureExtractor(space, kernel, target)(candidates)
