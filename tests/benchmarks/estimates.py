"""How far the estimated seconds of kernels are from measured ones, by kind.

    python -m tests.benchmarks.estimates [--models resnet18,mobilenet_v2] [--plain] [--worst 10]

Each distinct kernel of the models runs under its default schedule, taking turns with copies of its
constants that exceed the caches, and with a loop at the FMA peak, in whose cycles it is measured:
so the clock of the moment does not matter. A row for each kind: the mean and the spread of the
logarithm of estimate over measurement, beside the spread that estimates state. `--plain`: without
blocked layouts.
"""

from __future__ import annotations

import argparse
import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from tests.benchmarks.fma_peak import fma_peak
from tests.benchmarks.kernels import Timed, sample
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.plan.choices.estimate import HERTZ, KINDS, Estimate, estimate
from tunefarm.compiler.plan.layouts import choose_layouts
from tunefarm.compiler.runtime.spec.buffers import aligned_empty
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.tuner.confirm.latency import pinned

MODELS = "resnet18,mobilenet_v2,squeezenet1_1,efficientnet_b0,encoder,yolov8n"
COPIED = 40 << 20  # bytes of constants, in copies
MOST_COPIES = 48
CALL_CYCLES = 950.0  # of a call by ctypes, which a model's kernels do not have
LEAST = 60.0  # cycles that are told from those
ROUNDS = 7


class Cold(Timed):
    """A kernel that reads another copy of its constants in each call."""

    def __init__(self, kernel: FusedKernel) -> None:
        super().__init__(kernel, default_schedule(kernel, host_target()))
        constants = [at for at, buffer in enumerate(kernel.inputs) if buffer.constant]
        size = sum(self.arrays[at].nbytes for at in constants)
        self.copies = []
        for _ in range(min(MOST_COPIES, -(-COPIED // size)) if size else 1):
            arrays = list(self.arrays)
            for at in constants:
                arrays[at] = aligned_empty(arrays[at].shape, arrays[at].dtype)
                arrays[at][...] = self.arrays[at]
            pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
            self.copies.append((arrays, pointers))
        self.turn = 0

    def __call__(self) -> None:
        self.turn = (self.turn + 1) % len(self.copies)
        self.function(ctypes.addressof(self.copies[self.turn][1]), *self.arguments[1:])


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel, its cycles as they were measured, and its estimate."""

    model: str
    kernel: FusedKernel
    cycles: float
    estimate: Estimate

    @property
    def error(self) -> float:
        """The logarithm of estimate over measurement."""
        return math.log(self.estimate.seconds * HERTZ / self.cycles)


def rows(models: list[str]) -> Iterator[Row]:
    """Measure each distinct kernel of the models."""
    target, seen = host_target(), set[str]()
    peak, flops = fma_peak(target)
    a_cycle = 2 * target.machine.vectors.fma * target.lanes(DType.F32)
    for model in models:
        program = kernels_of(import_model_proto(build_model(model)), target)
        for key, calls in program.kernel_calls().items():
            if key in seen:
                continue
            seen.add(key)
            kernel = calls[0].kernel
            run = Cold(kernel)
            run()
            ratios = [sample(run, 0.003) / sample(peak, 0.001) for _ in range(ROUNDS)]
            cycles = max(median(ratios) * flops / a_cycle - CALL_CYCLES, LEAST)
            yield Row(model, kernel, cycles, estimate(kernel, target))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--worst", type=int, default=10)
    given = parser.parse_args()
    if given.plain:
        choose_layouts.run = lambda graph, block: graph
    with pinned(1):
        found = list(rows(given.models.split(",")))
    print(f"{'kind':22}{'kernels':>8}{'mean':>8}{'spread':>8}")
    for kind in ("", *KINDS):
        errors = [row.error for row in found if kind in ("", row.estimate.kind)]
        if errors:
            name = kind or "all"
            print(f"{name:22}{len(errors):8}{fmean(errors):8.2f}{pstdev(errors):8.2f}")
    print(f"half are within {median(abs(row.error) for row in found):.0%}\n")
    for row in sorted(found, key=lambda row: -abs(row.error))[: given.worst]:
        shape = "x".join(map(str, row.kernel.output.shape))
        print(
            f"{row.error:+6.2f} {row.cycles:12,.0f} cycles  {row.model:16} {shape:18} "
            f"{row.estimate.kind:20} {row.kernel.name[:40]}"
        )


if __name__ == "__main__":
    main()
