"""What it brings to run convolutions of the same data as one.

    python -m tests.benchmarks.merged [MODEL ...] [--threads 1,2] [--seconds 4] [--each]

A model is a name of the zoo, or `heads:40:64:64,80`: 3x3 convolutions to 64 and 80 channels of
three images of 40x40 and 64 channels. Both builds have default schedules and take turns in one
process; printed is the time of the merged one over the other's with its 95 % interval, below 1
where merging is faster, of CPU time on one thread. `--each` merges one set at a time as well. What
an untuned build merges by estimates is a line of its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import onnx

from tests.benchmarks.models import different, planned_build
from tests.benchmarks.paired import compare_paired
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.frontend.zoo import write_model
from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder
from tunefarm.compiler.plan.choices.estimated_merges import estimated_merges
from tunefarm.compiler.plan.choices.graph_sites import graph_sites
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.target import host_target
from tunefarm.tuner.confirm.latency import (
    LatencyOptions,
    aligned_inputs,
    interleaved_latencies,
    pinned,
)

MODELS = ("yolov8n", "heads:40:64:64,80")


def heads(path: Path, extent: int, channels: int, branches: Sequence[int]) -> None:
    """Write a model of three images with such branches, whose results are all added."""
    net = NetworkBuilder("heads", 0)
    data = Layer(net.input("input", (1, 16, extent, extent)), 16)
    total: Layer | None = None
    for image in range(3):
        read = net.relu(net.conv(f"image{image}", data, channels, 1, bias=True))
        for number, outputs in enumerate(branches):
            name = f"head{image}.{number}"
            made = net.relu(net.conv(name, read, outputs, 3, padding=1, bias=True))
            small = net.conv(f"{name}.small", made, 16, 1, bias=True)
            total = small if total is None else net.add(total, small)
    if total is not None:
        net.output(total.name, "output", (1, 16, extent, extent))
    onnx.save(net.model(), path)


def measure(path: Path, threads: int, seconds: float, each: bool) -> None:
    """Print a line for all sets merged, and with `each` one for each of them."""
    graph = import_onnx(path)
    sets = graph_sites(graph, host_target()).merges
    plans = {f"all {len(sets)}": GraphPlan(sets)}
    estimated = estimated_merges(graph, SpaceCache(host_target(), threads))
    if estimated.decisions:
        plans[f"by estimates {len(estimated.decisions)}"] = estimated
    if each:
        plans |= {str(decision): GraphPlan((decision,)) for decision in sets}
    if not sets:
        print(f"{path.stem:16} {threads} threads: nothing to merge", flush=True)
        return
    before = planned_build(graph, threads, DEFAULT_PLAN)
    inputs = aligned_inputs(before)
    for name, plan in plans.items():
        after = planned_build(graph, threads, plan)
        if wrong := different(after.run(inputs), before.run(inputs)):
            raise SystemExit(f"{path.stem}: outputs {wrong} differ")
        runs = [partial(after.run, inputs), partial(before.run, inputs)]
        timing = LatencyOptions(240, 0.0025, seconds, settle=False)
        with pinned(threads):
            clock = time.thread_time if threads == 1 else time.perf_counter
            merged, apart = interleaved_latencies(runs, timing, clock)
        found = compare_paired(merged, apart)
        print(
            f"{path.stem:16} {threads} threads  {1e3 * median(apart):8.3f} ms  merged / apart "
            f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})  {name}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command of this module."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.merged")
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--each", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            path = Path(folder, f"{model}.onnx")
            if model.startswith("heads:"):
                _, extent, channels, branches = model.split(":")
                heads(path, int(extent), int(channels), [*map(int, branches.split(","))])
            else:
                write_model(model, path)
            for threads in map(int, options.threads.split(",")):
                measure(path, threads, options.seconds, options.each)
    return 0


if __name__ == "__main__":
    sys.exit(main())
