"""Features of candidates in closed form: loops, choices, kernel and target as numbers.

Nothing is lowered: what a candidate's loops touch, and how often, follows from its choices (see
`tunefarm.compiler.schedule.nest_shape`), for thousands of candidates in a few array operations.
Columns:

- `sketch`: position of the candidate's sketch among the sorted names of the layout's sketches;
- `nest.*`, `l1.*`, `l2.*`, `l3.*`, `parallel.*`: see `NEST_FEATURES` (NaN where a sketch has no
  shape);
- `<choice>[i]`: the i-th number of a choice's value (NaN where the sketch has no such choice);
- `kernel.*`: see `KERNEL_FEATURES`; `target.*`: see `TARGET_FEATURES`.

Choices of the same name share a column over sketches and kernels, and what says how good a loop
nest is are ratios, so that one model serves many kernels and shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.kernels.count_work import elements, kernel_bytes, kernel_flops
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.kernel_sizes import live_extents
from tunefarm.compiler.schedule.nest_shape import NestShape, Numbers
from tunefarm.compiler.schedule.space import Candidate, Choice, ScheduleSpace, Sketch
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

ESTIMATE = 1 + NEST_FEATURES.index("nest.estimate")
"""The column of the analytic estimate, in every layout."""

KERNEL_FEATURES: tuple[str, ...] = (
    "kernel.flops",  # arithmetic operations on values of one call, all stages
    "kernel.bytes",  # bytes of all inputs and of the output, each counted once
    "kernel.intensity",  # flops per byte
    "kernel.reduction",  # product of the anchor's reduce extents (1 without a reduction)
    "kernel.output",  # elements of the output
    "kernel.element_bytes",  # bytes of one element of the anchor
    "kernel.stages",  # number of stages
    "kernel.prologue",  # stages before the anchor
    "kernel.inputs",  # number of input buffers
    *(f"kernel.extent[{i}]" for i in range(SPATIAL_AXES)),  # anchor's axes, innermost first, else 1
    *(f"kernel.reduce[{i}]" for i in range(REDUCE_AXES)),  # its reduce axes, innermost first
)
_TARGET_FACTS = ("vector_registers", "l1_bytes", "l2_bytes", "l3_bytes", "cores")
TARGET_FEATURES = ("target.lanes", *(f"target.{name}" for name in _TARGET_FACTS))


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """The columns of a feature matrix: the union over the spaces that one model has to serve."""

    sketches: tuple[str, ...]
    choices: tuple[str, ...]  # "<choice>[i]"

    @staticmethod
    def of(spaces: Sequence[ScheduleSpace]) -> FeatureLayout:
        """The layout that holds every sketch and choice of `spaces`, in sorted order."""
        sketches = [sketch for space in spaces for sketch in space.sketches]
        choices = (choice for sketch in sketches for choice in sketch.choices)
        columns = {name for choice in choices for name in _column_names(choice)}
        names = {sketch.name for sketch in sketches}
        return FeatureLayout(tuple(sorted(names)), tuple(sorted(columns)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return ("sketch", *NEST_FEATURES, *self.choices, *KERNEL_FEATURES, *TARGET_FEATURES)


class FeatureExtractor:
    """Features of one task's candidates; its tables are made once.

    What the layout does not have, as for a kernel that was not there when a model was trained, is
    left out.
    """

    def __init__(
        self,
        space: ScheduleSpace,
        kernel: FusedKernel,
        target: Target,
        layout: FeatureLayout,
        threads: int = 1,
    ) -> None:
        self.layout = layout
        self._threads = threads
        self.packed = PackedSpace(space)
        self._kernel, self._target = kernel, target
        self._lanes = vector_lanes(kernel, target)
        self._flops, self._bytes = kernel_flops(kernel), kernel_bytes(kernel)
        facts = [*kernel_facts(kernel), float(target.lanes(DType.F32))]
        facts += [float(getattr(target, name)) for name in _TARGET_FACTS]
        self._facts = np.array(facts, dtype=np.float32)
        self._first_choice = 1 + len(NEST_FEATURES)
        self._first_fact = self._first_choice + len(layout.choices)
        column_of = {name: self._first_choice + i for i, name in enumerate(layout.choices)}
        self._sketches: list[_SketchTables] = []
        for sketch in space.sketches:
            tables = []
            for choice in sketch.choices:
                known = [i for i, name in enumerate(_column_names(choice)) if name in column_of]
                columns = [column_of[_column_names(choice)[i]] for i in known]
                tables.append((np.array(columns, np.intp), _numbers(choice)[:, known]))
            known_sketch = sketch.name in layout.sketches
            number = float(layout.sketches.index(sketch.name)) if known_sketch else math.nan
            self._sketches.append(_SketchTables(number, sketch, tuple(tables)))
        self._remembered = np.empty(0, np.int64)  # numbers of candidates, sorted
        self._features = np.empty((0, len(layout.names)), np.float32)  # theirs

    def __call__(self, candidates: Sequence[Candidate]) -> FeatureMatrix:
        """Shape [len(candidates), len(layout.names)]."""
        return self.of_rows(self.packed.pack(candidates))

    def of_rows(self, rows: Rows) -> FeatureMatrix:
        """The features of packed candidates; shape [len(rows), len(layout.names)]."""
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
        matrix = np.full((len(rows), len(self.layout.names)), np.nan, np.float32)
        matrix[:, self._first_fact :] = self._facts
        for number in np.unique(rows[:, 0]):
            sketch = self._sketches[number]
            index = np.flatnonzero(rows[:, 0] == number)
            positions = rows[index, 1:]
            matrix[index, 0] = sketch.number
            for i, (columns, table) in enumerate(sketch.tables):
                matrix[index[:, None], columns] = table[positions[:, i]]
            if sketch.sketch.shape is not None:
                names = (choice.name for choice in sketch.sketch.choices)
                by_name = {name: positions[:, i] for i, name in enumerate(names)}
                shape = sketch.sketch.shape(by_name)
                values = nest_features(
                    shape, self._flops, self._bytes, self._target, self._lanes, self._threads
                )
                matrix[index, 1 : self._first_choice] = values
        return matrix


def nest_features(
    shape: NestShape, flops: int, moved: int, target: Target, lanes: int, threads: int
) -> FeatureMatrix:
    """The values of `NEST_FEATURES`, shape [n, len(NEST_FEATURES)].

    `flops` and `moved` are the operations of the kernel and the bytes of its inputs and output,
    `lanes` those of its schedules' vectors.
    """
    peak = max(1, flops) / (4.0 * lanes)  # cycles, with two multiply-adds a cycle
    transfers = _transfers(shape, (target.l1_bytes, target.l2_bytes, target.l3_bytes))
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


class _Transfers(NamedTuple):
    """What a cache holds of the nest, and what is brought into it: shapes [n]."""

    fill: Numbers  # data of the largest inner nest that fits / size of the cache
    spill: Numbers  # data of the next larger nest / size of the cache
    streamed: Numbers  # bytes


def _transfers(shape: NestShape, sizes: Sequence[int]) -> list[_Transfers]:
    """The transfers into caches of so many bytes.

    The largest inner nest whose data fits keeps it: each operand then comes once for each turn of
    the loops outside, but for those next to the nest that do not move it.
    """
    nest = shape.nest
    axes, count = nest.inside.shape
    # below: [caches, n], [caches, operands, n]
    size = np.maximum(np.array(sizes, np.float64), 1.0)[:, None]
    here = np.arange(count)
    extents = nest.inside.copy()
    pieces = np.stack([operand.footprint(extents) for operand in shape.operands])
    fill = pieces.sum(axis=0) / size
    spill = fill.copy()
    moves = np.stack([operand.moves_with(axes) for operand in shape.operands])
    fits = np.ones(fill.shape, np.bool_)  # everything up to the present loop
    next_to = np.ones((len(sizes), *pieces.shape), np.bool_)  # no loop outside has moved it yet
    streamed = np.broadcast_to(pieces, next_to.shape)
    for axis, trips in zip(nest.order(), nest.trips(), strict=True):
        turning = trips > 1
        if not turning.any():
            continue
        extents[axis, here] *= trips
        grown = np.stack([operand.footprint(extents) for operand in shape.operands])
        total = grown.sum(axis=0) / size
        still = fits & (total <= 1.0)
        fill = np.where(still, total, fill)
        spill = np.where(still | (fits & turning), total, spill)
        moved = moves[:, axis] & turning
        next_to &= still[:, None] | ~moved
        streamed = np.where(still[:, None], grown, streamed * np.where(next_to, 1.0, trips))
        fits = still | (fits & ~turning)
    return [_Transfers(*parts) for parts in zip(fill, spill, streamed.sum(axis=1), strict=True)]


def _column_names(choice: Choice) -> list[str]:
    width = len(choice.numbers(choice.values[0]))
    return [f"{choice.name}[{i}]" for i in range(width)]


def _numbers(choice: Choice) -> FeatureMatrix:
    """The numbers of every value of the domain, one row each, in the order of `_column_names`."""
    return np.array([choice.numbers(value) for value in choice.values], np.float32)


@dataclass(frozen=True, slots=True)
class _SketchTables:
    number: float
    sketch: Sketch
    tables: tuple[tuple[npt.NDArray[np.intp], FeatureMatrix], ...]  # per choice: columns, numbers


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
        float(len(kernel.stages)),
        float(kernel.stages.index(anchor)),
        float(len(kernel.inputs)),
        *_innermost(spatial, SPATIAL_AXES),
        *_innermost(reduce, REDUCE_AXES),
    )


def _innermost(extents: Sequence[int], count: int) -> list[float]:
    reversed_extents = [float(extent) for extent in reversed(extents)][:count]
    return reversed_extents + [1.0] * (count - len(reversed_extents))
