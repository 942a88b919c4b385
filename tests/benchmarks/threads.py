"""What threads bring: the cost of a fork and join, and each kernel with and without them.

    python -m tests.benchmarks.threads [resnet50] [--threads 2] [--db tuning.db] [--json]

The fork-join cost is that of a parallel loop of one addition per thread, against the same loop run
serially. Kernels have their recorded schedules for that many threads, else their default ones, and
take turns with themselves on one thread. Times are wall-clock medians. The model, built so, is
compared with onnxruntime before any kernel is timed. Beside each kernel stands the share of the
threads' time in which its loops keep them busy, and at the end what the model could gain by that.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from tests.benchmarks.kernels import Timed
from tests.compiler.schedule.shares import longest_share, work
from tunefarm.compiler import build
from tunefarm.compiler.expr.nodes import binary, const
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.frontend.zoo import model_names, write_model
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, KernelCall
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.runtime.machine.threads import make_runtime
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import ChooseSchedule, Schedule
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Parallelize
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.db.store import Store
from tunefarm.tuner.building.apply_best import choose_from
from tunefarm.tuner.commands.engines import onnxruntime_session
from tunefarm.tuner.confirm.latency import aligned_inputs, outputs_agree, pinned


class Threaded(Timed):
    """A kernel that runs on several threads."""

    def __init__(self, kernel: FusedKernel, schedule: Schedule, threads: int) -> None:
        super().__init__(kernel, schedule)
        self.team, _ = make_runtime(threads)
        self.arguments = (*self.arguments[:2], ctypes.addressof(self.team))


def sample(run: Callable[[], None], seconds: float = 0.01) -> float:
    """Wall-clock seconds per call, over at least `seconds` of calls."""
    calls = 1
    while True:
        start = time.perf_counter()
        for _ in range(calls):
            run()
        spent = time.perf_counter() - start
        if spent >= seconds:
            return spent / calls
        calls = max(2 * calls, int(1.2 * seconds / max(spent, 1e-9) * calls))


def interleave(runs: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """Medians of samples that are taken in turn."""
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, kept in zip(runs, samples, strict=True):
            kept.append(sample(run))
    return [median(kept) for kept in samples]


def fork_join_seconds(threads: int, rounds: int) -> float:
    """What a parallel loop costs that has nothing to do."""
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (threads,)))
    one = const(1.0, DType.F32)
    builder.stage("y", [("i", threads)], lambda i: binary("add", x[i], one))
    kernel = builder.kernel("empty", "y")
    schedule = Schedule((Parallelize("y", "i"),))
    serial, parallel = (Threaded(kernel, schedule, count) for count in (1, threads))
    alone, together = interleave([serial, parallel], rounds)
    return together - alone


def check(path: Path, choose: ChooseSchedule | None, threads: int) -> None:
    """The model with these schedules gives what onnxruntime gives."""
    executable = build(path, choose, threads=threads)
    inputs = aligned_inputs(executable)
    outputs = executable.run(inputs)
    expected = onnxruntime_session(str(path), threads)(inputs)
    for name, array in outputs.items():
        if not outputs_agree(array, expected[name]):
            raise SystemExit(f"{path}: output {name} differs from onnxruntime's; nothing was timed")


def kernel_rows(
    path: Path, target: Target, threads: int, choose: ChooseSchedule | None, rounds: int
) -> list[dict[str, object]]:
    """Each distinct kernel: how often it runs, its times on one and on several threads."""
    program = kernels_of(import_onnx(path), target)
    kernels = [call.kernel for call in program.calls if isinstance(call, KernelCall)]
    times = Counter(workload_key(kernel) for kernel in kernels)
    rows: list[dict[str, object]] = []
    for key, kernel in {workload_key(kernel): kernel for kernel in kernels}.items():
        choice = choose(kernel) if choose else None
        schedule = choice.schedule if choice else default_schedule(kernel, target, threads)
        runs = [Threaded(kernel, schedule, count) for count in (1, threads)]
        alone, together = interleave(runs, rounds)
        rows.append(
            {
                "kernel": kernel.name,
                "key": key,
                "times": times[key],
                "seconds": alone,
                "threaded": together,
                "speedup": alone / together,
                "busy": _busy(kernel, schedule, threads),
                "output": list(kernel.output.shape),
            }
        )
    return rows


def _busy(kernel: FusedKernel, schedule: Schedule, threads: int) -> float:
    """The share of the threads' time in which they have a piece of the kernel to work on."""
    body = lower(kernel, schedule).body
    return work(body) / longest_share(body, threads) / threads


def attainable(rows: Sequence[dict[str, object]], threads: int) -> float:
    """One thread's time over that of several, if they wait for nothing but for pieces of work."""
    alone = [float(str(row["seconds"])) * int(str(row["times"])) for row in rows]
    busy = [float(str(row["busy"])) for row in rows]
    return sum(alone) / sum(s / (b * threads) for s, b in zip(alone, busy, strict=True))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="resnet50", help=", ".join(model_names()))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--db", help="tuning database")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    target, threads = host_target(), options.threads
    with pinned(threads), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = Path(options.model)
        if not path.exists():
            path = write_model(options.model, folder / "model.onnx")
        choose = None
        if options.db:
            store = stack.enter_context(Store.open(options.db))
            choose = choose_from(store, target, threads, "default")
        check(path, choose, threads)
        cost = fork_join_seconds(threads, options.rounds)
        rows = kernel_rows(path, target, threads, choose, options.rounds)
    if options.json:
        gain = attainable(rows, threads)
        print(json.dumps({"fork_join_seconds": cost, "attainable": gain, "kernels": rows}))
        return 0
    print(f"fork and join of {threads} threads: {1e6 * cost:.1f} us")
    rows.sort(key=lambda row: -float(str(row["threaded"])) * int(str(row["times"])))
    for row in rows:
        print(
            f"{row['kernel']!s:20} {str(row['key'])[:8]} x{row['times']:<3} "
            f"{1e3 * float(str(row['seconds'])):8.3f} ms -> "
            f"{1e3 * float(str(row['threaded'])):8.3f} ms  {row['speedup']:.2f} x  "
            f"{row['busy']:4.0%} busy  {row['output']}"
        )
    print(f"attainable with these pieces: {attainable(rows, threads):.2f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
