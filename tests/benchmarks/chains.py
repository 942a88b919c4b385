"""Chains in cache against separate kernels: inverted residuals of MobileNetV2, products, pools.

    python -m tests.benchmarks.chains [--match 56x56] [--trials 40] [--rounds 15]

For each block of layers the plans that chain something, and the one that chains nothing, are built
with default schedules, or those that a short random search finds; what they compute is compared.
Then they take turns on one core. A line has the time of separate kernels, and that of each plan
over it ("-": not offered by `chain_candidates`); which one is chosen as measured, and as estimated
without running anything, and by how much each misses the best of fresh rounds (regret).
"""

from __future__ import annotations

import argparse
import ctypes
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

import numpy as np

from tests.benchmarks.kernels import sample
from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.llvm import compile_kernel
from tunefarm.compiler.plan.choices.estimate import Estimator
from tunefarm.compiler.plan.choices.estimated_chains import chain_candidates
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.fusion.group_kernels import GroupKernels
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.spec.buffers import aligned_empty
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import SpaceCache, default_schedule, schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute
from tunefarm.tuner.confirm.latency import outputs_agree, pinned

# pixels, input, hidden and output channels, stride: the blocks of MobileNetV2 (224 x 224)
RESIDUALS = (
    (112, 32, 32, 16, 1),
    (112, 16, 96, 24, 2),
    (56, 24, 144, 24, 1),
    (56, 24, 144, 32, 2),
    (28, 32, 192, 32, 1),
    (28, 32, 192, 64, 2),
    (14, 64, 384, 64, 1),
    (14, 64, 384, 96, 1),
    (14, 96, 576, 96, 1),
    (14, 96, 576, 160, 2),
    (7, 160, 960, 160, 1),
)


@dataclass(frozen=True, slots=True)
class Block:
    """Some layers, and the values between them that may be chained."""

    name: str
    graph: Graph
    values: tuple[str, ...]


def residual(size: int, channels: int, hidden: int, outputs: int, stride: int, lanes: int) -> Block:
    """Expand (unless there is nothing to expand), filter, project; a residual where it fits."""
    maker = GraphMaker()

    def whole(count: int) -> int:
        return -(-count // lanes) * lanes

    y = x = maker.input(1, whole(channels) // lanes, size, size, lanes)
    values = []
    if hidden != channels:
        weight = maker.weights(whole(hidden), whole(channels), 1, 1, scale=0.1)
        values.append(maker.node("conv", x, weight, maker.weights(whole(hidden)), layout="NCHWc"))
        y = maker.node("clip", values[-1], min=0.0, max=6.0)
    weight, bias = maker.weights(whole(hidden), 1, 3, 3), maker.weights(whole(hidden))
    windows: dict[str, Attribute]
    windows = {"strides": (stride, stride), "pads": (1, 1, 1, 1), "groups": hidden}
    values.append(maker.node("conv", y, weight, bias, **windows, layout="NCHWc"))
    y = maker.node("clip", values[-1], min=0.0, max=6.0)
    weight = maker.weights(whole(outputs), whole(hidden), 1, 1, scale=0.1)
    y = maker.node("conv", y, weight, maker.weights(whole(outputs)), layout="NCHWc")
    if stride == 1 and channels == outputs:
        y = maker.node("add", y, x)
    name = f"{size}x{size} {channels}-{hidden}-{outputs} stride {stride}"
    return Block(name, maker.graph(y), tuple(values))


def products(rows: int, inner: int, hidden: int) -> Block:
    """Two products with an activation between them."""
    maker = GraphMaker()
    x = maker.input(rows, inner)
    first = maker.node("matmul", x, maker.weights(inner, hidden, scale=0.1))
    y = maker.node("relu", maker.node("add", first, maker.weights(hidden)))
    y = maker.node("matmul", y, maker.weights(hidden, inner, scale=0.1))
    y = maker.node("add", maker.node("add", y, maker.weights(inner)), x)
    return Block(f"{rows} rows {inner}-{hidden}-{inner}", maker.graph(y), (first,))


def pooled(size: int, channels: int, outputs: int, kernel: int, stride: int, lanes: int) -> Block:
    """A convolution and a pool of 3x3 windows, two apart."""
    maker, blocked, pad = GraphMaker(), channels % lanes == 0, kernel // 2
    shape = (1, channels // lanes, size, size, lanes) if blocked else (1, channels, size, size)
    weight = maker.weights(outputs, channels, kernel, kernel, scale=0.1)
    first = maker.node(
        "conv",
        maker.input(*shape),
        weight,
        maker.weights(outputs),
        layout="NCHWc" if blocked else "NCHW->NCHWc",
        block=lanes,
        strides=(stride, stride),
        pads=(pad, pad, pad, pad),
    )
    size = -(-size // stride)
    y = maker.node(
        "max_pool",
        maker.node("relu", first),
        kernel=(3, 3),
        strides=(2, 2),
        pads=(1, 1, 1, 1),
        shape=(-(-size // 2), -(-size // 2)),
        layout="NCHWc",
    )
    name = f"{size}x{size} {channels}-{outputs} {kernel}x{kernel} and pool"
    return Block(name, maker.graph(y), (first,))


def blocks(lanes: int) -> Iterator[Block]:
    """All that is measured."""
    for shape in RESIDUALS:
        yield residual(*shape, lanes)
    for sizes in ((197, 192, 768), (1024, 256, 1024), (4096, 64, 256), (3136, 96, 384)):
        yield products(*sizes)
    yield pooled(224, 3, 64, 7, 2, lanes)
    yield pooled(112, 64, 64, 1, 1, lanes)
    yield pooled(112, 32, 64, 3, 1, lanes)


Chains: TypeAlias = tuple[str, ...]


class Built:
    """The kernels of a block under some chains, one after another, ready to be called."""

    def __init__(self, block: Block, chains: Chains, schedules: Mapping[str, Schedule]) -> None:
        program = extract_kernels(block.graph, chains=chains)
        self.calls = [call for call in program.calls if isinstance(call, KernelCall)]
        rng = np.random.default_rng(0)
        values = {}
        for name in block.graph.inputs:
            type = program.types[name]
            values[name] = aligned_empty(type.shape, type.dtype.numpy)
            values[name][...] = rng.standard_normal(type.shape)
        for call in self.calls:
            type = program.types[call.output]
            values[call.output] = aligned_empty(type.shape, type.dtype.numpy)
        self.output = values[program.outputs[0]]
        self.kept: list[object] = []
        self.runs: list[tuple[Callable[..., None], tuple[int, int, int]]] = []
        for call in self.calls:
            schedule = schedules.get(call.key) or default_schedule(call.kernel, host_target())
            self._add(call, schedule, {**program.constants, **values})

    def _add(self, call: KernelCall, schedule: Schedule, values: Mapping[str, np.ndarray]) -> None:
        compiled = compile_kernel(call.kernel, schedule, host_target())
        layouts = dict(compiled.constant_layouts)
        arrays = []
        for buffer, name in zip(call.kernel.inputs, call.inputs, strict=True):
            array = values[name]
            if buffer.name in layouts:
                packed = layouts[buffer.name].pack(array)
                array = aligned_empty(packed.shape, packed.dtype)
                array[...] = packed
            arrays.append(array)
        arrays.append(values[call.output])
        workspace = aligned_empty((compiled.workspace_bytes,), np.dtype(np.uint8))
        runtime = (ctypes.c_int64 * 2)(0, 1)
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        code = LoadedCode([compiled.object_code], [compiled.symbol])
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        function = signature(code.address(compiled.symbol))
        self.kept += [arrays, workspace, runtime, pointers, code]
        places = (
            ctypes.addressof(pointers),
            workspace.ctypes.data,
            ctypes.addressof(runtime),
        )
        self.runs.append((function, places))

    def __call__(self) -> None:
        for function, places in self.runs:
            function(*places)


def searched(
    block: Block, chains: Chains, call: KernelCall, others: Mapping[str, Schedule], trials: int
) -> Schedule:
    """Of a call's schedules the best of the default and so many random ones, `others` as given."""
    space, rng = schedule_space(call.kernel, host_target()), random.Random(0)
    candidates = [space.default(), *(space.sample(rng) for _ in range(trials))]
    known = {}
    for candidate in dict.fromkeys(candidates):
        schedule = space.schedule(candidate)
        built = Built(block, chains, {**others, call.key: schedule})
        known[candidate] = median(sample(built, 0.003) for _ in range(3))
    return space.schedule(min(known, key=lambda candidate: known[candidate]))


def plans_of(block: Block) -> dict[str, Chains]:
    """Nothing chained, each value alone, and all of them."""
    values = block.values
    plans: dict[str, Chains] = {"apart": ()}
    names = ("chained",) if len(values) == 1 else ("pw+dw", "dw+pw")
    for name, value in zip(names, values, strict=True):
        plans[name] = (value,)
    if len(values) > 1:
        plans["all"] = tuple(values)
    return plans


def times_of(builts: Sequence[Built], rounds: int) -> list[list[float]]:
    """Seconds of each in turn, by round."""
    samples: list[list[float]] = [[] for _ in builts]
    for _ in range(rounds):
        for built, kept in zip(builts, samples, strict=True):
            kept.append(sample(built, 0.005))
    return samples


def measure(block: Block, trials: int, rounds: int) -> tuple[float, float]:
    """Build all plans, compare what they compute, time them in turn; the regrets of two choices.

    The first is the fastest of some rounds, the second what estimates say of those that are
    offered; the regret is what fresh rounds say of it.
    """
    target, plans = host_target(), plans_of(block)
    builts = []
    for plan in plans.values():
        schedules: dict[str, Schedule] = {}
        for call in Built(block, plan, schedules).calls if trials else ():
            schedules[call.key] = searched(block, plan, call, schedules, trials)
        builts.append(Built(block, plan, schedules))
    for built in builts:
        built()
        if not outputs_agree(built.output, builts[0].output):
            raise SystemExit(f"{block.name}: plans differ in what they compute; nothing was timed")
    found = [ratios(times_of(builts, rounds)) for _ in range(2)]
    names = list(plans)
    estimate = Estimator(SpaceCache(target))
    offered = [(), *chain_candidates(GroupKernels(block.graph), estimate)]
    estimates = [
        sum(estimate(call.kernel).seconds for call in built.calls) if plan in offered else math.inf
        for plan, built in zip(plans.values(), builts, strict=True)
    ]
    picks = [int(np.argmin(found[0])), int(np.argmin(estimates))]
    regrets = [found[1][pick] / min(found[1]) - 1.0 for pick in picks]
    text = "  ".join(
        f"{name}{'' if plan in offered else '-'} {ratio:5.3f}"
        for (name, plan), ratio in zip(plans.items(), found[1], strict=True)
        if plan
    )
    seconds = median(times_of(builts[:1], 3)[0])
    chosen = "  ".join(
        f"{names[pick]:7} {100 * regret:4.1f} %"
        for pick, regret in zip(picks, regrets, strict=True)
    )
    print(f"{block.name:30} {1e3 * seconds:7.3f} ms  {text:44} {chosen}", flush=True)
    return regrets[0], regrets[1]


def ratios(samples: Sequence[Sequence[float]]) -> list[float]:
    """The medians of each one's times over those of the first, round by round."""
    first = np.array(samples[0])
    return [float(np.median(np.array(own) / first)) for own in samples]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--match", default="", help="only blocks with this in their name")
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    with pinned(1):
        regrets = [
            measure(block, options.trials, options.rounds)
            for block in blocks(host_target().lanes(DType.F32))
            if options.match in block.name
        ]
    for name, found in zip(("measured", "estimated"), zip(*regrets, strict=True), strict=True):
        print(f"regret of the choice as {name}: {100 * max(found):.1f} % at most")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
