"""What `Executable.run` costs on top of the entry function, in microseconds.

    python -m tests.benchmarks.overhead [--rounds 5000] [--limit 20] [--json]

The bare entry is called through ctypes with pointers that are ready. Calls of both are timed one by
one, in turns, and the difference of the medians is the overhead: checking names, types and shapes,
finding addresses, making the outputs. `tiny` is a small network, `image` has one input and one
output of an image network's sizes, `many` has eight of each. Exits with 1 above `--limit`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler import build
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import ENTRY_SYMBOL
from tunefarm.tuner.confirm.drawn_inputs import seeded_inputs
from tunefarm.tuner.confirm.latency import pinned

_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)


def flat_model(count: int, image: bool) -> onnx.ModelProto:
    """`count` inputs and outputs: rows of 16 elements, or images and their channels' means."""
    shape = [1, 3, 224, 224] if image else [1, 16]
    nodes, inputs, outputs = [], [], []
    for i in range(count):
        inputs.append(helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, shape))
        result = [1, 3, 1, 1] if image else shape
        outputs.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, result))
        operator = "GlobalAveragePool" if image else "Relu"
        nodes.append(helper.make_node(operator, [f"x{i}"], [f"y{i}"]))
    graph = helper.make_graph(nodes, "flat", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "tiny": tiny_model,
    "image": lambda: flat_model(1, image=True),
    "many": lambda: flat_model(8, image=False),
}


def unaligned(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """A copy that starts 16 bytes behind a cache line, as most arrays that NumPy makes do."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + 16
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def overhead(executable: Executable, rounds: int) -> dict[str, float]:
    """Median microseconds of `run`, with new and with given outputs, and of the entry alone."""
    seeded = seeded_inputs(executable.inputs)
    inputs = {name: unaligned(array) for name, array in seeded.items()}
    out = executable.run(inputs)
    frame = executable.new_frame()
    arrays = frame.bind_inputs(inputs)
    results = frame.bind_outputs(None, arrays)
    entry, arguments = _ENTRY(executable.kernel_address(ENTRY_SYMBOL)), frame.arguments
    calls: dict[str, Callable[[], object]] = {
        "run": lambda: executable.run(inputs),
        "run_into": lambda: executable.run(inputs, out),
        "entry": lambda: entry(*arguments),
    }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    clock = time.perf_counter
    for _ in range(rounds):
        for name, call in calls.items():
            start = clock()
            call()
            samples[name].append(clock() - start)
    for name, array in results.items():
        if not np.array_equal(array, out[name]):
            raise SystemExit(f"output {name} of the bare entry differs from run's")
    return {name: 1e6 * median(times) for name, times in samples.items()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--limit", type=float, default=20.0, help="microseconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = []
    with pinned(1):
        for name, make in MODELS.items():
            times = overhead(build(import_model_proto(make())), options.rounds)
            costs = {f"{key}_overhead": times[key] - times["entry"] for key in ("run", "run_into")}
            rows.append({"model": name, **times, **costs})
    if options.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(
                f"{row['model']:6} entry {row['entry']:8.2f} us   "
                f"run + {row['run_overhead']:5.2f} us   "
                f"run(out=...) + {row['run_into_overhead']:5.2f} us"
            )
    worst = max(float(str(row["run_overhead"])) for row in rows)
    return 1 if worst > options.limit else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
