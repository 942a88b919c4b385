"""What the bound of a size costs a run at a small size.

    python -m tests.benchmarks.bounds [--kinds vocoder,attention] [--sources input,durations]
        [--bounds 64,2048,8192] [--size 32] [--channels 32] [--limit 3] [--json]

Builds of one model for several bounds run interleaved, all at one size; columns are the median
ratios of time to that of the build with the first bound, in one thread. Results are compared
first. Exits with 1 if a ratio is above `--limit`.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial

from tests.benchmarks.models import Runs, different
from tests.benchmarks.paired import compare_paired
from tests.compiler.bounded_models import KINDS, SOURCES, bounded_model
from tunefarm import compiler
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.confirm.latency import LatencyOptions, interleaved_latencies, pinned


def ratios(source: str, kind: str, bounds: list[int], size: int, channels: int) -> list[float]:
    """By bound the time of a run over that of the build with the first bound."""
    runs: Runs = {}
    shared: dict[str, Array] = {}
    for bound in bounds:
        _, graph, feed = bounded_model(source, kind, bound, channels=channels)
        inputs = feed(size)
        if source != "condition":  # whose inputs are as long as the bound
            shared = shared or inputs
            inputs = shared
        runs[str(bound)] = partial(compiler.build(graph).run, inputs)
    first, *others = runs
    if source != "condition":
        expected = runs[first]()
        for name in others:
            if wrong := different(runs[name](), expected):
                raise SystemExit(f"{source}, {kind}: outputs {wrong} differ with the bound {name}")
    times = interleaved_latencies(list(runs.values()), LatencyOptions(25, 0.004, 5.0))
    return [compare_paired(own, times[0]).ratio for own in times[1:]]


def main(arguments: list[str]) -> int:
    """The command of this module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--bounds", default="64,2048,8192")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--limit", type=float, default=3.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    bounds = [int(bound) for bound in options.bounds.split(",")]
    rows: dict[str, list[float]] = {}
    with pinned(1):
        for source in options.sources.split(","):
            for kind in options.kinds.split(","):
                row = ratios(source, kind, bounds, options.size, options.channels)
                rows[f"{source}, {kind}"] = row
                if not options.json:
                    told = "  ".join(f"{b}: {r:6.2f}" for b, r in zip(bounds[1:], row, strict=True))
                    print(f"{source:10} {kind:22} {told}", flush=True)
    if options.json:
        print(json.dumps({"bounds": bounds, "size": options.size, "ratios": rows}))
    return 1 if max(max(row) for row in rows.values()) > options.limit else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
