"""How much a search misses: what it holds to be the best against the best of the whole space.

    python -m tests.benchmarks.regret [RECORDING ...] [--worst 5]

On the recorded kernels, as they are and on made-up machines; what a search is told may be noisy.
The command prints how good default schedules are on recorded trials, which needs no hardware: the
time of the default over that of the best, and the same of the recorded schedule of the default's
sketch that costs the fewest cycles (`NestShape.cycles`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.tuner.recorded import FILE, RecordedKernel, load, load_past, past_of
from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.tuner.model.cost_model import BoostedTrees, CostModel, Outcome, Scores, TrainingData
from tunefarm.tuner.model.features import Correction, FeatureExtractor
from tunefarm.tuner.model.lessons import Lesson, Trainer, data_of
from tunefarm.tuner.model.packed_space import PackedSpace, Rows
from tunefarm.tuner.search.strategy import SearchProblem, make_strategy
from tunefarm.tuner.search.tasks import TaskSearch

WITHIN = 1.05  # of the best latency
BATCH = 8
CHECKPOINTS = (32, 64, 128)  # trials
SKETCH_EFFECT, VALUE_EFFECT, PAIR_EFFECT = 0.1, 0.1, 0.05  # of the log time, if distorted
PAIR_DEVIATION = 0.01  # of a log-ratio, as the search is told it
RECORDINGS = [
    FILE.parent / name
    for name in (
        "recorded.npz",
        "recorded_zen4.npz",
        "recorded_zen4_avx2.npz",
        "recorded_emerald.npz",
        "recorded_emerald_avx2.npz",
        "recorded_skylake.npz",
        "recorded_amx.json.gz",
    )
]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to search: the strategy, and whether it starts from the default schedule."""

    name: str
    strategy: str
    default_first: bool = False


class Trial(NamedTuple):
    """A candidate measured: what the search was told that it takes, and what it takes."""

    number: int
    told: float
    seconds: float


def paired_data(extract: FeatureExtractor, trials: Sequence[Trial], noise: float) -> TrainingData:
    """The training data of some trials, as pairs of so much noise."""
    deviation = max(noise, PAIR_DEVIATION)
    lessons = [Lesson.of("ok", trial.told, 1.0, {}, deviation) for trial in trials]
    kept = [lesson for lesson in lessons if lesson is not None]
    space = extract.packed.space
    return data_of(extract([space.candidate(trial.number) for trial in trials]), kept, 0)


def searching(
    item: RecordedKernel,
    way: Way,
    seed: int,
    model: CostModel | None = None,
    batch: int = BATCH,
    noise: float = 0.0,
    correction: Correction | None = None,
) -> Iterator[Trial]:
    """The trials of a search, as pairs; a schedule that is known already is no trial.

    `noise` is the standard deviation of the logarithm of what the search is told.
    """
    extract = FeatureExtractor(item.space, item.kernel, item.target, correction=correction)
    model = BoostedTrees(seed) if model is None else model
    wrong = np.exp(noise * np.random.default_rng(seed).standard_normal(len(item.latencies)))

    def score(rows: Rows) -> Scores:
        return model.predict(extract.of_rows(rows))

    problem = SearchProblem(item.space, score, seed, features=extract.of_rows)
    proposing = make_strategy(way.strategy, problem)
    first = [item.space.default()] if way.default_first else []
    search = TaskSearch(item.space, proposing, first=first)
    trainer = Trainer(model, background=False)
    known: dict[int, Trial] = {}  # by schedule
    while not search.exhausted:
        for candidate in search.ask(batch if known else 1):
            number = item.space.number(candidate)
            schedule = int(item.schedules[number])
            seconds = float(item.latencies[number])
            trial = known.get(schedule, Trial(number, seconds * wrong[schedule], seconds))
            search.tell(candidate, trial.told)
            if schedule not in known:
                known[schedule] = trial
                yield trial
        if way.strategy == "cost_model":
            trainer.offer(len(known), lambda: paired_data(extract, [*known.values()], noise))


class Regret(NamedTuple):
    """How a search went: time of what it held to be the best after so many trials over that of the
    best of all, for each of `CHECKPOINTS`; trials until one was within `WITHIN` of that."""

    ratios: list[float]
    trials: int


def regret_of(item: RecordedKernel, way: Way, seed: int, noise: float) -> Regret:
    """The regret of one search, whose last trial is the last of the checkpoints."""
    most = CHECKPOINTS[-1]
    trials = list(islice(searching(item, way, seed, noise=noise), most))
    nominees = [min(trials[:count], key=lambda trial: trial.told) for count in CHECKPOINTS]
    good = (i for i, trial in enumerate(trials) if trial.seconds <= WITHIN * item.best)
    return Regret([nominee.seconds / item.best for nominee in nominees], next(good, most) + 1)


def distorted(item: RecordedKernel, seed: int, strength: float = 1.0) -> RecordedKernel:
    """The kernel on a made-up machine: its latencies times random effects of sketches and choices.

    Single values and pairs of values count, so that neither the analytic estimate nor the default
    schedule is as good as on the machine that was recorded: what is tuned on eight kernels alone
    may fit only them.
    """
    rng = np.random.default_rng([seed, len(item.latencies)])
    packed = PackedSpace(item.space)
    rows = packed.rows(np.arange(packed.size))
    logs = np.zeros(len(rows))
    for sketch, sizes in enumerate(packed.sizes.tolist()):
        here = np.flatnonzero(rows[:, 0] == sketch)
        at = rows[here, 1:]
        logs[here] += rng.normal(0.0, SKETCH_EFFECT)
        for i, size in enumerate(sizes):
            logs[here] += rng.normal(0.0, VALUE_EFFECT, size)[at[:, i]] if size > 1 else 0.0
            for j, other in enumerate(sizes[:i]):
                if size > 1 and other > 1:
                    logs[here] += rng.normal(0.0, PAIR_EFFECT, (size, other))[at[:, i], at[:, j]]
    logs = logs[np.unique(item.schedules, return_index=True)[1]][item.schedules]
    latencies = item.latencies * np.exp(strength * logs)
    return replace(item, name=f"{item.name} ~{seed}", latencies=latencies)


def regret(kernels: Sequence[RecordedKernel], seeds: int, noise: float, way: Way) -> None:
    """Print median and 90th percentile of the regret in %, kernel by kernel and of all."""
    print(f"{way.name}, {seeds} seeds, noise of {noise:.1%}; medians and 90th percentiles")
    heads = [f"after {count}, %" for count in CHECKPOINTS]
    print(" " * 34 + "".join(f"{head:>16s}" for head in (*heads, f"trials to {WITHIN - 1:.0%}")))
    everything: list[list[float]] = []
    for item in kernels:
        found = [regret_of(item, way, seed, noise) for seed in range(seeds)]
        rows = [[*(100.0 * (r - 1.0) for r in run.ratios), float(run.trials)] for run in found]
        print(f"{item.name:34s}{_middle_and_high(rows)}", flush=True)
        everything += rows
    print(f"{'all':34s}{_middle_and_high(everything)}")
    means = np.mean(everything, axis=0)
    print(f"{'mean of all':34s}" + "".join(f"{mean:16.2f}" for mean in means))


def _middle_and_high(rows: Sequence[Sequence[float]]) -> str:
    middle, high = np.quantile(rows, [0.5, 0.9], axis=0)
    return "".join(f"{a:9.1f} {b:6.1f}" for a, b in zip(middle, high, strict=True))


class DefaultRegret(NamedTuple):
    """Times of a kernel over the best recorded one: of its default schedule, and of the recorded
    one that costs the fewest cycles. NaN where the default was not recorded, or nothing counts."""

    name: str
    default: float
    cheapest: float


def default_regrets(path: Path) -> Iterator[DefaultRegret]:
    """How good today's default schedules are on the trials of a recording, kernel by kernel."""
    recorded = [past_of(item) for item in load(path=path)] if path.suffix == ".npz" else None
    for past in load_past(path) if recorded is None else recorded:
        measured = {
            trial.candidate: trial.lesson.latency
            for trial in past.trials
            if trial.lesson.outcome is Outcome.MEASURED
        }
        if len(measured) < 2:
            continue
        best = min(measured.values())
        space = schedule_space(past.kernel, past.target)
        preferred = space.default()
        chosen = past.space.find(preferred.sketch, space.choices(preferred))
        cycles = {item: found for item in measured if (found := _cycles(past.space, item))}
        cheapest = min(cycles, key=cycles.__getitem__, default=None)
        yield DefaultRegret(
            past.kernel.name,
            math.nan if chosen is None else measured.get(chosen, math.nan) / best,
            math.nan if cheapest is None else measured[cheapest] / best,
        )


def _cycles(space: ScheduleSpace, candidate: Candidate) -> float | None:
    """Of a candidate of the space's first sketch, whose default is the kernel's."""
    sketch = space.sketches[0]
    if sketch.shape is None or candidate.sketch != sketch.name:
        return None
    names = (choice.name for choice in sketch.choices)
    at = (np.array([position]) for position in candidate.positions)
    return float(sketch.shape(dict(zip(names, at, strict=True))).cycles.item())


def main() -> None:
    """Print mean and worst regret of the default schedules on each recording, and on all."""
    parser = argparse.ArgumentParser(description="How good default schedules are, by recording.")
    parser.add_argument("recordings", nargs="*", type=Path, default=RECORDINGS)
    parser.add_argument("--worst", type=int, default=0, help="Kernels to list of each recording.")
    given = parser.parse_args()
    everything: list[DefaultRegret] = []
    print(
        f"{'recording':28s}{'kernels':>8s}{'default: mean, worst':>24s}{'cycles: mean, worst':>24s}"
    )
    for path in given.recordings:
        found = list(default_regrets(path))
        print(_default_row(path.name, found))
        for item in sorted(found, key=lambda item: -np.nan_to_num(item.default))[: given.worst]:
            print(f"    {item.default:6.3f} {item.cheapest:6.3f} {item.name[:80]}")
        everything += found
    print(_default_row("all", everything))


def _default_row(name: str, found: Sequence[DefaultRegret]) -> str:
    row = f"{name:28s}{len(found):8d}"
    for ratios in ([item.default for item in found], [item.cheapest for item in found]):
        known = [ratio for ratio in ratios if not math.isnan(ratio)]
        worst = max(known, default=math.nan)
        row += f"{len(known):8d}{np.mean(known):8.3f}{worst:8.3f}"
    return row


if __name__ == "__main__":
    main()
