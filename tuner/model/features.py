"""Features of candidates in closed form: loops, kernel and CPU as numbers.

Nothing is lowered: what a candidate's loops touch, and how often, follows from its choices (see
`tunefarm.compiler.schedule.nest_shape`), for thousands of candidates in a few array operations.
`FEATURES` names the columns, the same for every space, kernel and target: no choice of a sketch is
among them, nor which sketch it is. So one model serves all of them, and what was learnt of some
CPUs ranks the schedules of another one.

- `score`: log2 of throughput that is expected before anything is measured, up to a constant of the
  task: the analytic estimate, corrected by the pretrained model where there is one;
- `nest.*`, `l1.*`, `l2.*`, `l3.*`, `parallel.*`: see `NEST_FEATURES`, `loop.*`, `body.*`: see
  `LOOP_FEATURES` (NaN where a sketch has no shape);
- `kernel.*`: see `KERNEL_FEATURES`; `target.*`: see `TARGET_FEATURES`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.kernels.count_work import elements, kernel_bytes, kernel_flops
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.kernel_sizes import live_extents
from tunefarm.compiler.schedule.cycles import transfers_of
from tunefarm.compiler.schedule.nest_shape import NestShape
from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.compiler.schedule.vectors import vector_lanes
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.tuner.model.packed_space import Numbers as CandidateNumbers
from tunefarm.tuner.model.packed_space import PackedSpace, Rows

FeatureMatrix: TypeAlias = npt.NDArray[np.float32]

REMEMBERED = 4096  # candidates of a space, the latest: proposing asks for them again and again
SPATIAL_AXES = 6
REDUCE_AXES = 4

BYTES_PER_CYCLE = (32.0, 16.0)  # into the first-level cache and into the second, at best

CACHES = ("l1", "l2", "l3")
NEST_FEATURES: tuple[str, ...] = (
    "nest.flops",  # log2 of the floating-point operations executed
    "nest.work",  # operations executed / operations of the kernel: repeated ones, algorithms
    "nest.registers",  # vectors needed at once / vector registers of the target
    "nest.accumulators",  # vectors held from step to step: independent chains of operations
    "nest.reuse",  # vector operations per vector or value loaded into a register
    "nest.body",  # log2 of the vector operations in the unrolled body
    "nest.full",  # share of the points computed in whole register tiles
    "nest.lanes",  # useful lanes / lanes computed
    "nest.cycles",  # log2 of (cycles of the arithmetic units / those at peak)
    "nest.estimate",  # log2 of (cycles, or of the transfers into l1 and l2 if more / at peak)
    "nest.aliased",  # cache lines of one step whose addresses are equal modulo a page
    "nest.temporary",  # bytes written and read again / bytes of inputs and output
    *(
        f"{cache}.{name}"
        for cache in CACHES
        for name in (
            "fill",  # log2 of (bytes touched by the largest inner nest that fits / cache size)
            "spill",  # log2 of (bytes touched by the next larger nest / cache size)
            "streamed",  # log2 of (bytes brought into the cache / bytes of inputs and output)
            "intensity",  # log2 of (operations executed / bytes brought into the cache)
        )
    ),
    "parallel.pieces",  # log2 of the iterations that are shared by threads
    "parallel.grain",  # log2 of the operations in one chunk
    "parallel.balance",  # average load of a thread / load of the busiest, with static chunks
)

NAMED_LOOPS = 4
LOOP_FEATURES: tuple[str, ...] = (
    *(
        f"loop.{name}[{i}]"  # of the loops that turn more than once, innermost first
        for i in range(NAMED_LOOPS)
        for name in (
            "trips",  # log2 of the iterations, 0 where there is no such loop
            "reduces",  # 1 if it is of a reduce axis, 0 if it walks over the output
            "stride",  # log2 of the bytes between its iterations' data, of the operand where most
        )
    ),
    "body.rows",  # log2 of the extent of the body along its longest axis of the output
    "body.columns",  # and along the second longest
    "body.reduce",  # log2 of the points of the reduction in the body
    "body.ahead",  # log2 of 1 + how far ahead data are prefetched
    "body.partial",  # partial results of all reductions along a row
    "body.straight",  # vectors of a row's parts in straight code
    "body.overlapped",  # loops whose last tile is shifted or masked instead of peeled
)

KERNEL_FEATURES: tuple[str, ...] = (
    "kernel.flops",  # arithmetic operations on values of one call, all stages
    "kernel.bytes",  # bytes of all inputs and of the output, each counted once
    "kernel.intensity",  # flops per byte
    "kernel.reduction",  # product of the anchor's reduce extents (1 without a reduction)
    "kernel.output",  # elements of the output
    "kernel.element_bytes",  # bytes of one element of the anchor
    "kernel.is_float",  # 1 if the anchor's elements are floating-point numbers
    "kernel.stages",  # number of stages
    "kernel.prologue",  # stages before the anchor
    "kernel.inputs",  # number of input buffers
    *(f"kernel.extent[{i}]" for i in range(SPATIAL_AXES)),  # anchor's axes, innermost first, else 1
    *(f"kernel.reduce[{i}]" for i in range(REDUCE_AXES)),  # its reduce axes, innermost first
)
_TARGET_SIZES = ("vector_registers", "l1_bytes", "l2_bytes", "l3_bytes", "cores")
_TARGET_ABILITIES = ("has_fma", "has_avx512", "masks_vectors", "has_gather", "has_half_floats")
TARGET_FEATURES: tuple[str, ...] = (
    "target.lanes",  # f32 numbers in a vector register
    *(f"target.{name}" for name in _TARGET_SIZES),
    *(f"target.{name}" for name in _TARGET_ABILITIES),  # 1 or 0
    "target.int8_terms",  # products of bytes that an instruction adds up in a lane, 0 if none does
    "target.bf16_terms",  # and of bf16
    "target.matrix_tiles",  # 1 or 0
)

SCORE = 0
FIRST_NEST = 1
_FIRST_LOOP = FIRST_NEST + len(NEST_FEATURES)
_FIRST_FACT = _FIRST_LOOP + len(LOOP_FEATURES)
FEATURES: tuple[str, ...] = (
    "score",
    *NEST_FEATURES,
    *LOOP_FEATURES,
    *KERNEL_FEATURES,
    *TARGET_FEATURES,
)
"""Names of the columns, in order."""
ESTIMATE = FEATURES.index("nest.estimate")


def layout_digest() -> str:
    """A digest of the columns' names and order, by which a model that was trained knows them."""
    return hashlib.sha256("\n".join(FEATURES).encode()).hexdigest()[:16]


class Correction(Protocol):
    """What a pretrained model knows better than the analytic estimate."""

    def of(self, features: FeatureMatrix) -> npt.NDArray[np.float32]:
        """What to add to log2 of throughput by the estimate; shape [len(features)].

        The column `score` is not to be read.
        """


class FeatureExtractor:
    """Features of one task's candidates; facts of kernel and target are computed once."""

    def __init__(
        self,
        space: ScheduleSpace,
        kernel: FusedKernel,
        target: Target,
        threads: int = 1,
        correction: Correction | None = None,
    ) -> None:
        """`correction`: of the analytic estimate, in the column `score`."""
        self.packed = PackedSpace(space)
        self._threads, self._target, self._correction = threads, target, correction
        self._lanes = vector_lanes(kernel, target)
        self._flops, self._bytes = kernel_flops(kernel), kernel_bytes(kernel)
        self._facts = np.array([*kernel_facts(kernel), *_target_facts(target)], np.float32)
        self._remembered = np.empty(0, np.int64)  # numbers of candidates, sorted
        self._features = np.empty((0, len(FEATURES)), np.float32)  # theirs

    def __call__(self, candidates: Sequence[Candidate]) -> FeatureMatrix:
        """Shape [len(candidates), len(FEATURES)]."""
        return self.of_rows(self.packed.pack(candidates))

    def of_rows(self, rows: Rows) -> FeatureMatrix:
        """The features of packed candidates; shape [len(rows), len(FEATURES)]."""
        numbers = self.packed.numbers(rows)
        places = np.searchsorted(self._remembered, numbers)
        places[places == len(self._remembered)] = 0
        known = np.zeros(len(rows), np.bool_)
        if len(self._remembered):
            known = self._remembered[places] == numbers
        if not known.all():
            self._remember(numbers, rows, known)
            places = np.searchsorted(self._remembered, numbers)
        return np.asarray(self._features[places])

    def _remember(
        self, numbers: CandidateNumbers, rows: Rows, known: npt.NDArray[np.bool_]
    ) -> None:
        """Add the rows that are not `known`, and forget the others if they are too many."""
        fresh, first = np.unique(numbers[~known], return_index=True)
        features = self._computed(rows[~known][first])
        old, kept = self._remembered, self._features
        if len(old) + len(fresh) > REMEMBERED:
            asked = np.isin(old, numbers)
            old, kept = old[asked], kept[asked]
        together = np.concatenate([old, fresh])
        order = np.argsort(together, kind="stable")
        self._remembered = together[order]
        self._features = np.concatenate([kept, features])[order]

    def _computed(self, rows: Rows) -> FeatureMatrix:
        matrix = np.full((len(rows), len(FEATURES)), np.nan, np.float32)
        matrix[:, _FIRST_FACT:] = self._facts
        for number in np.unique(rows[:, 0]):
            sketch = self.packed.space.sketches[number]
            if sketch.shape is None:
                continue
            index = np.flatnonzero(rows[:, 0] == number)
            names = (choice.name for choice in sketch.choices)
            shape = sketch.shape({name: rows[index, 1 + i] for i, name in enumerate(names)})
            matrix[index, FIRST_NEST:_FIRST_LOOP] = nest_features(
                shape, self._flops, self._bytes, self._target, self._lanes, self._threads
            )
            matrix[index, _FIRST_LOOP:_FIRST_FACT] = loop_features(shape)
        matrix[:, SCORE] = -np.nan_to_num(matrix[:, ESTIMATE], nan=0.0)
        if self._correction is not None:
            matrix[:, SCORE] += self._correction.of(matrix)
        return matrix


def nest_features(
    shape: NestShape, flops: int, moved: int, target: Target, lanes: int, threads: int
) -> FeatureMatrix:
    """The values of `NEST_FEATURES`, shape [n, len(NEST_FEATURES)].

    `flops` and `moved` are the operations of the kernel and the bytes of its inputs and output,
    `lanes` those of its schedules' vectors.
    """
    machine = target.machine
    peak = max(1, flops) / (2.0 * machine.vectors.fma * lanes)  # cycles
    transfers = transfers_of(shape, target)
    estimate = shape.cycles
    for transfer, rate in zip(transfers, BYTES_PER_CYCLE, strict=False):
        estimate = np.maximum(estimate, transfer.streamed / rate)
    columns = [
        np.log2(np.maximum(shape.flops, 1.0)),
        shape.flops / max(1, flops),
        shape.registers / target.vector_registers,
        shape.accumulators,
        shape.step / shape.loads,
        np.log2(np.maximum(shape.body, 1.0)),
        shape.full,
        shape.lanes,
        np.log2(shape.cycles / peak),
        np.log2(estimate / peak),
        shape.aliased,
        shape.temporary / max(1, moved),
    ]
    for transfer in transfers:
        columns += [
            np.log2(transfer.fill),
            np.log2(transfer.spill),
            np.log2(transfer.streamed / max(1, moved)),
            np.log2(np.maximum(shape.flops, 1.0) / transfer.streamed),
        ]
    share = np.ceil(shape.pieces / np.maximum(shape.grains, 1.0))  # iterations of a chunk
    chunks = np.ceil(shape.pieces / share)
    busiest = np.ceil(chunks / threads) * share
    columns += [
        np.log2(shape.pieces),
        np.log2(np.maximum(shape.flops, 1.0) / chunks),
        np.where(shape.grains > 1, shape.pieces / (threads * busiest), 1.0),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def loop_features(shape: NestShape) -> FeatureMatrix:
    """The values of `LOOP_FEATURES`, shape [n, len(LOOP_FEATURES)]."""
    nest = shape.nest
    axes, count = nest.inside.shape
    reduces = ~shape.operands[-1].moves_with(axes)
    here = np.arange(count)
    trips = np.zeros((NAMED_LOOPS + 1, count))  # the last row takes the loops that are not named
    kinds, strides = np.zeros_like(trips), np.zeros_like(trips)
    widest = np.log2(
        [1.0 + max(operand.stride(axis) for operand in shape.operands) for axis in range(axes)]
    )
    place = np.zeros(count, np.int64)
    for axis, turns in zip(nest.order(), nest.trips(), strict=True):
        turning = turns > 1
        row = np.minimum(place, NAMED_LOOPS)
        trips[row, here] = np.where(turning, np.log2(turns), trips[row, here])
        kinds[row, here] = np.where(turning, reduces[axis], kinds[row, here])
        strides[row, here] = np.where(turning, widest[axis], strides[row, here])
        place += turning
    columns = [column for i in range(NAMED_LOOPS) for column in (trips[i], kinds[i], strides[i])]
    extents = np.log2(np.maximum(nest.inside, 1.0))
    spatial = np.sort(np.concatenate([np.zeros((2, count)), extents[~reduces]]), axis=0)
    columns += [
        spatial[-1],
        spatial[-2],
        extents[reduces].sum(axis=0),
        np.log2(1.0 + shape.ahead),
        shape.partial,
        shape.straight,
        nest.overlapped(),
    ]
    return np.stack([np.broadcast_to(item, count) for item in columns], axis=1).astype(np.float32)


def _target_facts(target: Target) -> list[float]:
    """The values of `TARGET_FEATURES`."""
    by_8_bits = target.dot_products(DType.U8, DType.I8, DType.I32)
    by_bf16 = target.dot_products(DType.BF16, DType.BF16, DType.F32)
    names = (*_TARGET_SIZES, *_TARGET_ABILITIES)
    return [
        float(target.lanes(DType.F32)),
        *(float(getattr(target, name)) for name in names),
        float(by_8_bits[0].terms if by_8_bits else 0),
        float(by_bf16[0].terms if by_bf16 else 0),
        float(target.matrix_tiles is not None),
    ]


def kernel_facts(kernel: FusedKernel) -> tuple[float, ...]:
    """The values of `KERNEL_FEATURES`; extents are those at the sizes that it is tuned for."""
    anchor = kernel.stage(kernel.anchor)
    live = live_extents(kernel)
    spatial = [axis.extent for axis in anchor.axes]
    if anchor.shape == kernel.output.shape:
        spatial = list(live.output)
    reduce = [live.reduce.get(axis.name, axis.extent) for axis in anchor.reduce_axes]
    whole = math.prod(axis.extent for axis in anchor.reduce_axes)
    rows = math.prod(live.output) / max(1, elements(kernel.output))
    flops = kernel_flops(kernel) * rows * math.prod(reduce) / max(1, whole)
    moved = kernel_bytes(kernel)
    return (
        float(flops),
        float(moved),
        flops / max(1, moved),
        float(math.prod(reduce)),
        float(math.prod(live.output)),
        float(anchor.dtype.bytes),
        float(anchor.dtype.is_float),
        float(len(kernel.stages)),
        float(kernel.stages.index(anchor)),
        float(len(kernel.inputs)),
        *_innermost(spatial, SPATIAL_AXES),
        *_innermost(reduce, REDUCE_AXES),
    )


def _innermost(extents: Sequence[int], count: int) -> list[float]:
    reversed_extents = [float(extent) for extent in reversed(extents)][:count]
    return reversed_extents + [1.0] * (count - len(reversed_extents))
