"""Whole models beside other engines, and what a second thread brings.

    python -m tests.benchmarks.models [MODEL ...] [--threads 1,2] [--db tuning.db]

A model is a file or a name of the zoo; without one all of the zoo run. Untuned is the analytic
default schedule, with `--db` there is the tuned model too, which then is `ours`, and with `--naive`
one of a vector at a time without register tile or unrolling. Outputs are compared before anything
is timed, and what is compared takes turns in one process.

Rows are ratios to the time of ours with 95 % intervals, above 1 where ours is faster; at the end
come, for each number of threads, the geometric mean and the worst of the best engine over ours, and
the same of one thread over several. Prints JSON with `--json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median

from tests.benchmarks.paired import compare_paired
from tunefarm import compiler
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.frontend.zoo import model_names, write_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.schedule.schedule import ScheduleChoice
from tunefarm.compiler.schedule.spaces import untiled_schedule
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure.compare import Comparison
from tunefarm.tuner import build as build_tuned
from tunefarm.tuner.commands.engines import ENGINES, Asked
from tunefarm.tuner.confirm.latency import (
    LONGEST_SPIN,
    LatencyOptions,
    aligned_inputs,
    interleaved_latencies,
    outputs_agree,
    pinned,
)

Runs = dict[str, Callable[[], Mapping[str, Array]]]


@dataclass(frozen=True, slots=True)
class Row:
    """One model on so many threads: seconds of ours, and others' time over it by name."""

    model: str
    threads: int
    seconds: float
    over_ours: dict[str, Comparison]

    def best(self, engines: Sequence[str]) -> tuple[str, Comparison] | None:
        """The fastest of these engines, None if none of them ran."""
        found = [(name, self.over_ours[name]) for name in engines if name in self.over_ours]
        return min(found, key=lambda item: item[1].ratio, default=None)


class Bench:
    """The options that all measurements share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.engines = [name for name in options.against.split(",") if name]
        self.rounds = options.rounds

    def rows(self, path: Path) -> list[Row]:
        """A row for each number of threads, and with several the row `gain` of what they bring."""
        rows, ours = [], {}
        for threads in self.options.threads:
            built = self._built(path, threads)
            ours[threads] = built[list(built)[-1]]
            rows.append(self._row(path, threads, built))
        fewest, most = min(ours), max(ours)
        if fewest < most:
            inputs = aligned_inputs(ours[most])
            runs: Runs = {
                "ours": partial(ours[most].run, inputs),
                f"threads {fewest}": partial(ours[fewest].run, inputs),
            }
            rows.append(self._timed(path, most, runs))
        return rows

    def _built(self, path: Path, threads: int) -> dict[str, Executable]:
        """Our builds by name; the last one is `ours`."""
        built: dict[str, Executable] = {}
        if self.options.naive:
            built["naive"] = compiler.build(
                path,
                lambda kernel: ScheduleChoice(
                    untiled_schedule(kernel, host_target(), threads), "naive"
                ),
                threads=threads,
            )
        built["untuned"] = compiler.build(path, threads=threads)
        if self.options.db:
            built["tuned"] = build_tuned(path, db=self.options.db, threads=threads)
        return built

    def _row(self, path: Path, threads: int, built: dict[str, Executable]) -> Row:
        *others, last = built
        inputs = aligned_inputs(built[last])
        runs: Runs = {"ours": partial(built[last].run, inputs)}
        runs |= {name: partial(built[name].run, inputs) for name in others}
        with pinned(threads):
            for name in self.engines:
                try:
                    shapes = {name: array.shape for name, array in inputs.items()}
                    (engine,) = ENGINES[name](Asked(str(path), shapes, threads))
                    runs[name] = partial(engine.run, inputs)
                except (TunefarmError, RuntimeError) as error:
                    print(f"{path.stem}: {name} cannot run it: {error}", file=sys.stderr)
        return self._timed(path, threads, runs)

    def _timed(self, path: Path, threads: int, runs: Runs) -> Row:
        with pinned(threads):
            expected = runs["ours"]()
            for name in list(runs):
                if wrong := different(runs[name](), expected):
                    print(f"{path.stem}: outputs {wrong} of {name} differ", file=sys.stderr)
                    del runs[name]
            idle = LONGEST_SPIN if threads > 1 else 0.0
            timing = LatencyOptions(self.rounds, max_seconds=self.options.seconds, idle=idle)
            ours, *rest = interleaved_latencies(list(runs.values()), timing)
        _, *names = runs
        ratios = {name: compare_paired(t, ours) for name, t in zip(names, rest, strict=True)}
        return Row(path.stem, threads, median(ours), ratios)


def different(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> list[str]:
    """The outputs that do not agree."""
    return [name for name in expected if not outputs_agree(actual[name], expected[name])]


def _show(row: Row) -> None:
    ratios = "   ".join(
        f"{name} {compared.ratio:.2f} ({compared.low:.2f} to {compared.high:.2f})"
        for name, compared in row.over_ours.items()
    )
    print(f"{row.model:16} {row.threads} thread{'s' * (row.threads > 1)}", end=" ")
    print(f"{1e3 * row.seconds:9.3f} ms   {ratios}", flush=True)


def summary(rows: Sequence[Row], engines: Sequence[str]) -> dict[str, dict[str, float | str]]:
    """Geometric mean and worst of best engine over ours, and of one thread over several."""
    found: dict[str, list[tuple[float, str]]] = {}
    for row in rows:
        if best := row.best(engines):
            found.setdefault(f"best engine / ours, threads {row.threads}", []).append(
                (best[1].ratio, row.model)
            )
        for name, compared in row.over_ours.items():
            if name.startswith("threads "):
                title = f"{name} / threads {row.threads}"
                found.setdefault(title, []).append((compared.ratio, row.model))
    return {
        title: {
            "geometric mean": geometric_mean([ratio for ratio, _ in ratios]),
            "worst": min(ratios)[0],
            "of": min(ratios)[1],
        }
        for title, ratios in found.items()
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "models", nargs="*", help=f"ONNX files, or {', '.join(model_names())}; default: these"
    )
    parser.add_argument("--db", help="tuning database")
    parser.add_argument(
        "--threads",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[1, 2],
        help="numbers of threads, with commas between (1,2)",
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=20.0, help="at most, for a row (20)")
    parser.add_argument("--naive", action="store_true", help="also time naive schedules")
    parser.add_argument(
        "--against", default="onnxruntime,openvino", help="engines, with commas between"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    bench, rows = Bench(options), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for model in options.models or model_names():
            path = Path(model)
            if not path.exists():
                path = write_model(model, folder / f"{model}.onnx")
            for row in bench.rows(path):
                rows.append(row)
                if not options.json:
                    _show(row)
    found = summary(rows, bench.engines)
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "summary": found}))
        return 0
    for title, figures in found.items():
        print(f"{title}: " + ", ".join(f"{k} {_text(v)}" for k, v in figures.items()))
    return 0


def _text(figure: float | str) -> str:
    return figure if isinstance(figure, str) else f"{figure:.2f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
