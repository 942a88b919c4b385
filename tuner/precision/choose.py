"""`--numerics auto`: the fastest model within an error. The phases of `choose_precisions`:

read_data      calibration data -> samples to choose by, samples held out     (tuner.precision.data)
calibrate      f32 runs -> ranges, if there is data
tune           the model in each uniform precision, as a job of its own: kernels that precisions
               share are measured once
_items         uniform builds -> times of each contraction; each lowered alone -> its error
find_points    plans whose joint errors are measured                        (tuner.precision.search)
race           the best of them, f32 and the uniform ones in turn: what they really take
_choice        the fastest that is within the error on the held-out samples, too
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compiler.errors import SettingsError
from compiler.graph.ir import Graph
from compiler.plan.apply_precisions import prepare
from compiler.schedule.choice import ChooseSchedule
from compiler.target import Target
from compiler.types.numerics import Numerics
from compiler.types.precision import Precision
from configs.settings import Settings
from tuner.calibration.choice import (
    RELATIVE_ERROR,
    ChoicePoint,
    ContractionCost,
    PrecisionChoice,
)
from tuner.calibration.options import PrecisionOptions
from tuner.precision.data import Data, read_data
from tuner.precision.effects import Effects
from tuner.precision.model import PlannedModel, Say
from tuner.precision.race import fastest_within, race, to_race
from tuner.precision.search import Assignment, Item, Point, best_point, find_points
from tuner.precision.speed import (
    Conversion,
    UniformTimes,
    conversions,
    copy_seconds_per_byte,
)

LEAST_GAIN = 0.0005
"""Share of the model's time that lowering a contraction must promise to be tried."""
REPAIRS = 3
"""How often the search is repeated with less error when the held-out samples show more."""
_SAFER = 0.95

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
            hint="build it with --numerics default",
        )
    data = read_data(model, options)
    effects = data.effects(model)
    effects.begin()  # a metric that fails does so before the long work
    kinds = [Precision.F32, *model.narrow_kinds(data.calibration)]
    for kind in kinds:
        say(f"tuning the model in {kind}")
        tune(*model.lowered(model.assignment(kind), data.calibration), model.part_of(len(kinds)))
    times = model.times(kinds, data.calibration)
    items = _items(model, data.solo_effects(model), times)
    borders = conversions(model.prepared)
    judge = _Judge(times[Precision.F32].rest, items, borders, copy_seconds_per_byte(), effects)
    uniform = [model.assignment(kind) for kind in kinds[1:]]
    points = _search(items, judge, options.budget, uniform, say)
    return _choice(model, data, options, items, points, uniform, judge)


def _items(
    model: PlannedModel, effects: Effects, times: Mapping[Precision, UniformTimes]
) -> list[Item]:
    """The contractions with their times, and the errors where they are worth their trouble."""
    found = {item.identity: item for item in model.found}
    seconds = {
        name: {
            kind: uniform.contractions[name]
            for kind, uniform in times.items()
            if name in uniform.contractions and (item.quantisable or kind is not Precision.INT8)
        }
        for name, item in found.items()
    }
    items = []
    model.say(f"measuring what each of {len(found)} contractions costs of the outputs")
    f32 = times[Precision.F32]
    least = LEAST_GAIN * (f32.rest + sum(f32.contractions.values()))
    for name, own in seconds.items():
        if Precision.F32 not in own:
            continue
        worthwhile = [kind for kind in own if own[Precision.F32] - own[kind] > least]
        errors = {kind: effects.error({name: kind}) for kind in worthwhile}
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


def _search(
    items: Sequence[Item],
    judge: _Judge,
    budget: float,
    uniform: Iterable[Assignment],
    say: Say,
) -> list[Point]:
    say(f"searching the fastest plan within {budget:g}")
    points = find_points(items, judge, budget, uniform)
    lowered = [point for point in points if point.lowered]
    faster = [point for point in lowered if point.seconds < judge.seconds({})]
    if faster and not any(point.error <= budget for point in lowered):
        nearest = min(lowered, key=lambda point: point.error)
        raise SettingsError(
            f"nothing below f32 is within {budget:g}",
            hint=f"the nearest has {nearest.error:.3g}, with {nearest.lowered} of {len(items)} "
            "contractions lowered",
        )
    return points


def _choice(
    model: PlannedModel,
    data: Data,
    options: PrecisionOptions,
    items: Sequence[Item],
    points: Sequence[Point],
    uniform: Sequence[Assignment],
    judge: _Judge,
) -> PrecisionChoice:
    """Check the points with the held-out samples, time them in turn, and choose one."""
    budget = limit = options.budget
    held_out = data.held_out_effects(model)
    found = list(points)
    for _ in range(REPAIRS):
        best = best_point(found, limit)
        error = held_out.error(best.assignment) if best.lowered else 0.0
        if error <= budget:
            break
        model.say(f"the held-out samples show an error of {error:.3g}: searching with less")
        limit = _SAFER * budget * budget / error if error < float("inf") else limit / 2.0
        found += find_points(items, judge, limit, uniform)
    raced = to_race(found, limit, budget, uniform)
    model.say(f"timing {len(raced)} plans in turn")
    ratios = race(model, [point.assignment for point in raced], data.calibration)
    told = [
        ChoicePoint(
            dict(point.assignment),
            ratio.ratio,
            point.error,
            held_out.error(point.assignment) if point.lowered else 0.0,
            ratio.low,
            ratio.high,
        )
        for point, ratio in zip(raced, ratios, strict=True)
    ]
    told.sort(key=lambda point: -point.ratio)
    chosen = fastest_within(told, budget)
    costs = tuple(
        ContractionCost(item.identity, item.label, item.seconds, item.errors) for item in items
    )
    measure = RELATIVE_ERROR if data.metric is None else f"loss of {data.metric.name}"
    return PrecisionChoice(measure, budget, chosen, tuple(told), costs, data.calibration)
