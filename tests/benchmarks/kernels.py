"""Kernels against the machine: FLOPs against the FMA peak, bytes against the copy bandwidth.

    python -m tests.benchmarks.kernels [--match conv] [--trials 80] [--json]

Every kernel is imported from an ONNX model and built; the model's output is compared with
onnxruntime's before the kernel is timed. A short search (random, then neighbours of the best) picks
the schedule. Kernel, default schedule and yardstick then take turns on one pinned core; the figure
is the ratio of medians. Times are CPU times of the thread.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from tests.benchmarks.fma_peak import copy_bandwidth, fma_peak
from tunefarm.compiler import build
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.llvm import compile_kernel
from tunefarm.compiler.llvm.emit_kernel import emit_kernel
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.spec.buffers import aligned_empty
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule, ScheduleChoice
from tunefarm.compiler.schedule.space import ScheduleSpace
from tunefarm.compiler.schedule.spaces import default_schedule, schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.tuner.confirm.latency import outputs_agree, pinned
from tunefarm.tuner.model.packed_space import PackedSpace

MIB = 1 << 20
ELEMENTS = 16 * MIB // 4


@dataclass(frozen=True, slots=True)
class Case:
    """An ONNX model of one kernel of interest, and what that kernel is compared with."""

    name: str
    model: onnx.ModelProto
    kernel: str  # part of the kernel's name
    against: str  # "peak", "copy" or "direct"
    sketches: str = ""  # only sketches whose name starts so


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a case: seconds per call, and the share of the yardstick that is reached."""

    case: str
    seconds: float
    default_seconds: float
    ratio: float  # of peak, of copy bandwidth, or speed-up over direct
    choices: str


def model_of(
    nodes: Sequence[onnx.NodeProto], shape: Sequence[int], *weights: tuple[str, Sequence[int]]
) -> onnx.ModelProto:
    """A model with the input `x`, the output `y` and seeded weights."""
    rng = np.random.default_rng(0)
    initializers = [
        onnx.numpy_helper.from_array(
            (rng.standard_normal(extents) / np.sqrt(np.prod(extents[1:]))).astype(np.float32), name
        )
        for name, extents in weights
    ]
    graph = helper.make_graph(
        nodes,
        "kernel",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def conv_model(inputs: int, outputs: int, size: int, stride: int = 1) -> onnx.ModelProto:
    conv = helper.make_node(
        "Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[stride, stride]
    )
    return model_of(
        [conv, helper.make_node("Relu", ["c"], ["y"])],
        [1, inputs, size, size],
        ("w", (outputs, inputs, 3, 3)),
        ("b", (outputs,)),
    )


def matmul_model(m: int, k: int, n: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    return model_of(nodes, [m, k], ("w", (k, n)), ("b", (n,)))


def cases() -> list[Case]:
    """All cases of the table."""
    result = []
    for inputs, outputs, size, stride in (
        (64, 64, 56, 1),
        (128, 128, 28, 1),
        (256, 256, 14, 1),
        (64, 128, 56, 2),
        (128, 256, 28, 2),
        (128, 128, 56, 2),
        (256, 256, 28, 2),
    ):
        name = f"conv {inputs}->{outputs} {size}x{size} stride {stride}"
        model = conv_model(inputs, outputs, size, stride)
        result.append(Case(f"direct {name}", model, "conv", "peak", "tiled"))
    for channels, size in ((64, 56), (128, 28)):
        model = conv_model(channels, channels, size)
        result.append(
            Case(f"winograd {channels}x{size}x{size}", model, "conv", "direct", "winograd")
        )
    for m, k, n in ((128, 768, 768), (128, 768, 3072), (128, 3072, 768)):
        result.append(Case(f"matmul {m}x{k}x{n}", matmul_model(m, k, n), "matmul", "peak"))
    relu = helper.make_node("Relu", ["x"], ["y"])
    result.append(Case("elementwise 16 MiB", model_of([relu], [ELEMENTS]), "relu", "copy"))
    plain = helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 3, 1])
    shape = [1, 64, 256, 256]
    result.append(Case("layout change 16 MiB", model_of([plain], shape), "transpose", "copy"))
    pool = helper.make_node(
        "MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
    )
    result.append(Case("pooling 16 MiB", model_of([pool], shape), "pool", "copy"))
    return result


class Timed:
    """A kernel under a schedule, ready to be called."""

    def __init__(self, kernel: FusedKernel, schedule: Schedule) -> None:
        compiled = compile_kernel(kernel, schedule, host_target())
        layouts = dict(compiled.constant_layouts)
        rng = np.random.default_rng(0)
        self.arrays = []
        for buffer in kernel.inputs:
            values = rng.standard_normal(buffer.shape).astype(buffer.dtype.numpy)
            if buffer.name in layouts:
                values = layouts[buffer.name].pack(values)
            aligned = aligned_empty(values.shape, values.dtype)
            aligned[...] = values
            self.arrays.append(aligned)
        output = kernel.output
        self.arrays.append(aligned_empty(output.shape, output.dtype.numpy))
        self.workspace = aligned_empty((compiled.workspace_bytes,), np.dtype(np.uint8))
        self.runtime = (ctypes.c_int64 * 2)(0, 1)
        self.pointers = (ctypes.c_void_p * len(self.arrays))(*(a.ctypes.data for a in self.arrays))
        self.code = LoadedCode([compiled.object_code], [compiled.symbol])
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self.function = signature(self.code.address(compiled.symbol))
        self.arguments = (
            ctypes.addressof(self.pointers),
            self.workspace.ctypes.data,
            ctypes.addressof(self.runtime),
        )

    def __call__(self) -> None:
        self.function(*self.arguments)


def sample(run: Callable[[], None], seconds: float = 0.01) -> float:
    """Seconds per call, over at least `seconds` of calls."""
    calls = 1
    while True:
        start = time.thread_time()
        for _ in range(calls):
            run()
        spent = time.thread_time() - start
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


def search(kernel: FusedKernel, space: ScheduleSpace, trials: int) -> Schedule:
    """The best of a short search: random candidates, then neighbours of the best."""
    rng, generator = random.Random(0), np.random.default_rng(0)
    packed = PackedSpace(space)
    known: dict[int, float] = {}
    best = space.default()
    for trial in range(trials):
        if trial:
            best_number = min(known, key=known.__getitem__)
            best = space.candidate(best_number)
            if trial > trials // 2:
                candidate = packed.unpack(packed.mutate(packed.pack([best]), generator)[0])
            else:
                candidate = space.sample(rng)
        else:
            candidate = best
        number = space.number(candidate)
        if number not in known:
            known[number] = median(
                sample(timed, 0.004) for timed in [Timed(kernel, space.schedule(candidate))] * 3
            )
    return space.schedule(space.candidate(min(known, key=known.__getitem__)))


def kernel_of(case: Case) -> FusedKernel:
    """The kernel that the case is about."""
    program = kernels_of(import_model_proto(case.model), host_target())
    calls = [call for call in program.calls if isinstance(call, KernelCall)]
    return next(call.kernel for call in calls if case.kernel in call.kernel.name)


def check(case: Case, kernel: FusedKernel, schedule: Schedule) -> None:
    """The model, with this schedule for the kernel, agrees with onnxruntime."""
    executable = build(
        import_model_proto(case.model),
        lambda other: ScheduleChoice(schedule, "benchmark") if other == kernel else None,
    )
    shape = executable.inputs["x"].shape
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    session = onnxruntime.InferenceSession(case.model.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    if not outputs_agree(executable.run({"x": x})["y"], expected):
        raise SystemExit(f"{case.name}: the output differs from onnxruntime's; nothing was timed")


def flops_of(kernel: FusedKernel) -> int:
    anchor = kernel.stage(kernel.anchor)
    return 2 * int(np.prod([axis.extent for axis in (*anchor.axes, *anchor.reduce_axes)]))


def bytes_of(kernel: FusedKernel) -> int:
    tensors = [*(buffer.type for buffer in kernel.inputs)]
    size = int(np.prod(kernel.output.shape)) * kernel.output.dtype.bytes
    return sum(tensor.bytes for tensor in tensors) + size


def measure(case: Case, trials: int, rounds: int) -> Row:
    """Search, check against onnxruntime, then time in turn with the yardstick."""
    target = host_target()
    kernel = kernel_of(case)
    space = schedule_space(kernel, target)
    chosen = [s for s in space.sketches if s.name.startswith(case.sketches)]
    schedule = search(kernel, ScheduleSpace(chosen), trials)
    default = default_schedule(kernel, target)
    for timed in (schedule, default):
        check(case, kernel, timed)
    if case.against == "peak":
        yardstick, work = fma_peak(target)
        own_work = flops_of(kernel)
    elif case.against == "copy":
        yardstick, work = copy_bandwidth(16 * MIB)
        own_work = bytes_of(kernel)
    else:
        direct = [s for s in space.sketches if s.name.startswith("tiled")]
        best = search(kernel, ScheduleSpace(direct), trials)
        check(case, kernel, best)
        yardstick = Timed(kernel, best)
        work = own_work = 1
    runs: list[Callable[[], None]] = [Timed(kernel, schedule), Timed(kernel, default), yardstick]
    ours, untuned, other = interleave(runs, rounds)
    steps = str(schedule).split("\n")
    return Row(case.name, ours, untuned, (own_work / ours) / (work / other), steps[0])


def candidate_times(count: int) -> tuple[float, float]:
    """Medians over candidates of a 3x3 convolution: Python, and Python with LLVM, in seconds.

    Without garbage collection, as in the workers that build candidates.
    """
    gc.collect()
    gc.disable()
    target = host_target()
    case = Case("", conv_model(128, 128, 28), "conv", "peak")
    kernel = kernel_of(case)
    space = schedule_space(kernel, target)
    rng = random.Random(0)
    python, whole = [], []
    for _ in range(count):
        candidate = space.sample(rng)
        start = time.thread_time()
        text, _ = emit_kernel(lower(kernel, space.schedule(candidate)), target, "kernel")
        python.append(time.thread_time() - start)
        object_code(text, target)
        whole.append(time.thread_time() - start)
    gc.enable()
    return median(python), median(whole)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--match", default="", help="only cases with this in their name")
    parser.add_argument("--trials", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = []
    with pinned(1):
        for case in cases():
            if options.match in case.name:
                row = measure(case, options.trials, options.rounds)
                rows.append(row)
                if not options.json:
                    what = {"peak": "of peak", "copy": "of copy", "direct": "x direct"}[
                        case.against
                    ]
                    print(
                        f"{row.case:36} {1e3 * row.seconds:9.3f} ms  {row.ratio:5.2f} {what:8}  "
                        f"default {1e3 * row.default_seconds:9.3f} ms",
                        flush=True,
                    )
        if options.match in "candidate":
            python, whole = candidate_times(30)
            if not options.json:
                print(
                    f"one candidate of a 3x3 convolution: {1e3 * whole:.0f} ms, "
                    f"of which Python {1e3 * python:.0f} ms"
                )
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
