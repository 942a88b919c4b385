"""One artifact for a mixed fleet: its size, and whether each variant is as fast as its own build.

    python -m tests.benchmarks.fleet [MODEL ...] [--targets A,B,...] [--seconds 20] [--threads 1]

MODEL is a network of the zoo; all if none is named. Each is built untuned for all targets in one
artifact, and for each target alone. Printed are the bytes of that artifact over the largest single
one (1.5 at most), and for each target that this CPU can run the speed of its variant over that of
its own build (0.98 at least): interleaved runs, for which both are loaded anew time and again, as
what differs is where weights lie. With --seconds 0 nothing is run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tunefarm.compiler.frontend.zoo import model_names, write_model
from tunefarm.compiler.runtime.artefact.artefact import read_contents
from tunefarm.compiler.runtime.execution.executable import Executable, load
from tunefarm.compiler.runtime.machine.check_target import can_run
from tunefarm.configs.settings import load_settings
from tunefarm.measure.compare import Comparison
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.request import BuildRequest
from tunefarm.tuner.confirm.drawn_inputs import drawn_inputs
from tunefarm.tuner.confirm.latency import (
    COMPARISON,
    Program,
    latencies_at_placements,
    pinned,
)
from tunefarm.tuner.confirm.verdict import compare

TARGETS = ("x86-64-v3", "x86-64-v4", "sapphirerapids", "znver4", "znver5")
LARGEST, SLOWEST = 1.5, 0.98


def built(folder: Path, model: Path, targets: Sequence[str], threads: int) -> Path:
    """An untuned build of a model for these targets."""
    output = folder / f"{model.stem}.{'+'.join(targets)}.tuned"
    values = {"compile.targets": list(targets), "compile.threads": threads, "cache.enabled": False}
    settings = load_settings(None, values)
    build(BuildRequest(str(model), str(output), settings, untuned=True))
    return output


def variants(path: Path) -> dict[str, Executable]:
    """What each CPU that this one can be would load of an artifact, by the name of its target."""
    return {
        variant.target.cpu: Executable(variant.programs[0], others=variant.programs[1:])
        for variant in read_contents(str(path)).variants
        if can_run(variant.target)
    }


def speed(fleet: Path, cpu: str, own: Path, seconds: float) -> Comparison:
    """The time of the own build over that of the variant: its speed over the own build's."""
    inputs = drawn_inputs(load(str(own)))

    def place() -> Sequence[Program]:
        models = variants(fleet)[cpu], load(str(own))
        for model in models:
            model.run(inputs)
        return [partial(model.run, inputs) for model in models]

    threads = load(str(own)).threads
    options = replace(COMPARISON, max_seconds=seconds, serial=threads == 1)
    with pinned(threads):
        return compare(latencies_at_placements(place, options), 1, 0)


def report(folder: Path, name: str, targets: Sequence[str], seconds: float, threads: int) -> bool:
    """Print the figures of a network, and whether they are good enough."""
    model = folder / f"{name}.onnx"
    write_model(name, model)
    fleet = built(folder, model, targets, threads)
    single = {target: built(folder, model, [target], threads) for target in targets}
    largest = max(path.stat().st_size for path in single.values())
    share = fleet.stat().st_size / largest
    megabytes = fleet.stat().st_size / 1e6
    print(f"{name}: {megabytes:.1f} MB, {share:.2f} of the largest single one", flush=True)
    good = share <= LARGEST
    for cpu in variants(fleet) if seconds else ():
        found = speed(fleet, cpu, single[cpu], seconds)
        print(f"  {cpu}: speed {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})", flush=True)
        good &= found.high >= SLOWEST
    for path in (model, fleet, *single.values()):
        path.unlink()
    return good


def main(arguments: Sequence[str]) -> int:
    """Report on what the arguments name; the status is 1 if something is not good enough."""
    parser = argparse.ArgumentParser(prog="fleet", description=__doc__)
    parser.add_argument("models", nargs="*", default=model_names())
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args(arguments)
    targets = asked.targets.split(",")
    with tempfile.TemporaryDirectory() as name:
        found = [
            report(Path(name), model, targets, asked.seconds, asked.threads)
            for model in asked.models
        ]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
