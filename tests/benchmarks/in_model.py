"""Kernels alone and in their model: what jobs gain, and how near a search is to the model.

    python -m tests.benchmarks.in_model jobs [MODEL ...] [--minutes 3] [--repeat 1]
    python -m tests.benchmarks.in_model kernels [MODEL ...] [--rounds 3]

A MODEL is an ONNX file of fixed sizes, or the name of a network of the zoo; `--precision` is as in
`tune`. `jobs` tunes each in a fresh database and prints the interval of tuned against untuned, the
sum of the kernels in the model's profile over the whole model, the search's figures over the
profile's, and how many kernels were exchanged in the running model; jobs whose interval lies wholly
below 1 are counted. `kernels` tunes nothing: it measures the default schedules as a search does,
with the caches as the model leaves them and as they were taken to be before (weights cold, outputs
warm), over their time in the model's profile. Rounds alternate between both and the profile.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks.honesty import tuned
from tunefarm.compiler.frontend.zoo import write_model
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import Settings, load_settings
from tunefarm.db.store import Store
from tunefarm.measure.farm.runner import Runner
from tunefarm.measure.measurement import MeasureRequest
from tunefarm.tuner.confirm.latency import aligned_inputs, pinned
from tunefarm.tuner.confirm.placement import cache_states, model_placements
from tunefarm.tuner.records.model_latencies import newest
from tunefarm.tuner.search.measuring import runner_of, timing_options

MODELS = ("resnet18", "mobilenet_v2", "squeezenet1_1")
PROFILE_ROUNDS = 20
POLL_SECONDS = 1.0
LISTED = 8  # kernels that are printed, those that are off by most of the model's time


class _Row(NamedTuple):
    """A kernel's share of the model, and the search's figure over the profile's."""

    share: float
    as_left: float
    before: float
    name: str

    @property
    def off(self) -> float:
        return self.share * max(abs(math.log(self.as_left)), abs(math.log(self.before)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the two benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("jobs", "kernels"))
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="default")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        slower = 0
        for name in options.models or MODELS:
            path = Path(name)
            if not path.exists():
                path = write_model(name, Path(folder) / f"{name}.onnx")
            if options.what == "kernels":
                kernels(path, options.rounds, options.precision)
                continue
            for seed in range(options.repeat):
                database = Path(folder) / f"{path.stem}-{seed}.db"
                slower += job(path, database, options.minutes, seed, options.precision)
        if options.what == "jobs":
            print(f"jobs whose model is slower than untuned beyond doubt: {slower}")


def job(path: Path, database: Path, minutes: float, seed: int, precision: str) -> bool:
    """Print what a job came to; whether its model is slower than untuned."""
    result = tuned(path, database, minutes, seed, precision)
    with Store.open(database) as store:
        measured = newest(store)
    assert measured is not None, "the model was not measured"
    times, search = measured.times, result["search"]
    in_profile: dict[str, float] = {}
    for step in times.steps:
        in_profile[step.key] = in_profile.get(step.key, 0.0) + (step.seconds or 0.0)
    confirmed = {
        task["workload"]: task["occurrences"] * task["default_seconds"] * task["confirmed_ratio"]
        for task in result["tasks"]
        if task["default_seconds"] and task["confirmed_ratio"] and not task["sizes"]
    }
    both = sum(in_profile.get(key, 0.0) for key in confirmed)
    low, high = search["speedup_low"] or 1.0, search["speedup_high"] or 1.0
    exchanged = result["exchange"]
    lost = sum(kernel["fastest"] == "default" for kernel in exchanged["kernels"])
    parts = (
        f"{path.stem}: {search['speedup'] or 1.0:.3f} ({low:.3f} to {high:.3f})",
        f"profile over model {sum(in_profile.values()) / times.tuned:.3f}",
        f"search over profile {sum(confirmed.values()) / both if both else float('nan'):.3f}",
        exchanged["why_not"] or f"{len(exchanged['kernels'])} kernels exchanged, {lost} lost there",
    )
    print(", ".join(parts), flush=True)
    return bool(high < 1.0)


def kernels(path: Path, rounds: int, precision: str) -> None:
    """Print the time of default schedules as a search measures them over that in the profile."""
    settings = load_settings("quick", {"compile.numerics": precision}, environment={})
    compiled = compile_model(str(path), numerics=settings.compile.numerics)
    spec = compiled.spec
    model = Executable(spec.of_tensors())
    inputs = aligned_inputs(model)
    distinct = {key: calls[0].kernel for key, calls in compiled.program.kernel_calls().items()}
    placements, states = model_placements(spec, distinct), cache_states(spec)
    requests = {key: _request(key, kernel, settings) for key, kernel in distinct.items()}
    profiles: list[dict[str, float]] = []
    found: list[dict[str, tuple[float, float]]] = []
    with runner_of(settings, host_target(), lambda _: None) as runner:
        for _ in range(rounds):
            profiles.append(_profile(model, inputs))
            taken = {}
            for key, request in requests.items():
                places = (placements[key][0].to_json(),)
                pair = [_seconds(runner, request, options, places) for options in (states[key], {})]
                if all(map(math.isfinite, pair)):
                    taken[key] = pair[0], pair[1]
            found.append(taken)
    _show(path.stem, {r.key: r.name for r in spec.kernels}, profiles, found)


def _show(
    model: str,
    names: Mapping[str, str],
    profiles: Sequence[Mapping[str, float]],
    found: Sequence[Mapping[str, tuple[float, float]]],
) -> None:
    whole = median(sum(profile.values()) for profile in profiles)
    rows = []
    for key in set.intersection(*map(set, found)):
        as_left, as_before = (
            median(t[key][n] / p[key] for t, p in zip(found, profiles, strict=True)) for n in (0, 1)
        )
        share = median(profile[key] for profile in profiles) / whole
        rows.append(_Row(share, as_left, as_before, names[key]))
    known = sum(row.share for row in rows)
    for text, ratios in (
        ("with the caches as the model leaves them", [row.as_left for row in rows]),
        ("before", [row.before for row in rows]),
    ):
        both = [(row.share / known, ratio) for row, ratio in zip(rows, ratios, strict=True)]
        total = sum(share * ratio for share, ratio in both)
        off = sum(share * abs(math.log(ratio)) for share, ratio in both)
        print(f"{model}: search over profile {text}: {total:.3f}, each off by {100 * off:.1f} %")
    for row in sorted(rows, key=lambda row: -row.off)[:LISTED]:
        figures = f"{100 * row.share:5.1f} %  {row.as_left:.2f}  before {row.before:.2f}"
        print(f"  {figures}  {row.name}", flush=True)


def _profile(model: Executable, inputs: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of one call of each kernel, the mean of its calls."""
    with pinned(model.threads):
        rows = model.profile(inputs, PROFILE_ROUNDS).kernels
    return {row.key: row.seconds / row.occurrences for row in rows if row.key}


def _request(key: str, kernel: FusedKernel, settings: Settings) -> MeasureRequest:
    threads = settings.compile.threads
    space = schedule_space(kernel, host_target(), threads, settings.compile.numerics)
    return MeasureRequest(
        request_id="",
        kernel=kernel_to_json(kernel),
        workload_key=key,
        schedule=space.schedule(space.default()).to_json(),
        threads=threads,
        options=timing_options(settings),
    )


def _seconds(
    runner: Runner,
    request: MeasureRequest,
    options: Mapping[str, int],
    places: tuple[list[int], ...],
) -> float:
    """Median seconds of a call; infinity where it cannot be measured."""
    runner.submit(
        replace(
            request,
            request_id=uuid.uuid4().hex[:16],
            options={**request.options, **options},
            placements=places,
        )
    )
    while runner.pending:
        for result in runner.results(POLL_SECONDS):
            return result.latency
    return float("inf")


if __name__ == "__main__":
    main()
