"""The pretrained model: what the package ships, how it is made, and what a search gains by it."""

from __future__ import annotations

import gzip
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.pretraining import (
    OURS,
    WORTH,
    kinds,
    model_without,
    pretrain,
    training_data,
)
from tests.benchmarks.regret import searching
from tests.tuner.recorded import RecordedKernel
from tests.tuner.synthetic import TARGET, features, matmul_kernel, tile_space
from tests.tuner.test_target_gain import Setting
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.tuner.model import pretrained
from tunefarm.tuner.model.features import FEATURES, SCORE, FeatureExtractor, layout_digest
from tunefarm.tuner.model.pretrained import FILE, load_pretrained, read_pretrained
from tunefarm.tuner.search.budget import End

FIRST_BATCH = 8  # trials, the default's among them: nothing but the prior has proposed them


def test_the_package_ships_a_model_of_today_s_features() -> None:
    """After a change of features: `python -m tests.benchmarks.pretraining make`."""
    loaded = load_pretrained()
    assert loaded.problem == ""
    assert loaded.model is not None
    assert FILE.stat().st_size < 2 << 20


def test_the_layout_is_the_names_of_the_columns_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = layout_digest()
    swapped = (*FEATURES[:-2], FEATURES[-1], FEATURES[-2])
    monkeypatch.setattr("tunefarm.tuner.model.features.FEATURES", swapped)
    assert layout_digest() != before


def test_the_same_records_and_seed_give_the_same_bytes() -> None:
    data = training_data(kinds()[-1].past[:12])
    first, again, other = (pretrain(data, seed).to_bytes() for seed in (0, 0, 1))
    assert first == again != other


def test_a_written_model_corrects_as_before(tmp_path: Path) -> None:
    data = training_data(kinds()[-1].past[:12])
    model = pretrain(data)
    path = tmp_path / "model.ubj.gz"
    path.write_bytes(model.to_bytes())
    loaded = read_pretrained(path).model
    assert loaded is not None
    np.testing.assert_array_equal(loaded.of(data.features), model.of(data.features))
    assert np.ptp(model.of(data.features)) > 0.1


def test_the_score_and_the_target_are_not_read() -> None:
    """The score is what it corrects; of targets it has seen four."""
    model = load_pretrained().model
    assert model is not None
    rows = features(tile_space(), matmul_kernel(), TARGET, [tile_space().default()])
    changed = rows.copy()
    changed[:, SCORE] += 7
    changed[:, FEATURES.index("target.lanes") :] += 1
    np.testing.assert_array_equal(model.of(rows), model.of(changed))


def test_a_damaged_file_is_ignored_with_one_line(tmp_path: Path) -> None:
    content = FILE.read_bytes()
    path = tmp_path / "pretrained.ubj.gz"
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    for damaged in (b"", content[: len(content) // 2], bytes(flipped), b"{}", gzip.compress(b"{}")):
        path.write_bytes(damaged)
        model, problem = read_pretrained(path)
        assert model is None
        assert problem.startswith(f"the pretrained cost model {path} is ignored: ")
        assert "\n" not in problem


def test_a_missing_file_is_ignored_with_one_line(tmp_path: Path) -> None:
    model, problem = read_pretrained(tmp_path / "none.ubj.gz")
    assert model is None
    assert "cannot be read" in problem


def test_a_model_of_other_features_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pretrained.ubj.gz"
    model = pretrain(training_data(kinds()[-1].past[:4]))
    with monkeypatch.context() as context:
        context.setattr(pretrained, "layout_digest", lambda: "0123456789abcdef")
        path.write_bytes(model.to_bytes())
    found, problem = read_pretrained(path)
    assert found is None
    assert "it is of other features (0123456789abcdef, here " in problem


def test_scores_start_from_the_correction() -> None:
    kernel = matmul_kernel(256, 1024, 1024)
    space = schedule_space(kernel, TARGET)
    candidates = [space.candidate(number) for number in range(0, space.size, 50)]
    model = load_pretrained().model
    assert model is not None
    plain = FeatureExtractor(space, kernel, TARGET)(candidates)
    corrected = FeatureExtractor(space, kernel, TARGET, correction=model)(candidates)
    np.testing.assert_allclose(
        corrected[:, SCORE], plain[:, SCORE] + model.of(plain), rtol=1e-5, atol=1e-5
    )


def test_a_job_without_a_pretrained_model_says_so_once_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pretrained.ubj.gz"
    path.write_bytes(b"no model")
    found = read_pretrained(path)
    monkeypatch.setattr("tunefarm.tuner.tune_model.load_pretrained", lambda: found)
    setting = Setting(tmp_path, monkeypatch)
    result = setting.tune(0.8, **{"search.target_gain": 1.2})
    assert result.end is End.TARGET_GAIN
    assert setting.progress.said.count(found.problem) == 1


@cache
def gains(kind_name: str) -> tuple[list[float], list[float]]:
    """log2 of the gain over the default after the first batch of each kernel of a kind of CPU:
    without a pretrained model, and with one that has seen no trial of that kind."""
    (kind,) = (kind for kind in kinds() if kind.name == kind_name)
    model = model_without(kind)
    worth = [k for k in kind.spaces if k.latency(k.space.default()) >= WORTH * k.best]
    cold = [_gain(item, None) for item in worth]
    return cold, [_gain(item, model) for item in worth]


def _gain(item: RecordedKernel, model: pretrained.PretrainedModel | None) -> float:
    trials = islice(searching(item, OURS, 0, correction=model), FIRST_BATCH)
    best = min(trial.seconds for trial in trials)
    return float(np.log2(item.latency(item.space.default()) / best))


@pytest.mark.parametrize("kind", ["Zen 4 (AVX-512)", "Zen 4 held to AVX2"])
def test_a_cpu_that_was_left_out_gains_more_from_its_first_trials(kind: str) -> None:
    cold, warm = gains(kind)
    better = sum(b > a for a, b in zip(cold, warm, strict=True))
    worse = sum(b < a for a, b in zip(cold, warm, strict=True))
    assert better > worse
    assert np.mean(warm) > np.mean(cold)
