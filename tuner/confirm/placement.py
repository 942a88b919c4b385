"""Where a model has the buffers of its kernels, and what of a kernel's speed is owed to that: the
winner against itself elsewhere.

Both sides run the same code over the same data. One has its buffers where it was searched, the
other where production may as well have them: where another call of the model has them, or each
moved by some pages and lines. A ratio that differs says how much of a kernel's latency a change of
the model around it may give or take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from statistics import mean

import numpy as np

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.runtime.spec.executable_spec import (
    ALIGNMENT,
    CallStep,
    ExecutableSpec,
    Location,
    Place,
    aligned,
)
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.db import queries
from tunefarm.db.records import TaskKey
from tunefarm.db.store import Store
from tunefarm.measure.compare import LogRatio, pair_of
from tunefarm.measure.farm.runner import Runner
from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.measure.placement import Placement, buffer_sizes
from tunefarm.tuner.confirm.finalists import Settled
from tunefarm.tuner.reports.report import KEY_CHARACTERS, TaskStatus
from tunefarm.tuner.search.measuring import SideMeasurements
from tunefarm.tuner.search.tasks import TuningTask

MOVES = 0.03  # a kernel that changes by less, beyond doubt, is not worth a word
SAMPLES = 28  # of each side
_PAGE = 4096  # bytes of the arena of which one use is kept
_SHIFT = 4096 + 7 * 64  # bytes by which each buffer is moved more than the one before


class PlacementCheck(SideMeasurements[Settled]):
    """Measures winners at two placements each; `stop` ends it early."""

    def __init__(self, store: Store, *, job: str, seed: int) -> None:
        super().__init__(job, "placement", seed)
        self.ratios: dict[TaskKey, LogRatio] = {}  # time where it was searched over time elsewhere
        self._store = store

    def run(
        self,
        settled: Iterable[Settled],
        runner: Runner,
        timing: Mapping[str, float | int],
        out_of_time: Callable[[float], bool],
    ) -> None:
        """Measure the winner of each task, the costliest first, while there is time.

        `out_of_time` tells whether so many seconds from now is too late.
        """
        options = {**timing, "samples": SAMPLES}
        self._measure(sorted(settled, key=_costliest_first), runner, options, out_of_time)

    def _take(self, settled: Settled, result: MeasureResult) -> None:
        pair = pair_of(result)
        if pair is not None:
            self.ratios[settled.task.key] = pair

    def _request(self, settled: Settled, options: Mapping[str, float | int]) -> MeasureRequest:
        task = settled.task
        trial = queries.trial_of(self._store, settled.best)
        assert trial is not None, "its finalists have just met"
        name, seed = self._next()
        request = task.request(name, [trial.schedule, trial.schedule], options, seed)
        places = tuple(placement.to_json() for placement in two_placements(task))
        return replace(request, placements=places)


def _costliest_first(settled: Settled) -> float:
    cost = settled.task.progress.cost
    return -cost if math.isfinite(cost) else 0.0


def two_placements(task: TuningTask) -> tuple[Placement, Placement]:
    """Where a task's candidates are timed, and another place that production may have."""
    sizes = buffer_sizes(task.kernel)
    first, *others = task.placements or (Placement.packed(sizes),)
    if others:
        return first, others[0]
    offsets = first.offsets[: len(sizes)]
    ranks = sorted(range(len(sizes)), key=lambda number: offsets[number])
    moved = [offset + _SHIFT * (1 + ranks.index(n)) for n, offset in enumerate(offsets)]
    return first, Placement.near(moved, sizes)


def moves(ratio: LogRatio) -> bool:
    """Whether where its buffers lie alone changes a kernel by more than `MOVES`, beyond doubt."""
    return ratio.low > 1.0 + MOVES or ratio.high < 1.0 / (1.0 + MOVES)


def moved_lines(tasks: Iterable[TaskStatus]) -> list[str]:
    """A line for each kernel that is moved by where its buffers lie."""
    return [
        f"where its buffers lie alone moves {task.title} ({task.key[:KEY_CHARACTERS]}) "
        f"by {100 * math.expm1(abs(task.placement.mean)):.0f} %"
        for task in tasks
        if task.placement is not None and moves(task.placement)
    ]


def model_placements(
    spec: ExecutableSpec, kernels: Mapping[str, FusedKernel]
) -> dict[str, tuple[Placement, ...]]:
    """Where the planned arena has the buffers of each kernel, by workload key.

    A placement for each call of a kernel that differs from the earlier ones. Inputs and outputs of
    the model are their callers': they are taken to lie after the arena, at cache lines. So is what
    lies within a value, at the line that it begins in.
    """
    ends = list(
        accumulate(
            (aligned(type.bytes) for _, type in (*spec.inputs, *spec.outputs)),
            initial=aligned(spec.arena_bytes),
        )
    )

    def offset(location: Location) -> int:
        match location.place:
            case Place.ARENA:
                return location.number
            case Place.INPUT:
                return ends[location.number] + location.offset
            case Place.OUTPUT:
                return ends[len(spec.inputs) + location.number] + location.offset
            case Place.CONSTANT:  # one that the kernel does not know as such
                return ends[-1]

    reports = {part.symbol: report for part, report in zip(spec.objects, spec.kernels, strict=True)}
    found: dict[str, dict[Placement, None]] = {key: {} for key in kernels}
    for step in spec.steps:
        if not isinstance(step, CallStep) or reports[step.symbol].key not in kernels:
            continue
        report = reports[step.symbol]
        kernel = kernels[report.key]
        *inputs, output = step.buffers
        offsets = [
            _line(offset(location))
            for buffer, location in zip(kernel.inputs, inputs, strict=True)
            if not buffer.constant
        ]
        offsets.append(_line(offset(output)))
        if step.workspace is not None:
            offsets.append(step.workspace)
        found[report.key][Placement.near(offsets, buffer_sizes(kernel))] = None
    return {key: tuple(placements) for key, placements in found.items()}


def cache_states(spec: ExecutableSpec) -> dict[str, dict[str, int]]:
    """What the calls of each kernel find in the caches, as options of a request, by workload key.

    `model_bytes` are all that a run touches: what lies between two reads of a constant.
    `idle_bytes` are those that are touched between the last use of the memory where the kernel's
    output lies and the call, the mean over its pages and over the kernel's calls. One run follows
    another.
    """
    reports = {part.symbol: report for part, report in zip(spec.objects, spec.kernels, strict=True)}
    operands = {
        part.symbol: types for part, types in zip(spec.objects, spec.operands, strict=False)
    }
    ports = sum(type.bytes for _, type in (*spec.inputs, *spec.outputs))
    whole = spec.arena_bytes + ports + sum(constant.nbytes for constant in spec.constants)
    used = np.zeros(-(-spec.arena_bytes // _PAGE), np.int64)  # what was touched before, by page
    touched, found = 0, dict[str, list[int]]()
    calls = [step for step in spec.steps if isinstance(step, CallStep)]
    for number, step in enumerate(calls * 2):
        types = operands.get(step.symbol, ())
        places = list(zip(step.buffers, types, strict=False))
        if not places:
            continue
        place, type = places[-1]
        idle = whole
        if place.place is Place.ARENA:
            idle = min(whole, touched - int(used[_pages(place, type)].mean()))
        if number >= len(calls):
            found.setdefault(reports[step.symbol].key, []).append(idle)
        touched += sum(type.bytes for _, type in places)
        for place, type in places:
            if place.place is Place.ARENA:
                used[_pages(place, type)] = touched
    return {
        key: {"model_bytes": whole, "idle_bytes": int(mean(idle))} for key, idle in found.items()
    }


def _pages(place: Location, type: TensorType) -> slice:
    """The pages of the arena that a value lies in."""
    return slice(place.number // _PAGE, -(-(place.number + max(1, type.bytes)) // _PAGE))


def _line(offset: int) -> int:
    """Where the cache line of a byte begins."""
    return offset // ALIGNMENT * ALIGNMENT
