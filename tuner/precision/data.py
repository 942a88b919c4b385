"""The data of a choice: samples to choose by, samples held out, and what is calibrated of them."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.types.precision import Calibration
from tuner.calibration.collect import calibrate
from tuner.calibration.data import Samples, read_samples, split
from tuner.calibration.metric import Metric
from tuner.calibration.options import PrecisionOptions
from tuner.confirm.latency import seeded_inputs
from tuner.precision.effects import Effects
from tuner.precision.model import PlannedModel

MOST_SAMPLES = 16
"""Of those to choose by; a user's metric is given all of them."""
MOST_HELD_OUT = 64
DRAWN_SAMPLES = 8
"""Random inputs in the place of calibration data."""
SOLO_SAMPLES = 4
"""Runs that say what a contraction alone costs: they only order what is tried."""


@dataclass(frozen=True, slots=True)
class Data:
    """Samples to choose by and those held out, what was calibrated, and the user's metric."""

    chosen: Samples
    held_out: Samples
    calibration: Calibration | None
    metric: Metric | None
    held_out_metric: Metric | None

    def effects(self, model: PlannedModel) -> Effects:
        samples = self.chosen if self.metric is not None else self.chosen.first(MOST_SAMPLES)
        compile = model.executable
        return Effects(model.prepared, self.calibration, samples, compile, self.metric)

    def solo_effects(self, model: PlannedModel) -> Effects:
        samples = self.chosen if self.metric is not None else self.chosen.first(SOLO_SAMPLES)
        compile = model.executable
        return Effects(model.prepared, self.calibration, samples, compile, self.metric)

    def held_out_effects(self, model: PlannedModel) -> Effects:
        every = self.held_out_metric is not None
        samples = self.held_out if every else self.held_out.first(MOST_HELD_OUT)
        compile, metric = model.executable, self.held_out_metric
        return Effects(model.prepared, self.calibration, samples, compile, metric)


def read_data(model: PlannedModel, options: PrecisionOptions) -> Data:
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
    return Data(
        samples.part(chosen),
        samples.part(held_out),
        calibration,
        None if metric is None else metric.part(chosen, len(samples)),
        None if metric is None else metric.part(held_out, len(samples)),
    )
