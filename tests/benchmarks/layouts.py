"""What layouts bring: nets of odd channels in several layouts, each against those of the rules.

    python -m tests.benchmarks.layouts [NET ...] [--threads 1] [--seconds 4] [--measured]

A net is EXTENT:CHANNELS, conv, batch norm and relu in blocks of 3x3, 1x1, depthwise, 1x1 and 3x3,
or `odd`, one with channels 20, 24, 40, 53 and 116 (the default), or a model of the zoo. Layouts are
uniform, or what the solver chooses by estimates, and with `--measured` by times of single kernels.
All builds have default schedules and take turns in one process; printed is the time of each over
that of the rules with its 95 % interval, below 1 where it is faster.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import onnx

from tests.benchmarks.kernels import Timed, sample
from tests.benchmarks.models import different, planned_build
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.frontend.zoo import write_model
from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.choices.estimate import estimate
from tunefarm.compiler.plan.choices.graph_sites import graph_sites
from tunefarm.compiler.plan.choices.layout_costs import Seconds
from tunefarm.compiler.plan.choices.layout_problem import layout_problem
from tunefarm.compiler.plan.choices.solver import solve
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, PLAIN, GraphPlan, Layout
from tunefarm.compiler.plan.layouts.layout_classes import layout_classes
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.measure.compare import compare_paired
from tunefarm.tuner.confirm.latency import (
    LatencyOptions,
    aligned_inputs,
    interleaved_latencies,
    pinned,
)

ODD = ((56, 20), (56, 24), (28, 40), (28, 53), (14, 116))
"""Extents of the image and channels of the net of odd channels."""
ALL_CHANNELS = -1


def odd_net(path: Path, stages: Sequence[tuple[int, int]]) -> None:
    """Write a model of these stages."""
    net = NetworkBuilder("odd", 0)
    extent = stages[0][0]
    data = Layer(net.input("input", (1, 3, extent, extent)), 3)
    for number, (size, channels) in enumerate(stages):
        stride = extent // size
        extent = size

        def conv(part: str, data: Layer, kernel: int, groups: int = 1, stride: int = 1) -> Layer:
            name = f"{number}.{part}"  # noqa: B023
            made = net.conv(
                name,
                data,
                channels,  # noqa: B023
                kernel,
                stride=stride,
                padding=kernel // 2,
                groups=groups,
                bias=True,
            )
            return net.relu(made)

        data = conv("first", data, 3, 1, stride)
        point = conv("point", data, 1)
        wise = conv("wise", point, 3, channels)
        data = net.add(conv("out", wise, 1), data)
        data = conv("wide", data, 3)
    net.output(data.name, "output", (1, data.channels, extent, extent))
    onnx.save(net.model(), path)


def uniform_plans(graph: Graph) -> Mapping[str, GraphPlan]:
    """All values in rows, in blocks of 8 or of the lanes, as NHWC, as far as they can be."""
    lanes = host_target().lanes(DType.F32)
    graph = graph_sites(graph, host_target()).planned
    classes = layout_classes(graph, lanes)
    kinds = {"NCHW": PLAIN, "NCHW8c": 8, f"NCHW{lanes}c": lanes, "NHWC": ALL_CHANNELS}
    plans = {}
    for name, kind in kinds.items():
        decided = []
        for each in classes:
            channels = graph.types[each.name].shape[1]
            block = channels if kind == ALL_CHANNELS else kind
            block = block if block in each.blocks else lanes
            decided += [Layout(value, block) for value in each.values]
        plans[name] = GraphPlan(tuple(decided))
    return plans


def solved_plan(graph: Graph, seconds: Seconds) -> GraphPlan:
    """The best layouts where kernels take these seconds."""
    planned = graph_sites(graph, host_target()).planned
    found = layout_problem(planned, host_target().lanes(DType.F32), seconds)
    return GraphPlan(found.decisions(solve(found.problem)))


def estimated(kernel: FusedKernel, threads: int) -> tuple[float, float]:
    """The estimate of a kernel's seconds, and its uncertainty."""
    found = estimate(kernel, host_target(), threads)
    return found.seconds, found.deviation


def measured(kernel: FusedKernel) -> tuple[float, float]:
    """A kernel's seconds under its default schedule on one thread, with its data near."""
    run = Timed(kernel, default_schedule(kernel, host_target()))
    run()
    return median(sample(run, 0.002) for _ in range(3)), 0.1


def measure(path: Path, threads: int, seconds: float, with_times: bool) -> None:
    """Print a line for each plan."""
    graph = import_onnx(path)
    plans = dict(uniform_plans(graph))
    plans["estimated"] = solved_plan(graph, partial(estimated, threads=threads))
    if with_times:
        with pinned(1):
            plans["measured"] = solved_plan(graph, measured)
    builds = {"rules": planned_build(graph, threads, DEFAULT_PLAN)}
    builds |= {name: planned_build(graph, threads, plan) for name, plan in plans.items()}
    inputs = aligned_inputs(builds["rules"])
    expected = builds["rules"].run(inputs)
    for name, build in builds.items():
        if wrong := different(build.run(inputs), expected):
            raise SystemExit(f"{path.stem}, {name}: outputs {wrong} differ")
    timing = LatencyOptions(240, 0.0025, seconds, settle=False)
    with pinned(threads):
        times = interleaved_latencies(
            [partial(build.run, inputs) for build in builds.values()], timing
        )
    rules, *others = times
    print(f"{path.stem:16} {threads} threads  {1e3 * median(rules):8.3f} ms by the rules")
    for name, latencies in zip(plans, others, strict=True):
        found = compare_paired(latencies, rules)
        print(f"    {name:10} {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command of this module."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.layouts")
    parser.add_argument("nets", nargs="*", default=["odd"])
    parser.add_argument("--threads", default="1")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--measured", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.nets:
            path = Path(folder, f"{name.replace(':', '_')}.onnx")
            if name == "odd":
                odd_net(path, ODD)
            elif ":" in name:
                extent, channels = map(int, name.split(":"))
                odd_net(path, [(extent, channels)])
            else:
                write_model(name, path)
            for threads in map(int, options.threads.split(",")):
                measure(path, threads, options.seconds, options.measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
