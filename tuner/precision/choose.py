"""`--precision auto`: the fastest model within an error. The phases of `choose_precisions`:

read_data      calibration data -> samples to search, check and report with  (tuner.precision.data)
calibrate      f32 runs -> ranges, if there is data
tune           the model in each uniform precision, as a job of its own: kernels that precisions
               share are measured once
_items         uniform builds -> times of each contraction; each rounded alone -> its error
find_points    plans whose joint errors are measured                        (tuner.precision.search)
race           the best of them, f32 and the uniform ones in turn: what they really take
_choice        the fastest that is within the error on the samples to check with, too, and no
               slower than the best uniform one; its error on the samples to report with
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.apply_precisions import prepare
from tunefarm.compiler.schedule.choice import ChooseSchedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.compiler.types.precision import Precision
from tunefarm.configs.settings import Settings
from tunefarm.tuner.calibration.choice import (
    RELATIVE_ERROR,
    ChoicePoint,
    ContractionCost,
    PrecisionChoice,
)
from tunefarm.tuner.calibration.options import PrecisionOptions
from tunefarm.tuner.calibration.solo import SoloRuns
from tunefarm.tuner.precision.data import Data, Effects, read_data
from tunefarm.tuner.precision.model import PlannedModel, Say
from tunefarm.tuner.precision.race import confirmed, fastest_within, race, to_race
from tunefarm.tuner.precision.search import Assignment, Item, Point, best_point, find_points
from tunefarm.tuner.precision.speed import (
    Conversion,
    UniformTimes,
    conversions,
    copy_seconds_per_byte,
)

LEAST_GAIN = 0.0005
"""Share of the model's time that lowering a contraction must promise to be tried."""
REPAIRS = 3
"""How often the search is repeated with less error when the samples to check with show more."""
_SAFER = 0.95
MARGIN = 0.9
"""Of the relative error that is allowed: what is left is for inputs that nobody has seen."""

Tune: TypeAlias = Callable[[Graph, Numerics, Settings], object]
"""Tunes the kernels of a graph under these settings, into the records."""


def choose_precisions(
    graph: Graph,
    settings: Settings,
    target: Target,
    options: PrecisionOptions,
    tune: Tune,
    choose: ChooseSchedule | None,
    say: Say,
) -> PrecisionChoice:
    """Choose a precision for each contraction of an imported model.

    `choose` gives the best schedules that are on record at the moment. Raises SettingsError for
    options and data that do not fit the model, for a model without contractions, and for an error
    that nothing below f32 meets; MeasureError.
    """
    options.check_search()
    model = PlannedModel(prepare(graph), settings, target, choose, say)
    if not model.found:
        raise SettingsError(
            "the model has no contraction whose precision could be chosen",
            hint="build it with --precision default",
        )
    data = read_data(model, options)
    effects = data.searched(model)
    effects.begin()  # a metric that fails does so before the long work
    kinds = [Precision.F32, *model.narrow_kinds(data.calibration)]
    for kind in kinds:
        say(f"tuning the model in {kind}")
        tune(*model.lowered(model.assignment(kind), data.calibration), model.part_of(len(kinds)))
    times = model.times(kinds, data.calibration)
    items = _items(model, data, times)
    borders = conversions(model.prepared)
    judge = _Judge(times[Precision.F32].rest, items, borders, copy_seconds_per_byte(), effects)
    uniform = [model.assignment(kind) for kind in kinds[1:]]
    allowed = options.budget * (MARGIN if options.metric is None else 1.0)
    say(f"searching the fastest plan within {allowed:g}")
    points = find_points(items, judge, allowed, uniform)
    _check_found(points, judge, options.budget, allowed)
    text, chosen = _choice(model, data, allowed, points, uniform, judge)
    costs = tuple(
        ContractionCost(item.identity, item.label, item.seconds, item.errors) for item in items
    )
    metric = data.search.metric
    measure = RELATIVE_ERROR if metric is None else f"loss of {metric.name}"
    return PrecisionChoice(measure, options.budget, chosen, tuple(text), costs, data.calibration)


def _items(model: PlannedModel, data: Data, times: Mapping[Precision, UniformTimes]) -> list[Item]:
    """The contractions with their times, and the errors where they are worth their trouble."""
    found = {item.identity: item for item in model.found}
    seconds = {
        name: {
            kind: uniform.contractions[name]
            for kind, uniform in times.items()
            if name in uniform.contractions and item.has(kind)
        }
        for name, item in found.items()
    }
    items = []
    model.say(f"measuring what each of {len(found)} contractions costs of the outputs")
    effects = data.solo(model)
    kinds = [kind for kind in times if kind is not Precision.F32]
    runs = SoloRuns.of(model.prepared, kinds, data.calibration, effects.samples, model.executable)
    f32 = times[Precision.F32]
    least = LEAST_GAIN * (f32.rest + sum(f32.contractions.values()))
    for name, own in seconds.items():
        if Precision.F32 not in own:
            continue
        worthwhile = [kind for kind in own if own[Precision.F32] - own[kind] > least]
        errors = {
            kind: effects.error_of(runs.outputs(name, kind))
            for kind in worthwhile
            if (name, kind) in runs.switches
        }
        items.append(Item(name, found[name].label, own, errors))
    return items


@dataclass(frozen=True, slots=True)
class _Judge:
    """Expected times: those of the contractions, the `rest`, and of conversions at `borders`."""

    rest: float
    items: Sequence[Item]
    borders: Sequence[Conversion]
    seconds_per_byte: float
    effects: Effects

    def seconds(self, assignment: Assignment) -> float:
        """The time that is expected of the model."""
        total = self.rest
        for item in self.items:
            kind = assignment.get(item.identity, Precision.F32)
            total += item.seconds.get(kind, item.seconds[Precision.F32])
        per_byte = self.seconds_per_byte
        return total + sum(border.seconds(assignment, per_byte) for border in self.borders)

    def error(self, assignment: Assignment) -> float:
        """The joint error, from runs of the model."""
        return self.effects.error(assignment)


def _check_found(points: Sequence[Point], judge: _Judge, budget: float, allowed: float) -> None:
    """Raise SettingsError where something is faster than f32, but nothing within the error."""
    lowered = [point for point in points if point.lowered]
    faster = any(point.seconds < judge.seconds({}) for point in lowered)
    if not faster or any(point.error <= allowed for point in lowered):
        return
    nearest = min(lowered, key=lambda point: point.error)
    room = f"; {MARGIN:.0%} are used, the rest is for inputs not seen" * (nearest.error <= budget)
    raise SettingsError(
        f"nothing below f32 is within {budget:g}",
        hint=f"the nearest has {nearest.error:.3g}, with {nearest.lowered} of {len(judge.items)} "
        f"matmul/conv ops lowered{room}",
    )


def _choice(
    model: PlannedModel,
    data: Data,
    allowed: float,
    points: Sequence[Point],
    uniform: Sequence[Assignment],
    judge: _Judge,
) -> tuple[list[ChoicePoint], int]:
    """Check the points with samples of their own, time them in turn, and choose one."""
    limit, checked, reported = allowed, data.checked(model), data.reported(model)
    found = list(points)
    for _ in range(REPAIRS):
        best = best_point(found, limit)
        error = checked.error(best.assignment) if best.lowered else 0.0
        if error <= allowed:
            break
        model.say(f"the samples to check with show an error of {error:.3g}: searching with less")
        limit = _SAFER * allowed * allowed / error if error < float("inf") else limit / 2.0
        found += find_points(judge.items, judge, limit, uniform)
    raced = to_race(found, limit, allowed, uniform)
    model.say(f"timing {len(raced)} plans in turn")
    ratios = race(model, [point.assignment for point in raced], data.calibration)
    text = [
        ChoicePoint(
            dict(point.assignment),
            ratio.ratio,
            point.error,
            reported.error(point.assignment) if point.lowered else 0.0,
            ratio.low,
            ratio.high,
            checked.error(point.assignment) if point.lowered else 0.0,
        )
        for point, ratio in zip(raced, ratios, strict=True)
    ]
    text.sort(key=lambda point: -point.ratio)
    chosen = fastest_within(text, allowed)
    return text, confirmed(model, text, chosen, allowed, uniform, data.calibration)
