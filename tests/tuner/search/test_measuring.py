"""The settings' options of a request leave time for what the settings ask for."""

from __future__ import annotations

import pytest

from tunefarm.configs.settings import MeasureSettings, Settings, load_settings, presets
from tunefarm.measure.worker.timer import TimingOptions, plan_rounds
from tunefarm.tuner.search.measuring import timing_options


@pytest.mark.parametrize("preset", [None, *presets()])
def test_two_fast_kernels_get_all_their_slices_twice_over(preset: str | None) -> None:
    settings = load_settings(preset, environment={})
    plan = plan_rounds([1e-5, 1e-5], TimingOptions.of(timing_options(settings)))
    assert (plan.rounds, plan.most) == (settings.measure.samples, 2 * settings.measure.samples)


def test_slices_beyond_the_time_of_a_run_are_not_taken() -> None:
    settings = Settings(measure=MeasureSettings(samples=1000, min_sample_seconds=1.0))
    plan = plan_rounds([1e-3, 1e-3], TimingOptions.of(timing_options(settings)))
    assert 2 * plan.most * 1.0 <= settings.measure.run_timeout
