"""Plans timed as whole models in turn, and the fastest one that is within the error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import fsum
from statistics import median

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.precision import Calibration
from tunefarm.measure.compare import Comparison
from tunefarm.tuner.calibration.choice import ChoicePoint
from tunefarm.tuner.confirm.latency import (
    COMPARISON,
    latencies_at_placements,
    pinned,
    placed_programs,
)
from tunefarm.tuner.confirm.verdict import Meeting, compare
from tunefarm.tuner.precision.model import PlannedModel
from tunefarm.tuner.precision.search import Assignment, Point, pareto
from tunefarm.tuner.records.size_ranges import points_of

RACED_WITHIN, RACED_BEYOND = 4, 3
"""Points within the error, and beyond it, that are timed next to f32 and the uniform ones."""
MOST_SIZES = 3
RACE = replace(COMPARISON, max_seconds=10.0, precise=None)


def fastest_within(points: Sequence[ChoicePoint], budget: float) -> int:
    """The number of the fastest point within the error.

    One other than f32 must be faster beyond doubt: with its whole interval.
    """
    within = [
        number
        for number, point in enumerate(points)
        if point.worst <= budget
        and (not point.precisions or point.high is None or point.high < 1.0)
    ]
    return min(within, key=lambda number: points[number].ratio)


def confirmed(
    model: PlannedModel,
    points: Sequence[ChoicePoint],
    chosen: int,
    budget: float,
    uniform: Iterable[Assignment],
    calibration: Calibration | None,
) -> int:
    """The chosen point, or the fastest within the error that has one precision throughout, if fresh
    runs in turn show that as the faster one: the first of many in a race owes some of it to luck.
    """
    plain = [dict(assignment) for assignment in uniform]
    rivals = [point for point in points if dict(point.precisions) in plain]
    rivals = [point for point in rivals if point.worst <= budget]
    if not points[chosen].precisions or not rivals or points[chosen] in rivals:
        return chosen
    rival = min(rivals, key=lambda point: point.ratio)
    model.say("timing the fastest plan next to the best uniform one")
    _, ratio = race(model, [rival.precisions, points[chosen].precisions], calibration)
    (kind,) = rival.counts
    model.say(f"the plan is {1 / ratio.ratio:.2f} times as fast as {kind} throughout")
    return chosen if ratio.ratio <= 1.0 else points.index(rival)


def to_race(
    points: Sequence[Point], limit: float, budget: float, uniform: Iterable[Assignment]
) -> list[Point]:
    """f32 first, then the plans that are worth a whole-model run, each once."""
    front = pareto(points)
    within = [point for point in front if point.error <= limit and point.lowered]
    beyond = [point for point in front if point.error > budget]
    plain = [point for point in points if dict(point.assignment) in [dict(u) for u in uniform]]
    f32 = [point for point in points if not point.lowered]
    wanted = [*f32[:1], *within[-RACED_WITHIN:], *plain, *beyond[-RACED_BEYOND:]]
    unique = {tuple(sorted(point.assignment.items())): point for point in wanted}
    return list(unique.values())


def race(
    model: PlannedModel, assignments: Sequence[Assignment], calibration: Calibration | None
) -> list[Comparison]:
    """The time of each plan over that of the first one, f32."""
    meetings = run_in_turn(model, assignments, calibration)
    return [compare(meetings, number, 0) for number in range(len(assignments))]


def run_in_turn(
    model: PlannedModel, assignments: Sequence[Assignment], calibration: Calibration | None
) -> list[Meeting]:
    """Seconds of whole models with these plans, from interleaved runs on pinned cores, at one
    placement after the other.

    Where sizes are open they are run at representative ones, see `together`.
    """
    executables = [
        model.executable(*model.lowered(assignment, calibration)) for assignment in assignments
    ]
    chosen = representative_sizes(model.prepared)
    serial = executables[0].threads == 1
    options = replace(RACE, max_seconds=RACE.max_seconds / len(chosen), serial=serial)
    found = []
    seed = model.settings.search.seed
    for sizes in chosen:
        place = partial(placed_programs, executables, sizes, seed)
        with pinned(executables[0].threads):
            found.append(latencies_at_placements(place, options))
    return [
        dict(enumerate(together([list(meeting.values()) for meeting in meetings])))
        for meetings in zip(*found, strict=False)  # the smaller sizes may have had time for more
    ]


def representative_sizes(graph: Graph) -> list[Mapping[str, int]]:
    """Sizes at which plans are timed: few of those between the minimum and the maximum."""
    if graph.signature is None:
        return [{}]
    points = points_of(graph.signature)
    last = len(points) - 1
    spread = sorted({round(last * n / (MOST_SIZES - 1)) for n in range(MOST_SIZES)})
    return [points[number].symbols for number in spread]


def together(found: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Samples of each program at several sizes as samples of all sizes: each size counts alike.

    Of one size they stay as they are. Of several, seconds at a size are shares of the first
    program's median there.
    """
    if len(found) == 1:
        return [list(samples) for samples in found[0]]
    scales = [median(times[0]) for times in found]
    count = min(len(samples) for times in found for samples in times)
    return [
        [
            fsum(times[program][i] / scale for times, scale in zip(found, scales, strict=True))
            for i in range(count)
        ]
        for program in range(len(found[0]))
    ]
