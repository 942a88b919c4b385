"""The pretrained model: made from recorded trials, and judged on CPUs that it has not seen.

    python -m tests.benchmarks.pretraining make       writes tuner/model/pretrained.ubj.gz
    python -m tests.benchmarks.pretraining rank       how it ranks a CPU that was left out
    python -m tests.benchmarks.pretraining gain       what a search gains by trials on such a CPU

`rank` and `gain` train a model without each kind of CPU in turn and ask it about that one's
kernels; `--strict` leaves out the records of the same processor under other targets too, and those
of the same kernel on any. Nothing is measured: both replay tests/data/recorded*, and give the same
each time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

from tests.benchmarks.regret import Way, searching
from tests.benchmarks.search import rank_correlation
from tests.tuner.recorded import FILE, RecordedKernel, load, load_past, past_of
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.tuner.model.cost_model import (
    Outcome,
    TrainingData,
    expected_labels,
    row_weights,
    throughput_labels,
)
from tunefarm.tuner.model.features import SCORE, Correction, FeatureExtractor
from tunefarm.tuner.model.history import PastKernel, background
from tunefarm.tuner.model.pretrained import COLUMNS, PretrainedModel
from tunefarm.tuner.model.pretrained import FILE as MODEL

DATA = FILE.parent
TRIALS = (0, 8, 32, 120)
"""0: the schedule of the highest score, or the default where that is not clearly higher."""
CLEARLY = 0.25  # of log2 of throughput, about what scores are off by
WORTH = 1.01  # gain of a kernel's best schedule, below which there is nothing to find
OURS = Way("ours", "cost_model", default_first=True)
SLOWEST = -3.0  # label from which on it does not matter how much slower a schedule is
ROUNDS = 150
BINS = 64
TREES: dict[str, Any] = {
    "objective": "reg:squarederror",
    "base_score": 0.0,
    "tree_method": "hist",
    "max_bin": BINS,
    "max_depth": 5,
    "eta": 0.08,
    "min_child_weight": 4.0,
    "subsample": 0.7,
    "colsample_bytree": 0.5,
    "nthread": 1,
    "verbosity": 0,
}
"""XGBoost's parameters of a pretrained model. Small steps and half of the columns for each tree: it
is asked about CPUs and kernels that it has not seen."""


def pretrain(data: TrainingData, seed: int = 0) -> PretrainedModel:
    """Learn what the analytic estimate gets wrong; equal data and seeds give equal bytes.

    Each task counts as much as any other, however many rows it has. The features' scores must be
    those of the estimate alone.
    """
    labels = np.maximum(throughput_labels(data), SLOWEST)
    rows = np.flatnonzero(np.isfinite(labels) & (data.outcomes == Outcome.MEASURED))
    residuals = labels[rows] - expected_labels(data, labels, rows)
    weights = row_weights(data)[rows]
    tasks = np.unique(data.tasks[rows], return_inverse=True)[1]
    weights /= np.bincount(tasks, weights)[tasks]
    matrix = xgboost.QuantileDMatrix(
        data.features[rows][:, COLUMNS],
        label=residuals,
        weight=weights * (len(rows) / weights.sum()),
        nthread=1,
        max_bin=BINS,
    )
    booster = xgboost.train(TREES | {"seed": seed}, matrix, num_boost_round=ROUNDS)
    return PretrainedModel(booster)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of CPU of which there are records: `processor` under one target.

    `spaces` were measured as wholes and can be searched, of others only some trials are known.
    """

    name: str
    processor: str
    past: tuple[PastKernel, ...]
    spaces: tuple[RecordedKernel, ...] = ()


@cache
def kinds() -> tuple[Kind, ...]:
    """All that was recorded."""
    return (
        _recorded("Zen 3 (AVX2)", "Zen 3", FILE),
        _recorded("Zen 4 (AVX-512)", "Zen 4", DATA / "recorded_zen4.npz"),
        _recorded("Zen 4 held to AVX2", "Zen 4", DATA / "recorded_zen4_avx2.npz"),
        _recorded("Emerald Rapids (AVX-512)", "Emerald Rapids", DATA / "recorded_emerald.npz"),
        _recorded(
            "Emerald Rapids held to AVX2", "Emerald Rapids", DATA / "recorded_emerald_avx2.npz"
        ),
        Kind(
            "Emerald Rapids (AMX)",
            "Emerald Rapids",
            tuple(load_past(DATA / "recorded_amx.json.gz")),
        ),
    )


def _recorded(name: str, processor: str, path: Path) -> Kind:
    spaces = load(path=path)
    return Kind(name, processor, tuple(map(past_of, spaces)), tuple(spaces))


def training_data(past: Sequence[PastKernel]) -> TrainingData:
    """Of these kernels, each a task."""
    return TrainingData.joined(background(past, threads=1))


def model_without(kind: Kind, *, strict: bool = False) -> PretrainedModel:
    """The model that is trained on all other kinds."""
    others = [
        other
        for other in kinds()
        if other is not kind and not (strict and other.processor == kind.processor)
    ]
    own = {workload_key(item.kernel) for item in kind.past} if strict else set()
    return pretrain(
        training_data(
            [p for other in others for p in other.past if workload_key(p.kernel) not in own]
        )
    )


@dataclass(frozen=True, slots=True)
class Ranked:
    """How the scores of a kernel's known schedules fare: rank correlation with their throughput,
    and log2 of the gain over the default of the first (if it leads clearly), of the best of the
    first eight, of all."""

    correlation: float
    first: float
    eight: float
    best: float


def ranked(item: PastKernel, correction: Correction | None) -> Ranked | None:
    """None for a kernel with too few schedules or nothing to gain."""
    extract = FeatureExtractor(item.space, item.kernel, item.target, correction=correction)
    times = np.array([trial.lesson.latency for trial in item.trials])
    candidates = [trial.candidate for trial in item.trials]
    default = [i for i, c in enumerate(candidates) if c == item.space.default()]
    kept = np.flatnonzero(np.isfinite(times))
    if len(kept) < 12 or not default or item.gain < WORTH:
        return None
    scores = extract([candidates[i] for i in kept.tolist()])[:, SCORE]
    lead = scores.max() - extract([item.space.default()])[0, SCORE]
    gains = np.log2(times[default[0]] / times[kept])
    order = np.argsort(-scores, kind="stable")
    return Ranked(
        rank_correlation(scores, gains.astype(np.float32)),
        float(gains[order[0]]) if lead > CLEARLY else 0.0,
        float(max(0.0, gains[order[:8]].max())),
        float(gains.max()),
    )


def rank(chosen: Sequence[Kind], strict: bool) -> None:
    """Print how schedules are ranked that nothing of was learnt from."""
    print(f"{'':24s}{'kernels':>8s}{'correlation':>22s}{'gain of the first':>24s}{'of 8':>18s}")
    for kind in chosen:
        model = model_without(kind, strict=strict)
        rows = [(ranked(item, None), ranked(item, model)) for item in kind.past]
        pairs = [(a, b) for a, b in rows if a is not None and b is not None]
        text = f"{kind.name:24s}{len(pairs):8d}"
        best = sum(a.best for a, _ in pairs)
        for field, unit in (("correlation", len(pairs)), ("first", best), ("eight", best)):
            sums = [sum(getattr(row[i], field) for row in pairs) / unit for i in (0, 1)]
            text += f"{sums[0]:12.2f} -> {sums[1]:.2f}"
        print(text, flush=True)


def gains_of(item: RecordedKernel, seed: int, correction: Correction | None) -> list[float]:
    """log2 of the gain over the default after each of `TRIALS`."""
    default = item.latency(item.space.default())
    extract = FeatureExtractor(item.space, item.kernel, item.target, correction=correction)
    firsts = np.unique(item.schedules, return_index=True)[1]
    scores = extract.of_rows(extract.packed.rows(firsts))[:, SCORE]
    lead = scores.max() - extract([item.space.default()])[0, SCORE]
    first = item.latencies[firsts[np.argmax(scores)]] if lead > CLEARLY else default
    found = [float(np.log2(default / first))]
    trials = [
        trial.seconds
        for trial in islice(searching(item, OURS, seed, correction=correction), TRIALS[-1])
    ]
    return found + [float(np.log2(default / min(trials[:count]))) for count in TRIALS[1:]]


def gain(chosen: Sequence[Kind], strict: bool, seeds: int) -> None:
    """Print shares of the gain at 120 trials without a pretrained model, before and after."""
    heads = "".join(f"{f'after {count}':>18s}" for count in TRIALS)
    print(f"{'':24s}{'kernels':>8s}{'gain':>8s}{heads}")
    for kind in chosen:
        if not kind.spaces:
            continue
        model = model_without(kind, strict=strict)
        worth = [
            item for item in kind.spaces if item.latency(item.space.default()) >= WORTH * item.best
        ]
        sums = {
            name: np.mean(
                [gains_of(item, seed, correction) for item in worth for seed in range(seeds)],
                axis=0,
            )
            for name, correction in (("before", None), ("after", model))
        }
        whole = sums["before"][-1]
        cells = "".join(
            f"{f'{100 * a / whole:.0f} -> {100 * b / whole:.0f} %':>18s}"
            for a, b in zip(sums["before"], sums["after"], strict=True)
        )
        print(f"{kind.name:24s}{len(worth):8d}{2**whole:7.3f}x{cells}", flush=True)


def make(path: Path = MODEL) -> None:
    """Write the model of all records."""
    past = [item for kind in kinds() for item in kind.past]
    data = training_data(past)
    path.write_bytes(pretrain(data).to_bytes())
    print(f"{path}: {path.stat().st_size} bytes, {len(past)} kernels, {len(data)} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("make", "rank", "gain"))
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--match", default="", help="only kinds whose name holds this")
    arguments = parser.parse_args()
    chosen = [kind for kind in kinds() if arguments.match in kind.name]
    if arguments.what == "make":
        make()
    elif arguments.what == "rank":
        rank(chosen, arguments.strict)
    else:
        gain(chosen, arguments.strict, arguments.seeds)


if __name__ == "__main__":
    main()
