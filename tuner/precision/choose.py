"""`--numerics auto`: the fastest model within an error. The phases of `choose_precisions`:

_data          calibration data -> samples to choose by, samples held out
calibrate      f32 runs -> ranges, if there is data
tune           the model in each uniform precision, as a job of its own: kernels that precisions
               share are measured once
_items         uniform builds -> times of each contraction; each lowered alone -> its error
find_points    plans whose joint errors are measured                  (tuner.precision.search)
_race          the best of them, f32 and the uniform ones in turn: what they really take
_choice        the fastest that is within the error on the held-out samples, too
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from compiler.errors import SettingsError
from compiler.graph.ir import Graph
from compiler.pipeline import Compiled
from compiler.plan.apply_precisions import apply_precisions, prepare
from compiler.plan.contractions import Contraction, contractions
from compiler.runtime.executable import Executable
from compiler.schedule.choice import ChooseSchedule
from compiler.target import Target
from compiler.types.dtypes import DType
from compiler.types.numerics import DEFAULT_NUMERICS, Numerics
from compiler.types.precision import Calibration, Precision, PrecisionPlan
from configs.settings import Settings
from measure.compare import Comparison, compare_paired
from tuner.building.compile import compile_with
from tuner.calibration.choice import (
    RELATIVE_ERROR,
    ChoicePoint,
    ContractionCost,
    PrecisionChoice,
)
from tuner.calibration.collect import calibrate
from tuner.calibration.data import Samples, read_samples, split
from tuner.calibration.metric import Metric
from tuner.calibration.options import PrecisionOptions
from tuner.confirm.latency import (
    COMPARISON,
    aligned_inputs,
    interleaved_latencies,
    pinned,
    seeded_inputs,
)
from tuner.precision.effects import Effects
from tuner.precision.search import Assignment, Item, Point, best_point, find_points, pareto
from tuner.precision.speed import (
    Conversion,
    UniformTimes,
    conversions,
    copy_seconds_per_byte,
    marked,
    uniform_times,
)

MOST_SAMPLES = 16
"""Of those to choose by; a user's metric is given all of them."""
MOST_HELD_OUT = 64
DRAWN_SAMPLES = 8
"""Random inputs in the place of calibration data."""
SOLO_SAMPLES = 4
"""Runs that say what a contraction alone costs: they only order what is tried."""
LEAST_GAIN = 0.0005
"""Share of the model's time that lowering a contraction must promise to be tried."""
RACED_WITHIN, RACED_BEYOND = 4, 3
"""Points within the error, and beyond it, that are timed beside f32 and the uniform ones."""
RACE = replace(COMPARISON, max_seconds=10.0)
REPAIRS = 3
"""How often the search is repeated with less error when the held-out samples show more."""
_SAFER = 0.95

Tune: TypeAlias = Callable[[Graph, Numerics, Settings], object]
"""Tunes the kernels of a graph under these settings, into the records."""
Say: TypeAlias = Callable[[str], None]


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
    model = _Model(prepare(graph), settings, target, choose, say)
    if not model.found:
        raise SettingsError(
            "the model has no contraction whose precision could be chosen",
            hint="build it with --numerics default",
        )
    data = _data(model, options)
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


@dataclass(slots=True)
class _Model:
    """The model that is lowered, and how it is compiled."""

    prepared: Graph
    settings: Settings
    target: Target
    choose: ChooseSchedule | None
    say: Say
    found: tuple[Contraction, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.found = contractions(self.prepared)

    def narrow_kinds(self, calibration: Calibration | None) -> list[Precision]:
        """The precisions below f32 that this target has instructions for."""
        has = self.target.dot_products
        kinds = []
        if has(DType.BF16, DType.BF16, DType.F32):
            kinds.append(Precision.BF16)
        if has(DType.F16, DType.F16, DType.F32):
            kinds.append(Precision.F16)
        if calibration is not None and any(item.quantisable for item in self.found):
            kinds.append(Precision.INT8)
        return kinds

    def assignment(self, kind: Precision) -> dict[str, Precision]:
        """Every contraction that can be in this precision is."""
        able = (item for item in self.found if item.quantisable or kind is not Precision.INT8)
        return {item.identity: kind for item in able}

    def lowered(
        self, assignment: Assignment, calibration: Calibration | None
    ) -> tuple[Graph, Numerics]:
        """The model in these precisions."""
        return apply_precisions(self.prepared, PrecisionPlan(dict(assignment), calibration))

    def part_of(self, share: int) -> Settings:
        """The settings of one of so many jobs that have the budget together."""
        search = self.settings.search
        trials = search.total_trials
        update = {
            "total_trials": None if trials is None else max(1, trials // share),
            "minutes": None if search.minutes is None else search.minutes / share,
        }
        return self.settings.model_copy(update={"search": search.model_copy(update=update)})

    def compiled(self, graph: Graph, numerics: Numerics = DEFAULT_NUMERICS) -> Compiled:
        """A graph built with the best schedules on record."""
        return compile_with(graph, self.choose, self.settings, self.target, numerics=numerics)

    def executable(self, graph: Graph, numerics: Numerics = DEFAULT_NUMERICS) -> Executable:
        """The same, loaded."""
        return Executable(self.compiled(graph, numerics).spec)

    def times(
        self, kinds: Sequence[Precision], calibration: Calibration | None
    ) -> dict[Precision, UniformTimes]:
        """What the contractions take in each precision."""
        self.say("timing the kernels of each precision")
        graph = marked(self.prepared)
        builds = {}
        for kind in kinds:
            plan = PrecisionPlan(self.assignment(kind), calibration)
            builds[kind] = self.compiled(*apply_precisions(graph, plan))
        inputs = aligned_inputs(Executable(builds[Precision.F32].spec), self.settings.search.seed)
        return uniform_times(builds, inputs)


# --- data ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Data:
    """Samples to choose by and those held out, what was calibrated, and the user's metric."""

    chosen: Samples
    held_out: Samples
    calibration: Calibration | None
    metric: Metric | None
    held_out_metric: Metric | None

    def effects(self, model: _Model) -> Effects:
        samples = self.chosen if self.metric is not None else self.chosen.first(MOST_SAMPLES)
        compile = model.executable
        return Effects(model.prepared, self.calibration, samples, compile, self.metric)

    def solo_effects(self, model: _Model) -> Effects:
        samples = self.chosen if self.metric is not None else self.chosen.first(SOLO_SAMPLES)
        compile = model.executable
        return Effects(model.prepared, self.calibration, samples, compile, self.metric)

    def held_out_effects(self, model: _Model) -> Effects:
        every = self.held_out_metric is not None
        samples = self.held_out if every else self.held_out.first(MOST_HELD_OUT)
        compile, metric = model.executable, self.held_out_metric
        return Effects(model.prepared, self.calibration, samples, compile, metric)


def _data(model: _Model, options: PrecisionOptions) -> _Data:
    types = {name: model.prepared.types[name] for name in model.prepared.inputs}
    seed = model.settings.search.seed
    metric = options.load_metric()
    if options.calibration is None:
        model.say("no calibration data: errors are those of random inputs, and int8 is left out")
        drawn = [seeded_inputs(types, seed + number) for number in range(DRAWN_SAMPLES)]
        samples = Samples.of(drawn, types)
    else:
        samples = read_samples(options.calibration, types)
    if metric is not None:
        metric.check(len(samples))
    chosen, held_out = split(len(samples), seed)
    calibration = None
    if options.calibration is not None and any(item.quantisable for item in model.found):
        model.say(f"calibrating with {len(chosen)} samples ({options.method()})")
        part = samples.part(chosen)
        calibration = calibrate(model.prepared, part, options.method(), model.executable)
    return _Data(
        samples.part(chosen),
        samples.part(held_out),
        calibration,
        None if metric is None else metric.part(chosen, len(samples)),
        None if metric is None else metric.part(held_out, len(samples)),
    )


# --- contractions and plans ---------------------------------------------------------------------


def _items(model: _Model, effects: Effects, times: Mapping[Precision, UniformTimes]) -> list[Item]:
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


# --- the choice ---------------------------------------------------------------------------------


def _choice(
    model: _Model,
    data: _Data,
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
    raced = _to_race(found, limit, budget, uniform)
    model.say(f"timing {len(raced)} plans in turn")
    ratios = _race(model, [point.assignment for point in raced], data.calibration)
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


def _to_race(
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


def _race(
    model: _Model, assignments: Sequence[Assignment], calibration: Calibration | None
) -> list[Comparison]:
    """The time of each plan over that of the first one, f32."""
    samples = _run_in_turn(model, assignments, calibration)
    return [compare_paired(times, samples[0]) for times in samples]


def _run_in_turn(
    model: _Model, assignments: Sequence[Assignment], calibration: Calibration | None
) -> list[list[float]]:
    """Seconds of whole models with these plans, from interleaved runs on pinned cores."""
    executables = [
        model.executable(*model.lowered(assignment, calibration)) for assignment in assignments
    ]
    inputs = aligned_inputs(executables[0], model.settings.search.seed)
    bound = [executable.bind(inputs) for executable in executables]
    with pinned(executables[0].threads):
        return interleaved_latencies([run.run for run in bound], RACE)
