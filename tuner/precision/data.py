"""The data of a choice: samples to search with, to check and to report with, and their ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.apply_precisions import apply_precisions
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.chosen_sizes import put_sizes, types_at
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.compiler.types.precision import Calibration, PrecisionPlan
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.calibration.collect import calibrate
from tunefarm.tuner.calibration.data import SampleForm, Samples, Split, read_samples
from tunefarm.tuner.calibration.metric import Metric, relative_error
from tunefarm.tuner.calibration.options import PrecisionOptions
from tunefarm.tuner.calibration.solo import SOLO_SAMPLES
from tunefarm.tuner.confirm.drawn_inputs import drawn_sizes, seeded_inputs
from tunefarm.tuner.precision.model import PlannedModel
from tunefarm.tuner.precision.search import Assignment

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
    form = SampleForm.of(model.prepared, options.several)
    seed = model.settings.search.seed
    metric = options.load_metric()
    if options.calibration is None:
        model.say("no calibration data: errors are those of random inputs, and int8 is left out")
        drawn = [_random_run(form, seed + number) for number in range(DRAWN_SAMPLES)]
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


def _random_run(form: SampleForm, seed: int) -> dict[str, Array]:
    """Random inputs of a model, of sizes that are drawn, too, where these are open."""
    if form.signature is None:
        return seeded_inputs(form.types, seed)
    sizes = drawn_sizes(form.signature, seed)
    inputs = seeded_inputs(types_at(form.signature.inputs, sizes), seed)
    put_sizes(form.signature, sizes, inputs)
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
    _known: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """Run the f32 model. Raises SettingsError if the user's metric fails."""
        self._expected = self._outputs(PrecisionPlan())
        if self.metric is not None:
            self._metric_of_f32 = self.metric.of(self._expected)

    def error(self, assignment: Assignment) -> float:
        """The error of a plan. Raises SettingsError if the user's metric fails."""
        if not self._expected:
            self.begin()
        plan = PrecisionPlan(dict(assignment), self.calibration)
        if plan.digest not in self._known:
            self._known[plan.digest] = self.error_of(self._outputs(plan))
        return self._known[plan.digest]

    def error_of(self, outputs: Sequence[dict[str, Array]]) -> float:
        """The error of these outputs for the samples. Raises SettingsError as `error` does."""
        if not self._expected:
            self.begin()
        if self.metric is not None:
            return max(0.0, self._metric_of_f32 - self.metric.of(outputs))
        pairs = zip(outputs, self._expected, strict=True)
        return max(relative_error(actual, expected) for actual, expected in pairs)

    def _outputs(self, plan: PrecisionPlan) -> list[dict[str, Array]]:
        executable = self.compile(*apply_precisions(self.prepared, plan))
        return [dict(executable.run(run)) for run in self.samples]
