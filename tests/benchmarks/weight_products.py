"""Products with quantised weights against the speed of memory.

    python -m tests.benchmarks.weight_products [--matrices 8] [--rows 1] [--size 4096] [--pairs 60]

Weights of 4 bits in blocks of 32 and 128, and of 8 bits with a scale for each column, times one
row: the bytes of weights and scales a second, beside those that a copy reads and writes and those
that a sum reads. All take turns in one process; printed are medians of ratios of neighbours in
time. With several matrices their products follow each other, so that what does not fit the caches
comes from memory. `--search N` measures N drawn schedules first and takes the fastest.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import compile_model, kernels_of
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.schedule.schedule import Schedule, ScheduleChoice
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, TensorType

FORMS = ((4, 32), (4, 128), (8, 0))
"""Bits of a weight, and weights of a block, 0 for a whole column."""


def products(rows: int, size: int, matrices: int, bits: int, block: int) -> Graph:
    """x times each of several square matrices."""
    rng = np.random.default_rng(0)
    block = block or size
    types = {"x": TensorType(DType.F32, (rows, size))}
    constants: dict[str, Array] = {}
    nodes = []
    for number in range(matrices):
        weight, scale, output = (f"{name}{number}" for name in "wsy")
        words = rng.integers(-(1 << 31), 1 << 31, (size * bits // 32, size)).astype(np.int32)
        constants[weight] = words
        constants[scale] = rng.uniform(0.5, 1, (size // block, size)).astype(np.float32)
        types[weight] = TensorType(DType.I32, words.shape)
        types[scale] = TensorType(DType.F32, constants[scale].shape)
        types[output] = TensorType(DType.F32, (rows, size))
        attributes = {"bits": bits, "block": block}
        nodes.append(Node("weight_product", ("x", weight, scale), output, attributes))
    for array in constants.values():
        array.flags.writeable = False
    outputs = tuple(node.output for node in nodes)
    return Graph("products", ("x",), outputs, tuple(nodes), types, constants)


def built(graph: Graph, schedule: Schedule | None = None) -> Executable:
    """The products with this schedule, or their default one."""
    choice = None if schedule is None else ScheduleChoice(schedule, "tuned")
    return Executable(compile_model(graph, lambda kernel: choice).spec)


def fastest(graph: Graph, x: Array, count: int) -> Executable:
    """The products with the fastest of the default schedule and `count` drawn ones."""
    kernel = next(iter(kernels_of(graph).kernel_calls().values()))[0].kernel
    space, rng = schedule_space(kernel, host_target()), random.Random(0)
    drawn = [space.default(), *(space.sample(rng) for _ in range(count))]
    candidates = [built(graph, space.schedule(candidate)) for candidate in drawn]
    best = [float("inf")] * len(candidates)
    for _ in range(10):
        for number, executable in enumerate(candidates):
            best[number] = min(best[number], seconds(partial(executable.run, {"x": x})))
    return candidates[best.index(min(best))]


def seconds(run: Callable[[], object]) -> float:
    """Of one call, which finds in the caches what one before left there."""
    run()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(arguments: argparse.Namespace, bits: int, block: int) -> str:
    """A line for one form of the weights."""
    rows, size, matrices = arguments.rows, arguments.size, arguments.matrices
    graph = products(rows, size, matrices, bits, block)
    x = np.random.default_rng(1).standard_normal((rows, size)).astype(np.float32)
    executable = fastest(graph, x, arguments.search) if arguments.search else built(graph)
    read = sum(array.nbytes for array in executable.spec.constants)
    source = np.ones(read // 4, np.float32)
    target = np.empty_like(source)
    samples = [
        (
            seconds(lambda: executable.run({"x": x})),
            seconds(lambda: np.copyto(target, source)),
            seconds(lambda: source.max()),
        )
        for _ in range(arguments.pairs + 3)
    ][3:]
    product = median(sample[0] for sample in samples)
    of_copy = median(copy / 2 / run for run, copy, _ in samples)
    of_read = median(reading / run for run, _, reading in samples)
    name = f"{bits} bits, {f'blocks of {block}' if block else 'columns'}"
    return (
        f"{name:22} {read / 1e6:7.1f} MB {product * 1e6:8.0f} us {read / product / 1e9:6.1f} GB/s"
        f"   of a copy (read and written) {of_copy:5.2f}   of reading {of_read:5.2f}"
    )


def main() -> None:
    """Print a line for each form."""
    parser = argparse.ArgumentParser(description="Products with quantised weights.")
    for name, default in (("rows", 1), ("size", 4096), ("matrices", 1), ("pairs", 60)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--search", type=int, default=0)
    arguments = parser.parse_args()
    for bits, block in FORMS:
        print(measure(arguments, bits, block))


if __name__ == "__main__":
    main()
