"""A dynamic build next to a static one for each size, and other engines.

    python -m tests.benchmarks.sizes [MODEL] [--shape batch=1..4 --shape sequence=1..512]
        [--count 20] [--against onnxruntime,openvino] [--threads T] [--json FILE]

A model is a file, or a name of the zoo that has a dynamic form. Sizes are drawn of the bounds, the
least and the greatest among them. For each the build for all sizes runs in turns with one for just
this size, and with other engines that take any size; outputs are compared before anything is timed.
Rows are ratios of times with 95 % intervals: `fixed` is ours over that of the fixed build, the
others are above 1 where ours is faster. At the end come the median and the worst of `fixed`, the
geometric mean of the best engine, and how bytes and build times of the artefacts compare.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import geometric_mean, median

from tests.benchmarks.models import Runs, different
from tests.benchmarks.paired import compare_paired
from tunefarm import compiler
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.frontend.zoo import write_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.extents import Extent, Given, extent_of
from tunefarm.compiler.types.sizes import value_of
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.measure.compare import Comparison
from tunefarm.tuner.commands.engines import ENGINES, Asked, Run
from tunefarm.tuner.confirm.drawn_inputs import seeded_inputs
from tunefarm.tuner.confirm.latency import LatencyOptions, interleaved_latencies, pinned

Bounds = dict[str, Given]
_DEFAULT = ("batch=1..4", "sequence=1..512")


@dataclass(frozen=True, slots=True)
class Row:
    """One size: seconds of ours, ours over the fixed build's, and engines' times over ours."""

    sizes: dict[str, int]
    seconds: float
    fixed: Comparison
    over_ours: dict[str, Comparison]


class Bench:
    """A build for all sizes, and what it is compared with."""

    def __init__(self, path: Path, bounds: Bounds, options: argparse.Namespace) -> None:
        self.path, self.options, self.bounds = path, options, bounds
        self.shapes = {name: (extent,) for name, extent in bounds.items()}
        compiler.build(path, shapes=self.shapes, threads=options.threads)  # imports what it needs
        start = time.perf_counter()
        self.ours = compiler.build(path, shapes=self.shapes, threads=options.threads)
        self.build_seconds = time.perf_counter() - start
        self.fixed_seconds: list[float] = []
        self.byte_ratios: list[float] = []
        signature = self.ours.spec.signature
        if signature.is_fixed:
            raise SystemExit(f"{path} has no dynamic dimension")
        self.ports = signature.inputs
        self.engines = self._engines()

    def _engines(self) -> dict[str, Run]:
        dynamic = {
            port.name: tuple(size if isinstance(size, int) else -1 for size in port.shape)
            for port in self.ports
        }
        found: dict[str, Run] = {}
        for name in self.options.against.split(","):
            try:
                (engine,) = ENGINES[name](Asked(str(self.path), dynamic, self.options.threads))
                found[name] = engine.run
            except (TunefarmError, RuntimeError) as error:
                print(f"{name} cannot run it: {error}", file=sys.stderr)
        return found

    def row(self, sizes: dict[str, int]) -> Row:
        """Ours, the build for just these sizes and the engines, in turns."""
        start = time.perf_counter()
        shapes = {name: (size,) for name, size in sizes.items()}
        fixed = compiler.build(self.path, shapes=shapes, threads=self.options.threads)
        self.fixed_seconds.append(time.perf_counter() - start)
        self.byte_ratios.append(_bytes(self.ours) / _bytes(fixed))
        inputs = self._inputs(sizes)
        runs: Runs = {"ours": partial(self.ours.run, inputs), "fixed": partial(fixed.run, inputs)}
        runs |= {name: partial(run, inputs) for name, run in self.engines.items()}
        with pinned(self.options.threads):
            expected = runs["fixed"]()
            for name in list(runs):
                if wrong := different(runs[name](), expected):
                    print(f"{sizes}: outputs {wrong} of {name} differ", file=sys.stderr)
                    del runs[name]
            timing = LatencyOptions(15, 0.01, self.options.seconds)
            times = interleaved_latencies(list(runs.values()), timing)
        by_name = dict(zip(runs, times, strict=True))
        ours = by_name.pop("ours")
        ratio = compare_paired(ours, by_name.pop("fixed"))
        others = {name: compare_paired(other, ours) for name, other in by_name.items()}
        return Row(sizes, median(ours), ratio, others)

    def _inputs(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        types = {
            port.name: TensorType(port.dtype, tuple(value_of(size, sizes) for size in port.shape))
            for port in self.ports
        }
        return seeded_inputs(types)


def _bytes(executable: Executable) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.tuned")
        executable.save(path)
        return path.stat().st_size


def drawn_sizes(bounds: Bounds, count: int, seed: int) -> list[dict[str, int]]:
    """Sizes within the bounds, the greatest and the least first.

    OpenVINO settles in its first run in which order data lies, wrongly where axes have one element.
    """
    random, extents = Random(seed), {name: extent_of(given) for name, given in bounds.items()}
    ends = {}
    for name, extent in extents.items():
        if not isinstance(extent, Extent) or extent.low is None or extent.high is None:
            raise SystemExit(f"--shape {name} has no bounds")
        ends[name] = (extent.low, extent.high)
    drawn = [{name: random.randint(*end) for name, end in ends.items()} for _ in range(count - 2)]
    greatest, least = ({name: end[side] for name, end in ends.items()} for side in (1, 0))
    return [greatest, least, *drawn][:count]


def _show(row: Row) -> None:
    sizes = ", ".join(f"{name} {size}" for name, size in row.sizes.items())
    ratios = "   ".join(
        f"{name} {compared.ratio:.2f} ({compared.low:.2f} to {compared.high:.2f})"
        for name, compared in {"fixed": row.fixed, **row.over_ours}.items()
    )
    print(f"{sizes:28} {1e3 * row.seconds:9.3f} ms   {ratios}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """The command of this module."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sizes")
    parser.add_argument("model", nargs="?", default="encoder")
    parser.add_argument("--shape", action="append", help="a symbol's bounds, batch=1..4")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--against", default="onnxruntime,openvino")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each size")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    bounds: Bounds = {}
    for item in options.shape or _DEFAULT:
        name, _, extent = item.partition("=")
        bounds[name] = extent
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.model)
        if not path.exists():
            path = Path(folder, f"{options.model}.onnx")
            write_model(options.model, path, dynamic=True)
        bench = Bench(path, bounds, options)
        rows = []
        for sizes in drawn_sizes(bounds, options.count, options.seed):
            rows.append(bench.row(sizes))
            _show(rows[-1])
    fixed = sorted(row.fixed.ratio for row in rows)
    print(f"ours / fixed: median {median(fixed):.2f}, worst {fixed[-1]:.2f}")
    best = [min(c.ratio for c in row.over_ours.values()) for row in rows if row.over_ours]
    if best:
        print(
            f"best engine / ours: geometric mean {geometric_mean(best):.2f}, worst {min(best):.2f}"
        )
    seconds = bench.build_seconds / median(bench.fixed_seconds)
    print(
        f"artefact {max(bench.byte_ratios):.2f} of a fixed one, built in {seconds:.2f} of its time"
    )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
