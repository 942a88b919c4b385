"""Whole models at several sizes: what a size plan makes of the model, next to the untuned one.

Kernels that are faster by themselves at a size may not make the model so. Each range's program is
measured at its points in turn with the untuned model and with the one that has one set of schedules
for all sizes: a range whose program loses to that keeps none of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.target import Target
from tunefarm.tuner.building.size_plan import range_programs
from tunefarm.tuner.confirm.latency import (
    COMPARISON,
    Agree,
    aligned_inputs,
    compare_models,
)
from tunefarm.tuner.confirm.whole_model import ModelBuilds
from tunefarm.tuner.records.size_ranges import Ratio, SizePlan, SizePoint, merged

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
    programs are slower than what is applied anyway lose their schedules."""
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
        own = programs[place]
        latency = compare_models(
            Executable(untuned.of_tensors()),
            Executable(own.of_tensors()),
            Executable(one.of_tensors()),
            replace(COMPARISON, max_seconds=left),
            agree,
            sizes=point.symbols,
        )
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
