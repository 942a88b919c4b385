"""The recordings that cost models are tried on and pretrained from, and how spaces are thinned."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.recording import thinned_at_random
from tests.benchmarks.regret import RECORDINGS, default_regrets
from tests.tuner.recorded import FILE, about, load, load_past, past_of, save_past
from tests.tuner.synthetic import TARGET, matmul_kernel
from tunefarm.compiler.schedule.spaces import schedule_space

PAIRED = {
    "recorded_zen4.npz": "2026-11-28",
    "recorded_zen4_avx2.npz": "2026-11-28",
    "recorded_emerald.npz": "2026-11-29",
    "recorded_emerald_avx2.npz": "2026-11-29",
    "recorded_skylake.npz": "2026-12-01",
}
AMX = FILE.parent / "recorded_amx.json.gz"


@pytest.mark.parametrize("name", PAIRED)
def test_every_schedule_has_a_pair_with_the_default(name: str) -> None:
    kernels = load(path=FILE.parent / name)
    assert len(kernels) >= 20
    for item in kernels:
        default = item.space.number(item.space.default())
        works = np.isfinite(item.latencies)
        assert works.mean() > 0.9, item.name
        assert (item.deviations[works] >= 0).all(), item.name
        assert item.deviations[default] == 0, item.name
        assert item.latencies[default] == pytest.approx(item.latency(item.space.default()))
    assert (FILE.parent / name).stat().st_size < 100_000
    header = about(FILE.parent / name)
    assert header["made"] == PAIRED[name] and "load" in header["note"]


def test_trials_of_the_cpu_with_tiles_are_in_todays_spaces() -> None:
    past = load_past(AMX)
    assert len(past) > 60 and sum(len(item.trials) for item in past) > 2000
    assert all(item.target.matrix_tiles is not None for item in past)
    assert "Emerald Rapids" in about(AMX)["note"]


def test_what_is_condensed_comes_back(tmp_path: Path) -> None:
    (first, *_) = load(path=FILE.parent / "recorded_zen4.npz")
    item = past_of(first)
    path = tmp_path / "past.json.gz"
    save_past(path, [item], {"note": "here"})
    (back,) = load_past(path)
    assert back.kernel == item.kernel and back.target == item.target
    assert len(back.trials) == len(item.trials) == len(set(first.schedules.tolist()))
    assert back.gain == pytest.approx(item.gain, rel=1e-3)
    chosen = [first.space.choices(trial.candidate) for trial in item.trials]
    assert [back.space.choices(trial.candidate) for trial in back.trials] == chosen


@pytest.mark.parametrize("most", [24, 100, 400])
def test_a_thinned_space_has_the_default_and_few_candidates(most: int) -> None:
    space = schedule_space(matmul_kernel(256, 1024, 1024), TARGET)
    thinned = thinned_at_random(space, 3, most)
    assert thinned.default() in [thinned.candidate(n) for n in range(thinned.size)]
    assert space.choices(space.default()) == thinned.choices(thinned.default())
    assert most / 3 < thinned.size <= most < space.size
    assert thinned_at_random(space, 3, most).size == thinned.size


@pytest.mark.parametrize(
    ("path", "mean"),
    zip(RECORDINGS, (1.08, 1.10, 1.15, 1.13, 1.08, 1.10, 1.21), strict=True),
    ids=lambda value: getattr(value, "name", value),
)
def test_default_schedules_are_near_the_best_of_recorded_trials(path: Path, mean: float) -> None:
    found = [item.default for item in default_regrets(path)]
    recorded = [ratio for ratio in found if not math.isnan(ratio)]
    assert len(recorded) > len(found) / 2 and min(recorded) >= 1.0
    assert np.mean(recorded) < mean
