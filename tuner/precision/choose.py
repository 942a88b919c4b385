"""`--precision auto`: the fastest model within an error. The phases of `choose_precisions`:

read_data      calibration data -> samples to search, check and report with
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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import fsum
from statistics import median
from typing import TypeAlias

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.apply_precisions import apply_precisions, prepare
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.schedule.schedule import ChooseSchedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.chosen_sizes import put_sizes, types_at
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.compiler.types.precision import Calibration, Precision, PrecisionPlan
from tunefarm.compiler.types.signature import Signature
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.configs.settings import Settings
from tunefarm.measure.compare import Comparison
from tunefarm.tuner.calibration.choice import (
    RELATIVE_ERROR,
    ChoicePoint,
    ContractionCost,
    PrecisionChoice,
)
from tunefarm.tuner.calibration.collect import SOLO_SAMPLES, SoloRuns, calibrate
from tunefarm.tuner.calibration.data import SampleForm, Samples, Split, read_samples
from tunefarm.tuner.calibration.metric import Joints, Metric, relative_error, unseen_error
from tunefarm.tuner.calibration.options import PrecisionOptions
from tunefarm.tuner.confirm.drawn_inputs import drawn_sizes, seeded_inputs
from tunefarm.tuner.confirm.latency import (
    COMPARISON,
    latencies_at_placements,
    pinned,
    placed_programs,
)
from tunefarm.tuner.confirm.verdict import Meeting, compare
from tunefarm.tuner.precision.model import (
    Conversion,
    PlannedModel,
    Say,
    UniformTimes,
    conversions,
    copy_seconds_per_byte,
)
from tunefarm.tuner.precision.search import Assignment, Item, Point, best_point, find_points, pareto
from tunefarm.tuner.records.size_ranges import points_of

# The data of a choice: samples to search with, to check and to report with, and their ranges.


SEARCHED_WITH, CHECKED_WITH, REPORTED_WITH = 16, 64, 64
"""Samples at most of each part; a user's metric is given all of them."""
DRAWN_SAMPLES = 16
"""Random inputs instead of calibration data."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the samples, and the user's metric with their labels."""

    samples: Samples
    metric: Metric | None

    def effects(self, model: PlannedModel, calibration: Calibration | None, most: int) -> Effects:
        """What plans cost over these samples, at most so many."""
        samples = self.samples if self.metric is not None else self.samples.first(most)
        return Effects(model.prepared, calibration, samples, model.executable, self.metric)


@dataclass(frozen=True, slots=True)
class Data:
    """Samples in three parts, see `Split`, and what was calibrated with those of the search."""

    search: Part
    check: Part
    report: Part
    calibration: Calibration | None

    def searched(self, model: PlannedModel) -> Effects:
        """What plans cost over the part to search with."""
        return self.search.effects(model, self.calibration, SEARCHED_WITH)

    def solo(self, model: PlannedModel) -> Effects:
        """The same over as many as single contractions are worth."""
        return self.search.effects(model, self.calibration, SOLO_SAMPLES)

    def checked(self, model: PlannedModel) -> Effects:
        """What they cost over the part that a choice is checked with."""
        return self.check.effects(model, self.calibration, CHECKED_WITH)

    def reported(self, model: PlannedModel) -> Effects:
        """What they cost over the part that has no say in the choice."""
        return self.report.effects(model, self.calibration, REPORTED_WITH)


def read_data(model: PlannedModel, options: PrecisionOptions) -> Data:
    """The user's samples, or drawn ones, in three parts.

    Raises InputError or SettingsError for data and labels that do not fit the model, for too few
    samples and for a metric that is not there.
    """
    form = SampleForm(model.prepared.signature, options.several)
    seed = model.settings.search.seed
    metric = options.load_metric()
    if options.calibration is None:
        model.say("no calibration data: errors are those of random inputs, and int8 is left out")
        drawn = [_random_run(form.signature, seed + number) for number in range(DRAWN_SAMPLES)]
        samples = Samples.of(drawn, form)
    else:
        samples = read_samples(options.calibration, form)
    if metric is not None:
        metric.check(len(samples))
    parts = Split.of(len(samples), seed)
    model.say(
        f"{len(samples)} samples: {len(parts.search)} to search with, {len(parts.check)} to check "
        f"with, {len(parts.report)} to report errors of"
    )
    calibration = None
    if options.calibration is not None and any(item.quantisable for item in model.found):
        model.say(f"calibrating with {len(parts.search)} samples ({options.method()})")
        searched = samples.part(parts.search)
        calibration = calibrate(model.prepared, searched, options.method(), model.executable)

    def part(numbers: list[int]) -> Part:
        own = None if metric is None else metric.part(numbers, len(samples))
        return Part(samples.part(numbers), own)

    return Data(part(parts.search), part(parts.check), part(parts.report), calibration)


def _random_run(signature: Signature, seed: int) -> dict[str, Array]:
    """Random inputs of a model, of sizes that are drawn, too, where these are dynamic."""
    sizes = drawn_sizes(signature, seed)
    inputs = seeded_inputs(types_at(signature.inputs, sizes), seed)
    put_sizes(signature, sizes, inputs)
    return inputs


_Compile: TypeAlias = Callable[[Graph, Numerics], Executable]


@dataclass(slots=True)
class Effects:
    """Errors of plans over some samples: relative ones, or what the user's metric loses.

    `prepared` is the graph that plans are of; `compile` makes an executable of what they make of
    it. The f32 outputs are kept, and each plan is run once.
    """

    prepared: Graph
    calibration: Calibration | None
    samples: Samples
    compile: _Compile
    metric: Metric | None = None
    _expected: list[dict[str, Array]] = field(default_factory=list)
    _metric_of_f32: float = 0.0
    _known: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def begin(self) -> None:
        """Run the f32 model. Raises SettingsError if the user's metric fails."""
        self._expected = self._outputs(PrecisionPlan())
        if self.metric is not None:
            self._metric_of_f32 = self.metric.of(self._expected)

    def errors(self, assignment: Assignment) -> tuple[float, ...]:
        """The error of a plan in each sample. Raises SettingsError if the user's metric fails."""
        plan = PrecisionPlan(dict(assignment), self.calibration)
        if plan.digest not in self._known:
            self._known[plan.digest] = self.errors_of(self._outputs(plan))
        return self._known[plan.digest]

    def errors_of(self, outputs: Sequence[dict[str, Array]]) -> tuple[float, ...]:
        """The errors of these outputs for the samples; what a metric loses is one of all of them.

        Raises SettingsError as `errors` does.
        """
        if not self._expected:
            self.begin()
        if self.metric is not None:
            return (max(0.0, self._metric_of_f32 - self.metric.of(outputs)),)
        joints = Joints.of(self.prepared)
        pairs = zip(map(joints.apart, outputs), map(joints.apart, self._expected), strict=True)
        return tuple(relative_error(actual, expected) for actual, expected in pairs)

    def _outputs(self, plan: PrecisionPlan) -> list[dict[str, Array]]:
        executable = self.compile(*apply_precisions(self.prepared, plan))
        return [dict(executable.run(run)) for run in self.samples]


# --- Plans timed as whole models in turn, and the fastest one that is within the error -----------


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


LEAST_GAIN = 0.0005
"""Share of the model's time that lowering a contraction must promise to be tried."""
REPAIRS = 3
"""How often the search is repeated with less error when the samples to check with show more."""
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
    rest, per_byte = times[Precision.F32].rest, copy_seconds_per_byte()
    judge = _Judge(rest, items, borders, per_byte, effects, data.checked(model))
    uniform = [model.assignment(kind) for kind in kinds[1:]]
    say(f"searching the fastest plan within {options.budget:g}")
    points = find_points(items, judge, options.budget, uniform)
    _check_found(points, judge, options.budget)
    text, chosen = _choice(model, data, options.budget, points, uniform, judge)
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
            kind: max(effects.errors_of(runs.outputs(name, kind)))
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
    checked: Effects

    def seconds(self, assignment: Assignment) -> float:
        """The time that is expected of the model."""
        total = self.rest
        for item in self.items:
            kind = assignment.get(item.identity, Precision.F32)
            total += item.seconds.get(kind, item.seconds[Precision.F32])
        per_byte = self.seconds_per_byte
        return total + sum(border.seconds(assignment, per_byte) for border in self.borders)

    def error(self, assignment: Assignment) -> float:
        """The joint error, from runs of the model: what inputs not seen stay within."""
        return self._expected(self.effects.errors(assignment))

    def check(self, assignment: Assignment) -> float:
        """The same by the samples to check with, too; a user's metric is of these alone."""
        if not assignment:
            return 0.0
        errors = self.checked.errors(assignment)
        if self.checked.metric is None:
            errors += self.effects.errors(assignment)
        return self._expected(errors)

    def _expected(self, errors: Sequence[float]) -> float:
        if self.effects.metric is not None:
            return max(errors)
        return unseen_error(errors, len(self.effects.samples) + len(self.checked.samples))


def _check_found(points: Sequence[Point], judge: _Judge, budget: float) -> None:
    """Raise SettingsError where something is faster than f32, but nothing within the error."""
    lowered = [point for point in points if point.lowered]
    faster = any(point.seconds < judge.seconds({}) for point in lowered)
    if not faster or any(point.error <= budget for point in lowered):
        return
    nearest = min(lowered, key=lambda point: point.error)
    seen = max(judge.effects.errors(nearest.assignment))
    few = f" ({seen:.3g} in the samples, the rest for inputs not seen)" * (seen < nearest.error)
    raise SettingsError(
        f"nothing below f32 is within {budget:g}",
        hint=f"the nearest has {nearest.error:.3g}{few}, with {nearest.lowered} of "
        f"{len(judge.items)} matmul/conv ops lowered",
    )


def _choice(
    model: PlannedModel,
    data: Data,
    budget: float,
    points: Sequence[Point],
    uniform: Sequence[Assignment],
    judge: _Judge,
) -> tuple[list[ChoicePoint], int]:
    """Check the points with samples of their own, time them in turn, and choose one."""
    limit, reported = budget, data.reported(model)
    found = list(points)
    for _ in range(REPAIRS):
        best = best_point(found, limit)
        error = judge.check(best.assignment)
        if error <= budget:
            break
        model.say(f"the samples to check with show an error of {error:.3g}: searching with less")
        limit = _SAFER * budget * budget / error if error < float("inf") else limit / 2.0
        found += find_points(judge.items, judge, limit, uniform)
    raced = to_race(found, limit, budget, uniform)
    model.say(f"timing {len(raced)} plans in turn")
    ratios = race(model, [point.assignment for point in raced], data.calibration)
    text = [
        ChoicePoint(
            dict(point.assignment),
            ratio.ratio,
            point.error,
            max(reported.errors(point.assignment)) if point.lowered else 0.0,
            ratio.low,
            ratio.high,
            judge.check(point.assignment),
        )
        for point, ratio in zip(raced, ratios, strict=True)
    ]
    text.sort(key=lambda point: -point.ratio)
    chosen = fastest_within(text, budget)
    return text, confirmed(model, text, chosen, budget, uniform, data.calibration)
