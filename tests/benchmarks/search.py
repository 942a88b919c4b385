"""Search strategies and cost models: on the recorded data set, and searches on real hardware.

Without hardware, the same every time:

python -m tests.benchmarks.search strategies [--seeds 20]   trials until within 5 % of the best
python -m tests.benchmarks.search regret [--noise 0.015]    how far from the best after 32, 64, 128
python -m tests.benchmarks.search noisy [--clocks walk]     what a shared host's clock costs
python -m tests.benchmarks.search models                    how well the cost model ranks
python -m tests.benchmarks.search rate                      candidates scored a second

On an idle machine (see `drawn` and `honesty` beside this file):

python -m tests.benchmarks.search drawn [--schedules 2000]  a search against thousands drawn
python -m tests.benchmarks.search honesty MODEL             what became of the claims of jobs
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from tests.benchmarks.drawn import drawn
from tests.benchmarks.honesty import honesty
from tests.benchmarks.noisy_search import noisy
from tests.benchmarks.regret import BATCH, WITHIN, Way, distorted, regret, searching
from tests.measure.wandering_clock import NOISY
from tests.tuner.recorded import STATUSES, RecordedKernel, load
from tunefarm.configs.settings import CostModelSettings
from tunefarm.tuner.model.cost_model import BoostedTrees, CostModel, TrainingData
from tunefarm.tuner.model.features import FeatureExtractor
from tunefarm.tuner.model.lessons import Lesson, data_of

MOST = 700  # trials, then a strategy is given up

WAYS = (
    Way("random", "random"),
    Way("tpe", "tpe"),
    Way("ours", "cost_model", default_first=True),
    Way("ours without the default", "cost_model"),
)


def recorded_data(
    item: RecordedKernel, extract: FeatureExtractor, numbers: Iterable[int], task: int
) -> TrainingData:
    """The training data of some candidates, as they were recorded."""
    kept = []
    for number in numbers:
        conditions = {"anchor_seconds": item.anchors[number]}
        status = STATUSES[item.statuses[number]]
        lesson = Lesson.of(status, float(item.latencies[number]), 15.0, conditions)
        if lesson is not None:
            kept.append((item.space.candidate(number), lesson))
    return data_of(extract([c for c, _ in kept]), [lesson for _, lesson in kept], task)


def trace(
    item: RecordedKernel,
    way: Way,
    seed: int,
    batch: int = BATCH,
    most: int = MOST,
    until: float = WITHIN,
) -> list[float]:
    """The latency of each trial in turn, up to the first that is within `until` of the best."""
    latencies: list[float] = []
    for trial in islice(searching(item, way, seed, batch=batch), most):
        latencies.append(trial.seconds)
        if trial.seconds <= until * item.best:
            break
    return latencies


def strategies(kernels: Sequence[RecordedKernel], seeds: int, chosen: Sequence[Way]) -> None:
    """Print the median trials of each strategy, and how many times more than ours they are."""
    print(f"{'median of ' + str(seeds) + ' seeds':34s}" + "".join(f"{s.name:>26s}" for s in chosen))
    ratios: dict[str, list[float]] = {}
    for item in kernels:
        medians = {}
        started = time.monotonic()
        for strategy in chosen:
            counts = [len(trace(item, strategy, seed)) for seed in range(seeds)]
            medians[strategy.name] = median(counts)
        line = "".join(f"{medians[s.name]:26.1f}" for s in chosen)
        print(f"{item.name:34s}{line}   ({time.monotonic() - started:.0f} s)", flush=True)
        for name, count in medians.items():
            ratios.setdefault(name, []).append(count / medians["ours"])
    print(f"{'times ours, median of kernels':34s}", end="")
    print("".join(f"{median(ratios[s.name]):26.1f}" for s in chosen))
    print(f"{'times ours, least of kernels':34s}", end="")
    print("".join(f"{min(ratios[s.name]):26.1f}" for s in chosen))


def rank_correlation(scores: npt.NDArray[np.float32], truth: npt.NDArray[np.float32]) -> float:
    """Spearman's."""
    ranks = [np.argsort(np.argsort(values, kind="stable")) for values in (scores, truth)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def top_recall(
    scores: npt.NDArray[np.float32], latencies: npt.NDArray[np.float64], count: int = 32
) -> float:
    """Share of the `count` fastest that are among the `count` of the highest score."""
    fastest = set(np.argsort(latencies, kind="stable")[:count].tolist())
    return len(fastest & set(np.argsort(-scores, kind="stable")[:count].tolist())) / count


def models(kernels: Sequence[RecordedKernel], chosen: dict[str, Callable[[], CostModel]]) -> None:
    """Print how each model ranks what it has not seen: of known kernels, and of a new one."""
    extracts = [FeatureExtractor(k.space, k.kernel, k.target) for k in kernels]
    rng = np.random.default_rng(0)
    firsts = [np.unique(k.schedules, return_index=True)[1] for k in kernels]
    orders = [rng.permutation(first) for first in firsts]
    print(
        f"{'':36s}{'64 trials of each kernel':>38s}{'256 trials of each kernel':>38s}"
        f"{'a kernel without trials':>38s}"
    )
    print(f"{'':36s}" + 3 * f"{'correlation':>14s}{'recall@32':>12s}{'best of 8':>12s}")
    for name, make in chosen.items():
        cells = []
        begin = time.thread_time()
        for count in (64, 256):
            parts = [
                recorded_data(item, extracts[i], orders[i][:count].tolist(), i)
                for i, item in enumerate(kernels)
            ]
            model = make()
            model.fit(TrainingData.joined(parts))
            rows = [
                held_out(item, extracts[i], orders[i][count:], model)
                for i, item in enumerate(kernels)
            ]
            cells.append(np.mean(rows, axis=0))
        rows = []
        for i, item in enumerate(kernels):
            parts = [
                recorded_data(other, extracts[j], orders[j][:512].tolist(), j)
                for j, other in enumerate(kernels)
                if j != i
            ]
            model = make()
            model.fit(TrainingData.joined(parts))
            rows.append(held_out(item, extracts[i], orders[i], model))
        cells.append(np.mean(rows, axis=0))
        seconds = time.thread_time() - begin
        text = "".join(f"{a:14.3f}{b:12.2f}{c:12.3f}" for a, b, c in cells)
        print(f"{name:36s}{text}   ({seconds:.1f} s)", flush=True)


def held_out(
    item: RecordedKernel,
    extract: FeatureExtractor,
    numbers: npt.NDArray[np.int64],
    model: CostModel,
) -> tuple[float, float, float]:
    """Rank correlation, top-32 recall, and the best of the 8 of highest score over the best."""
    kept = np.array([n for n in numbers.tolist() if np.isfinite(item.latencies[n])])
    scores = model.predict(extract([item.space.candidate(n) for n in kept.tolist()])).mean
    latencies = item.latencies[kept]
    picked = latencies[np.argsort(-scores, kind="stable")[:8]].min()
    return (
        rank_correlation(scores, -latencies.astype(np.float32)),
        top_recall(scores, latencies),
        float(picked / latencies.min()),
    )


def rate(kernels: Sequence[RecordedKernel]) -> None:
    """Print how many candidates a second one core scores, features included."""
    for item in kernels:
        extract = FeatureExtractor(item.space, item.kernel, item.target)
        model = BoostedTrees(0)
        model.fit(recorded_data(item, extract, range(512), 0))
        rng = np.random.default_rng(0)
        for count in (512, 4096):
            rows = extract.packed.sample(count, rng)
            seconds, only_features = [], []
            for _ in range(15):
                begin = time.thread_time()
                matrix = extract.of_rows(rows)
                middle = time.thread_time()
                model.predict(matrix)
                seconds.append(time.thread_time() - begin)
                only_features.append(middle - begin)
            print(
                f"{item.name:34s} {count:5d} at once: {count / median(seconds):10.0f} a second, "
                f"features alone {count / median(only_features):10.0f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "what", choices=("strategies", "regret", "noisy", "models", "rate", "drawn", "honesty")
    )
    parser.add_argument("model", nargs="?", default="resnet18", help="of honesty")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--noise", type=float, default=0.0, help="of what a search is told, 0.015")
    parser.add_argument(
        "--distorted", action="store_true", help="a made-up machine for each kernel"
    )
    parser.add_argument("--clocks", default=",".join(NOISY), help="of noisy, commas")
    parser.add_argument("--match", default="", help="only kernels whose name holds this")
    parser.add_argument("--only", default="", help="only strategies or models, by name, commas")
    parser.add_argument("--kernels", type=int, default=3, help="of drawn")
    parser.add_argument("--schedules", type=int, default=2000, help="of drawn, each kernel's")
    parser.add_argument("--trials", type=int, default=64, help="of drawn, the search's")
    parser.add_argument("--db", type=Path, default=Path("drawn.db"), help="of drawn")
    parser.add_argument("--repeat", type=int, default=5, help="of honesty")
    parser.add_argument("--minutes", type=float, default=4.0, help="of honesty")
    arguments = parser.parse_args()
    if arguments.what == "drawn":
        counts = arguments.kernels, arguments.schedules, arguments.trials
        sys.exit(not drawn(*counts, arguments.db))
    if arguments.what == "honesty":
        honesty(arguments.model, arguments.repeat, arguments.minutes)
        return
    kernels = [item for item in load() if arguments.match in item.name]
    only = [name for name in arguments.only.split(",") if name]
    if arguments.what == "strategies":
        strategies(kernels, arguments.seeds, [s for s in WAYS if not only or s.name in only])
    elif arguments.what == "regret":
        if arguments.distorted:
            kernels = [distorted(item, world) for item in kernels for world in range(3)]
        for way in [s for s in WAYS if s.name in (only or ("ours",))]:
            regret(kernels, arguments.seeds, arguments.noise, way)
    elif arguments.what == "noisy":
        noisy(kernels, arguments.seeds, arguments.clocks.split(","))
    elif arguments.what == "rate":
        rate(kernels)
    else:
        makers: dict[str, Callable[[], CostModel]] = {
            "squared error on log-throughput": lambda: BoostedTrees(0),
            "squared error, one member": lambda: BoostedTrees(0, CostModelSettings(members=1)),
        }
        models(kernels, {n: m for n, m in makers.items() if not only or n in only})


if __name__ == "__main__":
    main()
