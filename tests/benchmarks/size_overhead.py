"""What dynamic shapes cost a call of `Executable.run`, in microseconds.

    python -m tests.benchmarks.size_overhead [--caches 1,12] [--rounds 25] [--limit 3] [--json]

A model of so many small caches runs in turns with the same one at a fixed size, in slices of 128
calls; rows are medians of the differences. The arguments of `same` have the sizes of the call
before, those of `changing` have not, and in `growing` each call's results are the next one's
arguments, one longer. `programs` is `growing` with a program for each half of the sizes. Exits with
1 above `--limit`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.runtime.sized_graphs import SizedMaker, symbol
from tunefarm import compiler
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import AxisSource
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.confirm.latency import pinned

HEADS, MOST, WIDTH = 2, 257, 4
CALLS = 128


def open_graph(caches: int) -> Graph:
    """Of caches f32[1, 2, past, 4] the relu, one longer."""
    maker = SizedMaker()
    (p, past) = symbol("past", 0, MOST - 1)
    given = [
        maker.port(f"past{i}", DType.F32, 1, HEADS, (past, MOST), WIDTH) for i in range(caches)
    ]
    maker.sources.append(AxisSource(p, given[0], 2))
    present = [maker.node("relu", cache) for cache in given]
    return maker.sized(dict.fromkeys(present, (1, HEADS, (past + 1, MOST), WIDTH)))


def fixed_graph(caches: int, past: int) -> Graph:
    """The same for a known size."""
    maker = GraphMaker()
    given = [maker.input(1, HEADS, past, WIDTH) for _ in range(caches)]
    return maker.graph(*(maker.node("relu", cache) for cache in given))


class Calls:
    """Calls of a model, each with the arguments that come after those of the last."""

    def __init__(self, model: Executable, sizes: tuple[int, ...]) -> None:
        self._model = model
        self._given = [self._empty(size) for size in sizes]
        self._grown, self._length = self._empty(0), 0
        self._number = 0

    def _empty(self, past: int) -> dict[str, Array]:
        return {n: np.zeros((1, HEADS, past, WIDTH), np.float32) for n in self._model.inputs}

    def next(self) -> None:
        """A call with the sizes that are next."""
        self._number = (self._number + 1) % len(self._given)
        self._model.run(self._given[self._number])

    def grow(self) -> None:
        """A call with the results of the last one."""
        results = self._model.run(self._grown)
        self._length += 1
        if self._length == MOST - 1:
            self._grown, self._length = self._empty(0), 0
            return
        for name, array in zip(self._grown, results.values(), strict=True):
            self._grown[name] = array


def differences(caches: int, rounds: int) -> dict[str, float]:
    """Microseconds over a call of the fixed model."""
    middle = MOST // 2
    graph = open_graph(caches)
    model, fixed = compiler.build(graph), compiler.build(fixed_graph(caches, middle))
    halves = [(0, middle), (middle + 1, MOST - 1)]
    specs = [compile_model(graph, guards=[SizeGuard("past", "past0", 2, *e)]).spec for e in halves]
    several = Executable(specs[0], others=specs[1:])
    cases: dict[str, Callable[[], None]] = {
        "fixed": Calls(fixed, (middle,)).next,
        "same": Calls(model, (middle,)).next,
        "changing": Calls(model, (middle, middle + 1)).next,
        "growing": Calls(model, (middle,)).grow,
        "programs": Calls(several, (middle,)).grow,
    }
    spent: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, call in cases.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            spent[name].append((time.perf_counter() - start) / CALLS * 1e6)
    base = spent.pop("fixed")
    return {
        name: median(own - other for own, other in zip(times, base, strict=True))
        for name, times in spent.items()
    }


def main(arguments: list[str]) -> int:
    """The command of this module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--caches", default="1,12")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--limit", type=float, default=3.0, help="microseconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with pinned(1):
        rows = {n: differences(int(n), options.rounds) for n in options.caches.split(",")}
    if options.json:
        print(json.dumps(rows))
    else:
        for caches, row in rows.items():
            told = "   ".join(f"{name} {value:+6.2f} us" for name, value in row.items())
            print(f"{caches:>3} caches   {told}")
    return 1 if max(max(row.values()) for row in rows.values()) > options.limit else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
