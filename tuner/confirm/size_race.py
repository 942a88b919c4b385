"""Which schedules serve which sizes: the best of a search, side by side at representative sizes.

A search measures at a few sizes. Kernels that end where their sizes say may have other schedules
that are faster at less: those that were fast at one of these are timed at each point in turn, and
few of them chosen that are within 5 % of the best everywhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from statistics import median
from typing import Any

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.kernels.kernel_sizes import greatest_sizes
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.target import Target
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.measure.farm.runner import Runner
from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.tuner.building.size_plan import range_programs
from tunefarm.tuner.confirm.finalists import Settled
from tunefarm.tuner.confirm.latency import (
    COMPARISON,
    Agree,
    aligned_inputs,
    compare_models,
    repeats_itself,
)
from tunefarm.tuner.confirm.whole_model import ModelBuilds
from tunefarm.tuner.records.size_ranges import Ratio, SizePlan, SizePoint, SizeRange, cover, merged
from tunefarm.tuner.search.measuring import SideMeasurements
from tunefarm.tuner.search.tasks import Planned, TuningTask

CONTENDERS = 6
SAMPLES = 10
LEAST_GAIN = 0.03  # of all kernels together, for which sizes get schedules of their own


class SizeRace(SideMeasurements[tuple[str, int]]):
    """Times the fastest schedules of the tasks at each point; `stop` ends it early."""

    def __init__(self, points: Sequence[SizePoint], *, job: str, seed: int) -> None:
        super().__init__(job, "sizes", seed)
        self._points = points
        self._times: dict[tuple[str, int], dict[str, float]] = {}  # by workload and point
        self._tasks: dict[str, tuple[TuningTask, dict[str, Planned]]] = {}

    def run(
        self,
        tasks: Sequence[TuningTask],
        applied: Mapping[str, str],
        runner: Runner,
        timing: Mapping[str, float | int],
        out_of_time: Callable[[float], bool],
    ) -> None:
        """Measure, the costliest kernels first, while there is time.

        `applied` are the hashes of the schedules that are applied, by workload; `out_of_time` tells
        whether so many seconds from now is too late.
        """
        sized = [task for task in tasks if greatest_sizes(task.kernel) and not task.sizes]
        sized.sort(key=_cost, reverse=True)
        for task in sized:
            key = task.key.workload
            others = [other for other in tasks if other.sizes and other.built_as == key]
            found = contenders(task, others, applied)
            if len(found) > 1:
                self._tasks[key] = task, found
        places = [(key, place) for key in self._tasks for place in range(len(self._points))]
        self._measure(places, runner, {**timing, "samples": SAMPLES}, out_of_time)

    def _take(self, where: tuple[str, int], result: MeasureResult) -> None:
        self._times[where] = _medians(result, list(self._tasks[where[0]][1]))

    def _request(
        self, where: tuple[str, int], options: Mapping[str, float | int]
    ) -> MeasureRequest:
        workload, place = where
        task, racing = self._tasks[workload]
        name, seed = self._next()
        schedules = (planned.schedule for planned in racing.values())
        request = task.request(name, schedules, options, seed)
        return replace(request, sizes=self._points[place].sizes)

    def plan(self) -> SizePlan | None:
        """What the measurements come to; None where nothing was measured at every point."""
        every = range(len(self._points))
        known = [key for key in self._tasks if all((key, n) in self._times for n in every)]
        if not known:
            return None
        schedules: list[dict[str, list[Any]]] = [{} for _ in every]
        seconds = [[0.0, 0.0] for _ in every]
        for key in known:
            task, racing = self._tasks[key]
            applied = next(iter(racing))
            times = [self._times[key, number] for number in every]
            for number, name in enumerate(cover(times, applied)):
                calls = task.progress.occurrences
                seconds[number][0] += calls * times[number][name]
                seconds[number][1] += calls * times[number][applied]
                if name != applied:
                    schedules[number][key] = racing[name].schedule
        for number, (own, one) in enumerate(seconds):
            if own > (1.0 - LEAST_GAIN) * one:  # not worth a program, or noise
                schedules[number], seconds[number] = {}, [one, one]
        ranges = [
            SizeRange(point.bounds, chosen)
            for point, chosen in zip(self._points, schedules, strict=True)
        ]
        drawn = zip(self._points, seconds, strict=True)
        return SizePlan(merged(ranges), {str(point): (a, b) for point, (a, b) in drawn})


def applied_schedules(
    store: Store, tasks: Sequence[TuningTask], settled: Sequence[Settled]
) -> dict[str, str]:
    """The hashes of the schedules that a build applies to the tasks' kernels, by workload."""
    own = {item.task.key: item.best.schedule_hash for item in settled}
    known = {task.key: queries.best(store, task.key) for task in tasks}
    before = {key: found[0].schedule_hash for key, found in known.items() if found is not None}
    found = before | own
    return {task.key.workload: found[task.key] for task in tasks if task.key in found}


def contenders(
    task: TuningTask, others: Sequence[TuningTask], applied: Mapping[str, str]
) -> dict[str, Planned]:
    """The schedules of a kernel that race, by their hashes: the one that is applied, the default
    one, what was found best for other sizes (by the tasks `others`), then the fastest of each.

    `applied` are hashes by workload.
    """
    tasks = (task, *others)
    plans = {name: planned for each in reversed(tasks) for name, planned in each.plans.items()}
    settled = [applied.get(each.key.workload, each.default.hash) for each in tasks]
    fastest = map(_fastest_first, tasks)
    in_turn = (name for places in zip_longest(*fastest) for name in places if name is not None)
    wanted = dict.fromkeys((settled[0], task.default.hash, *settled, *in_turn))
    names = [name for name in wanted if name in plans]
    return {name: plans[name] for name in names[:CONTENDERS]}


def _fastest_first(task: TuningTask) -> list[str]:
    known = (name for name in task.plans if math.isfinite(task.known.get(name, math.inf)))
    return sorted(known, key=lambda name: task.known[name])


def _medians(result: MeasureResult, names: Sequence[str]) -> dict[str, float]:
    samples = (result.samples, *result.rivals)
    return {name: median(own) for name, own in zip(names, samples, strict=True)}


def _cost(task: TuningTask) -> float:
    return task.progress.cost if math.isfinite(task.progress.cost) else 0.0


# Whole models at several sizes: what a size plan makes of the model, next to the untuned one.

RUNS = 3  # of which the fastest counts, where a rough figure will do
LONG = 1.0  # seconds after which no run is repeated
AT_LEAST = 0.2  # seconds of one comparison; with less the rest of the points is left out


def seconds_at(model: Executable, sizes: Mapping[str, int] | None = None) -> float:
    """Roughly how long a run takes where symbols have these sizes (None: in the middle)."""
    inputs = aligned_inputs(model, sizes=sizes)
    taken: list[float] = []
    while len(taken) <= RUNS and sum(taken) < LONG:
        begin = time.perf_counter()
        model.run(inputs)
        taken.append(time.perf_counter() - begin)
    return min(taken[1:] or taken)


def confirm_plan(
    builds: ModelBuilds,
    target: Target,
    untuned: ExecutableSpec,
    plan: SizePlan,
    points: Sequence[SizePoint],
    seconds: float,
    agree: Agree,
) -> SizePlan:
    """The plan with the model's latency at each point, as far as `seconds` suffice; ranges whose
    programs are slower than what is applied anyway lose their schedules.

    Points have no latency whose sizes contradict each other. Raises MeasureError where outputs
    differ at another one.
    """
    choose = builds.choose(target)
    one, _ = builds.compile(target, choose)
    programs = [
        builds.compile(target, program.choose)[0] if item.schedules else one
        for item, program in zip(
            plan.ranges, range_programs(plan, builds.graph, (), choose), strict=True
        )
    ]
    models: dict[str, tuple[float, float]] = {}
    ratios: dict[str, Ratio] = {}
    slower: set[int] = set()
    end = time.monotonic() + seconds
    for number, point in enumerate(points):
        left = (end - time.monotonic()) / (len(points) - number)
        place = next(place for place, item in enumerate(plan.ranges) if item.holds(point))
        if left < AT_LEAST:
            break
        base, own, other = (
            Executable(spec.of_tensors()) for spec in (untuned, programs[place], one)
        )
        options = replace(COMPARISON, max_seconds=left)
        try:
            latency = compare_models(base, own, other, options, agree, sizes=point.symbols)
        except MeasureError:
            if repeats_itself(base, point.symbols, agree):
                raise
            continue
        if latency.is_slower:
            slower.add(place)
        applied = latency.applied
        models[str(point)] = latency.untuned * applied.ratio, latency.untuned
        ratios[str(point)] = applied.ratio, applied.low, applied.high
    ranges = [
        replace(item, schedules={}) if place in slower else item
        for place, item in enumerate(plan.ranges)
    ]
    return replace(plan, ranges=merged(ranges), models=models, ratios=ratios)
