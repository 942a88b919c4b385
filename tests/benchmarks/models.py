"""Whole-model latencies in one interleaved run: naive, untuned, tuned, and other engines.

    python -m tests.benchmarks.models resnet18 --db tuning.db --threads 1

Naive is one vector at a time without register tile or unrolling; untuned is the analytic default
schedule. Outputs are compared before anything is timed. Prints JSON with `--json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import compiler
from compiler.frontend.zoo import model_names, write_model
from compiler.runtime.executable import Executable
from compiler.schedule.choice import ScheduleChoice
from compiler.schedule.spaces import untiled_schedule
from compiler.target import host_target
from tuner import build as build_tuned
from tuner.commands.bench import ENGINES
from tuner.confirm.latency import (
    LatencyOptions,
    aligned_inputs,
    interleaved_latencies,
    outputs_agree,
    pinned,
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help=f"ONNX file, or one of {', '.join(model_names())}")
    parser.add_argument("--db", help="tuning database")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--naive", action="store_true", help="also time naive schedules")
    parser.add_argument("--against", default="onnxruntime", help="engines, with commas between")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.model)
        if not path.exists():
            path = write_model(options.model, Path(folder) / f"{options.model}.onnx")
        latencies = _measure(path, options)
    _print(latencies, options.json)
    return 0


def _measure(path: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    executables: dict[str, Executable] = {}
    if options.naive:
        executables["naive"] = compiler.build(
            path,
            lambda kernel: ScheduleChoice(
                untiled_schedule(kernel, host_target(), options.threads), "naive"
            ),
            threads=options.threads,
        )
    executables["untuned"] = compiler.build(path, threads=options.threads)
    if options.db:
        executables["tuned"] = build_tuned(path, db=options.db, threads=options.threads)
    last = list(executables.values())[-1]
    inputs = aligned_inputs(last)
    programs: dict[str, Callable[[], object]] = {}
    with pinned(options.threads):
        expected = last.run(inputs)
        for name, executable in executables.items():
            _check(name, executable.run(inputs), expected)
            programs[name] = lambda executable=executable: executable.run(inputs)  # type: ignore[misc]
        for name in filter(None, options.against.split(",")):
            engine = ENGINES[name](str(path), inputs, options.threads)
            _check(name, engine(), expected)
            programs[name] = engine
        pause = 0.02 if options.threads > 1 else 0.0
        timing = LatencyOptions(options.rounds, max_seconds=240.0, pause=pause)
        samples = interleaved_latencies(list(programs.values()), timing)
    return dict(zip(programs, samples, strict=True))


def _check(name: str, actual: object, expected: object) -> None:
    assert isinstance(actual, dict) and isinstance(expected, dict)
    wrong = [output for output in expected if not outputs_agree(expected[output], actual[output])]
    if wrong:
        raise SystemExit(f"{name}: outputs {wrong} differ; nothing was timed")


def _print(latencies: dict[str, list[float]], as_json: bool) -> None:
    medians = {name: median(samples) for name, samples in latencies.items()}
    ours = medians.get("tuned", medians["untuned"])
    if as_json:
        print(
            json.dumps({"seconds": medians, "over_ours": {k: v / ours for k, v in medians.items()}})
        )
        return
    for name, seconds in medians.items():
        print(f"{name:12} {1e3 * seconds:10.3f} ms   {seconds / ours:6.2f} x ours")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
